"""Atomic writes, the strict JSON of everything written, logs, and where paths lead."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib import paths

LINE_LIKE = "\u2028\u2029\u0085"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def strict_json(line: str):
    def refuse(name):
        raise ValueError(name)

    return json.loads(line, parse_constant=refuse)


def test_a_file_appears_only_when_the_block_ends(tmp_path):
    target = tmp_path / "a.txt"
    with paths.atomic(target) as file:
        file.write("half")
        file.flush()
        assert not target.exists()
    assert target.read_bytes() == b"half"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failed_block_leaves_the_old_file_and_nothing_else(tmp_path, error):
    target = paths.write_text(tmp_path / "a.txt", "old")
    with pytest.raises(error), paths.atomic(target) as file:
        file.write("new")
        raise error
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_failed_block_leaves_no_file_where_there_was_none(tmp_path):
    with pytest.raises(ValueError), paths.atomic(tmp_path / "a.bin", "wb") as file:
        file.write(b"\0" * 10_000)
        raise ValueError
    assert names(tmp_path) == []


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    target = paths.write_text(tmp_path / "a.txt", "old")
    code = (
        "import os, pathlib, signal, sys; from lib import paths\n"
        "with paths.atomic(pathlib.Path(sys.argv[1])) as file:\n"
        "    file.write('new'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(target)], cwd=paths.PROJECT)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["a.txt"]


def test_folders_are_made_and_written_files_are_readable_by_all(tmp_path):
    path = paths.write_text(tmp_path / "x" / "y" / "a.txt", "α\n")
    assert path.read_bytes() == "α\n".encode()
    assert path.stat().st_mode & 0o777 == 0o644


def test_line_ends_are_written_as_they_are(tmp_path):
    assert paths.write_text(tmp_path / "a.txt", "a\nb\r\nc").read_bytes() == b"a\nb\r\nc"


def test_jsonl_is_written_one_record_a_line_and_counted(tmp_path):
    assert paths.write_jsonl(tmp_path / "a.jsonl", ({"n": n} for n in range(3))) == 3
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"n": 0}\n{"n": 1}\n{"n": 2}\n'


def test_no_records_make_an_empty_file(tmp_path):
    assert paths.write_jsonl(tmp_path / "a.jsonl", []) == 0
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def failing_records():
    yield {"n": 1}
    raise RuntimeError


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (failing_records, RuntimeError),
        (lambda: [{"n": 1}, {"n": float("nan")}], ValueError),
        (lambda: [{"n": 1}, {"n": float("inf")}], ValueError),
        (lambda: [{"n": 1}, {"n": {1, 2}}], TypeError),
    ],
    ids=["broken stream", "nan", "infinity", "set"],
)
def test_a_record_that_cannot_be_written_leaves_the_old_file(tmp_path, records, error):
    paths.write_jsonl(tmp_path / "a.jsonl", [{"n": 0}])
    with pytest.raises(error):
        paths.write_jsonl(tmp_path / "a.jsonl", records())
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"n": 0}\n'
    assert names(tmp_path) == ["a.jsonl"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"a": {"b": (1, v)}}], ids=["bare", "list", "deep"])
def test_values_that_json_does_not_have_are_refused(bad, wrap):
    with pytest.raises(ValueError):
        paths.to_json(wrap(bad))


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (0.1234564, "0.123456"),
        (0.1234567, "0.123457"),
        (1 / 3, "0.333333"),
        (-0.0, "0.0"),
        (-1e-9, "0.0"),
        (2.0, "2.0"),
        (2, "2"),
        (True, "true"),
        (None, "null"),
        ("0.12345678", '"0.12345678"'),
        ({"b": 1, "a": [(0.1234567,)]}, '{"b": 1, "a": [[0.123457]]}'),
        ("αβ – Ice", '"αβ – Ice"'),
    ],
)
def test_json_rules(value, line):
    assert paths.to_json(value) == line


@pytest.mark.parametrize("char", LINE_LIKE)
def test_c13_characters_that_tools_take_for_line_ends_are_escaped(char):
    value = {f"k{char}": f"Ice{char}creeps."}
    line = paths.to_json(value)
    assert len(line.splitlines()) == 1
    assert strict_json(line) == value


def test_c13_every_written_line_is_one_line_for_splitlines_too(tmp_path):
    records = [{"text": f"a{char}b"} for char in LINE_LIKE + "\n\r\v\f\x1c\x1d\x1e"]
    paths.write_jsonl(tmp_path / "a.jsonl", records)
    lines = (tmp_path / "a.jsonl").read_bytes().decode().splitlines()
    assert [strict_json(line) for line in lines] == records


def test_c13_a_raw_line_separator_does_not_cut_a_line_that_is_read(tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"text": "a\u2028b\u2029c\u0085d"}\r\n{"text": "e"}'.encode())
    assert list(paths.read_jsonl(tmp_path / "a.jsonl")) == [{"text": "a\u2028b\u2029c\u0085d"}, {"text": "e"}]


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.integers(-(10**6), 10**6).map(lambda n: n / 10**6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES, max_size=5))
def test_what_is_written_reads_back_the_same(tmp_path, records):
    paths.write_jsonl(tmp_path / "a.jsonl", records)
    assert list(paths.read_jsonl(tmp_path / "a.jsonl")) == records
    text = (tmp_path / "a.jsonl").read_bytes().decode()
    assert [strict_json(line) for line in text.splitlines()] == records


# A log of whole lines


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"new\n"),
        (b"one\n", b"one\nnew\n"),
        (b"one\ntorn", b"one\nnew\n"),
        (b"torn", b"new\n"),
        (b"one\n\n", b"one\n\nnew\n"),
        (b"one\n\xce", b"one\nnew\n"),
        (b"x" * 100_000 + b"\n" + b"y" * 100_000, b"x" * 100_000 + b"\nnew\n"),
    ],
    ids=["empty", "whole", "torn", "nothing but torn", "blank line", "half a letter", "long"],
)
def test_a_line_is_added_and_a_torn_one_taken_off(tmp_path, before, after):
    log = tmp_path / "a.jsonl"
    log.write_bytes(before)
    paths.append_line(log, "new")
    assert log.read_bytes() == after
    paths.append_line(log, "α")
    assert log.read_bytes() == after + "α\n".encode()


def test_a_log_is_begun_where_there_is_none(tmp_path):
    paths.append_line(tmp_path / "x" / "a.jsonl", "new")
    assert (tmp_path / "x" / "a.jsonl").read_bytes() == b"new\n"


def test_of_a_whole_log_only_the_end_is_read(tmp_path, monkeypatch):
    """Adding n lines costs n, not n squared."""
    reads = []

    class Watched(io.BufferedRandom):
        def read(self, size=-1):
            found = super().read(size)
            reads.append(len(found))
            return found

    monkeypatch.setattr("builtins.open", lambda path, mode: Watched(io.FileIO(path, mode.replace("b", ""))))
    for number in range(50):
        paths.append_line(tmp_path / "a", f"{number:060}")
    assert sum(reads) <= 50
    assert (tmp_path / "a").read_bytes() == b"".join(b"%060d\n" % number for number in range(50))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXT.filter(lambda text: "\n" not in text), st.integers(0, 4)), max_size=8))
def test_whatever_a_kill_leaves_the_lines_before_it_stay(tmp_path, steps):
    """After each line so many bytes of the file's end are lost, as by a kill in the middle of a write."""
    log, expected = tmp_path / "a", []
    log.unlink(missing_ok=True)
    for text, lost in steps:
        paths.append_line(log, text)
        expected.append(text.encode() + b"\n")
        data = b"".join(expected)
        assert log.read_bytes() == data
        left = data[: len(data) - lost]
        log.write_bytes(left)
        expected = [line + b"\n" for line in left.split(b"\n")[:-1]]


