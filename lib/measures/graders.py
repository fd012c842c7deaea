"""Answers -> a bank of nuggets, and a grade from 0 to 5 of each answer on each nugget (METHOD, section 7).

To mine a bank, all answers of the pool are compared pair by pair, in both orders, ties allowed, and
nuggets are taken from the winners. A model service grades and mines questions. The `proxy`, which
needs none, takes similarities of sentence vectors: it measures closeness of wording, not truth.
"""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib import prompting
from lib.encoders import Encoder
from lib.ledger import Ledger
from lib.llm import Client, ask_all
from lib.measures.banks import MAX_NUGGETS, Bank, Nugget, read_bank
from lib.replies import Reply, Request, closed, list_of, whole_number
from lib.runs import Response, Runs, pool_label, responses
from lib.score_tables import OK
from lib.slices import Query, Slice
from lib.text import one_line

TIE = 0.02  # mean cosines with the query closer than this are a tie for the proxy
SAME = 0.8  # sentences whose cosine reaches this say the same for the proxy


class Preferences(NamedTuple):
    """The outcome of comparing a query's answers: net wins by run, and how often the order decided.

    Of `compared` pairs that got both judgements, `swapped` had two that contradict each other; such a
    pair is a tie. `failed` counts pairs without two judgements.
    """

    net: dict[str, int]
    compared: int
    swapped: int
    failed: int = 0


def net_wins(runs: Sequence[str], verdicts: dict[tuple[str, str], str | None]) -> Preferences:
    """Preferences from `verdicts`: (run shown first, run shown second) -> `first`, `second`, `tie`, or None.

    A pair is won if both orders agree, or one says tie and the other does not; else it is a tie.
    """
    net = dict.fromkeys(runs, 0)
    compared = swapped = failed = 0
    for a, b in combinations(runs, 2):
        there, back = verdicts.get((a, b)), verdicts.get((b, a))
        if there is None or back is None:
            failed += 1
            continue
        compared += 1
        points = {"first": 1, "second": -1, "tie": 0}
        sums = points[there] - points[back]
        swapped += points[there] * points[back] > 0
        if sums:
            net[a] += 1 if sums > 0 else -1
            net[b] -= 1 if sums > 0 else -1
    return Preferences(net, compared, swapped, failed)


def winners(preferences: Preferences) -> list[str]:
    """The runs that won more than they lost, best first, ties by name; all of them where none did."""
    ranked = sorted(preferences.net, key=lambda run: (-preferences.net[run], run))
    return [run for run in ranked if preferences.net[run] > 0] or ranked


class ProxyGrader:
    """Nuggets and grades without a model service, from cosines of sentence vectors.

    Preference: the answer whose sentences are closer to the query on average, a tie within 0.02; no order
    effect by construction. Nuggets: sentences of the winners, best run first, leaving out any whose cosine with an
    earlier nugget reaches 0.8. Grade: the largest cosine of the nugget (question and answer as one text)
    with an answer's sentence, times 5, rounded; so a nugget counts as covered from a cosine of 0.7 on.
    """

    name = "proxy"

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self.model = encoder.label

    def mine(self, runs: Runs, queries: Sequence[Query]) -> tuple[Bank, dict[str, Preferences]]:
        """A bank of claims from the winners of every query, and the preferences behind it."""
        vectors = self._vectors([q.text for q in queries] + [s for r in responses(runs) for s in r.said])
        bank, told = {}, {}
        for query in queries:
            answers = {name: run[query.query_id] for name, run in runs.items() if run[query.query_id].text.strip()}
            close = {n: _mean(float(vectors[query.text] @ vectors[s]) for s in a.said) for n, a in answers.items()}
            verdicts = {(a, b): _closer(close[a], close[b]) for a in close for b in close if a != b}
            told[query.query_id] = net_wins(sorted(close), verdicts)
            sentences = [s for name in winners(told[query.query_id]) for s in answers[name].said]
            bank[query.query_id] = self._distinct(sentences, vectors)
        return Bank(f"mined by proxy {self.model}", bank, pool_label(runs)), told

    def _distinct(self, sentences: list[str], vectors: dict[str, np.ndarray]) -> list[Nugget]:
        kept: list[str] = []
        for sentence in sentences:
            if len(kept) < MAX_NUGGETS and all(float(vectors[sentence] @ vectors[other]) < SAME for other in kept):
                kept.append(sentence)
        return [Nugget(f"n{number}", one_line(text), is_claim=True) for number, text in enumerate(kept, 1)]

    def grade(self, runs: Runs, queries: Sequence[Query], bank: Bank) -> "Grades":
        """The grade of every response on every nugget of its query."""
        texts = [_text(n) for nuggets in bank.nuggets.values() for n in nuggets]
        vectors = self._vectors(texts + [s for r in responses(runs) for s in r.said])
        return {
            (r.run, r.query_id): ({n.nugget_id: self._grade(n, r, vectors) for n in bank.nuggets.get(r.query_id, [])}, OK)
            for r in responses(runs)
        }

    def _grade(self, nugget: Nugget, response: Response, vectors: dict[str, np.ndarray]) -> int:
        closest = max((float(vectors[_text(nugget)] @ vectors[sentence]) for sentence in response.said), default=0.0)
        return round(5 * min(1.0, max(0.0, closest)))

    def _vectors(self, texts: Iterable[str]) -> dict[str, np.ndarray]:
        distinct = list(dict.fromkeys(texts))
        return dict(zip(distinct, self.encoder.encode(distinct).vectors, strict=True))


