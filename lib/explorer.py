"""A sweep's files -> the explorer: from every answer sentence to the characters of the document that it rests on.

`Pages` reads a sweep one query at a time. The report embeds its pages (`embed`); in JupyterLab the widget
`Explorer(sweep)` asks for them. Both show them with the same `assets/explorer.js`.
"""

import base64
import csv
import gzip
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from lib import paths
from lib.errors import WorkbookError
from lib.score_tables import main_measures, read_scores
from lib.slices import Document, Query, Slice

ASSETS = Path(__file__).parent / "assets"
SCORES = ("primary.csv", "supplementary.csv")
WHOLE = 250_000  # characters up to which a cited or relevant document is shown whole
AROUND = 20_000  # characters kept on either side of a span in a longer one
OPENING = 2_000  # characters of a document that no answer rests on
EMBEDDED_BYTES = 24_000_000  # of packed pages and documents in one report
NOT_MODELS = ("extractive", "titles", "none", "")  # generators that write nothing of their own

HEADINGS = {
    "rougeL_f1": "ROUGE-L",
    "bertscore_f1": "BERTScore",
    "cited_precision": "cited precision",
    "cited_recall": "cited recall",
    "tfc1": "TFC1",
    "nugget_coverage": "nugget coverage",
    "average_grade": "average grade",
    "citation_jaccard": "citation Jaccard",
    "correctness": "correctness",
    "completeness": "completeness",
}
STAGES = {
    "no-text": "has no text",
    "below-shortlist": "below the shortlist",
    "not-selected": "not selected",
    "no-sentence": "no evidence sentence",
    "not-used": "evidence not used",
    "cited": "cited",
}


class Span(NamedTuple):
    """Characters `start` to `end` of a document's text."""

    start: int
    end: int


class Embedded(NamedTuple):
    """An explorer in one file: the index, and packed (see `pack`) pages, documents and scores.

    Pages stand in the order of the index's `queries`, documents in that of its `documents`.
    """

    index: dict[str, Any]
    pages: list[str]
    documents: list[str]
    scores: str


def asset(name: str) -> str:
    """The text of a file in `lib/assets`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def heading(measure: str) -> str:
    """What a measure is called in a table's head: `nugget coverage [proxy]` for `nugget_coverage[proxy]`."""
    stem, bracket, rest = measure.partition("[")
    return HEADINGS.get(stem, stem.replace("_", " ")) + (f" [{rest}" if bracket else "")


def check_sweep(sweep: Path) -> None:
    """Raise WorkbookError unless a folder holds a prepared slice and at least one run."""
    if not (sweep / "slice" / "slice.json").exists():
        raise WorkbookError(f"{sweep}: no sweep (no slice/slice.json); give a folder that 'workbook sweep' wrote")
    if not run_folders(sweep):
        of = " of a system in variants/" if variant_names(sweep) else ""
        raise WorkbookError(f"{sweep / 'runs'}: no run here{of}; expected folders with a responses.jsonl, one a run")


def variant_names(sweep: Path) -> list[str]:
    """The names of the systems of a sweep, by its `variants/<name>.yaml`; none where there is no such file."""
    return sorted(path.stem for path in (sweep / "variants").glob("*.yaml"))


def run_folders(sweep: Path) -> list[Path]:
    """The folders of a sweep's runs, by name: those of the systems in `variants/`, or all where that names none."""
    own = variant_names(sweep)
    return [folder for folder in all_run_folders(sweep) if not own or folder.name in own]


def all_run_folders(sweep: Path) -> list[Path]:
    """The folders with a run in them, by name; an earlier sweep may have left some."""
    return sorted({file.parent for file in (sweep / "runs").glob("*/*.jsonl") if file.stem in ("provenance", "responses")})


