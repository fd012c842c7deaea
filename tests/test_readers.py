"""Files of every accepted format give the same records; whatever is wrong is told with its place."""

import csv
import gzip
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib import readers
from lib.errors import WorkbookError

FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
BOM = b"\xef\xbb\xbf"
RECORDS = [
    {"id": "p1", "title": "Ice, old and new", "text": 'It "creeps".\nSlowly.'},
    {"id": "007", "title": "Лёд", "text": "a\u2028b\u2029c\u0085d"},
    {"id": "p3", "text": "tab\there; comma, here"},
]


def encode(suffix: str, records: list[dict]) -> bytes:
    if suffix in (".jsonl", ".ndjson"):
        return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    if suffix == ".json":
        return json.dumps(records, ensure_ascii=False, indent=1).encode()
    out = io.StringIO(newline="")
    columns = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.DictWriter(out, columns, delimiter="\t" if suffix == ".tsv" else ",")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().encode()


def put(path: Path, content: bytes | str) -> Path:
    content = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(path: Path, strict: bool = False) -> tuple[list[dict], list[str]]:
    problems: list[str] = []
    return [record.fields for record in readers.read_records(path, problems.append, strict)], problems


def error_of(path: Path, strict: bool = False) -> str:
    with pytest.raises(WorkbookError) as caught:
        read(path, strict)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


all_formats = pytest.mark.parametrize("suffix", FORMATS)
plain_and_gzip = pytest.mark.parametrize("packed", ["", ".gz"])


@all_formats
@plain_and_gzip
def test_every_format_gives_the_same_records(tmp_path, suffix, packed):
    assert read(put(tmp_path / f"a{suffix}{packed}", encode(suffix, RECORDS))) == (RECORDS, [])


@pytest.mark.parametrize("name", ["A.JSONL", "a.Csv", "a.b.tsv", "a.JSON.GZ"])
def test_the_suffix_counts_in_any_case(tmp_path, name):
    suffix = readers.format_of(Path(name))
    path = tmp_path / name
    path.write_bytes(gzip.compress(encode(suffix, RECORDS)) if name.endswith("GZ") else encode(suffix, RECORDS))
    assert read(path) == (RECORDS, [])


def test_a_folder_of_mixed_formats_is_read_in_the_order_of_names(tmp_path):
    for number, name in enumerate(("a.csv", "b.jsonl.gz", "c.json", "d/e.tsv", "f.tsv.gz")):
        put(tmp_path / name, encode(readers.format_of(Path(name)), [{"id": f"p{number}"}, {"id": f"q{number}"}]))
    expected = [{"id": f"{letter}{number}"} for number in range(5) for letter in "pq"]
    assert read(tmp_path) == (expected, [])


def test_a_folder_is_read_without_its_hidden_files_and_those_of_other_formats(tmp_path):
    put(tmp_path / "a.jsonl", encode(".jsonl", RECORDS))
    for name in (".a.jsonl.swp", ".b.jsonl", "docstore.pklz4", "README", "notes.txt", "c.jsonl.bak", "d.gz.txt"):
        put(tmp_path / name, b"{not json")
    assert read(tmp_path) == (RECORDS, [])


@all_formats
@plain_and_gzip
def test_an_empty_file_has_no_records(tmp_path, suffix, packed):
    empty = b"[]" if suffix == ".json" else b""
    assert read(put(tmp_path / f"a{suffix}{packed}", empty)) == ([], [])


def test_records_come_one_at_a_time(tmp_path):
    path = put(tmp_path / "a.jsonl", '{"id": "p1"}\n{broken\n')
    records = readers.read_records(path, [].append)
    assert next(records).fields == {"id": "p1"}
    with pytest.raises(WorkbookError, match="a.jsonl:2"):
        next(records)


@pytest.mark.parametrize(
    ("suffix", "content", "places"),
    [
        (".jsonl", '\n{"id": "a"}\n\n \t\n{"id": "b"}', ["2", "5"]),
        (".csv", "id,text\na,x\n\nb,y\n", ["2", "4"]),
        (".tsv", "\nid\ttext\r\na\tx\r\nb\ty", ["3", "4"]),
        (".json", '[{"id": "a"},\n{"id": "b"}]', ["record 1", "record 2"]),
    ],
)
def test_every_record_knows_its_place(tmp_path, suffix, content, places):
    path = put(tmp_path / f"a{suffix}", content)
    found = [(record.fields["id"], record.place) for record in readers.read_records(path, [].append)]
    assert found == [(name, f"{path}:{place}") for name, place in zip("ab", places, strict=True)]


