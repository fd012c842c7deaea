"""Runs -> the audit: every answer sentence led back to the characters that it rests on, from the files alone.

Nothing derived is trusted: a sentence counts as traced only if the response, the provenance line, the
evidence line and the document's text agree on it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from lib import trec
from lib.errors import WorkbookError
from lib.generation import LEADS, readable
from lib.slices import Document, Query, Slice
from lib.text import content_tokens, one_line, words

VERBATIM, LED_IN, TITLE, WRITTEN, UNCITED = KINDS = ("verbatim", "led in", "title", "written", "uncited")
_SAME = ("doc_id", "passage_id", "start", "end")  # what a source and its evidence item must agree on


class Place(NamedTuple):
    """What a sentence rests on: characters `start` to `end` of a document's text, or its title where these are None."""

    doc_id: str
    start: int | None = None
    end: int | None = None


class RunAudit(NamedTuple):
    """What became of the sentences of one run, or of one of its further draws (`<run>/draw-2`).

    `kinds` counts the sentences without fault by how their words relate to what they rest on:
    - `verbatim`: those of the span, made readable;
    - `led in`: the same after "Earlier work (YYYY): " or "Later work (YYYY): ", the year the document's;
    - `title`: the title of the document, or its id if it has none;
    - `written`: a model's own, so that only the spans are verified; `overlap` is the mean share of the distinct
      content words of such a sentence that occur in its spans, None where there is no such sentence;
    - `uncited`: a model's own, resting on nothing.

    `places` are the distinct places that sentences were traced to. `unanswered` counts the queries with
    an empty answer, among them those that are still pending. Each of `faults` is one line,
    `runs/<run>/<file>:<line>: query '…', sentence N: what is wrong`, at most one a sentence, counted from 0.
    """

    run: str
    sentences: int
    kinds: dict[str, int]
    places: frozenset[Place]
    overlap: float | None
    unanswered: int
    faults: tuple[str, ...]


class _Fault(Exception):
    """What is wrong with a sentence, and in which file."""

    def __init__(self, file: "_Lines", what: str):
        super().__init__(what)
        self.file = file


class _Traced(NamedTuple):
    """A sentence without fault."""

    kind: str
    places: tuple[Place, ...] = ()
    overlap: float | None = None


class _Lines:
    """A JSON Lines file read one line at a time by the id in each; nothing but ids and offsets is held.

    `check` gives the id of an object and what is wrong with it; `faults` tells the lines that cannot be used.
    """

    def __init__(self, sweep: Path, file: Path, check: Callable[[dict[str, Any]], tuple[str, str]], what: str = "query"):
        self.name, self.what = file.relative_to(sweep).as_posix(), what
        self.faults: list[str] = []
        self.numbers: dict[str, int] = {}  # id -> line number, of every line that has an id
        self._file, self._offsets = file, {}  # id -> offset, of the lines that can be used
        if file.is_file():
            self._read(check)
        else:
            self.faults.append(f"{self.name}: no such file, so that nothing can be traced; run the sweep again")

    def _read(self, check: Callable[[dict[str, Any]], tuple[str, str]]) -> None:
        with open(self._file, "rb") as handle:
            starts = [0, *accumulate(len(line) for line in handle)]
        for number, row, fault in trec.lines(self._file):
            row_id, wrong = ("", fault) if fault else check(row)
            if row_id in self.numbers:
                wrong = f"{self.what} '{row_id}' stands on line {self.numbers[row_id]} already"
            elif row_id:
                self.numbers[row_id] = number
                wrong = wrong and f"{self.what} '{row_id}': {wrong}"
            if wrong:
                self.faults.append(f"{self.name}:{number}: {wrong}")
            else:
                self._offsets[row_id] = starts[number - 1]

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._offsets

    def row(self, row_id: str) -> dict[str, Any]:
        """The object on the line of an id."""
        with open(self._file, "rb") as handle:
            handle.seek(self._offsets[row_id])
            return json.loads(handle.readline())

    def query_faults(self, queries: Sequence[Query]) -> Iterator[str]:
        """What is wrong with the lines, and with the queries that they are of."""
        yield from self.faults
        wanted = {query.query_id for query in queries}
        strange = {query_id: number for query_id, number in self.numbers.items() if query_id not in wanted}
        yield from (f"{self.name}:{number}: query '{query_id}' is not in the slice" for query_id, number in strange.items())
        if self._file.is_file():
            missing = [query.query_id for query in queries if query.query_id not in self.numbers]
            yield from (f"{self.name}: query '{query_id}' is missing" for query_id in missing)


