"""Requests, prices and ledgers for the tests of the client, the replies and the ledger."""

import json
import math
from pathlib import Path

import yaml

from lib import paths
from lib.ledger import Ledger, Prices
from lib.prompting import ANSWER_SCHEMA
from lib.replies import Request
from tests.stub_service import answer

GOOD = answer(("Finding 0.", [0]))
WORD_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["word"],
    "properties": {"word": {"type": "string"}},
}


def question(name: str = "q0", **given) -> Request:
    messages = ({"role": "system", "content": "Answer."}, {"role": "user", "content": f"Question {name}."})
    return Request(f"r|{name}", messages, ANSWER_SCHEMA, **given)


def ledger(folder: Path, prices: Prices | None = None, budget: float | None = None) -> Ledger:
    return Ledger(folder / "ledger.jsonl", prices or Prices(), budget)


def prices_of(folder: Path, **table) -> Prices:
    return Prices(paths.write_text(folder / "prices.yaml", yaml.safe_dump(table)))


# Dollars per million tokens at which the stub's reply of 100 + 20 tokens costs 0.001 + 0.002.
TABLE = {"gpt-4o-mini": {"input": 10, "output": 100}}
REPLY_COST = 0.003
ONE_ATTEMPT = {"reply_attempts": 1, "max_tokens": 40}


def highest_cost(request: Request) -> float:
    """Of one attempt: a quarter of the prompt's characters in, all of `max_tokens` out."""
    characters = sum(len(message["content"]) for message in request.messages) + len(json.dumps(request.schema))
    return (math.ceil(characters / 4) * 10 + 40 * 100) / 1e6
