import csv
import math

import numpy as np
import pytest

from lib.errors import WorkbookError
from lib.score_tables import MISSING, Mean, Score, by_run, leaderboard, mean, measures, read_scores, write_scores

HEADER = "query_id,run,measure,value\n"


def score(query_id="q1", run="a", measure="m", value: float | None = 0.5, status="ok", **more) -> Score:
    return Score(query_id, run, measure, value, status, **more)


ROUND_TRIPS = [
    score(),
    score(value=0.1 + 0.2),
    score(value=1 / 3),
    score(value=-0.758),
    score(value=5e-324),
    score(value=None, status="no-gold"),
    score(value=0.0, status=MISSING),
    score(query_id="007", run="a, b", measure='m["x"]', pool="2 runs 1f", model="first\nsecond"),
    score(run="Лёд \u2028 \U0001f600", model="=1+1"),
    score(value=np.float64(1 / 3)),
]


@pytest.mark.parametrize("row", ROUND_TRIPS)
def test_a_score_is_read_back_as_it_was_written(tmp_path, row):
    assert read_scores(write_scores(tmp_path / "out" / "scores.csv", [score(), row])) == [score(), row]


def test_the_table_has_the_declared_columns_and_no_value_is_blank(tmp_path):
    path = write_scores(tmp_path / "scores.csv", [score(value=None, status="failed"), score("q2", pool="2 runs 1f")])
    with open(path, encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["query_id", "run", "measure", "value", "status", "pool", "model"],
            ["q1", "a", "m", "", "failed", "", ""],
            ["q2", "a", "m", "0.5", "ok", "2 runs 1f", ""],
        ]


def test_a_table_of_the_organisers_four_columns_is_read_with_the_others_at_their_defaults(tmp_path):
    (tmp_path / "official.csv").write_text("\ufeff" + HEADER + "q1,a,rougeL_f1,0.25\n", encoding="utf-8")
    assert read_scores(tmp_path / "official.csv") == [Score("q1", "a", "rougeL_f1", 0.25, "ok", "", "")]


def test_a_table_without_rows_holds_no_scores(tmp_path):
    (tmp_path / "scores.csv").write_text(HEADER)
    assert read_scores(tmp_path / "scores.csv") == []


def test_an_empty_file_is_no_table(tmp_path):
    (tmp_path / "scores.csv").touch()
    with pytest.raises(WorkbookError, match="scores.csv:1: expected the columns query_id, run, measure, value"):
        read_scores(tmp_path / "scores.csv")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("q1,a,m,0.5\nq2,a,m,good\n", 3),
        ("q1,a,m,nan\n", 2),
        ("q1,a,m,inf\n", 2),
        ("q1,a,m,true\n", 2),
        ("q1,a,m,0.5\nq2,a,m\n", 3),
        ("q1,a,m,0.5\nq2,a\n", 3),
        ("q1,a,m,0,5\n", 2),
        ("q1,a,m,0.5\n\nq2,a,m,good\n", 4),
        ('q1,"a\nb",m,0.5\nq2,a,m,good\n', 4),
    ],
    ids=["text", "nan", "inf", "true", "no value", "torn", "comma for a point", "after a blank line", "after two lines"],
)
def test_a_row_that_cannot_be_read_is_an_error_naming_file_and_line(tmp_path, rows, line):
    path = tmp_path / "scores.csv"
    path.write_text(HEADER + rows)
    with pytest.raises(WorkbookError) as error:
        read_scores(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("content", [b"query,run,measure,value\nq1,a,m,1\n", b"\xff\xfe\x00", b'"query_id\n', None])
def test_a_file_that_is_no_table_of_scores_is_an_error_naming_it(tmp_path, content):
    path = tmp_path / "scores.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WorkbookError) as error:
        read_scores(path)
    assert str(error.value).startswith(str(path))


def test_a_failure_while_writing_leaves_the_old_table_and_nothing_else(tmp_path):
    path = write_scores(tmp_path / "scores.csv", [score()])
    before = path.read_bytes()

    def failing():
        yield score("q2")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_scores(path, failing())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 0.5], Mean(0.75, 2, 2)),
        ([1.0, None, 0.5], Mean(0.75, 2, 3)),
        ([0.0, 1.0], Mean(0.5, 2, 2)),
        ([-0.5, None], Mean(-0.5, 1, 2)),
        ([None, None], Mean(None, 0, 2)),
        ([], Mean(None, 0, 0)),
        ([0.1] * 10, Mean(0.1, 10, 10)),
    ],
)
def test_c34_a_mean_says_how_many_queries_it_covers(values, expected):
    assert mean(values) == expected


def test_a_missing_query_stays_in_the_mean_and_a_failed_judgement_does_not():
    rows = [
        score("q1", value=1.0),
        score("q2", value=0.0, status=MISSING),
        score("q3", value=None, status="failed"),
        score("q1", "b", value=0.25),
        score("q1", measure="n", value=None, status="not-judged"),
    ]
    assert leaderboard(rows) == {
        "m": {"a": Mean(0.5, 2, 3), "b": Mean(0.25, 1, 1)},
        "n": {"a": Mean(None, 0, 1)},
    }


def test_by_run_gives_one_measure_by_run_and_query():
    rows = [score("q1", "b", value=1.0), score("q2", "a"), score("q1", "b", "n"), score("q2", "b", value=None, status="x")]
    assert by_run(rows, "m") == {"b": {"q1": 1.0, "q2": None}, "a": {"q2": 0.5}}
    assert by_run(rows, "absent") == {}


@pytest.mark.parametrize("field", ["pool", "model"])
@pytest.mark.parametrize("compare", [lambda rows: by_run(rows, "m"), leaderboard], ids=["by_run", "leaderboard"])
def test_values_of_two_pools_or_models_refuse_to_be_compared(field, compare):
    rows = [score("q1", "a", **{field: "first 1f"}), score("q1", "b", **{field: "second 2f"})]
    with pytest.raises(WorkbookError) as error:
        compare(rows)
    for part in ("m: ", "first 1f", "second 2f", "cannot be compared"):
        assert part in str(error.value)


def test_a_value_with_a_pool_and_one_without_refuse_to_be_compared():
    with pytest.raises(WorkbookError, match="2 runs 1f"):
        by_run([score("q1", "a", pool="2 runs 1f"), score("q1", "b")], "m")


def test_different_measures_may_come_from_different_pools():
    rows = [score(measure="tfc1", pool="2 runs 1f"), score(measure="rougeL_f1")]
    assert list(leaderboard(rows)) == measures(rows) == ["tfc1", "rougeL_f1"]


def test_two_values_of_one_run_and_query_are_refused():
    with pytest.raises(WorkbookError, match="m: .*'a'.*'q1'"):
        by_run([score(), score(value=0.75)], "m")


def test_the_organisers_tables_are_read_whole(real_data):
    """Source: 10 runs, 24 queries and 40 measures in `published/official_scores.csv`."""
    rows = read_scores(real_data / "published" / "official_scores.csv")
    assert len(rows) == 10 * 24 * 40
    assert len(measures(rows)) == 40
    assert all(row.value is not None and math.isfinite(row.value) for row in rows)
    assert {run: mean(list(row.values())).n for run, row in by_run(rows, "rougeL_f1").items()} == dict.fromkeys(
        {row.run for row in rows}, 24
    )
