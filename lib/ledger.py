"""What replies cost: prices, estimates, and the ledger of a sweep with its budget."""

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import StopEverything, WorkbookError
from lib.replies import UNANSWERED, Reply, Request
from lib.variants import ServiceSpec, read_yaml

CHARACTERS_A_TOKEN = 4  # for estimates only; what is charged is what the service reports


class Prices:
    """Dollars per million tokens of each model, from `params/prices.yaml`."""

    def __init__(self, path: Path | None = None):
        self.path = path or paths.PARAMS / "prices.yaml"
        self.table = read_yaml(self.path)
        for model, price in self.table.items():
            if not isinstance(price, dict) or not all(_is_price(price.get(part)) for part in ("input", "output")):
                raise WorkbookError(f"{self.path}: the price of '{model}' needs 'input' and 'output' in dollars")

    def cost(self, model: str, prompt_tokens: int, completion_tokens: int, batch: bool = False) -> float | None:
        """Dollars of a request, half of that in a batch where the table says so; None for a model without a price."""
        dated = (price for name, price in self.table.items() if model.startswith(f"{name}-20"))
        price = self.table.get(model) or next(dated, None)
        if price is None:
            return None
        dollars = (prompt_tokens * price["input"] + completion_tokens * price["output"]) / 1e6
        return dollars * price.get("batch_factor", 1.0) if batch else dollars


def _is_price(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def estimate_tokens(request: Request) -> int:
    """Prompt tokens of a request, about: a quarter of its characters, the schema's included."""
    length = sum(len(message["content"]) for message in request.messages) + len(json.dumps(request.schema))
    return -(-length // CHARACTERS_A_TOKEN)


class Ledger:
    """What a sweep has spent: one line a reply that was drawn, appended as it comes."""

    def __init__(self, path: Path, prices: Prices, budget: float | None = None):
        self.path, self.prices, self.budget = path, prices, budget
        self.spent = sum(row["dollars"] or 0.0 for row in _whole_lines(path))
        self._promised: dict[str, float] = {}
        self._lock = threading.Lock()

    def admit(self, service: ServiceSpec, request: Request) -> bool:
        """Whether a request may be sent: all that is spent and in flight, and its own highest cost, fit the budget."""
        if self.budget is None:
            return True
        highest = self.prices.cost(service.model, estimate_tokens(request), service.max_tokens)
        if highest is None:
            raise StopEverything(f"{self.prices.path}: no price for '{service.model}'; a budget needs one")
        highest *= service.reply_attempts
        if self.spent + sum(self._promised.values()) + highest > self.budget:
            return False
        self._promised[request.request_id] = highest
        return True

    def add(self, service: ServiceSpec, request: Request, reply: Reply) -> None:
        """Book a reply, unless it came from the store or never came."""
        if not reply.cached and reply.status not in UNANSWERED:
            with self._lock:
                self._book(service, request, reply)

    def release(self, request: Request) -> None:
        """A request is no longer in flight: what it cost is booked, and nothing more will come of it."""
        self._promised.pop(request.request_id, None)

    def _book(self, service: ServiceSpec, request: Request, reply: Reply) -> None:
        dollars = self.prices.cost(service.model, reply.prompt_tokens, reply.completion_tokens)
        self.spent += dollars or 0.0
        row = {
            "request_id": request.request_id,
            "model": reply.model or service.model,
            "status": reply.status,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "dollars": dollars,
        }
        paths.append_line(self.path, json.dumps(row))  # unrounded: single replies cost millionths of a dollar


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with open(path, "rb") as file:
            yield from (json.loads(line) for line in file if line.endswith(b"\n"))