class _Documents:
    """The documents of a prepared slice by id, read from `documents.jsonl` without the index beside it."""

    def __init__(self, sweep: Path):
        self._lines = _Lines(sweep, sweep / "slice" / "documents.jsonl", _document, "document")
        if self._lines.faults:
            raise WorkbookError(f"{sweep}: {self._lines.faults[0]}; nothing can be audited without its documents")
        self._read = lru_cache(maxsize=16)(lambda doc_id: Document(**self._lines.row(doc_id)))

    def __contains__(self, doc_id: str) -> bool:
        return doc_id in self._lines

    def __getitem__(self, doc_id: str) -> Document:
        return self._read(doc_id)


class _Files(NamedTuple):
    """The files of one run or draw, each by query_id."""

    responses: _Lines
    provenance: _Lines
    evidence: _Lines


class _Answer(NamedTuple):
    """The answer to one query, with all that the files say of it."""

    query: Query
    files: _Files
    references: list[str]
    sentences: list[Any]
    trail: list[dict[str, Any]]
    generator: str
    items: list[dict[str, Any]]


def audit(sweep: Path) -> list[RunAudit]:
    """The audit of every run of a sweep's folder and of its further draws, by name; one query is held at a time.

    Raises WorkbookError if there is no run, or if the slice's documents cannot be read.
    """
    slice_ = Slice(sweep / "slice")
    runs = sorted(path for path in (sweep / "runs").glob("[!.]*") if path.is_dir())
    if not runs:
        raise WorkbookError(f"{sweep / 'runs'}: no run here; run 'workbook sweep' first")
    documents = _Documents(sweep)
    return [
        _audit_run(run, folder, _files(sweep, run, folder), slice_.queries, documents)
        for run in runs
        for folder in (run, *_draws(run))
    ]


def summary(audits: Sequence[RunAudit]) -> str:
    """A line a run, then the faults, then how many sentences were traced to how many spans in how many documents."""
    faults = dict.fromkeys(fault for found in audits for fault in found.faults)  # draws share the evidence of their run
    places = {place for found in audits for place in found.places}
    spans = sum(place.start is not None for place in places)
    traced = sum(sum(found.kinds.values()) - found.kinds[UNCITED] for found in audits)
    titles = f" and {_counted(len(places) - spans, 'title')}" if len(places) > spans else ""
    last = (
        f"{traced:,} of {_counted(sum(found.sentences for found in audits), 'sentence')} traced to "
        f"{_counted(spans, 'span')}{titles} in {_counted(len({place.doc_id for place in places}), 'document')}, "
        f"{_counted(len(faults), 'fault')}"
    )
    return "\n".join([*map(_line, audits), *faults, last])


def _line(found: RunAudit) -> str:
    told = {WRITTEN: f" ({found.overlap:.0%} of their content words in the spans)"} if found.overlap is not None else {}
    kinds = ", ".join(f"{count:,} {kind}{told.get(kind, '')}" for kind, count in found.kinds.items() if count)
    rest = f", {found.unanswered:,} unanswered" if found.unanswered else ""
    traced = kinds or "none traced"
    return f"{found.run:<26} {found.sentences:>6,} sentences: {traced}{rest}, {_counted(len(found.faults), 'fault')}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _draws(run: Path) -> list[Path]:
    return sorted(run.glob("draw-[0-9]*"), key=lambda path: (len(path.name), path.name))


def _files(sweep: Path, run: Path, folder: Path) -> _Files:
    """The files of a run's folder or of a draw's; a draw has the evidence of its run."""
    return _Files(
        _Lines(sweep, folder / "responses.jsonl", _response),
        _Lines(sweep, folder / "provenance.jsonl", _provenance),
        _Lines(sweep, run / "evidence.jsonl", _evidence),
    )


def _response(row: dict[str, Any]) -> tuple[str, str]:
    about = row.get("metadata")
    query_id, fault = _id(about.get("narrative_id") if isinstance(about, dict) else None)
    good = isinstance(row.get("references"), list) and isinstance(row.get("answer"), list)
    return query_id, fault or ("" if good else "expected the lists references and answer")


