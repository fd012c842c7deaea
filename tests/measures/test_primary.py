import csv
import json

import pytest

from lib import slices
from lib.measures.primary import cited_documents, cited_precision


def response(references: list, *citations: list[int]) -> dict:
    return {"references": references, "answer": [{"text": "Ice melts.", "citations": list(c)} for c in citations]}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (response(["d1", "d2", "d3"], [2], [0, 2]), ["d3", "d1"]),
        (response(["d1", "d2"]), []),
        (response(["d1", "d2"], [], []), []),
        (response([4, "007", 7], [0, 1], [2]), ["4", "007", "7"]),
        (response(["d1", "d1"], [0], [1]), ["d1"]),
    ],
)
def test_cited_documents_are_distinct_as_text_and_in_order_of_first_citation(record, expected):
    assert cited_documents(record) == expected


@pytest.mark.parametrize(
    ("cited", "relevant", "expected"),
    [
        (["d1", "d2"], {"d2", "d3"}, 1 / 2),
        (["d1", "d2", "d2"], {"d2", "d3"}, 1 / 2),
        (["d2"], {"d2", "d3"}, 1.0),
        (["d1", "d4", "d5"], {"d2", "d3"}, 0.0),
        (["7"], {"007"}, 0.0),
        ([], {"d2"}, 0.0),
        (["d1"], set(), 0.0),
    ],
)
def test_cited_precision_by_hand(cited, relevant, expected):
    assert cited_precision(cited, relevant) == expected


def published_precisions(folder) -> dict[tuple[str, str], float]:
    with open(folder / "official_scores.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "cited_precision"]
    return {(row["run"], row["query_id"]): float(row["value"]) for row in rows}


def test_cited_precision_reproduces_every_published_value_of_the_judged_queries(real_data):
    """Source: the organisers' per-query scores, in `published/official_scores.csv`, which have four decimals."""
    folder = real_data / "published"
    qrels, expected = slices.read_qrels(folder / "qrels.txt"), published_precisions(folder)
    runs = {run for run, _ in expected}
    found = {}
    for run in runs:
        with open(folder / "runs" / run / "responses.jsonl", encoding="utf-8") as file:
            for record in map(json.loads, file):
                query_id = record["metadata"]["narrative_id"]
                if query_id in qrels:
                    found[run, query_id] = cited_precision(cited_documents(record), qrels[query_id])
    assert len(runs) == 10
    assert len(qrels) == 19
    assert found == pytest.approx({key: value for key, value in expected.items() if key[1] in qrels}, abs=5e-5)
