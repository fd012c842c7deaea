"""The candidates of some queries come out of a snapshot as parsing every line would find them, by bytes, jobs or index."""

import csv
import gzip
import json
import multiprocessing
import os
import signal
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import extraction
from lib import paths, preparing, snapshot, snapshot_index, snapshot_scan
from lib.errors import WorkbookError
from tests.process import workbook
from tests.slice_files import lines, put

BOM = b"\xef\xbb\xbf"
NAMES = ("doc_id", "docid", "id", "paper_id")
property_test = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def small(monkeypatch):
    """Blocks and pieces of a few bytes, so that small files are cut as large ones are."""
    monkeypatch.setattr(snapshot_scan, "BLOCK", 64)
    monkeypatch.setattr(snapshot, "PIECE", 100)


def asking(folder: Path, *lists: Iterable) -> Path:
    rows = ({"query_id": f"q{n}", "query": "Does ice creep?", "doc_ids": list(ids)} for n, ids in enumerate(lists, 1))
    return put(folder / "queries.jsonl", lines(rows))


def extract(folder: Path, *lists: Iterable, out: str = "out", jobs: int = 2) -> snapshot.Report:
    queries = asking(folder, *lists)
    return snapshot.extract(folder / "snapshot", queries, folder / out, jobs, progress=False)


