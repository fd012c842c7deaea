"""Scores -> tables: one row a query, run and measure, with its status; means that say what they cover."""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from lib import paths
from lib.errors import WorkbookError

COLUMNS = ("query_id", "run", "measure", "value", "status", "pool", "model")
OK, MISSING = "ok", "missing"
# The columns of the short leaderboard and their headings in a terminal; the rest stands in the files.
MAIN = {
    "rougeL_f1": "ROUGE-L",
    "bertscore_f1": "BERTScore",
    "cited_precision": "precision",
    "cited_recall": "recall",
    "tfc1": "TFC1",
    "nugget_coverage": "coverage",
    "average_grade": "grade",
    "citation_jaccard": "Jaccard",
    "correctness": "correct",
    "completeness": "complete",
}


class Score(NamedTuple):
    """The value of one measure for one answer.

    `status` is `ok`; `missing` for a query without a record, which scores the measure's lowest value
    and stays in every mean; or why there is no value, which is then None and stays out. `pool` is set
    where the value depends on the other answers, `model` names what computed it.
    """

    query_id: str
    run: str
    measure: str
    value: float | None
    status: str = OK
    pool: str = ""
    model: str = ""


class Mean(NamedTuple):
    """A mean over queries, and how many of the n queries it covers; None where there is no value."""

    value: float | None
    n_scored: int
    n: int


def write_scores(path: Path, scores: Iterable[Score]) -> Path:
    """Write a CSV table with the columns of `Score`; values with all their digits, blank where there is none."""
    with paths.atomic(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for score in scores:
            value = "" if score.value is None else repr(float(score.value))
            writer.writerow(score._replace(value=value))
    return path


def read_scores(path: Path) -> list[Score]:
    """The rows of a table; `status`, `pool` and `model` may be absent, as in the organisers' files."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = set(reader.fieldnames or ())  # read while the file is open
            rows = [(row, f"{path}:{reader.line_num}") for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkbookError(f"{path}: not a readable table of scores ({error})") from None
    if not set(COLUMNS[:4]) <= columns:
        raise WorkbookError(f"{path}:1: expected the columns {', '.join(COLUMNS[:4])}")
    return [_score(row, place) for row, place in rows]


def _score(row: dict[str, str], place: str) -> Score:
    if None in row or None in row.values():
        raise WorkbookError(f"{place}: the row has not as many cells as the header")
    try:
        value = float(row["value"]) if row["value"] else None
    except (ValueError, TypeError):
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise WorkbookError(f"{place}: the value {row['value']!r} is no number")
    given = {name: row[name] for name in COLUMNS if row.get(name) is not None}
    return Score(**{**given, "value": value})


def by_run(scores: Iterable[Score], measure: str) -> dict[str, dict[str, float | None]]:
    """run -> query_id -> value of one measure. Raises WorkbookError if values come from different pools or models."""
    table: dict[str, dict[str, float | None]] = {}
    origin: set[tuple[str, str]] = set()
    for score in scores:
        if score.measure == measure:
            origin.add((score.pool, score.model))
            row = table.setdefault(score.run, {})
            if score.query_id in row:
                raise WorkbookError(f"{measure}: two values of run '{score.run}' for query '{score.query_id}'")
            row[score.query_id] = score.value
    if len(origin) > 1:
        told = "; ".join(sorted(" ".join(filter(None, pair)) or "none" for pair in origin))
        raise WorkbookError(f"{measure}: values of different pools or models cannot be compared: {told}")
    return table


def mean(values: Sequence[float | None]) -> Mean:
    """The mean of the values that are there."""
    there = [value for value in values if value is not None]
    return Mean(math.fsum(there) / len(there) if there else None, len(there), len(values))


def measures(scores: Iterable[Score]) -> list[str]:
    """The measures of a table, in order of first appearance."""
    return list(dict.fromkeys(score.measure for score in scores))


def leaderboard(scores: Sequence[Score]) -> dict[str, dict[str, Mean]]:
    """measure -> run -> mean over queries."""
    return {m: {run: mean(list(row.values())) for run, row in by_run(scores, m).items()} for m in measures(scores)}


def main_measures(scores: Sequence[Score]) -> list[str]:
    """The measures of the short leaderboard that a table has, in its order."""
    return [
        name
        for stem in MAIN
        for name in measures(scores)
        if name.partition("[")[0] == stem and name != "rougeL_f1[unicode words]"
    ]