# The state of the code


def test_the_state_of_the_code_changes_with_every_file_of_the_package(tmp_path, monkeypatch):
    for name in ("a.py", "sub/b.py", "assets/c.js", "assets/d.css", "assets/e.html", "sample/f.jsonl"):
        paths.write_text(tmp_path / "lib" / name, "1")
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    states = [paths.code_state()]
    assert paths.code_state() == states[0]
    for name in ("a.py", "sub/b.py", "assets/c.js", "assets/d.css", "assets/e.html"):
        paths.write_text(tmp_path / "lib" / name, "22")
        states.append(paths.code_state())
    paths.write_text(tmp_path / "lib" / "new.py", "1")
    states.append(paths.code_state())
    (tmp_path / "lib" / "sub" / "b.py").unlink()
    states.append(paths.code_state())
    assert len(set(states)) == 8
    paths.write_text(tmp_path / "lib" / "sample" / "f.jsonl", "22")
    assert paths.code_state() == states[-1]


def test_sha256_of_the_standards_example(tmp_path):
    """FIPS 180-2, appendix B.1: the digest of "abc"."""
    path = paths.write_text(tmp_path / "a", "abc")
    assert paths.sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_relative_path_is_taken_from_the_project_whatever_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.resolve("outputs/x") == paths.PROJECT / "outputs" / "x"
    assert paths.resolve(tmp_path / "x") == tmp_path.resolve() / "x"


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.resolve("~/x") == tmp_path.resolve() / "x"


@pytest.mark.parametrize("unset", [True, False])
def test_the_cache_folder_is_the_environments_or_the_projects(tmp_path, monkeypatch, unset):
    monkeypatch.setenv("WORKBOOK_CACHE", "" if unset else str(tmp_path))
    assert paths.cache_folder() == (paths.PROJECT / "outputs" / "cache" if unset else tmp_path)


def test_half_a_surrogate_pair_becomes_a_question_mark():
    assert paths.to_json({"n": "a\ud800b"}) == '{"n": "a?b"}'