def documents(out: Path) -> list[bytes]:
    return [line for file in sorted((out / "documents").iterdir()) for line in file.read_bytes().split(b"\n")[:-1]]


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def error_of(folder: Path, *lists: Iterable, **options) -> str:
    """The message of a failed extraction, which leaves nothing behind."""
    before = set(folder.rglob("*"))
    with pytest.raises(WorkbookError) as caught:
        extract(folder, *lists, **options)
    assert set(folder.rglob("*")) - before <= {folder / "queries.jsonl"}
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def by_parsing(folder: Path, wanted: Iterable[str]) -> dict[str, list[bytes]]:
    """id -> its records' bytes, found the slow way: every line of every file is parsed."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(folder.rglob("*.jsonl*")):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line in data.removeprefix(BOM).split(b"\n"):
            if line.strip():
                fields = json.loads(line)
                value = next((fields[name] for name in NAMES if fields.get(name) is not None), None)
                found.setdefault(str(value), []).append(line.strip())
    return {doc_id: found[doc_id] for doc_id in wanted if doc_id in found}


def test_documents_come_verbatim_in_the_order_of_first_need(tmp_path):
    put(tmp_path / "snapshot" / "b.jsonl", '{"id":3,  "text":"drei"}\n{"id": "a", "text": "x"}\n')
    put(tmp_path / "snapshot" / "a" / "z.jsonl", '{"text": "one", "id": 1}\n{"id": 2, "text": "L\\u0151"}\n')
    report = extract(tmp_path, ["a", 2], [2, 3])
    assert documents(tmp_path / "out") == [
        b'{"id": "a", "text": "x"}',
        b'{"id": 2, "text": "L\\u0151"}',
        b'{"id":3,  "text":"drei"}',
    ]
    assert sorted(content(tmp_path / "out")) == ["documents/documents.jsonl", "queries.jsonl"]
    assert (report.queries, report.wanted, report.documents, report.missing) == (2, 3, 3, ())
    assert (report.files, report.known, report.repeated, report.problems) == (2, 0, 0, ())
    assert report.n_bytes == sum(path.stat().st_size for path in (tmp_path / "snapshot").rglob("*.jsonl"))


@pytest.mark.parametrize(
    "line",
    [
        '{"id": 7}',
        '{"id":"7"}',
        '{"id"\t: \r 7 }',
        '  {"id":"\\u0037"}',
        '{"doc_id": 7}',
        '{"docid": "7"}',
        '{"paper_id": 7}',
        '{"text": "far from the id, ' + "ice " * 300 + '", "id": 7}',
        '{"text": "say \\"id\\": 8, \\\\", "id": 7}',
        '{"text": "{\\"id\\": \\"x", "id": "7", "doi": "10.7/id"}',
        '{"refs": [{"id": 8}, {"id": "x"}], "id": 7}',
        '{"doc_id": null, "docid": null, "id": 7}',
        '{"id": "x", "id": 7}',
        '{"doc_id": 7, "id": "x"}',
        '{"say \\"id": "7", "id": 7}',
        '{"a": ["id", 8], "id": 7}',
        '{"id": 7, "text": "line\u2028separator\u0085and\u2029more"}',
    ],
)
def test_an_id_is_found_wherever_it_stands_and_however_it_is_spelt(tmp_path, small, line):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": "x0"}\n' + line + '\n{"id": "x1"}\n')
    for out in ("scanned", "indexed"):
        assert extract(tmp_path, ["7"], out=out).missing == ()
        assert documents(tmp_path / out) == [line.strip().encode()]


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "007"}',
        '{"id": 70}',
        '{"id": -7}',
        '{"id": "7.0"}',
        '{"id": " 7"}',
        '{"id": "x7"}',
        '{"id": "x", "text": "\\"id\\": 7"}',
        '{"id": "x", "refs": [{"id": 7}, {"doc_id": "7"}]}',
        '{"id": "x", "meta": {"paper_id": "7"}}',
        '{"id": "x", "doi": "7"}',
        '{"query_id": 7, "arxivId": 7, "magId": "7", "uid": 7, "Id": 7, "ID": 7}',
        '{"doc_id": "x", "id": 7}',
        '{"id": 7, "doc\\u005fid": "x"}',
        '{"id": 7, "id": "x"}',
        '{"id": "\\\\u0037"}',
        '{"doc_id": "", "id": 7}',
        '{"i\\u0064": 7}',  # the limit of the look at the bytes: a name that is itself written with escapes
    ],
)
def test_an_id_elsewhere_or_alike_is_not_the_documents(tmp_path, line):
    put(tmp_path / "snapshot" / "a.jsonl", line + '\n{"id": "there"}\n')
    for out in ("scanned", "indexed"):
        assert extract(tmp_path, ["7", "there"], out=out).missing == ("7",)
        assert documents(tmp_path / out) == [b'{"id": "there"}']


@pytest.mark.parametrize(
    "spelt, doc_id",
    [
        ("-12", "-12"),
        (str(10**40), "1" + 40 * "0"),
        ('"\\ud83d\\ude00\\/"', "\U0001f600/"),
        ('"d\u00e9"', "d\u00e9"),
    ],
)
def test_ids_are_compared_as_text(tmp_path, spelt, doc_id):
    put(tmp_path / "snapshot" / "a.jsonl", f'{{"id": {spelt}}}\n')
    extract(tmp_path, [doc_id])
    assert documents(tmp_path / "out") == [f'{{"id": {spelt}}}'.encode()]


def test_only_a_line_feed_ends_a_line(tmp_path, small):
    rows = [
        BOM + b'{"id": 1, "text": "a\xe2\x80\xa8b"}\r\n',
        b"\r\n\n  \t\n",
        b'{"id": 2, "text": "c\xc2\x85d"}\r\n',
        b'{"id": 3,\r"text": "\xe2\x80\xa9"}',
    ]
    put(tmp_path / "snapshot" / "a.jsonl", b"".join(rows))
    put(tmp_path / "snapshot" / "b.jsonl.gz", gzip.compress(BOM + b'{"id": 4}\r\n'))
    for out in ("scanned", "indexed"):
        report = extract(tmp_path, [4, 3, 2, 1], out=out)
        assert report.problems == ()
        assert documents(tmp_path / out) == [b'{"id": 4}', rows[3], rows[2].strip(), rows[0].removeprefix(BOM).strip()]


TEXTS = st.text('7"\\:{}\n\u2028id', max_size=8) | st.sampled_from(["7", "007", "id"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-20, 20) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "doi"]), inner, max_size=3),
    max_leaves=6,
)
WANTED = ["7", "007", "a b", "\u00e9", 'q"\\', "\U0001f600", "0", "-1", "5", "absent", "there"]
IDS = st.integers(-3, 9) | st.sampled_from([*WANTED[:6], "7.0"]) | st.none() | st.just("")
FIELDS = st.dictionaries(st.sampled_from(["text", "doi", "refs", "id\n", "xid"]), VALUES, max_size=4)


@st.composite
def written(draw) -> bytes:
    """A record as some program may write it: any order of fields, spaces, escapes, names twice."""
    names = draw(st.lists(st.sampled_from(NAMES), max_size=3))
    fields = [*draw(FIELDS).items(), *((name, draw(IDS)) for name in names)]
    space = st.sampled_from(["", " ", "\t", "\r "])
    parts = []
    for name, value in draw(st.permutations(fields)):
        key, value = json.dumps(name), json.dumps(value, ensure_ascii=draw(st.booleans()))
        parts.append(f"{draw(space)}{key}{draw(space)}:{draw(space)}{value}{draw(space)}")
    return ("{" + ",".join(parts) + "}").encode()


@settings(property_test, max_examples=60)
@given(st.lists(st.lists(written(), max_size=8), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_any_snapshot_gives_what_parsing_every_line_gives(small, tmp_path_factory, files, packed, ended):
    folder = tmp_path_factory.mktemp("any")
    put(folder / "snapshot" / "z.jsonl", '{"id": "there"}\n')
    for n, rows in enumerate(files):
        data, pack = b"\n".join(rows) + (b"\n" if ended else b""), packed and n == 0
        put(folder / "snapshot" / f"{n}.jsonl{'.gz' if pack else ''}", gzip.compress(data) if pack else data)
    expected = by_parsing(folder / "snapshot", WANTED)
    differing = {i for i, found in expected.items() if len({json.dumps(json.loads(r), sort_keys=True) for r in found}) > 1}
    if differing:
        message = error_of(folder, WANTED, jobs=1)
        assert any(f"document '{doc_id}' differs" in message for doc_id in differing)
    wanted = [doc_id for doc_id in WANTED if doc_id not in differing]
    for out in ("scanned", "indexed"):
        report = extract(folder, wanted, out=out, jobs=1)
        assert documents(folder / out) == [expected[doc_id][0] for doc_id in wanted if doc_id in expected]
        assert report.missing == tuple(doc_id for doc_id in wanted if doc_id not in expected)
        assert report.repeated == sum(len(expected[doc_id]) - 1 for doc_id in wanted if doc_id in expected)


@settings(property_test, max_examples=100)
@given(st.lists(written(), min_size=1, max_size=4), st.integers(5, 80))
def test_no_id_is_missed_by_the_look_at_the_bytes(rows, step):
    """However the lines are cut into blocks."""
    data = b"\n".join(rows) + b"\n"
    blocks = [snapshot_scan.Block(data, 0, n, min(n + step, len(data)), len(data), 0) for n in range(0, len(data), step)]
    pairs = [pair for block in blocks for pair in snapshot_scan.ids_in(block)]
    found = {(data.rfind(b"\n", 0, at) + 1, doc_id.decode()) for at, doc_id in pairs}
    at = 0
    for row in rows:
        fields = json.loads(row)
        for name in NAMES:
            if fields.get(name) not in (None, ""):
                assert (at, str(fields[name])) in found
        at += len(row) + 1


@settings(property_test, max_examples=50)
@given(st.lists(st.integers(0, 200), max_size=12), st.booleans(), st.integers(1, 150), st.booleans())
def test_pieces_have_every_line_once(tmp_path_factory, small, lengths, ended, cut, known):
    """However a file is cut, each of its lines is in one piece; the lines are longer and shorter than a block."""
    data = b"\n".join(b"x" * length for length in lengths) + (b"\n" if ended else b"")
    path = put(tmp_path_factory.mktemp("cut") / "a.jsonl", data)
    told, read = [], b""
    for start in range(0, max(len(data), 1), cut):
        piece = snapshot_scan.Piece(path, start, min(start + cut, len(data)), known)
        for block in snapshot_scan._blocks(piece, told.append):
            assert block.begin + block.shift == len(read)
            read += block.buffer[block.begin : block.end]
        assert read.endswith(b"\n") or read in (b"", data)
    assert read == data
    assert sum(told) == len(data)


def test_all_names_of_an_id_end_as_the_look_at_the_bytes_takes_for_granted():
    assert all(name.encode().endswith(snapshot_scan._ENDING) for name in snapshot_scan.readers.DOC_ID)


def many(folder: Path, n: int = 400) -> list[int]:
    """A snapshot of plain and gzip files; returns the ids in an order of their own."""
    rows = [{"id": i, "title": f"Title {i}", "text": "Ice creeps. " * (i % 50), "refs": [{"id": i + 1}]} for i in range(n)]
    quarter = n // 4
    put(folder / "snapshot" / "a.jsonl", lines(rows[: 2 * quarter]))
    put(folder / "snapshot" / "b" / "c.jsonl.gz", gzip.compress(lines(rows[2 * quarter : 3 * quarter]).encode()))
    put(folder / "snapshot" / "d.ndjson", lines(rows[3 * quarter :]))
    return [(i * 37) % n for i in range(0, n, 3)]


def index_of(folder: Path) -> Path:
    return snapshot_index.path_of(folder / "snapshot")


def test_the_same_bytes_whatever_the_jobs_and_with_or_without_an_index(tmp_path, small):
    ids = many(tmp_path, 160)
    assert extract(tmp_path, ids, out="first", jobs=3).known == 0
    expected = content(tmp_path / "first")
    assert [json.loads(line)["id"] for line in documents(tmp_path / "first")] == ids
    stored = index_of(tmp_path).read_bytes()
    assert extract(tmp_path, ids, out="indexed", jobs=3).known == 3
    index_of(tmp_path).unlink()
    assert extract(tmp_path, ids, out="one", jobs=1).known == 0
    assert index_of(tmp_path).read_bytes() == stored
    assert extract(tmp_path, ids, out="one indexed", jobs=1).known == 3
    assert [content(tmp_path / out) for out in ("indexed", "one", "one indexed")] == [expected] * 3


def test_a_slice_gives_the_same_as_its_source(tmp_path, sample):
    """Prepared from an extraction, the sample is what it is prepared from itself: documents, gold data, citations."""
    folder = paths.SAMPLE
    report = snapshot.extract(folder / "documents", folder / "queries.jsonl", tmp_path / "out", 2, progress=False)
    gold = ("gold_answers.jsonl", "qrels.txt", "nuggets.jsonl", "reference_answers.jsonl")
    assert set(report.copied) == {*gold, "citations.csv", "metadata.json"}
    assert all(name in snapshot.summary(report) for name in report.copied)
    preparing.prepare(str(tmp_path / "out"), tmp_path / "slice", strict=True)
    made, expected = content(tmp_path / "slice"), content(sample.folder)
    assert json.loads(made.pop("slice.json")) | {"source": "sample"} == json.loads(expected.pop("slice.json"))
    assert made == expected


def test_the_real_documents_are_found(real_data, tmp_path):
    source = real_data / "slice"
    report = snapshot.extract(source / "documents", source, tmp_path / "out", 2, progress=False)
    assert (report.queries, report.wanted, report.documents, report.missing) == (6, 60, 60, ())
    raw = {line for file in (source / "documents").iterdir() for line in file.read_bytes().split(b"\n") if line}
    assert set(documents(tmp_path / "out")) == raw


def test_the_command_writes_a_slice_that_can_be_prepared(tmp_path):
    put(tmp_path / "snapshot" / "a.jsonl.gz", gzip.compress(b'{"id": 2, "text": "Ice melts."}\n'))
    put(tmp_path / "snapshot" / "b.jsonl", '{"id": 1, "text": "Ice creeps."}\n')
    asking(tmp_path, [1, 2, "absent"])
    command = ["slice", "--from", "snapshot", "--queries", "queries.jsonl", "--out", "made/slice"]
    done = workbook(*command, "--jobs", 2, cwd=tmp_path)
    assert done.returncode == 0
    assert "1 queries, 2 of 3 candidate documents: made/slice" in done.stdout
    assert "1 missing: absent" in done.stdout
    assert "100%" in done.stderr and "B/s" in done.stderr
    report = preparing.prepare(str(tmp_path / "made" / "slice"), tmp_path / "prepared")
    assert (report.queries, report.documents, report.instances) == (1, 2, 3)
    again = workbook(*command, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == "workbook: made/slice: is there already; give a new or empty folder\n"


def test_the_index_leads_to_the_wanted_lines_alone(tmp_path):
    many(tmp_path)
    extract(tmp_path, [0], out="first")
    report = extract(tmp_path, [123, 101], out="second")
    found = documents(tmp_path / "second")
    assert [json.loads(line)["id"] for line in found] == [123, 101]
    # The record before each names its id too, among its references.
    before = by_parsing(tmp_path / "snapshot", ["122", "100"])
    assert report.n_bytes == sum(len(line) + 1 for line in [*found, *(rows[0] for rows in before.values())])
    packed = tmp_path / "snapshot" / "b" / "c.jsonl.gz"
    assert extract(tmp_path, [250], out="third").n_bytes == packed.stat().st_size
    assert extract(tmp_path, [398, "absent"], out="fourth").missing == ("absent",)


def test_a_changed_file_is_scanned_again_and_no_other(tmp_path):
    many(tmp_path)
    extract(tmp_path, [1, 399], out="first")
    plain = tmp_path / "snapshot" / "d.ndjson"
    plain.write_bytes(plain.read_bytes() + b'{"id": "new"}\n')
    report = extract(tmp_path, ["new", 1], out="second")
    assert (report.known, report.missing) == (2, ())
    assert report.n_bytes < 2 * plain.stat().st_size
    plain.write_bytes(plain.read_bytes().replace(b'"id": "new"', b'"id": "NEW"'))
    report = extract(tmp_path, ["new", "NEW"], out="third")
    assert (report.known, report.missing) == (2, ("new",))
    put(tmp_path / "snapshot" / "e.jsonl", '{"id": "more"}\n{"id": 5}\n')
    plain.unlink()
    report = extract(tmp_path, ["more", "NEW"], out="fourth")
    assert (report.files, report.known, report.missing) == (3, 2, ("NEW",))


def test_a_change_that_keeps_size_and_time_is_met_at_the_line(tmp_path):
    path = put(tmp_path / "snapshot" / "a.jsonl", lines({"id": f"d{n}"} for n in range(9)))
    extract(tmp_path, ["d4"], out="first")
    known = path.stat()
    path.write_bytes(path.read_bytes().replace(b"d4", b"x4"))
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    message = error_of(tmp_path, ["d4"])
    assert message == f"{path}: changed, though its size and time did not; delete {index_of(tmp_path)}"


def test_an_index_by_other_names_of_an_id_is_made_anew(tmp_path, monkeypatch):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": 1}\n')
    extract(tmp_path, [1], out="first")
    monkeypatch.setattr(snapshot_index.readers, "DOC_ID", ("id",))
    assert extract(tmp_path, [1], out="second").known == 0
    assert extract(tmp_path, [1], out="third").known == 1


@pytest.mark.parametrize("where", range(0, 1000, 83))
def test_an_index_that_is_damaged_is_an_error_that_names_it(tmp_path, where):
    many(tmp_path)
    extract(tmp_path, [1], out="first")
    whole = index_of(tmp_path).read_bytes()
    at = len(whole) * where // 1000
    for damaged in (whole[:at], whole[:at] + b"???" + whole[at + 3 :]):
        index_of(tmp_path).write_bytes(damaged)
        assert str(index_of(tmp_path)) in error_of(tmp_path, [250, 1])
    index_of(tmp_path).unlink()
    assert extract(tmp_path, [250, 1]).missing == ()


def test_two_ids_of_one_key_are_told_apart(tmp_path):
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": "plumless", broken\n{"id": "buckeroo"}\n')
    for out in ("scanned", "indexed"):
        extract(tmp_path, ["buckeroo"], out=out)
        assert documents(tmp_path / out) == [b'{"id": "buckeroo"}']


def test_a_single_file_is_a_snapshot(tmp_path):
    path = put(tmp_path / "all.jsonl", '{"id": 1}\n{"id": 2}\n')
    for out, known in (("scanned", 0), ("indexed", 1)):
        assert snapshot.extract(path, asking(tmp_path, [2]), tmp_path / out, progress=False).known == known
        assert documents(tmp_path / out) == [b'{"id": 2}']


def test_a_gzip_file_of_several_members_is_read_to_its_end(tmp_path, small):
    members = [gzip.compress(lines([{"id": n, "text": "ice " * n}]).encode()) for n in range(30)]
    put(tmp_path / "snapshot" / "a.jsonl.gz", b"".join(members))
    for out in ("scanned", "indexed"):
        extract(tmp_path, [29, 0], out=out)
        assert [json.loads(line)["id"] for line in documents(tmp_path / out)] == [29, 0]


def test_missing_ids_are_listed_with_their_queries(tmp_path):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": 1}\n')
    report = extract(tmp_path, [1, "b, c"], ["a", 1], [1, "a"])
    assert report.missing == ("b, c", "a")
    rows = list(csv.reader((tmp_path / "out" / "missing.csv").read_text().splitlines()))
    assert rows == [["doc_id", "query_id"], ["b, c", "q1"], ["a", "q2"], ["a", "q3"]]
    told = snapshot.summary(report)
    assert "1 of 3" in told and "2 missing: b, c, a" in told and "missing.csv" in told
    queries = [json.loads(line) for line in (tmp_path / "out" / "queries.jsonl").read_text().splitlines()]
    assert [query["doc_ids"] for query in queries] == [["1", "b, c"], ["a", "1"], ["1", "a"]]


def test_identical_records_are_kept_once_and_counted(tmp_path):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": "B", "n": 1}\n{"id": "A"}\n{"id": "B", "n": 1}\n')
    put(tmp_path / "snapshot" / "b.jsonl.gz", gzip.compress(b'{"n":1, "id":"\\u0042"}\n'))
    report = extract(tmp_path, ["B"])
    assert (report.documents, report.repeated) == (1, 2)
    assert documents(tmp_path / "out") == [b'{"id": "B", "n": 1}']
    assert "2 records repeat" in snapshot.summary(report)


def test_of_identical_records_the_first_is_kept_whichever_is_found_first(tmp_path, small):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": "B", "n": 1}\n')
    put(tmp_path / "snapshot" / "b.jsonl", '{"n": 1, "id": "B"}\n' + lines({"id": n} for n in range(99)))
    extract(tmp_path, ["B"], jobs=1)
    assert documents(tmp_path / "out") == [b'{"id": "B", "n": 1}']


@pytest.mark.parametrize("second", ['{"id": "A", "text": "y"}', '{"id": "A", "text": "x", "n": 1}'])
def test_two_records_of_one_id_that_differ_are_an_error_naming_both_places(tmp_path, small, second):
    a = put(tmp_path / "snapshot" / "a.jsonl", '{"id": "C"}\n\n{"id": "A", "text": "x"}\n')
    b = put(tmp_path / "snapshot" / "b.jsonl.gz", gzip.compress(f'{{"id": "D"}}\n{second}\n'.encode()))
    for jobs in (1, 3):
        message = error_of(tmp_path, ["A"], jobs=jobs)
        assert f"{b}:2: document 'A' differs from the one at {a}:3" in message
    assert extract(tmp_path, ["C", "D"]).documents == 2


def test_true_and_one_are_not_the_same(tmp_path):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": "A", "n": 1}\n{"id": "A", "n": true}\n')
    assert "differs" in error_of(tmp_path, ["A"])


@pytest.mark.parametrize(
    "line, reason",
    [
        (b'{"id": "A", "text": "unfinished', "malformed"),
        (b'{"id": "A", "text": "\xff"}', "position 21"),
        (b'{"id": "A", "n": NaN}', "NaN"),
        (b'[{"id": "A"}]', "list"),
        (b'{"id": 1.5, "refs": [{"id": "A"}]}', "1.5"),
        (b'  "id": "A",', "a record a line"),
    ],
)
def test_a_wrong_line_is_an_error_only_if_it_may_be_wanted(tmp_path, small, line, reason):
    path = put(tmp_path / "snapshot" / "b.jsonl", b'{"id": "C"}\n' * 9 + line + b'\n{"id": "D"}\n')
    put(tmp_path / "snapshot" / "c.jsonl", line + b"\n")
    for jobs in (3, 1):
        message = error_of(tmp_path, ["A"], jobs=jobs)
        assert message.startswith(f"{path}:10: ") and reason in message
    assert extract(tmp_path, ["D"]).problems == ()


def test_a_torn_last_line_is_left_out_and_told(tmp_path):
    torn = b'{"id": 3, "text": "unfinis'
    path = put(tmp_path / "snapshot" / "a.jsonl", b'{"id": 1}\n{"id": 2}\n' + torn)
    for out in ("scanned", "indexed"):
        report = extract(tmp_path, [1, 3], out=out)
        assert report.missing == ("3",)
        (problem,) = report.problems
        assert problem.startswith(f"{path}:3: torn last line")
        assert problem in snapshot.summary(report)
    assert extract(tmp_path, [2], out="other").problems == ()


def test_a_damaged_gzip_file_is_an_error_naming_it(tmp_path):
    whole = gzip.compress(lines({"id": n, "text": f"{n}" * 99} for n in range(99)).encode())
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": 1}\n')
    path = put(tmp_path / "snapshot" / "b.jsonl.gz", whole[:-40])
    assert f"{path}: damaged gzip" in error_of(tmp_path, [1])
    put(path, b"no gzip")
    assert f"{path}: damaged gzip" in error_of(tmp_path, [1])


@pytest.mark.parametrize("name, pack", [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress)])
def test_a_line_without_end_is_an_error_and_fills_no_memory(tmp_path, small, monkeypatch, name, pack):
    monkeypatch.setattr(snapshot_scan, "LONGEST_LINE", 512)
    path = put(tmp_path / "snapshot" / name, pack(b'[{"id": 1}, ' + b'{"id": 2}, ' * 200))
    message = error_of(tmp_path, [1])
    assert str(path) in message and "a record a line" in message


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, monkeypatch):
    path = put(tmp_path / "snapshot" / "a.jsonl", '{"id": 1}\n')

    def growing(*args):
        with open(path, "ab") as file:
            file.write(b'{"id": 2}\n')
        yield from search(*args)

    search = snapshot._run
    monkeypatch.setattr(snapshot, "_run", growing)
    assert f"{path}: changed while it was read" in error_of(tmp_path, [1])


def test_a_killed_process_is_an_error_and_leaves_nothing(tmp_path, small, monkeypatch):
    def killed(*_):
        assert multiprocessing.parent_process()
        os.kill(os.getpid(), signal.SIGKILL)

    many(tmp_path)
    monkeypatch.setattr(snapshot_scan, "scan", killed)
    assert "was killed" in error_of(tmp_path, [1])


def test_an_error_in_one_process_stops_the_others(tmp_path, small, monkeypatch):
    def scan(piece, wanted, aside, advance):
        if piece.path.name == "a.jsonl":
            raise WorkbookError(f"{piece.path}: bad")
        for _ in range(1000):
            advance(0)
            time.sleep(0.01)
        (tmp_path / "went on").touch()

    for name in "ab":
        put(tmp_path / "snapshot" / f"{name}.jsonl", lines({"id": f"{name}{n}"} for n in range(6)))
    monkeypatch.setattr(snapshot_scan, "scan", scan)
    assert error_of(tmp_path, ["a1"]).endswith("a.jsonl: bad")


def test_the_index_survives_an_error(tmp_path):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": 1}\n{"id": 2, broken\n')
    assert "malformed" in error_of(tmp_path, [2])
    assert extract(tmp_path, [1]).known == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_files_that_were_finished_before_an_interrupt_are_known(tmp_path, small, monkeypatch, jobs):
    def interrupted(search, tasks, *rest):
        for part, found in run(search, tasks, *rest):
            yield part, found
            if part.piece.path.name == "a.jsonl":
                raise KeyboardInterrupt

    put(tmp_path / "snapshot" / "a.jsonl", '{"id": 1}\n')
    put(tmp_path / "snapshot" / "b.jsonl", lines({"id": f"b{n}"} for n in range(3000)))
    run = snapshot._run
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(snapshot, "_run", interrupted)
        extract(tmp_path, [1], jobs=jobs)
    assert not (tmp_path / "out").exists()
    assert extract(tmp_path, [1, "b7"]).known == 1
    assert len(documents(tmp_path / "out")) == 2


def test_unusable_input_is_an_error_that_says_what_to_do(tmp_path):
    source, queries = tmp_path / "snapshot", asking(tmp_path, [1])
    put(source / "a.jsonl", '{"id": 1}\n')

    def message(snapshot_=source, queries_=queries, out=tmp_path / "out", jobs=1) -> str:
        with pytest.raises(WorkbookError) as caught:
            snapshot.extract(snapshot_, queries_, out, jobs, progress=False)
        assert not (tmp_path / "out").exists()
        assert len(str(caught.value).splitlines()) == 1
        return str(caught.value)

    full = put(tmp_path / "full" / "notes.txt", "mine").parent
    assert str(full) in message(out=full)
    assert str(queries) in message(out=queries)
    assert "lies in the snapshot" in message(out=source / "slice")
    assert "jobs" in message(jobs=0)
    assert "no such file" in message(snapshot_=tmp_path / "absent")
    assert "no such file" in message(queries_=tmp_path / "absent.jsonl")
    table = put(tmp_path / "table" / "a.csv", "id\n1\n").parent
    assert "no JSON Lines" in message(snapshot_=table)
    nothing = put(tmp_path / "nothing.jsonl", '{"query_id": 1, "query": "x"}\n')
    assert "candidate" in message(queries_=nothing)
    other = put(tmp_path / "other.jsonl", '{"query_id": 1, "query": "x", "doc_ids": [8, 9]}\n')
    assert "none of the 2 candidates of query '1'" in message(queries_=other)
    broken = put(tmp_path / "broken.jsonl", '{"query_id": 1\n')
    assert f"{broken}:1" in message(queries_=broken)
    (tmp_path / "out").mkdir()
    snapshot.extract(source, queries, tmp_path / "out", 1, progress=False)
    assert documents(tmp_path / "out") == [b'{"id": 1}']


def test_a_query_left_without_any_document_is_an_error(tmp_path):
    """As it is when a slice is prepared."""
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": 1}\n')
    message = error_of(tmp_path, [1], ["x", "y"], [1], ["z"])
    assert message.startswith(f"{tmp_path / 'snapshot'}: holds none of the 2 candidates of query 'q2' (and 1 more queries)")
    assert extract(tmp_path, [1], []).documents == 1


def test_candidates_and_gold_data_beside_the_queries_belong_to_them(tmp_path):
    """They may lie in the snapshot's own folder, and are no documents there."""
    data = tmp_path / "data"
    put(data / "queries.csv", "qid,question\nq1,Does ice creep?\n")
    put(data / "candidates.jsonl", '{"query_id": "q1", "doc_id": 1}\n{"query_id": "q1", "doc_id": 2}\n')
    put(data / "qrels.txt", "q1 0 1 1\n")
    put(data / "gold_answers.jsonl", '{"id": 1, "answer": "Yes."}\n')
    put(data / "citations" / "part.csv", "citing_doc_id,cited_doc_id\n1,2\n")
    put(data / "documents" / "a.jsonl", '{"id": 2}\n{"id": 1}\n')
    for n, queries in enumerate((data, data / "queries.csv")):
        out = tmp_path / f"out{n}"
        report = snapshot.extract(data, queries, out, 1, progress=False)
        assert report.copied == ("citations", "gold_answers.jsonl", "qrels.txt")
        assert report.problems == ()
        assert content(out) == {
            "citations/part.csv": b"citing_doc_id,cited_doc_id\n1,2\n",
            "documents/documents.jsonl": b'{"id": 1}\n{"id": 2}\n',
            "gold_answers.jsonl": b'{"id": 1, "answer": "Yes."}\n',
            "qrels.txt": b"q1 0 1 1\n",
            "queries.jsonl": b'{"query_id": "q1", "query": "Does ice creep?", "doc_ids": ["1", "2"]}\n',
        }


