"""Nuggets and their banks: at most 20 a query, read from `nuggets.jsonl` or a frozen bank, frozen with a version."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib import paths, readers
from lib.errors import WorkbookError
from lib.slices import Query

MAX_NUGGETS = 20


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
