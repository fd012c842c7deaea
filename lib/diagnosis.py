"""Runs -> where their relevant documents were lost: for each query, run and document the first stage that lost it.

Everything follows from the files of a run, `evidence.jsonl` and `responses.jsonl`, and its slice. Only
queries in the qrels are looked at; of these, nothing but ids is held.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lib import preparing, trec
from lib.errors import WorkbookError
from lib.runs import Response, read_run
from lib.slices import Query, Slice

NO_TEXT, BELOW_SHORTLIST, NOT_SELECTED, NO_SENTENCE, NOT_USED, CITED = STAGES = (
    "no-text",  # absent, or without a letter or digit: no passage of it could be ranked
    "below-shortlist",  # none of its passages came among those that are selected from
    "not-selected",  # shortlisted, but no passage of it is among the selected ones
    "no-sentence",  # selected, but no sentence of it is evidence
    "not-used",  # it has evidence, and the answer does not cite it
    "cited",
)


class Loss(NamedTuple):
    """How far one relevant document came in one run: the stage that lost it, or `cited`."""

    query_id: str
    run: str
    doc_id: str
    stage: str


class WrongCitation(NamedTuple):
    """A document that a run's answer to a judged query cites and that is not relevant."""

    query_id: str
    run: str
    doc_id: str


class _Reached(NamedTuple):
    """The documents of one query that came as far as the shortlist, the selection, the evidence."""

    shortlisted: frozenset[str] = frozenset()
    selected: frozenset[str] = frozenset()
    evidenced: frozenset[str] = frozenset()


class _Trail(NamedTuple):
    """What a run's evidence tells: query_id -> documents, whether it reads texts, whether it records shortlists."""

    reached: dict[str, _Reached]
    reads: bool
    recorded: bool


def losses(
    queries: Sequence[Query],
    qrels: Mapping[str, Collection[str]],
    run: str,
    evidence: Iterable[dict[str, Any]] | None,
    responses: Mapping[str, Response],
    without_text: Collection[str] = (),
) -> list[Loss]:
    """One `Loss` a relevant document of each judged query, queries and documents in the slice's order.

    `evidence` are the lines of the run's `evidence.jsonl`, `without_text` the documents that have none (see `textless`).
    - A run that reads no text (status `titles`, or None for `evidence`) has documents that are `cited` or `not-used`.
    - Where the evidence does not record the shortlist, as that of older sweeps and of the published
      runs, `no-text`, `below-shortlist` and `not-selected` cannot be told apart: all three are `not-selected`.
    - A query without a line of evidence counts as one of which nothing was shortlisted, or, where that is
      not recorded, selected; one without a response, or with an empty one, as an answer that cites nothing.
    - A relevant document that is no candidate of the query could not be ranked either: `no-text`.
    """
    judged = [query for query in queries if query.query_id in qrels]
    trail = _trail(evidence, {query.query_id for query in judged})
    found = []
    for query in judged:
        cited = _cited(query, responses)
        for doc_id in _in_order(query, qrels[query.query_id]):
            ranked = doc_id in query.doc_ids and doc_id not in without_text
            stage = CITED if doc_id in cited else _lost_at(query.query_id, doc_id, trail, ranked)
            found.append(Loss(query.query_id, run, doc_id, stage))
    return found


def wrongly_cited(
    queries: Sequence[Query], qrels: Mapping[str, Collection[str]], run: str, responses: Mapping[str, Response]
) -> list[WrongCitation]:
    """The cited documents that are not relevant, of the judged queries only, in the slice's order."""
    return [
        WrongCitation(query.query_id, run, doc_id)
        for query in queries
        if query.query_id in qrels
        for doc_id in _in_order(query, _cited(query, responses) - set(qrels[query.query_id]))
    ]