def test_a_folder_of_query_files(tmp_path):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": 1}\n')
    put(tmp_path / "asked" / "x.json", '[{"query_id": "x", "query": "Ice?", "doc_ids": [1]}]')
    put(tmp_path / "asked" / "y.tsv", "qid\tquestion\tcandidates\ny\tIce?\t1\n")
    assert snapshot.extract(tmp_path / "snapshot", tmp_path / "asked", tmp_path / "out", 1, progress=False).queries == 2


def test_queries_may_lie_in_the_snapshot_and_tables_are_told(tmp_path):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": 1, "text": "Ice."}\n')
    put(tmp_path / "snapshot" / "table.csv", "id\n1\n")
    put(tmp_path / "snapshot" / "notes.txt", "mine")
    queries = put(tmp_path / "snapshot" / "queries.jsonl", '{"id": 1, "text": "Does ice creep?", "candidates": "1"}\n')
    report = snapshot.extract(tmp_path / "snapshot", queries, tmp_path / "out", progress=False)
    assert documents(tmp_path / "out") == [b'{"id": 1, "text": "Ice."}']
    (problem,) = report.problems
    assert "table.csv" in problem and "not searched" in problem


def test_queries_come_in_any_accepted_format(tmp_path):
    put(tmp_path / "snapshot" / "a.jsonl", '{"id": "0042"}\n{"id": 42}\n')
    queries = put(tmp_path / "asked.csv", "qid,question,candidates\nq1,Does ice creep?,0042 42\n")
    snapshot.extract(tmp_path / "snapshot", queries, tmp_path / "out", progress=False)
    assert documents(tmp_path / "out") == [b'{"id": "0042"}', b'{"id": 42}']
    written_ = json.loads((tmp_path / "out" / "queries.jsonl").read_text())
    assert written_ == {"query_id": "q1", "query": "Does ice creep?", "doc_ids": ["0042", "42"]}


def test_a_progress_bar_counts_bytes(tmp_path, small, capsys):
    ids = many(tmp_path, 80)
    queries = asking(tmp_path, ids)
    for out in ("scanned", "indexed"):
        snapshot.extract(tmp_path / "snapshot", queries, tmp_path / out, 2)
        told = capsys.readouterr().err
        assert "100%" in told and "B/s" in told
    extract(tmp_path, ids, out="quiet")
    assert capsys.readouterr().err == ""


def test_the_bench_finds_every_id_by_all_ways(tmp_path):
    (round_,) = extraction.rounds(tmp_path, 500_000, 1)
    assert min(round_) > 0
    assert 500_000 <= sum(file.stat().st_size for file in (tmp_path / "snapshot").iterdir()) < 1_100_000