def _provenance(row: dict[str, Any]) -> tuple[str, str]:
    query_id, fault = _id(row.get("query_id"))
    sentences, models = row.get("sentences"), row.get("models")
    if not isinstance(sentences, list) or not all(map(trec.has_sources, sentences)):
        fault = fault or "expected the field sentences, a list of objects with sources"
    if not isinstance(models, dict) or not isinstance(models.get("generator"), str):
        fault = fault or "its models name no generator"
    return query_id, fault


def _evidence(row: dict[str, Any]) -> tuple[str, str]:
    query_id, fault = _id(row.get("query_id"))
    items = row.get("evidence")
    good = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    return query_id, fault or ("" if good else "expected the field evidence, a list of objects")


def _document(row: dict[str, Any]) -> tuple[str, str]:
    doc_id, fault = _id(row.get("doc_id"))
    texts = all(isinstance(row.get(name), str) for name in ("title", "text"))
    date = row.get("date")
    dated = date is None or isinstance(date, str) and date[:4].isdecimal()
    good = set(row) == set(Document._fields) and texts and dated
    return doc_id, fault or ("" if good else "not a document of a prepared slice")


def _id(value: Any) -> tuple[str, str]:
    known = isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    return (str(value), "") if known else ("", "a line without an id")


def _audit_run(run: Path, folder: Path, files: _Files, queries: Sequence[Query], documents: _Documents) -> RunAudit:
    faults = [fault for file in files for fault in file.query_faults(queries)]
    kinds = Counter(dict.fromkeys(KINDS, 0))
    places: set[Place] = set()
    overlaps: list[float] = []
    sentences = unanswered = 0
    for query in queries:
        said = files.responses.row(query.query_id)["answer"] if query.query_id in files.responses else None
        sentences += len(said or ())
        unanswered += said == []
        for found in _audit_answer(query, files, documents):
            if isinstance(found, str):
                faults.append(found)
                continue
            kinds[found.kind] += 1
            places.update(found.places)
            overlaps += [] if found.overlap is None else [found.overlap]
    name = folder.relative_to(run.parent).as_posix()
    overlap = sum(overlaps) / len(overlaps) if overlaps else None
    return RunAudit(name, sentences, dict(kinds), frozenset(places), overlap, unanswered, tuple(faults))


def _audit_answer(query: Query, files: _Files, documents: _Documents) -> Iterator[_Traced | str]:
    """Each sentence of an answer as traced, or the line of its fault; nothing where a file has no line of the query."""
    if not all(query.query_id in file for file in files):
        return
    answer = _answer(query, files)
    if fault := _length_fault(answer):
        yield _fault_line(answer, _Fault(files.responses, fault))
    for number in range(len(answer.sentences)):
        try:
            yield _trace(answer, number, documents)
        except _Fault as fault:
            yield _fault_line(answer, fault, f", sentence {number}")


def _answer(query: Query, files: _Files) -> _Answer:
    record, provenance, evidence = (file.row(query.query_id) for file in files)
    references = [str(doc_id) for doc_id in record["references"]]
    generator = provenance.get("fallback") or provenance["models"]["generator"]
    return _Answer(query, files, references, record["answer"], provenance["sentences"], generator, evidence["evidence"])


def _fault_line(answer: _Answer, fault: _Fault, of_sentence: str = "") -> str:
    query_id = answer.query.query_id
    return f"{fault.file.name}:{fault.file.numbers[query_id]}: query '{query_id}'{of_sentence}: {fault}"


def _length_fault(answer: _Answer) -> str:
    """Why an answer may not end before its provenance does; one that the word limit cut short may."""
    said, traced = len(answer.sentences), len(answer.trail)
    if said >= traced:  # a sentence without sources is told by itself
        return ""
    texts = [s.get("text") for s in [*answer.sentences, answer.trail[said]] if isinstance(s, dict)]
    if sum(words(text) for text in texts if isinstance(text, str)) > trec.ANSWER_WORDS:
        return ""
    return f"{said} sentences, but provenance.jsonl has {traced}"


def _trace(answer: _Answer, number: int, documents: _Documents) -> _Traced:
    """What a sentence rests on, checked in every file. Raises `_Fault`."""
    sentence = answer.sentences[number]
    for what in trec.sentence_faults(sentence, len(answer.references)):
        raise _Fault(answer.files.responses, what)
    sources = _sources(answer, number, sentence["text"])
    places = tuple(_place(source, answer, documents) for source in sources)
    cited, found = ({answer.references[i] for i in sentence["citations"]}, {place.doc_id for place in places})
    if cited != found:
        raise _Fault(answer.files.responses, f"it cites {_named(cited)}, but its sources are of {_named(found)}")
    return _related(sentence["text"], places, answer, documents)