def textless(slice_: Slice) -> frozenset[str]:
    """The relevant documents that are absent from the slice or whose text has no letter and no digit."""
    qrels = slice_.qrels()
    missing = {doc_id for query in slice_.queries for doc_id in qrels.get(query.query_id, ())}
    for query in slice_.queries:
        wanted = sorted(missing.intersection(qrels.get(query.query_id, ())))
        documents = slice_.documents(query._replace(doc_ids=tuple(wanted)))
        missing -= {document.doc_id for document in documents if any(c.isalnum() for c in document.text)}
    return frozenset(missing)


def diagnose(sweep: Path, runs: Sequence[str]) -> tuple[list[Loss], list[WrongCitation]]:
    """Losses and wrong citations of some runs of a sweep's folder, run by run; none where the slice has no qrels.

    Raises WorkbookError for a run without evidence or responses, and for a line that cannot be read.
    """
    slice_ = Slice(sweep / "slice")
    evidence = {sweep / "runs" / run: _rows(sweep / "runs" / run / "evidence.jsonl") for run in runs}
    return _diagnose(slice_, evidence, textless(slice_))


def diagnose_published(folder: Path, runs: Sequence[str]) -> tuple[list[Loss], list[WrongCitation]]:
    """The same for a folder as the paper's authors published it: `runs/<run>/responses.jsonl`, `evidence/<run>.jsonl`.

    It needs no documents. A run without a file of evidence is taken as one that reads no text, like the
    naive baseline, the only such run there.
    """
    files = {run: folder / "evidence" / f"{run}.jsonl" for run in runs}
    evidence = {folder / "runs" / run: _rows(file) if file.exists() else None for run, file in files.items()}
    with preparing.opened(str(folder)) as slice_:
        return _diagnose(slice_, evidence)


def counts(found: Iterable[Loss]) -> pd.DataFrame:
    """Number of relevant documents by run, in order of appearance, and stage; every stage has its column."""
    found = list(found)
    table = pd.crosstab(
        pd.Series([loss.run for loss in found], name="run", dtype=str),
        pd.Series([loss.stage for loss in found], name="stage", dtype=str),
    )
    runs = pd.Index(dict.fromkeys(loss.run for loss in found), name="run", dtype=object)
    return table.reindex(index=runs, columns=_stages("stage"), fill_value=0).astype(int)


def changes(found: Iterable[Loss], first: str, second: str) -> pd.DataFrame:
    """Number of (query, document) pairs by their stage in run `first` (rows) and in run `second` (columns)."""
    table = pd.DataFrame(0, index=_stages(first), columns=_stages(second))
    for before, after in _moves(list(found), first, second):
        table.loc[before, after] += 1
    return table


def moved(found: Iterable[Loss], runs: Sequence[str]) -> pd.DataFrame:
    """What changes from each run to the next, a row a step.

    Columns `first`, `second`; `gained` and `lost`, the documents that only the second or only the first
    cites; `earlier` and `later`, those that neither cites and the second loses at an earlier or later stage.
    Stages compare only where both runs record the shortlist, or neither does.
    """
    found = list(found)
    rows = [(first, second, *_directions(_moves(found, first, second))) for first, second in pairwise(runs)]
    return pd.DataFrame(rows, columns=["first", "second", "gained", "lost", "earlier", "later"])


def _trail(evidence: Iterable[dict[str, Any]] | None, judged: set[str]) -> _Trail:
    reached: dict[str, _Reached] = {}
    reads, recorded = evidence is not None, True
    for row in evidence or ():
        # Both are properties of a run; a query that has no text says so instead of `titles`.
        reads = reads and row.get("status") != "titles"
        recorded = recorded and "shortlist" in row
        if str(row["query_id"]) in judged:
            shortlist, references = _ids(row.get("shortlist", ())), _ids(row["references"])
            reached[str(row["query_id"])] = _Reached(shortlist, references, _ids(e["doc_id"] for e in row["evidence"]))
    return _Trail(reached, reads, recorded)


def _ids(values: Iterable[str | int]) -> frozenset[str]:
    return frozenset(map(str, values))


