"""Small sources on disk, good and bad, for the tests of slices and of their making."""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

QUERY = {"query_id": "q1", "query": "Does ice creep?", "doc_ids": ["d1", "d2"]}
D1, D2 = {"id": "d1", "text": "Ice creeps."}, {"id": "d2", "text": "Ice melts."}
ACCEPTED = ("JSONL", "JSON,", "CSV", "TSV", ".gz")


def lines(records: Iterable) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in records)


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def source(folder: Path, queries: Iterable = (QUERY,), documents: Iterable | None = (D1, D2), **files: str | bytes) -> Path:
    put(folder / "queries.jsonl", lines(queries))
    if documents is not None:
        put(folder / "documents" / "a.jsonl", lines(documents))
    for name, content in files.items():
        put(folder / name.replace("__", "."), content)
    return folder


def bad_sources(folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """Sources that cannot be used, seen before any notebook runs: the path, and what the message must name."""
    xml = put(folder / "slice.xml", "<a/>")
    empty = folder / "empty"
    empty.mkdir()
    unknown, no_documents = folder / "unknown", source(folder / "no-documents", documents=None)
    put(unknown / "queries.xml", "<a/>")
    malformed = source(folder / "malformed", [QUERY, '{"query_id": ', {**QUERY, "query_id": "q3"}])
    twice = source(folder / "twice", [QUERY, {**QUERY, "query": "Water?"}])
    no_list = source(folder / "no-list", [{**QUERY, "doc_ids": 7}])
    nothing = source(folder / "nothing", [])
    blank = source(folder / "blank-id", candidates__csv="query_id,doc_id\nq1,\n")
    absent = folder / "absent"
    return {
        "missing path": (absent, [str(absent), *ACCEPTED]),
        "file of unknown format": (xml, [str(xml), *ACCEPTED]),
        "empty folder": (empty, [str(empty), "queries", *ACCEPTED]),
        "queries of unknown format": (unknown, [str(unknown), "queries", *ACCEPTED]),
        "no documents": (no_documents, [str(no_documents), "documents", *ACCEPTED]),
        "malformed middle line": (malformed, [f"{malformed / 'queries.jsonl'}:2"]),
        "one id, two queries": (twice, [f"{twice / 'queries.jsonl'}:2", f"{twice / 'queries.jsonl'}:1", "keep one"]),
        "candidates not a list": (no_list, [f"{no_list / 'queries.jsonl'}:1", "list"]),
        "no queries": (nothing, [str(nothing), "no queries"]),
        "candidate without id": (blank, [f"{blank / 'candidates.csv'}:2", "document"]),
    }


def bad_documents(folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """Sources whose documents cannot be used, seen when they are streamed."""
    malformed = source(folder / "malformed", documents=[D1, '{"id": "d2", ', D2])
    differing = source(folder / "differing", documents=[D1, D2, {**D1, "text": "Ice flows."}])
    places = [f"{differing / 'documents' / 'a.jsonl'}:{line}" for line in (3, 1)]
    elsewhere = source(folder / "elsewhere", documents=[{"id": "x", "text": "Other."}])
    empty = source(folder / "empty", documents=None)
    (empty / "documents").mkdir()
    no_id = source(folder / "no-id", documents=[D1, {"id": 1.5, "text": "x"}])
    citations = source(folder / "citations", citations__csv="citing_doc_id,cited_doc_id\nd1,d2\nd1\n")
    return {
        "malformed document": (malformed, [f"{malformed / 'documents' / 'a.jsonl'}:2"]),
        "one id, two texts": (differing, ["'d1'", *places, "keep one"]),
        "no candidate there": (elsewhere, ["'q1'", "do not match"]),
        "empty documents folder": (empty, [str(empty / "documents"), *ACCEPTED]),
        "id that is none": (no_id, [f"{no_id / 'documents' / 'a.jsonl'}:2", "1.5"]),
        "malformed citations": (citations, [f"{citations / 'citations.csv'}:3"]),
    }


def names_of(make) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        return list(make(Path(name)))