def notes_on_runs(sweep: Path) -> list[str]:
    """Which runs in a sweep's folder are not shown, and which of its systems the leaderboard does not hold."""
    shown = [folder.name for folder in run_folders(sweep)]
    others = [folder.name for folder in all_run_folders(sweep) if folder.name not in shown]
    compared = {row["run"] for row in read_table(sweep / "results" / "leaderboard.csv", ("run",))}
    lacking = [run for run in variant_names(sweep) or shown if compared and run not in compared]
    told = {
        "Runs of earlier sweeps in this folder, not compared": others,
        "Systems of this sweep that results/leaderboard.csv does not hold, not compared": lacking,
    }
    return [f"{words}: {', '.join(runs)}." for words, runs in told.items() if runs]


class Pages:
    """A sweep as the explorer shows it: an index, a page a query, a text a document.

    Of the answers and documents only the places in their files are held. Raises WorkbookError for a
    folder that is no sweep, and naming file and line for one that cannot be read.
    """

    def __init__(self, sweep: Path):
        check_sweep(sweep)
        self.slice_ = Slice(sweep / "slice")
        self._queries = {query.query_id: query for query in self.slice_.queries}
        self._answers = {folder.name: _Answers(folder) for folder in run_folders(sweep)}
        self._gold, self._qrels = self.slice_.gold_answers(), self.slice_.qrels()
        self.measures, self._scores = read_main_scores(sweep)
        self._stages = read_stages(sweep / "results" / "losses.csv")
        self.notes = notes_on_runs(sweep)
        self.page = lru_cache(maxsize=4)(self._page)

    @property
    def runs(self) -> list[str]:
        return list(self._answers)

    def index(self) -> dict[str, Any]:
        """What the explorer needs before any page: the queries, runs and measures, and two runs to begin with."""
        left, right = self._pair()
        unscored = [] if self.measures else ["This sweep has no scores yet: notebooks 05 and 06 compute them."]
        return {
            "slice": self.slice_.report.source,
            "queries": [{"query_id": query.query_id, "text": query.text} for query in self.slice_.queries],
            "runs": self.runs,
            "measures": [{"name": name, "heading": heading(name)} for name in self.measures],
            "left": left,
            "right": right,
            "notes": [*self.notes, *unscored],
        }

    def _pair(self) -> tuple[str, str]:
        """The best run on the first measure, and the next best whose answer to the first query is another one."""
        order = self.runs
        if self.measures:
            order = sorted(order, key=lambda run: -_mean(row[0] for (_, r), row in self._scores.items() if r == run))
        said = {run: a.of(self.slice_.queries[0].query_id)["sentences"] for run, a in self._answers.items()}
        others = [run for run in order[1:] if said[run] != said[order[0]]]
        return order[0], (others or order[1:] or order)[0]

    def _page(self, query_id: str) -> dict[str, Any]:
        """Everything that the explorer shows for one query but the documents' texts (see `query_page`)."""
        query = self._queries.get(query_id) or self.slice_.query(query_id)
        answers = {run: answers.of(query_id) for run, answers in self._answers.items()}
        for run, answer in answers.items():
            none: list[tuple[float | None, str]] = [(None, "not scored")] * len(self.measures)
            answer["scores"] = self._scores.get((query_id, run), none)
            answer["stages"] = self._stages.get((query_id, run), {})
        return query_page(self.slice_, query, answers, self._gold.get(query_id), self._qrels.get(query_id))

    def document(self, doc_id: str, spans: Iterable[Span], whole: bool) -> dict[str, Any] | None:
        """The text of a document (see `document_text`); None for one that is not in the slice."""
        found = self.slice_.documents(Query("", "", (doc_id,)))
        return document_text(found[0], spans, whole) if found else None

    def scores(self, query_id: str) -> list[list[float | None]]:
        """The values of the main measures for one query, a row a run."""
        none = [(None, "")] * len(self.measures)
        return [[value for value, _ in self._scores.get((query_id, run), none)] for run in self.runs]

    def differences(self, left: str, right: str, measure: str) -> list[float | None]:
        """Left minus right on one measure, a value a query in the slice's order; None where either has none."""
        place, rows = self.measures.index(measure), [self.runs.index(left), self.runs.index(right)]
        pairs = ([self.scores(query.query_id)[row][place] for row in rows] for query in self.slice_.queries)
        return [None if a is None or b is None else a - b for a, b in pairs]