@pytest.mark.parametrize(
    ("value", "records"),
    [
        ({"queries": [{"id": "a"}, {"id": "b"}], "version": 2}, [{"id": "a"}, {"id": "b"}]),
        ({"documents": [{"id": "a"}]}, [{"id": "a"}]),
        ({"id": "a", "text": "one record"}, [{"id": "a", "text": "one record"}]),
    ],
)
def test_json_may_hold_one_record_or_a_named_list(tmp_path, value, records):
    assert read(put(tmp_path / "a.json", json.dumps(value))) == (records, [])


@all_formats
@plain_and_gzip
def test_c12_a_byte_order_mark_changes_nothing(tmp_path, suffix, packed):
    content = encode(suffix, RECORDS)
    marked = put(tmp_path / f"marked{suffix}{packed}", BOM + content)
    bare = put(tmp_path / f"bare{suffix}{packed}", content)
    assert read(marked) == read(bare) == (RECORDS, [])
    assert next(iter(next(iter(readers.read_records(marked, [].append))).fields)) == "id"


@all_formats
def test_c12_a_byte_order_mark_in_every_file_of_a_folder(tmp_path, suffix):
    for name in "ab":
        put(tmp_path / f"{name}{suffix}", BOM + encode(suffix, RECORDS))
    assert read(tmp_path) == (RECORDS * 2, [])


@all_formats
def test_c12_a_byte_order_mark_before_a_quoted_first_column_or_nothing(tmp_path, suffix):
    contents = {".json": b" []", ".csv": b'"id","text"\r\n', ".tsv": b'"id"\t"text"\r\n'}
    assert read(put(tmp_path / f"a{suffix}", BOM + contents.get(suffix, b"\r\n"))) == ([], [])


P1, P2, P3 = ({"id": f"p{n}", "text": text} for n, text in enumerate(("a\u2028b", "two", "drei – Eis"), 1))
CRLF_FILE = "\r\n".join(json.dumps(r, ensure_ascii=False) for r in (P1, P2, P3)).replace("\r\n", "\r\n\r\n", 1)


@pytest.mark.parametrize("strict", [False, True])
def test_c13_crlf_line_separators_blank_line_and_no_final_newline(tmp_path, strict):
    assert read(put(tmp_path / "a.jsonl", CRLF_FILE), strict) == ([P1, P2, P3], [])


@plain_and_gzip
def test_c13_a_torn_last_line_is_left_out_and_told(tmp_path, packed):
    text = CRLF_FILE[: CRLF_FILE.rindex("{")] + '{"id":"p3","text":"unfinis'
    path = put(tmp_path / f"a.jsonl{packed}", text)
    records, problems = read(path)
    assert records == [P1, P2]
    assert len(problems) == 1
    assert f"{path}:4" in problems[0]
    assert "torn last line" in problems[0]
    assert f"{path}:4" in error_of(path, strict=True)


START_OF_P3 = len(CRLF_FILE[: CRLF_FILE.rindex("{")].encode())


@pytest.mark.parametrize("cut", range(START_OF_P3, len(CRLF_FILE.encode()) + 1))
def test_c13_a_last_line_torn_anywhere_never_harms_those_before(tmp_path, cut):
    path = put(tmp_path / "a.jsonl", CRLF_FILE.encode()[:cut])
    records, problems = read(path)
    whole, nothing = cut == len(CRLF_FILE.encode()), cut == START_OF_P3
    assert records == [P1, P2] + [P3] * whole
    assert [f"{path}:4:" in line for line in problems] == ([] if whole or nothing else [True])


MALFORMED = {
    "torn": b'{"id": "p2", "text": "unfinis',
    "single quotes": b"{'id': 'p2'}",
    "bare word": b"null_",
    "NaN": b'{"id": "p2", "score": NaN}',
    "Infinity": b'{"id": "p2", "score": -Infinity}',
    "two records": b'{"id": "p2"} {"id": "p3"}',
    "Latin-1": b'{"id": "p2", "text": "\xe9t\xe9"}',
    "raw control character": b'{"id": "p2", "text": "a\x01b"}',
    "deep": b"[" * 200_000,
    "huge number": b'{"id": ' + b"9" * 5_000 + b"}",
    "list": b'["p2"]',
    "text": b'"p2"',
    "number": b"7",
    "null": b"null",
    "trailing comma": b'{"id": "p2",}',
    "BOM in the middle": BOM + b'{"id": "p2"}',
}


