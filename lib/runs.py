"""Folders of runs -> the answers that are scored: every run, every query of the slice, missing ones too."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib import paths, trec
from lib.errors import WorkbookError
from lib.slices import Query


class Response(NamedTuple):
    """One run's answer to one query.

    `citations` holds the cited document ids of each sentence, each document once. `present` is False
    where the run has no record of the query: such an answer is empty, and scores the lowest value.
    """

    run: str
    query_id: str
    sentences: tuple[str, ...] = ()
    citations: tuple[tuple[str, ...], ...] = ()
    present: bool = True

    @property
    def text(self) -> str:
        """The answer text that is scored: its sentences joined by one space (METHOD, section 7)."""
        return " ".join(self.sentences)

    @property
    def said(self) -> tuple[str, ...]:
        """The sentences that are not blank."""
        return tuple(sentence for sentence in self.sentences if sentence.strip())

    @property
    def cited(self) -> frozenset[str]:
        """The distinct documents that the answer cites."""
        return frozenset(doc_id for sentence in self.citations for doc_id in sentence)


Runs = dict[str, dict[str, Response]]  # run -> query_id -> response, queries in the slice's order


def read_runs(folder: Path, queries: Sequence[Query], report: Callable[[str], None] = lambda _: None) -> Runs:
    """The runs `folder/<run>/responses.jsonl` by name; `report` hears of records outside the slice and missing ones.

    Raises WorkbookError naming file and line for a record that cannot be read or stands there twice.
    """
    files = sorted(folder.glob("*/responses.jsonl")) if folder.is_dir() else []
    if not files:
        raise WorkbookError(f"{folder}: no run here; expected folders with a responses.jsonl, one a run")
    return {file.parent.name: read_run(file, queries, report) for file in files}


def read_run(file: Path, queries: Sequence[Query], report: Callable[[str], None] = lambda _: None) -> dict[str, Response]:
    """query_id -> response of one responses file, in the slice's order."""
    run, found = file.parent.name, {}
    wanted = {query.query_id for query in queries}
    outside = 0
    for number, row, fault in trec.lines(file):
        response, fault = (None, fault) if fault else _response(row, run)
        if fault:
            raise WorkbookError(f"{file}:{number}: {fault}")
        if response.query_id in found:
            raise WorkbookError(f"{file}:{number}: query '{response.query_id}' stands there twice; keep one record")
        if response.query_id in wanted:
            found[response.query_id] = response
        else:
            outside += 1
    if outside:
        report(f"{file}: {outside} records of queries outside the slice left out")
    missing = [query.query_id for query in queries if query.query_id not in found]
    if missing:
        told = f"{len(missing)} of {len(queries)} queries missing, such as '{missing[0]}'"
        report(f"{file}: {told}; each scores the lowest value")
    return {q.query_id: found.get(q.query_id) or Response(run, q.query_id, present=False) for q in queries}


def _response(row: dict[str, Any], run: str) -> tuple[Response | None, str]:
    """The response in a record, and what is wrong with the record ('' if nothing)."""
    about, references, answer = (row.get(key) for key in ("metadata", "references", "answer"))
    if not isinstance(about, dict) or not isinstance(references, list) or not isinstance(answer, list):
        return None, "expected the fields metadata (an object), references and answer (lists)"
    if not isinstance(about.get("narrative_id"), str | int) or isinstance(about["narrative_id"], bool):
        return None, "metadata lacks 'narrative_id'"
    if any(not isinstance(doc_id, str | int) or isinstance(doc_id, bool) for doc_id in references):
        return None, "references must be document ids, as text or whole numbers"
    citations = []
    for position, sentence in enumerate(answer):
        faults = trec.sentence_faults(sentence, len(references))
        fault = next((f for f in faults if f != "the text is blank" and "twice" not in f), "")
        if fault:
            return None, f"sentence {position}: {fault}"
        citations.append(tuple(dict.fromkeys(str(references[i]) for i in sentence["citations"])))
    texts = tuple(paths.encodable(sentence["text"]) for sentence in answer)
    return Response(run, str(about["narrative_id"]), texts, tuple(citations)), ""


def pool_label(runs: Runs) -> str:
    """What a measure that compares answers depends on: the number of runs, and a hash of all answers in any order."""
    digest = hashlib.sha256()
    for answer in sorted((response.run, response.query_id, response.text) for response in responses(runs)):
        digest.update("\0".join(answer).encode("utf-8", "replace") + b"\1")
    return f"{len(runs)} runs {digest.hexdigest()[:12]}"


def responses(runs: Runs) -> Iterable[Response]:
    """Every response of every run."""
    return (response for run in runs.values() for response in run.values())