def _mean(values: Iterable[tuple[float | None, str]]) -> float:
    there = [value for value, _ in values if value is not None]
    return sum(there) / len(there) if there else float("-inf")


def query_page(
    slice_: Slice,
    query: Query,
    answers: Mapping[str, dict[str, Any]],
    gold: str | None = None,
    relevant: set[str] | None = None,
) -> dict[str, Any]:
    """What the explorer shows for one query.

    `answers` holds a run's answer as `read_answer` gives it, with its `scores`, a (value, status) a
    measure, and `stages`, how far each relevant document came. `relevant` is None where the query is not
    judged. The documents are the candidates in the organiser's order, then what is cited beyond them.
    """
    cited = [s["doc_id"] for answer in answers.values() for sentence in answer["sentences"] for s in sentence["sources"]]
    wanted = tuple(dict.fromkeys([*query.doc_ids, *cited]))
    there = {document.doc_id: document for document in slice_.documents(query._replace(doc_ids=wanted))}
    return {
        "query_id": query.query_id,
        "text": query.text,
        "gold": gold,
        "judged": relevant is not None,
        "documents": [
            {
                "doc_id": doc_id,
                "candidate": doc_id in query.doc_ids,
                "relevant": None if relevant is None else doc_id in relevant,
                **_about(there.get(doc_id)),
            }
            for doc_id in wanted
        ],
        "answers": [{"run": run, **answer} for run, answer in answers.items()],
    }


def _about(document: Document | None) -> dict[str, Any]:
    if document is None:
        return {"title": "", "date": None, "source": None, "length": 0}
    return {
        "title": document.title,
        "date": document.date,
        "source": document.text_source,
        "length": len(document.text),
    }


def spans_of(page: dict[str, Any]) -> dict[str, list[Span]]:
    """doc_id -> the spans of its text that the answers of a page rest on."""
    found: dict[str, list[Span]] = {}
    for source in _sources(page):
        if source["field"] == "text":
            found.setdefault(source["doc_id"], []).append(Span(source["start"], source["end"]))
    return found


