"""Records -> a prepared slice: queries joined with their candidate documents, and a report of what is there.

`prepare` streams any accepted source once, so that nothing but ids and query texts is ever held for
the whole slice.
"""

import hashlib
import json
import re
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lib import paths, readers
from lib.errors import WorkbookError
from lib.readers import Record
from lib.slices import Document, Query, Report, Slice, write_documents

EXTRAS = ("gold_answers.jsonl", "qrels.txt", "nuggets.jsonl", "reference_answers.jsonl", "metadata.json")
TEXT_SOURCES = ("fullText", "abstract", "title", "none")
# Dates that cataloguing systems fill in where they know none.
_PLACEHOLDERS = ("1900-01-01", "1970-01-01", "0001-01-01", "9999-12-31")


# Default-ignorable characters of Unicode that are no format characters: joiners, fillers, variation selectors.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0]")


class Source(NamedTuple):
    """Where a slice comes from: streams of records, the folder with gold data if any, and a name."""

    name: str
    queries: Iterable[Record]
    documents: Iterable[Record] | None
    candidates: Iterable[Record] | None
    folder: Path | None


def open_source(spec: str) -> tuple[Source, list[str]]:
    """A source by `sample`, a folder's path, or an `ir_datasets_longeval` id; and a list that fills with problems."""
    problems: list[str] = []
    if spec == "sample":
        return _folder_source(paths.SAMPLE, "sample", problems.append), problems
    if Path(spec).exists() or not re.match(r"longeval-[a-z0-9-]+/", spec):
        return _folder_source(Path(spec), Path(spec).resolve().name, problems.append), problems
    return _irds_source(spec), problems


def _folder_source(folder: Path, name: str, report: readers.Problems) -> Source:
    if not folder.is_dir():
        raise WorkbookError(
            f"{folder}: no such slice folder; give a folder with queries and documents ({readers.ACCEPTED}), "
            "'sample', or an id such as longeval-sci-2026/clef-2026/rag"
        )
    parts = {stem: readers.find(folder, stem) for stem in ("queries", "documents", "candidates")}
    if parts["queries"] is None:
        raise WorkbookError(f"{folder}: no 'queries' file; give {readers.ACCEPTED}")
    streams = {k: None if p is None else readers.read_records(p, report) for k, p in parts.items()}
    return Source(name, streams["queries"], streams["documents"], streams["candidates"], folder)


def _irds_source(dataset_id: str) -> Source:
    try:
        import ir_datasets_longeval

        dataset = ir_datasets_longeval.load(dataset_id)
    except ImportError:
        raise WorkbookError(f"{dataset_id}: needs the package ir_datasets_longeval; pip install it") from None
    except Exception as error:  # ir_datasets raises many kinds of error when a download fails
        reason = str(error).split("\n")[0] or type(error).__name__
        raise WorkbookError(f"{dataset_id}: cannot be loaded through ir_datasets_longeval ({reason})") from None
    return irds_records(dataset, dataset_id)


def irds_records(dataset: Any, name: str) -> Source:
    """A source from a loaded ir_datasets dataset whose queries carry `doc_ids`. Its documents have no full text."""

    def records(make_iterator, what: str) -> Iterator[Record]:
        try:
            for number, item in enumerate(make_iterator(), 1):
                yield Record(item._asdict(), f"{name}:{what} {number}")
        except (ValueError, OSError, KeyError) as error:
            raise WorkbookError(f"{name}: a {what} cannot be read ({error})") from None

    return Source(name, records(dataset.queries_iter, "query"), records(dataset.docs_iter, "document"), None, None)


def prepare(spec: str, folder: Path, strict: bool = False, documents: bool = True) -> Report:
    """Stream the source `spec` into the slice folder `folder`; `slice.json`, written last, marks success.

    Queries are read first, then every document file once, keeping only what some query wants.
    With `strict`, any problem is an error; with `documents=False` a source may lack them, as scoring
    and validation allow. Raises WorkbookError on input that cannot be used.
    """
    source, problems = open_source(spec)
    report = Report(source.name, problems=problems)
    queries = read_queries(source, report.problems.append)
    wanted = dict.fromkeys(doc_id for query in queries for doc_id in query.doc_ids)
    if source.documents is None and documents:
        raise WorkbookError(f"{source.folder}: no 'documents' folder or file; give {readers.ACCEPTED}")
    network = readers.find(source.folder, "citations") if source.folder else None
    degrees = citation_degrees(network, report.problems.append) if network else {}
    with tempfile.TemporaryFile() as side:
        kept = _collect(source.documents or (), wanted, side, report.problems.append)
        if source.documents is not None:
            _check_candidates(queries, kept, report.problems.append)
        if strict and report.problems:
            raise WorkbookError(report.problems[0])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "slice.json").unlink(missing_ok=True)
        order = [doc_id for doc_id in wanted if doc_id in kept]
        write_documents(folder, _lines(order, kept, side))
    _write(source, queries, kept, degrees, folder, report)
    return report