@pytest.mark.parametrize("bad", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("end", [b"\n", b'\n{"id": "p3"}\n'], ids=["last line", "middle line"])
def test_c13_a_malformed_whole_line_is_an_error_with_its_number(tmp_path, bad, end):
    path = put(tmp_path / "a.jsonl", b'{"id": "p1"}\n\n' + bad + end)
    assert f"{path}:3:" in error_of(path)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('[\n{"id": "p1"},\n{"id": }\n]', 3),
        ("", 1),
        ('[{"id": "p1"}', 1),
        ('[{"id": "p1", "n": NaN}]', 1),
        ("[" * 200_000, 1),
    ],
)
def test_malformed_json_is_an_error_with_its_line(tmp_path, content, line):
    path = put(tmp_path / "a.json", content)
    assert f"{path}:{line}:" in error_of(path)


@pytest.mark.parametrize("content", ["7", '"p1"', "null", "true"])
def test_json_without_records_is_an_error(tmp_path, content):
    path = put(tmp_path / "a.json", content)
    assert f"{path}: expected a list of records" in error_of(path)


def test_json_names_the_record_that_is_none(tmp_path):
    path = put(tmp_path / "a.json", '[{"id": "p1"}, 7]')
    assert f"{path}:record 2" in error_of(path)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("id,text\np1,a\np2,b,c\np3,d\n", 3),
        ("id,text\np1,a\np2\n", 3),
        ("id,text,id\np1,a,p1\n", 1),
        ('id,text\np1,a\np2,"unclosed\n', 3),
        ('id,text\np1,"a"b\np2,c\n', 2),
    ],
    ids=["too many cells", "too few cells", "a column twice", "unclosed quote", "text after a quote"],
)
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_malformed_table_is_an_error_with_its_line(tmp_path, content, line, suffix):
    path = put(tmp_path / f"a{suffix}", content.replace(",", "\t") if suffix == ".tsv" else content)
    assert f"{path}:{line}:" in error_of(path)


@all_formats
def test_bytes_that_are_not_utf8_are_an_error_naming_the_file(tmp_path, suffix):
    path = put(tmp_path / f"a{suffix}", encode(suffix, RECORDS).replace("Лёд".encode(), b"\xe9t\xe9"))
    message = error_of(path)
    assert str(path) in message
    assert "UTF-8" in message


@all_formats
@pytest.mark.parametrize(
    "harm",
    [
        lambda b: b[: len(b) // 2],
        lambda b: b"plain text\n" * 3,
        lambda b: b[:-8] + bytes(x ^ 255 for x in b[-8:-4]) + b[-4:],
    ],
    ids=["cut short", "not gzip", "wrong checksum"],
)
def test_a_damaged_gzip_file_is_an_error_naming_file_and_remedy(tmp_path, suffix, harm):
    path = tmp_path / f"a{suffix}.gz"
    path.write_bytes(harm(gzip.compress(encode(suffix, RECORDS * 50))))
    message = error_of(path)
    assert str(path) in message
    assert "fetch it again" in message


def accepted_formats_in(message: str) -> bool:
    return all(name in message for name in ("JSONL", "JSON,", "CSV", "TSV", ".gz", "folder"))


def test_a_missing_path_is_an_error_naming_it_and_the_accepted_formats(tmp_path):
    message = error_of(tmp_path / "absent.jsonl")
    assert str(tmp_path / "absent.jsonl") in message
    assert accepted_formats_in(message)


def test_an_empty_folder_is_an_error_naming_it_and_the_accepted_formats(tmp_path):
    (tmp_path / "documents" / "deeper").mkdir(parents=True)
    put(tmp_path / "documents" / "README.txt", "nothing")
    message = error_of(tmp_path / "documents")
    assert str(tmp_path / "documents") in message
    assert accepted_formats_in(message)


@pytest.mark.parametrize("name", ["a.xml", "a.txt", "a.parquet", "a.jsonl.zip", "a", "a.gz", "jsonl"])
def test_an_unknown_format_is_an_error_naming_it_and_the_accepted_formats(tmp_path, name):
    path = put(tmp_path / name, "<a/>")
    message = error_of(path)
    assert str(path) in message
    assert "unknown format" in message
    assert accepted_formats_in(message)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("007", "007"),
        (7, "7"),
        ("7", "7"),
        ("34_5", "34_5"),
        (0, "0"),
        (2**70, "1180591620717411303424"),
        (" 7", " 7"),
        ("12E4", "12E4"),
        ("NA", "NA"),
        ("null", "null"),
        ("10.1000/ab,c", "10.1000/ab,c"),
        (None, None),
        ("", None),
        (" \t", None),
        ("\u00a0", None),
    ],
)
def test_c15_ids_are_verbatim(value, expected):
    assert readers.as_id(value, "a.jsonl:1") == expected


