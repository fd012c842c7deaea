"""A prepared slice: queries with their candidate documents and what is known of them, read one query at a time."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from lib import paths, readers
from lib.errors import WorkbookError


class Query(NamedTuple):
    """One query: its id, its text, and its candidate document ids in the organiser's order."""

    query_id: str
    text: str
    doc_ids: tuple[str, ...]


class Document(NamedTuple):
    """One candidate document.

    `text` is the one text that is used, taken from `text_source` (`fullText`, `abstract`, `title`
    or `none`); every offset in the workbook counts characters of it. `date` is `YYYY`, `YYYY-MM`,
    `YYYY-MM-DD`, or None where it is unknown.
    """

    doc_id: str
    title: str
    text: str
    text_source: str
    date: str | None

    @property
    def year(self) -> int | None:
        return int(self.date[:4]) if self.date else None


@dataclass
class Report:
    """What `prepare` found: counts, and one line a problem. Nothing is dropped without a line here."""

    source: str
    queries: int = 0
    instances: int = 0
    documents: int = 0
    text_sources: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Slice:
    """A prepared slice folder, read one query at a time."""

    def __init__(self, folder: Path):
        self.folder = folder
        if not (folder / "slice.json").exists():
            raise WorkbookError(f"{folder}: not a prepared slice (no slice.json); run notebook 01 or 'workbook sweep'")

    @cached_property
    def queries(self) -> list[Query]:
        rows = paths.read_jsonl(self.folder / "queries.jsonl")
        return [Query(row["query_id"], row["query"], tuple(row["doc_ids"])) for row in rows]

    @cached_property
    def _index(self) -> dict[str, list[int]]:
        return json.loads((self.folder / "documents.index.json").read_text(encoding="utf-8"))

    @cached_property
    def citation_degrees(self) -> dict[str, int]:
        """Degree of every document of the citation network, empty without one (METHOD, section 3)."""
        return json.loads((self.folder / "citation_degrees.json").read_text(encoding="utf-8"))

    @cached_property
    def report(self) -> Report:
        return Report(**json.loads((self.folder / "slice.json").read_text(encoding="utf-8")))

    def query(self, query_id: str) -> Query:
        found = [query for query in self.queries if query.query_id == query_id]
        if not found:
            raise WorkbookError(f"{self.folder}: no query '{query_id}'")
        return found[0]

    def documents(self, query: Query) -> list[Document]:
        """The query's documents in candidate order; those that are absent from the source are left out."""
        return [self.document(doc_id) for doc_id in query.doc_ids if self.has(doc_id)]

    def has(self, doc_id: str) -> bool:
        return doc_id in self._index

    def document(self, doc_id: str) -> Document:
        return Document(**json.loads(self.line(doc_id)))

    def line(self, doc_id: str) -> bytes:
        """A document's line of `documents.jsonl`, as it stands."""
        offset, length = self._index[doc_id]
        with open(self.folder / "documents.jsonl", "rb") as file:
            file.seek(offset)
            return file.read(length)

    def all_documents(self) -> Iterator[Document]:
        """Every distinct document once, streaming, in order of first need."""
        return (Document(**row) for row in paths.read_jsonl(self.folder / "documents.jsonl"))

    def gold_answers(self) -> dict[str, str]:
        """query_id -> gold answer; empty where the slice has none."""
        path = self.folder / "gold_answers.jsonl"
        return read_gold_answers(path) if path.exists() else {}

    def qrels(self) -> dict[str, set[str]]:
        """query_id -> ids of its relevant documents, for the judged queries only."""
        path = self.folder / "qrels.txt"
        return read_qrels(path) if path.exists() else {}


def write_documents(folder: Path, lines: Iterable[tuple[str, bytes]]) -> None:
    """Write `documents.jsonl` from (doc_id, line), and `documents.index.json` with offset and length of each line."""
    index = {}
    with paths.atomic(folder / "documents.jsonl", "wb") as out:
        for doc_id, line in lines:
            index[doc_id] = [out.tell(), len(line)]
            out.write(line)
    paths.write_text(folder / "documents.index.json", json.dumps(index) + "\n")


def read_gold_answers(path: Path) -> dict[str, str]:
    """query_id -> gold answer from a file of records with `query_id` and `answer`."""
    answers = {}
    for fields, place in readers.read_records(path, report=_raise, strict=True):
        query_id = readers.as_id(readers.pick(fields, readers.QUERY_ID), place)
        if query_id is None or not isinstance(fields.get("answer"), str):
            raise WorkbookError(f"{place}: a gold answer needs 'query_id' and 'answer'")
        answers[query_id] = fields["answer"]
    return answers


def _raise(problem: str) -> None:
    raise WorkbookError(problem)


def read_qrels(path: Path) -> dict[str, set[str]]:
    """query_id -> relevant doc_ids (relevance > 0) from a TREC qrels file of four columns."""
    relevant: dict[str, set[str]] = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise WorkbookError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        cells = line.split()
        if len(cells) != 4 or not re.fullmatch(r"-?\d+", cells[3]):
            raise WorkbookError(f"{path}:{number}: expected 'query_id 0 doc_id relevance'")
        judged = relevant.setdefault(cells[0], set())
        if int(cells[3]) > 0:
            judged.add(cells[2])
    return relevant