def _mean(values: Iterable[float]) -> float:
    given = list(values)
    return sum(given) / len(given)


def _closer(first: float, second: float) -> str:
    return "tie" if abs(first - second) < TIE else "first" if first > second else "second"


def _text(nugget: Nugget) -> str:
    return f"{nugget.text} {nugget.answer}".strip()


PREFERENCE_SCHEMA = closed(better={"type": "string", "enum": ["first", "second", "tie"]})
QUESTIONS_SCHEMA = closed(questions=list_of({"type": "string"}))
GRADES_SCHEMA = closed(grades=list_of(closed(nugget_id={"type": "string"}, grade={"type": ["integer", "string"]})))


class LLMGrader:
    """Nuggets and grades by a model service; the answers are shown without the names of their systems."""

    MINED_FROM = 3  # so many winners a query are mined

    def __init__(self, client: Client, ledger: Ledger):
        self.client, self.ledger = client, ledger
        self.name = self.model = client.service.model

    def mine(self, runs: Runs, queries: Sequence[Query]) -> tuple[Bank, dict[str, Preferences]]:
        """A bank of questions mined from the winners of every query, and the preferences behind it."""
        told = self._preferences(runs, queries)
        prompt = prompting.load_prompt("mine", ("query", "answer"))
        requests: dict[tuple[str, str], Request] = {}
        for query in queries:
            for name in winners(told[query.query_id])[: self.MINED_FROM]:
                key, about = (query.query_id, name), {"query": query.text, "answer": runs[name][query.query_id].text}
                requests[key] = prompting.request(
                    _id("mine", *key), prompt, about, QUESTIONS_SCHEMA, check=_questions_fault
                )
        replies = self._ask(list(requests.values()))
        questions: dict[str, dict[str, str]] = {query.query_id: {} for query in queries}
        for (query_id, _), request in requests.items():
            reply = replies[request.request_id]
            for text in reply.value["questions"] if reply.status == OK else []:
                questions[query_id].setdefault(one_line(text).casefold(), one_line(text))
        bank = {
            query_id: [Nugget(f"n{n}", text) for n, text in enumerate(list(found.values())[:MAX_NUGGETS], 1)]
            for query_id, found in questions.items()
        }
        return Bank(f"mined by {self.model}", bank, pool_label(runs)), told

    def _preferences(self, runs: Runs, queries: Sequence[Query]) -> dict[str, Preferences]:
        prompt = prompting.load_prompt("prefer", ("query", "first", "second"))
        requests: dict[tuple[str, str, str], Request] = {}
        there = {q.query_id: sorted(n for n, run in runs.items() if run[q.query_id].text.strip()) for q in queries}
        for query in queries:
            for a, b in combinations(there[query.query_id], 2):
                for first, second in ((a, b), (b, a)):
                    about = {"query": query.text}
                    about |= {"first": runs[first][query.query_id].text, "second": runs[second][query.query_id].text}
                    key = query.query_id, first, second
                    requests[key] = prompting.request(_id("prefer", *key), prompt, about, PREFERENCE_SCHEMA)
        replies = self._ask(list(requests.values()))
        verdicts: dict[str, dict[tuple[str, str], str | None]] = {query.query_id: {} for query in queries}
        for (query_id, first, second), request in requests.items():
            reply = replies[request.request_id]
            verdicts[query_id][first, second] = reply.value["better"] if reply.status == OK else None
        return {query_id: net_wins(there[query_id], found) for query_id, found in verdicts.items()}

    def grade(self, runs: Runs, queries: Sequence[Query], bank: Bank) -> "Grades":
        """The grades of every response; a response that the service failed to grade has a status and no grades."""
        prompt = prompting.load_prompt("grade", ("query", "nuggets", "answer"))
        texts = {query.query_id: query.text for query in queries}
        requests: dict[tuple[str, str], Request] = {}
        grades: Grades = {}
        for response in responses(runs):
            nuggets = bank.nuggets.get(response.query_id, [])
            if not nuggets or not response.text.strip():
                grades[response.run, response.query_id] = {nugget.nugget_id: 0 for nugget in nuggets}, OK
                continue
            listed = [{"nugget_id": nugget.nugget_id, "question": _text(nugget)} for nugget in nuggets]
            about = {"query": texts[response.query_id], "nuggets": listed, "answer": response.text}
            key = response.run, response.query_id
            check = partial(grades_fault, wanted=[nugget.nugget_id for nugget in nuggets])
            requests[key] = prompting.request(_id("grade", *key), prompt, about, GRADES_SCHEMA, check=check)
        replies = self._ask(list(requests.values()))
        for key, request in requests.items():
            reply = replies[request.request_id]
            rows = reply.value["grades"] if reply.status == OK else []
            grades[key] = {row["nugget_id"]: whole_number(row["grade"], 0, 5) for row in rows}, reply.status
        return grades

    def _ask(self, requests: list[Request]) -> dict[str, Reply]:
        return ask_all(self.client, requests, self.ledger)