@pytest.mark.parametrize("value", [7.0, 1.5, True, False, ["7"], {"id": 7}])
def test_c15_a_value_that_is_no_id_is_an_error_naming_place_and_value(value):
    with pytest.raises(WorkbookError) as caught:
        readers.as_id(value, "a.jsonl:3")
    assert "a.jsonl:3" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([7, "007", "34_5"], ["7", "007", "34_5"]),
        ('[7, "007"]', ["7", "007"]),
        (' ["b", "a"] ', ["b", "a"]),
        ("b a", ["b", "a"]),
        ("b,a", ["b", "a"]),
        ("b; a", ["b", "a"]),
        ("b|a", ["b", "a"]),
        ("007", ["007"]),
        ("", []),
        ([], []),
        (None, []),
    ],
)
def test_c15_candidate_lists_in_any_spelling(value, expected):
    assert readers.as_ids(value, "a.csv:2") == expected


@pytest.mark.parametrize("value", [7, {"7": 1}, "['7']", "[7", ["7", None], ["7", " "], [1.5], ["7", True], '["7", null]'])
def test_c15_a_value_that_is_no_candidate_list_is_an_error_with_its_place(value):
    with pytest.raises(WorkbookError, match="a.csv:2"):
        readers.as_ids(value, "a.csv:2")


C16_IDS = ["101", "0042", "NA", "12E4", "TRUE"]


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_c16_table_ids_are_the_characters_of_the_cell(tmp_path, suffix, separator):
    lines = ["doc_id,text"] + [f"{doc_id},Ice creeps." for doc_id in C16_IDS] + [",No id."]
    path = put(tmp_path / f"a{suffix}", "\n".join(lines).replace(",", separator))
    records, _ = read(path)
    assert [record.get("doc_id") for record in records] == [*C16_IDS, None]
    frame = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
    assert [record.get("doc_id", "") for record in records] == frame["doc_id"].tolist()


@pytest.mark.parametrize("word", ["nan", "None", "null", "-", "1e5", "1_000", "01.50", "#N/A", "FALSE", " x "])
def test_c16_no_cell_is_taken_for_a_number_or_a_missing_value(tmp_path, word):
    assert read(put(tmp_path / "a.csv", f"doc_id,text\n{word},{word}\n")) == ([{"doc_id": word, "text": word}], [])


def test_c16_an_empty_cell_is_an_absent_field(tmp_path):
    assert read(put(tmp_path / "a.csv", 'id,text,date\np1,,""\n'))[0] == [{"id": "p1"}]


def test_column_names_lose_their_padding(tmp_path):
    assert read(put(tmp_path / "a.csv", "id , text\np1, x\n"))[0] == [{"id": "p1", "text": " x"}]


def test_a_field_of_a_million_characters_is_read(tmp_path):
    records = [{"id": "p1", "text": "ice " * 250_000}]
    assert [read(put(tmp_path / f"a{suffix}", encode(suffix, records)))[0] for suffix in FORMATS] == [records] * 5


def test_the_first_field_that_is_present_is_picked():
    names = ("doc_id", "docid", "id")
    assert readers.pick({"id": "c", "docid": "b", "doc_id": None}, names) == "b"
    assert readers.pick({"id": 0}, names) == 0
    assert readers.pick({"other": 1}, names) is None


def test_find_gives_the_one_file_or_folder_of_a_name(tmp_path):
    assert readers.find(tmp_path, "queries") is None
    put(tmp_path / "queries.txt", "no accepted format")
    assert readers.find(tmp_path, "queries") is None
    path = put(tmp_path / "queries.tsv.gz", "id\n")
    assert readers.find(tmp_path, "queries") == path
    (tmp_path / "documents").mkdir()
    assert readers.find(tmp_path, "documents") == tmp_path / "documents"