@contextmanager
def opened(spec: str) -> Iterator[Slice]:
    """The slice behind `spec`: a prepared folder as it is, anything else prepared in a temporary one."""
    if (Path(spec) / "slice.json").exists():
        yield Slice(Path(spec))
        return
    with tempfile.TemporaryDirectory() as name:
        prepare(spec, Path(name), documents=False)
        try:
            yield Slice(Path(name))
        except WorkbookError as error:  # names the user's own file, not its copy
            raise WorkbookError(str(error).replace(name, str(paths.SAMPLE if spec == "sample" else spec))) from None


def check(spec: str) -> int:
    """The number of queries of a source; documents are not looked at.

    Raises WorkbookError if the source cannot be opened or its queries cannot be read.
    """
    source, problems = open_source(spec)
    queries = read_queries(source, problems.append)
    if source.documents is None:
        raise WorkbookError(f"{source.folder}: no 'documents' folder or file; give {readers.ACCEPTED}")
    return len(queries)


def source_files(spec: str) -> list[Path]:
    """The files that a source is read from, sorted; none for an ir_datasets id."""
    folder = paths.SAMPLE if spec == "sample" else Path(spec)
    if not folder.is_dir():
        return []
    parts = [readers.find(folder, stem) for stem in ("queries", "documents", "candidates", "citations")]
    files = [file for part in parts if part for file in readers.files_of(part)]
    return sorted(files + [folder / name for name in EXTRAS if (folder / name).exists()])


def read_queries(source: Source, report: readers.Problems) -> list[Query]:
    """The queries of a source with their candidates joined, in file order. Raises WorkbookError on two of one id."""
    listed = _candidate_lists(source.candidates)
    queries: dict[str, Query] = {}
    places: dict[str, str] = {}
    for fields, place in source.queries:
        query_id = readers.as_id(readers.pick(fields, readers.QUERY_ID), place)
        if query_id is None:
            report(f"{place}: query without an id left out; name it with one of {', '.join(readers.QUERY_ID)}")
            continue
        text = readers.pick(fields, readers.QUERY_TEXT)
        own = readers.as_ids(readers.pick(fields, readers.CANDIDATES), place)
        query = Query(query_id, text if isinstance(text, str) else "", _unique(listed.get(query_id, own), place, report))
        if query_id in queries and queries[query_id] != query:
            raise WorkbookError(f"{place}: query '{query_id}' differs from the one at {places[query_id]}; keep one")
        if query_id in queries:
            report(f"{place}: query '{query_id}' repeats {places[query_id]}; kept once")
        if not has_text(query.text):
            report(f"{place}: query '{query_id}' has no text; its answer will be empty")
        if not query.doc_ids:
            report(f"{place}: query '{query_id}' has no candidates; its answer will be empty")
        queries[query_id], places[query_id] = query, place
    if not queries:
        raise WorkbookError(f"{source.folder or source.name}: no queries found")
    return list(queries.values())


def _candidate_lists(records: Iterable[Record] | None) -> dict[str, list[str]]:
    """Candidates from a second file: one row a query with a list, or one row a (query, document) pair."""
    lists: dict[str, list[str]] = {}
    for fields, place in records or ():
        query_id = readers.as_id(readers.pick(fields, readers.QUERY_ID), place)
        ids = readers.pick(fields, readers.CANDIDATES)
        named = next((name for name in readers.QUERY_ID if fields.get(name) is not None), None)
        doc_id = readers.as_id(readers.pick(fields, tuple(n for n in readers.DOC_ID if n != named)), place)
        if not fields:
            continue
        if query_id is None or (ids is None and doc_id is None):
            raise WorkbookError(f"{place}: a candidates row needs a query id and a list of documents or a document id")
        lists.setdefault(query_id, []).extend(readers.as_ids(ids, place) if ids is not None else [doc_id])
    return lists


def _unique(doc_ids: list[str], place: str, report: readers.Problems) -> tuple[str, ...]:
    twice = [doc_id for doc_id, count in Counter(doc_ids).items() if count > 1]
    for doc_id in twice:
        report(f"{place}: candidate '{doc_id}' is listed more than once; kept once")
    return tuple(dict.fromkeys(doc_ids))