def _sources(answer: _Answer, number: int, text: str) -> list[dict[str, Any]]:
    rows = [row for row in answer.trail if row.get("sentence") == number]
    if len(rows) != 1:
        raise _Fault(answer.files.provenance, f"{len(rows)} sentences of this number; expected one")
    if rows[0].get("text") != text:
        raise _Fault(answer.files.responses, "its text differs from the one in provenance.jsonl")
    return rows[0]["sources"]


def _place(source: dict[str, Any], answer: _Answer, documents: _Documents) -> Place:
    """Where a source points to. Raises `_Fault` if it is no title or span of a candidate, or not that of its evidence."""
    of_text = source.get("field") == "text"
    if not of_text and source.get("field") != "title":
        raise _Fault(answer.files.provenance, f"a source of the field {source.get('field')!r}; expected text or title")
    if fault := trec.span_fault(source, answer.query, documents if of_text else None):
        raise _Fault(answer.files.provenance, fault)
    doc_id = str(source["doc_id"])
    if doc_id not in documents:
        raise _Fault(answer.files.provenance, f"document '{doc_id}' is not in the slice")
    if not of_text:
        return Place(doc_id)
    place = Place(doc_id, source["start"], source["end"])
    if fault := _evidence_fault(source, answer.items, _span(place, documents)):
        raise _Fault(answer.files.evidence, fault)
    return place


def _evidence_fault(source: dict[str, Any], items: list[dict[str, Any]], span: str) -> str:
    """Why the evidence of a source is not that of its span, '' if it is."""
    evidence_id = source.get("evidence_id")
    found = [item for item in items if item.get("evidence_id") == evidence_id]
    if len(found) != 1:
        return f"{len(found)} evidence items {evidence_id}, on which it rests; expected one"
    for name in _SAME:
        if found[0].get(name) != source.get(name):
            return f"evidence {evidence_id} has the {name} {found[0].get(name)!r}, provenance.jsonl {source.get(name)!r}"
    if found[0].get("text") != span:
        return (
            f"evidence {evidence_id}: text differs from characters {source['start']}-{source['end']} "
            f"of document '{source['doc_id']}'"
        )
    return ""


def _span(place: Place, documents: _Documents) -> str:
    return documents[place.doc_id].text[place.start : place.end]


def _related(text: str, places: tuple[Place, ...], answer: _Answer, documents: _Documents) -> _Traced:
    """How the words of a sentence relate to its places. Raises `_Fault` if not as its generator's must."""
    titled = any(place.start is None for place in places)
    if answer.generator in ("titles", "extractive"):
        if len(places) != 1 or titled != (answer.generator == "titles"):
            expected = "one title" if answer.generator == "titles" else "one span"
            raise _Fault(
                answer.files.provenance, f"{len(places)} sources; a sentence of '{answer.generator}' rests on {expected}"
            )
        return _Traced(_quoted(text, places[0], answer, documents), places)
    if titled:
        raise _Fault(answer.files.provenance, f"it rests on a title, which '{answer.generator}' is not shown")
    if not places:
        return _Traced(UNCITED)
    said = set(content_tokens(text))
    shown = {token for place in places for token in content_tokens(_span(place, documents))}
    return _Traced(WRITTEN, places, len(said & shown) / len(said) if said else None)


def _quoted(text: str, place: Place, answer: _Answer, documents: _Documents) -> str:
    """The kind of a sentence that takes its words from one place. Raises `_Fault` if they are not all there."""
    document = documents[place.doc_id]
    if place.start is None:
        if text == (one_line(document.title) or document.doc_id):
            return TITLE
        raise _Fault(answer.files.responses, f"its words are not the title of document '{place.doc_id}'")
    span = _span(place, documents)
    quoted = readable(span) if one_line(span) else ""
    if text == quoted:
        return VERBATIM
    if text in [lead.format(document.year) + quoted for lead in LEADS if document.year]:
        return LED_IN
    where = f"characters {place.start}-{place.end} of document '{place.doc_id}'"
    raise _Fault(answer.files.responses, f"its words are not those of {where}, nor these led in by its year")


def _named(doc_ids: set[str]) -> str:
    return ", ".join(f"'{doc_id}'" for doc_id in sorted(doc_ids)) or "no document"
