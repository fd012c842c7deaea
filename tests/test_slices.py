"""Records joined into a slice: order, ids, texts and dates; and every fault told with its place and remedy."""

import re
from pathlib import Path

import pytest

from lib import cli, slices
from lib.errors import WorkbookError
from tests.slice_files import bad_documents, bad_sources, names_of, put

QUERY_FIELDS = ("query_id", "query", "doc_ids")


@pytest.mark.parametrize(
    ("row", "reason"),
    [("q1 0 d1", "relevance"), ("q1 0 d1 yes", "relevance"), ("q1 0 d1 1 x", "relevance"), ("q1 0 d1 0.5", "")],
)
def test_a_malformed_qrels_line_is_an_error_with_its_number(tmp_path, row, reason):
    path = put(tmp_path / "qrels.txt", f"q1 0 d1 1\n\n{row}\n")
    with pytest.raises(WorkbookError) as caught:
        slices.read_qrels(path)
    assert f"{path}:3" in str(caught.value)
    assert reason in str(caught.value)


def test_qrels_that_are_not_utf8_are_an_error_naming_the_file(tmp_path):
    path = put(tmp_path / "qrels.txt", b"q1 0 d\xe9 1\n")
    with pytest.raises(WorkbookError, match=re.escape(str(path))):
        slices.read_qrels(path)


def test_only_grades_above_zero_are_relevant_and_a_judged_query_without_any_stays(tmp_path):
    path = put(tmp_path / "qrels.txt", "q1 0 a 1\nq1\t0\tb\t2\nq1 0 c 0\nq1 0 d -1\nq2 0 e 0\n")
    assert slices.read_qrels(path) == {"q1": {"a", "b"}, "q2": set()}


def test_a_folder_that_is_no_prepared_slice_is_an_error(tmp_path):
    with pytest.raises(WorkbookError, match=re.escape(str(tmp_path))):
        slices.Slice(tmp_path)


def told(capsys) -> str:
    """The one line on stderr."""
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("workbook: ")
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("kind", names_of(bad_sources))
def test_sweep_tells_bad_input_in_one_line_and_makes_no_folder(tmp_path, capsys, kind):
    spec, parts = bad_sources(tmp_path)[kind]
    out = tmp_path / "out"
    assert cli.main(["sweep", "--slice", str(spec), "--variants", "single-query-bm25", "--out", str(out)]) == 2
    message = told(capsys)
    assert [part for part in parts if part not in message] == []
    assert not out.exists()


@pytest.mark.parametrize("kind", [name for name in names_of(bad_sources) if name != "no documents"])
def test_validate_tells_bad_input_in_one_line(tmp_path, capsys, kind):
    spec, parts = bad_sources(tmp_path)[kind]
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["validate", str(tmp_path / "responses.jsonl"), "--slice", str(spec)]) == 2
    message = told(capsys)
    assert [part for part in parts if part not in message] == []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", names_of(bad_documents))
def test_validate_tells_bad_documents_in_one_line(tmp_path, capsys, kind):
    spec, parts = bad_documents(tmp_path)[kind]
    assert cli.main(["validate", str(tmp_path / "responses.jsonl"), "--slice", str(spec)]) == 2
    message = told(capsys)
    assert [part for part in parts if part not in message] == []


def test_sweep_tells_an_official_id_that_there_is_not(official, tmp_path, capsys):
    out = tmp_path / "out"
    spec = "longeval-nothing/here"
    assert cli.main(["sweep", "--slice", spec, "--variants", "single-query-bm25", "--out", str(out)]) == 2
    assert spec in told(capsys)
    assert not out.exists()


def sweep(spec: Path, out: Path) -> int:
    return cli.main(["sweep", "--slice", str(spec), "--variants", "single-query-bm25", "--out", str(out), "--jobs", "1"])


def test_sweep_tells_documents_that_cannot_be_used_and_makes_no_folder(tmp_path, capsys):
    spec, parts = bad_documents(tmp_path)["one id, two texts"]
    assert sweep(spec, tmp_path / "out") == 2
    captured = capsys.readouterr()
    last = captured.err.splitlines()[-1]
    assert last.startswith("workbook: ")
    assert [part for part in parts if part not in last] == []
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_sweep_tells_documents_that_cannot_be_used_once_and_keeps_a_folder_that_was_there(tmp_path, capsys):
    spec, _ = bad_documents(tmp_path)["one id, two texts"]
    put(tmp_path / "out" / "mine.txt", "kept")
    assert sweep(spec, tmp_path / "out") == 2
    assert (tmp_path / "out" / "mine.txt").read_text() == "kept"
    assert not (tmp_path / "out" / "slice" / "slice.json").exists()
    assert capsys.readouterr().err.count("keep one") == 1
