"""Nuggets: what an answer should say, and how well each answer says it (METHOD, section 7).

A bank holds at most 20 nuggets a query. It is read from `nuggets.jsonl` or a frozen bank, or mined:
all answers of the pool are compared pair by pair, in both orders, ties allowed, and nuggets are taken
from the winners. Each answer is graded 0-5 on each nugget.

Graders and miners come in two kinds. A model service grades and mines questions. The `proxy`, which
needs none, takes similarities of sentence vectors: it measures closeness of wording, not truth.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib import paths, prompting, readers
from lib.encoders import Encoder
from lib.errors import WorkbookError
from lib.llm import Client, Ledger, Reply, Request, ask_all
from lib.runs import Response, Runs, pool_label, responses
from lib.score_tables import MISSING, OK, Score
from lib.slices import Query, Slice
from lib.text import one_line

MAX_NUGGETS = 20
COVERED = 4  # a nugget graded so high counts as covered
TIE = 0.02  # mean cosines with the query closer than this are a tie for the proxy
SAME = 0.8  # sentences whose cosine reaches this say the same for the proxy


class Nugget(NamedTuple):
    """A question that an answer should answer, or a claim it should make; with its answer where it is known."""

    nugget_id: str
    text: str
    answer: str = ""
    importance: str = ""
    is_claim: bool = False


class Bank(NamedTuple):
    """The nuggets of a slice: query_id -> nuggets. `source` says where they come from, `pool` which answers."""

    source: str
    nuggets: dict[str, list[Nugget]]
    pool: str = ""

    @property
    def version(self) -> str:
        """The first 12 hexadecimal digits of a hash of all that is in the bank."""
        text = json.dumps(self.nuggets, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


class Preferences(NamedTuple):
    """The outcome of comparing a query's answers: net wins by run, and how often the order decided.

    Of `compared` pairs that got both judgements, `swapped` had two that contradict each other; such a
    pair is a tie. `failed` counts pairs without two judgements.
    """

    net: dict[str, int]
    compared: int
    swapped: int
    failed: int = 0


def read_bank(path: Path) -> Bank:
    """A frozen bank, or a `nuggets.jsonl` of records `query_id`, `nuggets`. Raises WorkbookError naming file and line."""
    nuggets: dict[str, list[Nugget]] = {}
    about: dict[str, Any] = {}
    for fields, place in readers.read_records(path, report=_raise, strict=True):
        query_id = readers.as_id(readers.pick(fields, readers.QUERY_ID), place)
        if query_id is None or query_id in nuggets:
            raise WorkbookError(f"{place}: expected one record a query, with its 'query_id'")
        found = _frozen(fields, place) if fields.keys() & {"nugget_bank", "claim_bank"} else _listed(fields, place)
        _check_distinct(found, query_id, place)
        nuggets[query_id] = found
        about = fields.get("metadata") or about
        if not isinstance(about, dict):
            raise WorkbookError(f"{place}: 'metadata' must be an object")
    bank = Bank(str(about.get("source", path.name)), nuggets, str(about.get("pool", "")))
    if about.get("version", bank.version) != bank.version:
        raise WorkbookError(f"{path}: the bank was changed since it was frozen as version {about['version']}; restore it")
    return bank


def _raise(problem: str) -> None:
    raise WorkbookError(problem)


def _check_distinct(found: list[Nugget], query_id: str, place: str) -> None:
    for what, names in {"id": [n.nugget_id for n in found], "text": [n.text for n in found]}.items():
        if len(set(names)) < len(names):
            raise WorkbookError(f"{place}: two nuggets of query '{query_id}' have one {what}; keep one")
    if len(found) > MAX_NUGGETS:
        raise WorkbookError(f"{place}: query '{query_id}' has {len(found)} nuggets; at most {MAX_NUGGETS} are allowed")


def _listed(fields: dict[str, Any], place: str) -> list[Nugget]:
    rows = fields.get("nuggets")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise WorkbookError(f"{place}: expected 'nuggets', a list of objects with a 'question'")
    return [
        _nugget(row, row.get("nugget_id"), "question", f"n{n}", row.get("answer"), place) for n, row in enumerate(rows, 1)
    ]


def _frozen(fields: dict[str, Any], place: str) -> list[Nugget]:
    found = []
    for key, kind in (("nugget_bank", "question"), ("claim_bank", "claim")):
        rows = fields.get(key) or {}
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            raise WorkbookError(f"{place}: '{key}' must be an object of objects")
        for row in rows.values():
            answers = row.get("answers") or {}
            answer = next(iter(answers), "") if isinstance(answers, dict) else ""
            found.append(_nugget(row, row.get(f"{kind}_id"), kind, "", answer, place))
    return found


def _nugget(row: dict[str, Any], given: Any, kind: str, default: str, answer: Any, place: str) -> Nugget:
    nugget_id = readers.as_id(given, place) or default
    text, importance = row.get(kind), row.get("importance")
    if not nugget_id or not isinstance(text, str) or not text.strip():
        raise WorkbookError(f"{place}: a nugget needs '{kind}_id' and '{kind}'")
    texts = (paths.encodable(str(part or "")) for part in (text, answer, importance))
    return Nugget(nugget_id, *texts, is_claim=kind == "claim")


def write_bank(path: Path, bank: Bank, queries: Sequence[Query]) -> Path:
    """Freeze a bank: one line a query in the format of TREC AutoJudge's nugget banks, v3; returns the path."""
    there = [query for query in queries if query.query_id in bank.nuggets]
    kept = bank._replace(nuggets={query.query_id: bank.nuggets[query.query_id] for query in there})
    about = {"source": kept.source, "pool": kept.pool, "version": kept.version}
    paths.write_jsonl(path, (_bank_row(query, kept.nuggets[query.query_id], about) for query in there))
    return path