def _lost_at(query_id: str, doc_id: str, trail: _Trail, ranked: bool) -> str:
    """The stage after the last one that the document reached; `ranked` is False if it had no passage to rank."""
    reached = trail.reached.get(query_id, _Reached())
    if not trail.reads or doc_id in reached.evidenced:
        return NOT_USED
    if doc_id in reached.selected:
        return NO_SENTENCE
    if doc_id in reached.shortlisted or not trail.recorded:
        return NOT_SELECTED
    return BELOW_SHORTLIST if ranked else NO_TEXT


def _cited(query: Query, responses: Mapping[str, Response]) -> frozenset[str]:
    response = responses.get(query.query_id)
    return response.cited if response else frozenset()


def _in_order(query: Query, doc_ids: Collection[str]) -> list[str]:
    """Documents in candidate order, then those that are no candidates, by id."""
    return [d for d in query.doc_ids if d in doc_ids] + sorted(set(doc_ids) - set(query.doc_ids))


def _diagnose(
    slice_: Slice, evidence: Mapping[Path, Iterator[dict[str, Any]] | None], without_text: Collection[str] = ()
) -> tuple[list[Loss], list[WrongCitation]]:
    """Of each run's folder, with its lines of evidence; the answers of one run are held at a time."""
    queries, qrels = slice_.queries, slice_.qrels()
    lost: list[Loss] = []
    wrong: list[WrongCitation] = []
    for folder, rows in evidence.items():
        responses = read_run(folder / "responses.jsonl", queries)
        lost += losses(queries, qrels, folder.name, rows, responses, without_text)
        wrong += wrongly_cited(queries, qrels, folder.name, responses)
    return lost, wrong


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of an evidence file, one at a time. Raises WorkbookError naming the line that cannot be used."""
    if not path.is_file():
        raise WorkbookError(f"{path}: no such file; run the sweep again, which collects the evidence")
    seen: set[str] = set()
    for number, row, fault in trec.lines(path):
        fault = fault or _fault(row)
        if not fault and str(row["query_id"]) in seen:
            fault = f"query '{row['query_id']}' stands there twice; keep one line"
        if fault:
            raise WorkbookError(f"{path}:{number}: {fault}")
        seen.add(str(row["query_id"]))
        yield row


def _fault(row: dict[str, Any]) -> str:
    if not isinstance(row.get("query_id"), str | int):
        return "expected a 'query_id'"
    lists = [row.get("references"), row.get("evidence"), row.get("shortlist", [])]
    if not all(isinstance(value, list) for value in lists):
        return "expected the lists 'references' and 'evidence', and 'shortlist' where it is recorded"
    items = row["evidence"]
    return "" if all(isinstance(i, dict) and "doc_id" in i for i in items) else "evidence without a 'doc_id'"


def _stages(name: str) -> pd.Index:
    return pd.Index(STAGES, name=name)


def _moves(found: list[Loss], first: str, second: str) -> list[tuple[str, str]]:
    """The stage of every (query, document) pair in two runs. Raises WorkbookError if they have not the same pairs."""
    stages: dict[str, dict[tuple[str, str], str]] = {run: {} for run in {loss.run for loss in found}}
    for loss in found:
        stages[loss.run][loss.query_id, loss.doc_id] = loss.stage
    for run in (first, second):
        if found and run not in stages:
            raise WorkbookError(f"run '{run}': no losses of it; diagnose it too")
    before, after = stages.get(first, {}), stages.get(second, {})
    if before.keys() != after.keys():
        raise WorkbookError(f"runs '{first}' and '{second}': diagnose both over the same queries and qrels")
    return [(stage, after[pair]) for pair, stage in before.items()]


def _directions(moves: Iterable[tuple[str, str]]) -> tuple[int, int, int, int]:
    """How many pairs are gained, lost, and move earlier and later."""
    changed = [(STAGES.index(before), STAGES.index(after)) for before, after in moves if before != after]
    cited = STAGES.index(CITED)
    gained, lost = sum(after == cited for _, after in changed), sum(before == cited for before, _ in changed)
    uncited = [(before, after) for before, after in changed if cited not in (before, after)]
    return gained, lost, sum(a < b for b, a in uncited), sum(a > b for b, a in uncited)