def _sources(page: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every source of every sentence of every answer."""
    return (s for answer in page["answers"] for sentence in answer["sentences"] for s in sentence["sources"])


def document_text(document: Document, spans: Iterable[Span], whole: bool) -> dict[str, Any]:
    """A document's text for the panel, as `parts` of (start, end, text), offsets in characters.

    It is whole if asked for `whole` or if a span lies in it, unless it is longer than `WHOLE`: then the
    parts are what lies around its spans. A document that nothing rests on shows its opening.
    """
    text, spans = document.text, sorted(spans)
    if (whole or spans) and len(text) <= WHOLE:
        parts = [Span(0, len(text))]
    else:
        around = [Span(max(0, start - AROUND), min(len(text), end + AROUND)) for start, end in spans]
        parts = _joined([Span(0, min(len(text), OPENING)), *around])
    shown = [(start, end, text[start:end]) for start, end in parts if start < end]
    return {"doc_id": document.doc_id, "length": len(text), "parts": shown}


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same characters in spans that neither overlap nor touch, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(end, found[-1].end))
        else:
            found.append(Span(start, end))
    return found


class _Answers:
    """The answers of one run by query, of which only the places in its file are held.

    They are read from `provenance.jsonl`, or, where a run has none, from `responses.jsonl`, which names
    documents but no spans.
    """

    def __init__(self, run: Path):
        traced = run / "provenance.jsonl"
        self.path = traced if traced.exists() else run / "responses.jsonl"
        self._places: dict[str, tuple[int, int, int]] = {}
        place = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    query_id = self._query_id(_parsed(line, f"{self.path}:{number}"))
                    if not isinstance(query_id, str | int):
                        raise WorkbookError(f"{self.path}:{number}: the line names no query")
                    self._places.setdefault(str(query_id), (number, place, len(line)))
                place += len(line)

    def _query_id(self, row: dict[str, Any]) -> Any:
        about = row.get("metadata")
        return row.get("query_id", about.get("narrative_id") if isinstance(about, dict) else None)

    def of(self, query_id: str) -> dict[str, Any]:
        """The run's answer to a query, as `read_answer` gives it."""
        if query_id not in self._places:
            return read_answer({"status": "missing", "sentences": []}, str(self.path))
        number, place, length = self._places[query_id]
        with open(self.path, "rb") as file:
            file.seek(place)
            row = _parsed(file.read(length), f"{self.path}:{number}")
        return read_answer(_traced(row, f"{self.path}:{number}") if "answer" in row else row, f"{self.path}:{number}")


def _parsed(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise WorkbookError(f"{place}: not JSON ({error}); run the sweep again") from None
    if not isinstance(row, dict):
        raise WorkbookError(f"{place}: not an object; run the sweep again")
    return row


def _traced(row: dict[str, Any], place: str) -> dict[str, Any]:
    """A TREC RAG record in the shape of a line of provenance: its sources are documents without spans."""
    try:
        names = [str(doc_id) for doc_id in row["references"]]
        sentences = [
            {"text": s["text"], "sources": [{"field": "document", "doc_id": names[i]} for i in s["citations"]]}
            for s in row["answer"]
        ]
    except (KeyError, TypeError, IndexError) as error:
        raise WorkbookError(f"{place}: not a TREC RAG record ({error!r}); see 'workbook validate'") from None
    return {"status": "ok", "sentences": sentences}


def read_answer(row: dict[str, Any], place: str) -> dict[str, Any]:
    """A line of provenance as the explorer shows it: `status`, `note`, `written`, and `sentences` with their sources.

    `written` says whether a model wrote it; `note` says in words who did, or why there is no answer.
    """
    models = row.get("models")
    writer = str(models.get("generator", "")) if isinstance(models, dict) else ""
    status, fallback = str(row.get("status", "ok")), str(row.get("fallback", ""))
    try:
        sentences = [{"text": str(s["text"]), "sources": [_source(x) for x in s["sources"]]} for s in row["sentences"]]
    except (KeyError, TypeError, ValueError) as error:
        raise WorkbookError(f"{place}: not a line of provenance ({error!r}); run the sweep again") from None
    written = bool(sentences) and writer not in NOT_MODELS and not fallback
    return {
        "status": status,
        "written": written,
        "fallback": fallback,
        "note": _note(status, writer, fallback, bool(sentences)),
        "sentences": sentences,
    }


def _source(source: dict[str, Any]) -> dict[str, Any]:
    """A source as it is recorded: its document, and the characters where the field is `text`."""
    doc_id, field = str(source["doc_id"]), str(source.get("field", "text"))
    if field != "text":
        return {"doc_id": doc_id, "field": field}
    return {"doc_id": doc_id, "field": field, "start": int(source["start"]), "end": int(source["end"])}


def _note(status: str, writer: str, fallback: str, answered: bool) -> str:
    if fallback and answered:
        return f"{writer} gave no usable answer ({status}); {fallback} filled in"
    if status == "missing":
        return "no answer: the run has no record of this query"
    if status != "ok":
        return f"no answer: {status}"
    if not answered:
        return "the answer is empty"
    words = {"extractive": "sentences of the evidence", "titles": "titles of the candidates", "none": "", "": ""}
    return words.get(writer, f"written by {writer}")


def read_main_scores(sweep: Path) -> tuple[list[str], dict[tuple[str, str], list[tuple[float | None, str]]]]:
    """The main measures of a sweep's scores, and (query_id, run) -> (value, status) of each; empty without scores."""
    files = [sweep / "scores" / name for name in SCORES if (sweep / "scores" / name).exists()]
    if not files:
        return [], {}
    scores = [score for file in files for score in read_scores(file)]
    measures = main_measures(scores)
    places = {name: place for place, name in enumerate(measures)}
    found: dict[tuple[str, str], list[tuple[float | None, str]]] = {}
    for score in scores:
        if score.measure in places:
            row = found.setdefault((score.query_id, score.run), [(None, "not scored")] * len(measures))
            row[places[score.measure]] = (score.value, score.status)
    return measures, found


def read_stages(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    """(query_id, run) -> doc_id -> how far a relevant document came, in words, from `losses.csv`; empty without it."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in read_table(path, ("query_id", "run", "doc_id", "stage")):
        found.setdefault((row["query_id"], row["run"]), {})[row["doc_id"]] = STAGES.get(row["stage"], row["stage"])
    return found


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file of results; none if it is not there. Raises WorkbookError if it lacks a column."""
    if not path.exists():
        return []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkbookError(f"{path}: not a readable table ({error}); run notebook 07 again") from None
    lacking = [name for name in columns if name not in (reader.fieldnames or ())]
    if lacking:
        raise WorkbookError(f"{path}:1: no column '{lacking[0]}'; run notebook 07 again")
    for number, row in rows:
        if None in row or None in row.values():
            raise WorkbookError(f"{path}:{number}: the row has not as many cells as the header; run notebook 07 again")
    return [row for _, row in rows]


def pack(value: Any) -> str:
    """`value` as JSON, compressed, in base64: the same text for the same value. `assets/explorer.js` unpacks it."""
    return base64.b64encode(gzip.compress(paths.to_json(value).encode(), 9, mtime=0)).decode()


def embed(pages: Pages, limit: int = EMBEDDED_BYTES) -> Embedded:
    """The explorer for one file: queries in the slice's order until `limit` bytes are full, but one at least.

    Each document stands there once, with what all embedded queries need of it. What does not fit is said
    in the index's notes.
    """
    index, packed = pages.index(), {}
    documents: dict[str, str] = {}
    needs: dict[str, tuple[frozenset[Span], bool]] = {}
    size = 0
    for query in pages.slice_.queries:
        page = pages.page(query.query_id)
        block, wanted = pack(page), _needs(page, needs)
        added = {d: pack(pages.document(d, *need)) for d, need in wanted.items() if needs.get(d) != need}
        grown = size + len(block) + sum(len(text) - len(documents.get(d, "")) for d, text in added.items())
        if packed and grown > limit:
            break
        size, packed[query.query_id] = grown, block
        documents |= added
        needs |= wanted
    kept, n = len(packed), len(index["queries"])
    if kept < n:
        told = f"This file holds the first {kept} of {n} queries, so that it stays below {limit / 1e6:.0f} MB of them"
        index["notes"].append(f"{told}. In JupyterLab, explorer.Explorer(SWEEP_DIR) shows every query.")
    index |= {"queries": index["queries"][:kept], "documents": list(documents)}
    scores = pack([pages.scores(query_id) for query_id in packed])
    return Embedded(index, list(packed.values()), list(documents.values()), scores)


def _needs(
    page: dict[str, Any], before: Mapping[str, tuple[frozenset[Span], bool]]
) -> dict[str, tuple[frozenset[Span], bool]]:
    """doc_id -> the spans that a page and those before it rest on, and whether the document is wanted whole anyway.

    It is where it is relevant, and where an answer cites it without saying what in it.
    """
    spans, found = spans_of(page), {}
    vague = {source["doc_id"] for source in _sources(page) if source["field"] not in ("text", "title")}
    for document in page["documents"]:
        doc_id = document["doc_id"]
        known, whole = before.get(doc_id, (frozenset(), False))
        found[doc_id] = known.union(spans.get(doc_id, ())), whole or bool(document["relevant"]) or doc_id in vague
    return found


def static(pages: Pages, query_id: str, left: str, right: str) -> str:
    """HTML of one query for a place that runs no widget: the answers of two runs, each sentence with what it rests on."""
    page, esc = pages.page(query_id), html.escape
    about = {document["doc_id"]: document for document in page["documents"]}
    by_run = {answer["run"]: answer for answer in page["answers"]}
    told = "Open this notebook in JupyterLab and run the cell: the explorer then stands here, for every query and system."
    lines = [f"<p><em>{told}</em></p>", f"<p><strong>{esc(page['text'])}</strong></p>"]
    for answer in (by_run[run] for run in dict.fromkeys((left, right))):
        lines.append(f"<p>{esc(answer['run'])}{esc(answer['note'] and ': ' + answer['note'])}</p>\n<ol>")
        for sentence in answer["sentences"]:
            places = "; ".join(_place(source, about[source["doc_id"]]) for source in sentence["sources"])
            lines.append(f"<li>{esc(sentence['text'])}<br><small>{esc(places)}</small></li>")
        lines.append("</ol>")
    return "\n".join(lines)


def _place(source: dict[str, Any], document: dict[str, Any]) -> str:
    name = f"{document['title'] or source['doc_id']}{', ' + document['date'][:4] if document['date'] else ''}"
    judged = {True: ", relevant", False: ", not relevant", None: ""}[document["relevant"]]
    where = f", characters {source['start']} to {source['end']}" if source["field"] == "text" else ""
    return f"{name} ({source['doc_id']}{judged}{where})"


@cache
def _widget() -> type:
    """The class `Explorer`; made when it is first asked for, since anywidget takes long to import."""
    import anywidget
    import traitlets

    class Explorer(anywidget.AnyWidget):
        """The explorer of a sweep in JupyterLab; pages and texts are sent as they are asked for, and not kept.

        `query_id`, `left` and `right` say what is shown, and follow the reader's choice. Where no widget
        can be shown there is plain HTML of the query that was chosen last. Raises WorkbookError for a
        folder that is no sweep and for a query or run that it does not have.
        """

        _esm, _css = asset("explorer.js"), asset("explorer.css")
        index = traitlets.Dict().tag(sync=True)
        query_id = traitlets.Unicode().tag(sync=True)
        left = traitlets.Unicode().tag(sync=True)
        right = traitlets.Unicode().tag(sync=True)

        def __init__(self, sweep: str | Path, query_id: str = "", left: str = "", right: str = ""):
            self._pages = Pages(paths.resolve(sweep))
            index = self._pages.index()
            for run in filter(None, (left, right)):
                if run not in self._pages.runs:
                    raise WorkbookError(f"{sweep}: no run '{run}'; there are: {', '.join(self._pages.runs)}")
            query_id = self._pages.slice_.query(query_id or index["queries"][0]["query_id"]).query_id
            super().__init__(index=index, query_id=query_id, left=left or index["left"], right=right or index["right"])
            self.on_msg(lambda _, message, __: self.send(self._reply(message)))

        def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
            """What the page asked for, under the number of its question; or what was wrong."""
            try:
                return {"number": message["number"], "value": answer_to(self._pages, message)}
            except WorkbookError as error:
                return {"number": message["number"], "fault": str(error)}

        def __repr__(self) -> str:
            queries, runs = len(self.index["queries"]), len(self._pages.runs)
            return f"Explorer of {self.index['slice']}: {queries} queries, {runs} systems"

        def _repr_mimebundle_(self, **given: Any) -> tuple[dict, dict]:
            data, about = super()._repr_mimebundle_(**given)
            return {**data, "text/html": static(self._pages, self.query_id, self.left, self.right)}, about

    return Explorer


def answer_to(pages: Pages, question: Mapping[str, Any]) -> Any:
    """What the widget's page asks for: a `page`, a `document` as that page needs it, or `differences`."""
    if question["kind"] == "differences":
        return pages.differences(question["left"], question["right"], question["measure"])
    page = pages.page(question["query_id"])
    if question["kind"] == "page":
        return page
    need = _needs(page, {}).get(question["doc_id"])
    return pages.document(question["doc_id"], *need) if need else None


def __getattr__(name: str) -> Any:
    if name == "Explorer":
        return _widget()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