def _collect(records: Iterable[Record], wanted: dict[str, None], side: BinaryIO, report: readers.Problems) -> dict:
    """Stream the wanted documents to a side file; returns doc_id -> (offset, length, text source) of its line."""
    kept: dict[str, tuple[int, int, str]] = {}
    seen: dict[str, tuple[bytes, str]] = {}
    for fields, place in records:
        doc_id = readers.as_id(readers.pick(fields, readers.DOC_ID), place)
        if doc_id is None:
            report(f"{place}: document without an id left out; name it with one of {', '.join(readers.DOC_ID)}")
        if doc_id not in wanted:
            continue
        document = make_document(doc_id, fields)
        line = paths.to_json(document._asdict()).encode() + b"\n"
        digest = hashlib.sha256(line).digest()
        if doc_id in seen:
            if seen[doc_id][0] != digest:
                raise WorkbookError(f"{place}: document '{doc_id}' differs from the one at {seen[doc_id][1]}; keep one")
            report(f"{place}: document '{doc_id}' repeats {seen[doc_id][1]}; kept once")
            continue
        if document.text_source == "none":
            report(f"{place}: document '{doc_id}' has no text; it will not be retrieved")
        seen[doc_id] = digest, place
        kept[doc_id] = side.tell(), len(line), document.text_source
        side.write(line)
    return kept


def make_document(doc_id: str, fields: dict[str, Any]) -> Document:
    """A document from a record: text priority full text, abstract, title (paper, section 2.3); offsets stay true."""
    named = [("fullText", name) for name in readers.FULL_TEXT] + [("abstract", "abstract"), ("title", "title")]
    title = fields.get("title") if isinstance(fields.get("title"), str) else ""
    for source, name in named:
        text = fields.get(name)
        if isinstance(text, str) and has_text(text):
            # Lone surrogates cannot be written as UTF-8; one replacement character keeps the offsets.
            return Document(doc_id, paths.encodable(title), paths.encodable(text), source, parse_date(fields))
    return Document(doc_id, paths.encodable(title), "", "none", parse_date(fields))


def has_text(text: str) -> bool:
    """Whether any character can be seen: not white space, a control, or an invisible format character."""
    return any(
        not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf", "Cn", "Co", "Cs") and not _INVISIBLE.match(c)
        for c in text
    )


def parse_date(fields: dict[str, Any]) -> str | None:
    """The first known date among the accepted names, as YYYY[-MM[-DD]]; placeholders count as unknown."""
    for name in readers.DATE:
        match = re.match(r"\s*(\d{4})(?:-(\d\d)(?:-(\d\d))?)?(?!\d)", str(fields.get(name) or ""))
        if match:
            date = "-".join(part for part in match.groups() if part)
            if date not in _PLACEHOLDERS and 1500 <= int(date[:4]) <= 2100:
                return date
    return None


def _check_candidates(queries: list[Query], kept: dict, report: readers.Problems) -> None:
    for query in queries:
        missing = [doc_id for doc_id in query.doc_ids if doc_id not in kept]
        if missing and len(missing) == len(query.doc_ids):
            raise WorkbookError(
                f"query '{query.query_id}': none of its {len(missing)} candidates is among the documents; "
                "the ids and the snapshot do not match"
            )
        for doc_id in missing:
            report(f"query '{query.query_id}': candidate '{doc_id}' is not among the documents")


def citation_degrees(path: Path, report: readers.Problems) -> dict[str, int]:
    """Degree of each document: distinct edges in which it cites or is cited; self-citations are ignored."""
    edges: dict[tuple[str, str], None] = {}
    for fields, place in readers.read_records(path, report):
        ends = [readers.as_id(fields.get(name), place) for name in ("citing_doc_id", "cited_doc_id")]
        if None in ends:
            report(f"{place}: citation with a blank id left out; the columns are citing_doc_id,cited_doc_id")
        elif ends[0] != ends[1]:
            edges[ends[0], ends[1]] = None
    return dict(sorted(Counter(doc_id for edge in edges for doc_id in edge).items()))


def _write(source: Source, queries: list[Query], kept: dict, degrees: dict[str, int], folder: Path, report: Report) -> None:
    rows = ({"query_id": q.query_id, "query": paths.encodable(q.text), "doc_ids": list(q.doc_ids)} for q in queries)
    paths.write_jsonl(folder / "queries.jsonl", rows)
    paths.write_text(folder / "citation_degrees.json", json.dumps(degrees) + "\n")
    for name in EXTRAS if source.folder else ():
        (folder / name).unlink(missing_ok=True)
        if (source.folder / name).exists():
            shutil.copyfile(source.folder / name, folder / name)
    uses = Counter(kept[d][2] for q in queries for d in q.doc_ids if d in kept)
    report.text_sources = {name: uses[name] for name in TEXT_SOURCES}
    report.queries, report.documents = len(queries), len(kept)
    report.instances = sum(len(q.doc_ids) for q in queries)
    paths.write_text(folder / "slice.json", paths.to_json(report.__dict__) + "\n")


def _lines(order: list[str], kept: dict, side: BinaryIO) -> Iterator[tuple[str, bytes]]:
    for doc_id in order:
        side.seek(kept[doc_id][0])
        yield doc_id, side.read(kept[doc_id][1])