def _bank_row(query: Query, nuggets: list[Nugget], about: dict[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"query_id": query.query_id, "title_query": query.text, "format_version": "v3"}
    row |= {"nugget_bank": {}, "claim_bank": {}, "metadata": about}
    for nugget in nuggets:
        kind = "claim" if nugget.is_claim else "question"
        about_it = {"query_id": query.query_id, kind: nugget.text, f"{kind}_id": nugget.nugget_id}
        if nugget.importance:
            about_it["importance"] = nugget.importance
        if nugget.answer:
            about_it["answers"] = {nugget.answer: {"answer": nugget.answer}}
        row["claim_bank" if nugget.is_claim else "nugget_bank"][nugget.text] = about_it
    return row


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


def _closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


PREFERENCE_SCHEMA = _closed(better={"type": "string", "enum": ["first", "second", "tie"]})
QUESTIONS_SCHEMA = _closed(questions=_list_of({"type": "string"}))
GRADES_SCHEMA = _closed(grades=_list_of(_closed(nugget_id={"type": "string"}, grade={"type": ["integer", "string"]})))


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


def whole_number(value: Any, low: int, high: int) -> int | None:
    """A score that a judge gave, also as text; None for anything that is no whole number in the range."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,3}\s*", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None


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


def covered(grades: Sequence[int], threshold: int = COVERED) -> int:
    """How many grades reach the threshold."""
    return sum(grade >= threshold for grade in grades)


def support(grade: int) -> float:
    """Credit for a nugget: 1 if covered, half if graded 3, else 0."""
    return 1.0 if grade >= COVERED else 0.5 if grade == COVERED - 1 else 0.0


def credit(grades: Sequence[int], strict: bool) -> float:
    """Mean credit over nuggets, without half credits if `strict`; 0 where there is no nugget."""
    given = [support(grade) for grade in grades]
    return sum(value for value in given if not strict or value == 1.0) / len(given) if given else 0.0


MEASURES: dict[str, Callable[[Sequence[int]], float]] = {
    "nugget_coverage": lambda grades: covered(grades) / len(grades),
    "nugget_coverage_3": lambda grades: covered(grades, COVERED - 1) / len(grades),
    "average_grade": lambda grades: sum(grades) / len(grades),
    "maximum_grade": lambda grades: float(max(grades)),
    "covered_count": lambda grades: float(covered(grades)),
}


def nugget_scores(runs: Runs, bank: Bank, grades: Grades, grader: str, model: str) -> Iterator[Score]:
    """Coverage at grade 4 and at 3, average and maximum grade, covered count; all over the whole bank of the query.

    Where the bank says which nuggets are vital, also the credit of the vital and of all nuggets, strict
    and with half credits. A response without a usable judgement has no value.
    """
    model = f"{model}, bank {bank.version}"
    vital = any(nugget.importance for nuggets in bank.nuggets.values() for nugget in nuggets)
    for response in responses(runs):
        nuggets = bank.nuggets.get(response.query_id, [])
        found, status = grades[response.run, response.query_id]
        status = "no-nuggets" if not nuggets else MISSING if not response.present else status
        values = _values(nuggets, found, vital) if found else dict.fromkeys(_names(vital))
        for name, value in values.items():
            yield Score(response.query_id, response.run, f"{name}[{grader}]", value, status, bank.pool, model)


def _names(vital: bool) -> list[str]:
    more = [f"nugget_{kind}{which}" for which in ("vital", "all") for kind in ("strict_", "")] if vital else []
    return [*MEASURES, *more]


def _values(nuggets: list[Nugget], found: dict[str, int], vital: bool) -> dict[str, float]:
    grades = [found[nugget.nugget_id] for nugget in nuggets]
    values = {name: measure(grades) for name, measure in MEASURES.items()}
    if vital:
        chosen = {"vital": [found[n.nugget_id] for n in nuggets if n.importance == "vital"], "all": grades}
        for which, given in chosen.items():
            values |= {f"nugget_strict_{which}": credit(given, True), f"nugget_{which}": credit(given, False)}
    return {name: values[name] for name in _names(vital)}


def bank_of(
    slice_: Slice, runs: Runs, grader: ProxyGrader | LLMGrader, frozen: Path | None = None
) -> tuple[Bank, dict[str, Preferences]]:
    """The bank to grade with: a frozen one, the slice's own, or one mined from the pool."""
    own = slice_.folder / "nuggets.jsonl"
    if frozen or own.exists():
        bank, wanted = read_bank(frozen or own), {query.query_id for query in slice_.queries}
        return bank._replace(nuggets={q: found for q, found in bank.nuggets.items() if q in wanted}), {}
    return grader.mine(runs, slice_.queries)