def _id(*parts: str) -> str:
    """The id of a request; no two lists of parts share one."""
    return json.dumps(parts, ensure_ascii=False)


Grades = dict[tuple[str, str], tuple[dict[str, int], str]]  # (run, query_id) -> nugget_id -> grade, and a status


def grades_fault(value: dict[str, Any], wanted: Sequence[str]) -> tuple[str, str] | None:
    """Why grades that follow the schema cannot be used: not every nugget once, or a grade that is none."""
    given = [row["nugget_id"] for row in value["grades"]]
    if sorted(given) != sorted(wanted):
        lacking = sorted(set(wanted) - set(given))
        return "off-schema", f"nuggets graded: {len(given)} of {len(wanted)}" + (f", not '{lacking[0]}'" if lacking else "")
    for row in value["grades"]:
        if whole_number(row["grade"], 0, 5) is None:
            return "off-schema", f"nugget '{row['nugget_id']}': {row['grade']!r} is no grade from 0 to 5"
    return None


def _questions_fault(value: dict[str, Any]) -> tuple[str, str] | None:
    asked = [text for text in value["questions"] if any(c.isalnum() for c in text)]
    return None if len(asked) == len(value["questions"]) > 0 else ("empty", "no question, or a blank one")


def bank_of(
    slice_: Slice, runs: Runs, grader: ProxyGrader | LLMGrader, frozen: Path | None = None
) -> tuple[Bank, dict[str, Preferences]]:
    """The bank to grade with: a frozen one, the slice's own, or one mined from the pool."""
    own = slice_.folder / "nuggets.jsonl"
    if frozen or own.exists():
        bank, wanted = read_bank(frozen or own), {query.query_id for query in slice_.queries}
        return bank._replace(nuggets={q: found for q, found in bank.nuggets.items() if q in wanted}), {}
    return grader.mine(runs, slice_.queries)