def test_two_files_of_one_name_are_an_error_naming_both(tmp_path):
    for name in ("queries.csv", "queries.jsonl"):
        put(tmp_path / name, "")
    with pytest.raises(WorkbookError) as caught:
        readers.find(tmp_path, "queries")
    assert all(part in str(caught.value) for part in (str(tmp_path), "queries.csv", "queries.jsonl", "keep one"))


def test_a_folder_and_a_file_of_one_name_are_an_error_naming_both(tmp_path):
    put(tmp_path / "documents" / "a.jsonl", encode(".jsonl", RECORDS))
    put(tmp_path / "documents.csv", encode(".csv", RECORDS))
    with pytest.raises(WorkbookError, match=r"documents\.csv"):
        readers.find(tmp_path, "documents")


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(TEXT, JSON, max_size=4), max_size=5)
CELLS = TEXT.filter(bool)
ROWS = st.lists(st.fixed_dictionaries({"id": CELLS.filter(str.strip)}, optional={"text": CELLS, "date": CELLS}), max_size=5)

property_test = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@property_test
@given(records=OBJECTS, raw=st.booleans(), end=st.sampled_from(["\n", "\r\n"]), final=st.booleans())
def test_any_records_written_as_jsonl_come_back(tmp_path, records, raw, end, final):
    lines = [json.dumps(record, ensure_ascii=not raw) for record in records]
    path = put(tmp_path / "a.jsonl", end.join(lines) + (end if final and lines else ""))
    assert read(path) == (records, [])


@property_test
@given(records=OBJECTS, raw=st.booleans(), indent=st.sampled_from([None, 2]))
def test_any_records_written_as_json_come_back(tmp_path, records, raw, indent):
    path = put(tmp_path / "a.json", json.dumps(records, ensure_ascii=not raw, indent=indent))
    assert read(path) == (records, [])


@property_test
@given(
    records=ROWS,
    suffix=st.sampled_from([".csv", ".tsv"]),
    dialect=st.sampled_from([("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]),
)
def test_any_records_written_as_a_table_come_back(tmp_path, records, suffix, dialect):
    end, quoting = dialect
    out = io.StringIO(newline="")
    writer = csv.DictWriter(
        out,
        ["id", "text", "date"],
        delimiter="\t" if suffix == ".tsv" else ",",
        lineterminator=end,
        quoting=quoting,
    )
    writer.writeheader()
    writer.writerows(records)
    assert read(put(tmp_path / f"a{suffix}", out.getvalue())) == (records, [])


HARM = st.lists(
    st.tuples(
        st.integers(0, 10_000), st.sampled_from(["set", "insert", "delete", "cut"]), st.binary(min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=6,
)


def harmed(content: bytes, harm: list[tuple[int, str, bytes]]) -> bytes:
    for number, kind, piece in harm:
        at = number % (len(content) + 1)
        after = {"set": at + len(piece), "insert": at, "delete": at + len(piece), "cut": len(content)}[kind]
        content = content[:at] + (piece if kind in ("set", "insert") else b"") + content[after:]
    return content


def assert_records_or_error(path: Path) -> None:
    problems: list[str] = []
    try:
        for record in readers.read_records(path, problems.append):
            assert isinstance(record.fields, dict)
            assert record.place.startswith(f"{path}:")
    except WorkbookError as error:
        problems.append(str(error))
    assert all(str(path) in problem for problem in problems)


@settings(property_test, max_examples=300)
@given(harm=HARM, suffix=st.sampled_from(FORMATS))
def test_harmed_bytes_give_records_or_an_error_naming_the_file(tmp_path, harm, suffix):
    assert_records_or_error(put(tmp_path / f"a{suffix}", harmed(encode(suffix, RECORDS), harm)))


@property_test
@given(harm=HARM, suffix=st.sampled_from(FORMATS))
def test_harmed_gzip_gives_records_or_an_error_naming_the_file(tmp_path, harm, suffix):
    path = tmp_path / f"a{suffix}.gz"
    path.write_bytes(harmed(gzip.compress(encode(suffix, RECORDS), mtime=0), harm))
    assert_records_or_error(path)


@property_test
@given(content=st.binary(max_size=200), name=st.sampled_from([f"a{s}{p}" for s in FORMATS for p in ("", ".gz")]))
def test_arbitrary_bytes_give_records_or_an_error_naming_the_file(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    assert_records_or_error(tmp_path / name)
