"""Scoring eleven runs of 47 and of 94 queries, no text of which was seen before."""

from pathlib import Path
from typing import Any

from bench.processes import workbook
from bench.show import show
from lib import paths


def measure(folder: Path) -> None:
    small, large = (_score_seconds(folder / f"scored-{n}", n) for n in (47, 94))
    show("seconds to score 11 runs of 47 queries", small, "at most 60")
    show("scoring, 94 queries / 47 queries", large / small, "at most 2", "linear or better")


def _score_seconds(folder: Path, n_queries: int) -> float:
    """Wall seconds of scoring, model load included, with an empty cache; the answers are the sample's, made distinct."""
    queries = list(paths.read_jsonl(paths.SAMPLE / "queries.jsonl"))
    records = list(paths.read_jsonl(paths.SAMPLE / "reference_answers.jsonl"))
    gold = list(paths.read_jsonl(paths.SAMPLE / "gold_answers.jsonl"))
    chosen = [(f"q{n}", n % len(queries)) for n in range(n_queries)]
    rows = {
        "queries": [{**queries[i], "query_id": name} for name, i in chosen],
        "gold_answers": [{"query_id": name, "answer": f"{gold[i]['answer']} ({name})"} for name, i in chosen],
        "reference_answers": [_copy(records[i], name, "reference") for name, i in chosen],
    }
    for name, lines in rows.items():
        paths.write_jsonl(folder / "slice" / f"{name}.jsonl", lines)
    for run in (f"run-{n}" for n in range(11)):
        lines = [_copy(records[i], name, run) for name, i in chosen]
        paths.write_jsonl(folder / "runs" / run / "responses.jsonl", lines)
    given = ("--slice", folder / "slice", "--runs", folder / "runs", "--out", folder)
    return workbook("score", *given, cache=folder / "cache").seconds


def _copy(record: dict[str, Any], query_id: str, run: str) -> dict[str, Any]:
    answer = [{**s, "text": f"{s['text']} ({run}, {query_id})"} for s in record["answer"]]
    return {**record, "metadata": {**record["metadata"], "narrative_id": query_id, "run_id": run}, "answer": answer}
