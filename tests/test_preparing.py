import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib import paths, preparing, readers, slices
from lib.chunking import chunk
from lib.errors import WorkbookError
from lib.variants import load_variants
from tests.slice_files import ACCEPTED, D1, D2, QUERY, bad_documents, bad_sources, lines, names_of, put, source

BOM = b"\xef\xbb\xbf"
BLANKS = [None, "", "  ", "\n\t", "\u00a0\u200b", "\ufeff", "\u2060\u00ad", "\u3000", "\x00\x1f"]
# Unicode's Default_Ignorable_Code_Point characters outside the categories of controls and formats.
IGNORABLE = ["\u034f", "\u115f", "\u3164", "\ufe0f", "\uffa0"]

property_test = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def prepare(folder: Path, **options) -> slices.Slice:
    out = folder.with_name("out")
    preparing.prepare(str(folder), out, **options)
    return slices.Slice(out)


def error_of(folder: Path, **options) -> str:
    with pytest.raises(WorkbookError) as caught:
        prepare(folder, **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def the_problem(slice_: slices.Slice) -> str:
    assert len(slice_.report.problems) == 1
    return slice_.report.problems[0]


def test_documents_come_in_candidate_order_whatever_the_order_of_the_files(tmp_path):
    wanted = ["d3", "d1", "d5", "d2", "d4"]
    documents = [{"id": f"d{n}", "text": f"Text {n}."} for n in range(1, 6)]
    made = prepare(source(tmp_path / "in", [{**QUERY, "doc_ids": wanted}], documents))
    assert made.queries == [slices.Query("q1", "Does ice creep?", tuple(wanted))]
    assert [d.doc_id for d in made.documents(made.queries[0])] == wanted
    assert [d.text for d in made.documents(made.queries[0])] == [f"Text {n}." for n in (3, 1, 5, 2, 4)]


def test_queries_keep_the_order_of_their_file(tmp_path):
    queries = [{**QUERY, "query_id": name} for name in ("q9", "q10", "a", "Q1")]
    assert [q.query_id for q in prepare(source(tmp_path / "in", queries)).queries] == ["q9", "q10", "a", "Q1"]


def test_a_document_of_two_queries_is_kept_once_and_counted_twice(tmp_path):
    queries = [QUERY, {"query_id": "q2", "query": "Does it melt?", "doc_ids": ["d2"]}]
    made = prepare(source(tmp_path / "in", queries))
    assert [d.doc_id for d in made.all_documents()] == ["d1", "d2"]
    assert (made.report.queries, made.report.instances, made.report.documents) == (2, 3, 2)
    assert made.report.text_sources == {"fullText": 3, "abstract": 0, "title": 0, "none": 0}


def test_only_wanted_documents_are_kept(tmp_path):
    others = [{"id": f"x{n}", "text": f"Unwanted {n}."} for n in range(500)]
    made = prepare(source(tmp_path / "in", documents=[*others[:250], D1, *others[250:], D2]))
    assert [d.doc_id for d in made.all_documents()] == ["d1", "d2"]
    assert not any(b"Unwanted" in path.read_bytes() for path in made.folder.iterdir())
    assert made.report.problems == []


def test_preparing_leaves_the_files_of_the_slice_and_no_other(tmp_path):
    made = prepare(source(tmp_path / "in", citations__csv="citing_doc_id,cited_doc_id\nd1,d2\n"))
    assert sorted(path.name for path in made.folder.iterdir()) == [
        "citation_degrees.json",
        "documents.index.json",
        "documents.jsonl",
        "queries.jsonl",
        "slice.json",
    ]


def test_preparing_twice_gives_the_same_bytes(tmp_path):
    for name in "ab":
        preparing.prepare("sample", tmp_path / name)
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in "ab")
    assert first == second


def test_preparing_anew_replaces_gold_data_that_are_gone(tmp_path):
    folder = source(tmp_path / "in", qrels__txt="q1 0 d1 1\n")
    assert prepare(folder).qrels() == {"q1": {"d1"}}
    (folder / "qrels.txt").unlink()
    assert prepare(folder).qrels() == {}


FULL_TEXT_NAMES = ("fullText", "full_text", "text", "body", "contents")


@pytest.mark.parametrize("name", ["narrative_id", "query_id", "qid", "id"])
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "tsv"])
def test_every_accepted_name_of_the_query_id(tmp_path, name, suffix):
    separator = "\t" if suffix == "tsv" else ","
    rows = {"jsonl": lines([{name: "007", "query": "Ice?", "doc_ids": ["d1"]}])}
    rows["json"] = f"[{rows['jsonl']}]"
    folder = source(tmp_path / "in")
    (folder / "queries.jsonl").unlink()
    put(folder / f"queries.{suffix}", rows.get(suffix, f"{name},query,doc_ids\n007,Ice?,d1\n".replace(",", separator)))
    assert prepare(folder).queries == [slices.Query("007", "Ice?", ("d1",))]


@pytest.mark.parametrize("name", ["narrative", "query", "text", "question"])
def test_every_accepted_name_of_the_query_text(tmp_path, name):
    made = prepare(source(tmp_path / "in", [{"query_id": "q1", name: "Ice?", "doc_ids": ["d1"]}]))
    assert made.queries == [slices.Query("q1", "Ice?", ("d1",))]


@pytest.mark.parametrize("name", ["candidate_doc_ids", "candidate_docs", "candidates", "doc_ids"])
def test_every_accepted_name_of_the_candidates(tmp_path, name):
    made = prepare(source(tmp_path / "in", [{"query_id": "q1", "query": "Ice?", name: ["d2", "d1"]}]))
    assert made.queries == [slices.Query("q1", "Ice?", ("d2", "d1"))]


@pytest.mark.parametrize("name", ["doc_id", "docid", "id", "paper_id"])
def test_every_accepted_name_of_the_document_id(tmp_path, name):
    made = prepare(source(tmp_path / "in", [{**QUERY, "doc_ids": ["7"]}], [{name: 7, "text": "Ice creeps."}]))
    assert made.document("7").text == "Ice creeps."


@pytest.mark.parametrize("name", FULL_TEXT_NAMES)
def test_every_accepted_name_of_the_full_text(name):
    document = preparing.make_document("d1", {name: "Full.", "abstract": "Abstract.", "title": "Title"})
    assert (document.text, document.text_source, document.title) == ("Full.", "fullText", "Title")


@pytest.mark.parametrize(
    "name", ["publishedDate", "publication_date", "published", "timestamp", "date", "createdDate", "year"]
)
def test_every_accepted_name_of_the_date(name):
    assert preparing.parse_date({"id": "d1", name: "2016-03-02"}) == "2016-03-02"


@pytest.mark.parametrize("key", ["query_id", "narrative_id", "qid", "id"])
@pytest.mark.parametrize("listed", [["d2", "d1"], '["d2", "d1"]', "d2 d1"])
def test_candidates_in_a_second_file_a_row_a_query(tmp_path, key, listed):
    queries = [{"query_id": "q1", "query": "Ice?"}, {"query_id": "q2", "query": "Water?"}]
    rows = lines([{key: "q2", "candidates": ["d1"]}, {key: "q1", "candidates": listed}])
    made = prepare(source(tmp_path / "in", queries, candidates__jsonl=rows))
    assert {q.query_id: q.doc_ids for q in made.queries} == {"q1": ("d2", "d1"), "q2": ("d1",)}


@pytest.mark.parametrize(
    "header", ["query_id,doc_id", "qid,docid", "narrative_id,paper_id", "id,doc_id", "query_id,id", "qid,id"]
)
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_candidates_in_a_second_file_a_row_a_pair(tmp_path, header, suffix):
    queries = [{"query_id": "q1", "query": "Ice?"}, {"query_id": "q2", "query": "Water?"}]
    table = f"{header}\nq1,d2\nq2,d1\nq1,d1\n"
    folder = source(tmp_path / "in", queries)
    put(folder / f"candidates.{suffix}", table.replace(",", "\t") if suffix == "tsv" else table)
    assert {q.query_id: q.doc_ids for q in prepare(folder).queries} == {"q1": ("d2", "d1"), "q2": ("d1",)}


def test_candidates_of_the_second_file_hold_where_the_query_has_some_too(tmp_path):
    made = prepare(source(tmp_path / "in", [{**QUERY, "doc_ids": ["d1"]}], candidates__csv="qid,docid\nq1,d2\n"))
    assert made.queries[0].doc_ids == ("d2",)


@pytest.mark.parametrize("row", ["q1,", ",d1"])
def test_a_candidates_row_with_a_blank_id_is_an_error_with_its_line(tmp_path, row):
    folder = source(tmp_path / "in", candidates__csv=f"qid,docid\nq1,d1\n{row}\n")
    assert f"{folder / 'candidates.csv'}:3" in error_of(folder)


def encoded(suffix: str, rows: list[dict]) -> bytes:
    if suffix.startswith("jsonl"):
        content = lines(rows)
    elif suffix.startswith("json"):
        content = json.dumps(rows)
    else:
        separator = "\t" if suffix.startswith("tsv") else ","
        cells = [list(rows[0])] + [[str(value) for value in row.values()] for row in rows]
        content = "".join(separator.join(row) + "\n" for row in cells)
    return gzip.compress(content.encode()) if suffix.endswith(".gz") else content.encode()


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "tsv"])
def test_a_slice_in_any_format(tmp_path, suffix, packed):
    end = suffix + packed
    put(tmp_path / "in" / f"queries.{end}", encoded(end, [{"qid": "q1", "question": "Ice?", "candidates": "d2 d1"}]))
    put(
        tmp_path / "in" / f"documents.{end}",
        encoded(end, [{"docid": "d1", "body": "One."}, {"docid": "d2", "body": "Two."}]),
    )
    made = prepare(tmp_path / "in")
    assert [d.text for d in made.documents(made.queries[0])] == ["Two.", "One."]
    assert made.report.problems == []


def test_a_documents_folder_of_mixed_formats(tmp_path):
    suffixes = ("jsonl", "json", "csv", "tsv", "jsonl.gz", "csv.gz")
    folder = source(tmp_path / "in", [{**QUERY, "doc_ids": [f"d{n}" for n in range(6)]}], documents=None)
    for n, suffix in enumerate(suffixes):
        put(folder / "documents" / f"{n}.{suffix}", encoded(suffix, [{"id": f"d{n}", "text": f"Text {n}."}]))
    made = prepare(folder)
    assert [d.text for d in made.documents(made.queries[0])] == [f"Text {n}." for n in range(6)]


def test_c12_qrels_with_a_byte_order_mark_crlf_and_a_blank_line(tmp_path):
    made = prepare(source(tmp_path / "in", qrels__txt=BOM + b"q1 0 d1 1\r\n\r\nq1 0 d2 0\r\n"))
    assert made.qrels() == {"q1": {"d1"}}


def test_c12_gold_answers_with_a_byte_order_mark_crlf_and_a_blank_line(tmp_path):
    row = json.dumps({"query_id": "q1", "answer": "It creeps."}).encode()
    made = prepare(source(tmp_path / "in", gold_answers__jsonl=BOM + row + b"\r\n\r\n"))
    assert made.gold_answers() == {"q1": "It creeps."}


def test_c12_a_slice_of_files_with_byte_order_marks(tmp_path):
    folder = tmp_path / "in"
    put(folder / "queries.csv", BOM + b"id,query,doc_ids\nq1,Ice?,d1 d2\n")
    put(folder / "documents" / "a.jsonl", BOM + lines([D1]).encode())
    put(folder / "documents" / "b.tsv", BOM + b"id\ttext\nd2\tIce melts.\n")
    put(folder / "citations.csv", BOM + b"citing_doc_id,cited_doc_id\nd1,d2\n")
    made = prepare(folder)
    assert [d.text for d in made.documents(made.queries[0])] == ["Ice creeps.", "Ice melts."]
    assert made.citation_degrees == {"d1": 1, "d2": 1}
    assert made.report.problems == []


def test_c13_a_torn_last_document_is_told_and_those_before_are_kept(tmp_path):
    folder = source(tmp_path / "in", documents=[D1])
    path = put(folder / "documents" / "a.jsonl", lines([D1]) + '{"id": "d2", "text": "unfinis')
    made = prepare(folder)
    assert [d.doc_id for d in made.all_documents()] == ["d1"]
    assert any(f"{path}:2:" in line and "torn" in line for line in made.report.problems)
    assert any("'q1'" in line and "'d2'" in line for line in made.report.problems)


def test_c13_a_torn_last_document_is_an_error_when_strict(tmp_path):
    folder = source(tmp_path / "in")
    path = put(folder / "documents" / "a.jsonl", lines([D1, D2]) + '{"id": "d3", "text": "unfinis')
    assert f"{path}:3:" in error_of(folder, strict=True)


@pytest.mark.parametrize("name", ["queries.jsonl", "documents/a.jsonl", "candidates.jsonl", "citations.jsonl"])
def test_c13_a_malformed_middle_line_is_an_error_with_its_number(tmp_path, name):
    folder = source(tmp_path / "in")
    good = lines(
        [{"query_id": "q1", "query": "Ice?", "doc_ids": ["d1"], "id": "d1", "citing_doc_id": 1, "cited_doc_id": 2}]
    )
    path = put(folder / name, good + '{"id": "d2", \n' + good)
    assert f"{path}:2:" in error_of(folder)


def test_c15_integer_ids_match_text_ids_and_zeros_count(tmp_path):
    documents = [{"id": "007", "text": "Agent."}, {"id": 7, "text": "Seven."}, {"id": "34_5", "text": "Other."}]
    folder = source(tmp_path / "in", [{**QUERY, "doc_ids": ["7", 34, "34_5", "007"]}], documents, qrels__txt="q1 0 7 1\n")
    made = prepare(folder)
    assert {d.doc_id: d.text for d in made.documents(made.queries[0])} == {"7": "Seven.", "34_5": "Other.", "007": "Agent."}
    assert made.qrels() == {"q1": {"7"}}
    assert "'34'" in the_problem(made)


def test_c15_query_ids_are_verbatim_in_gold_data_too(tmp_path):
    answers = lines([{"query_id": 7, "answer": "Seven."}, {"query_id": "007", "answer": "Agent."}])
    queries = [{**QUERY, "query_id": 7}, {**QUERY, "query_id": "007"}]
    made = prepare(source(tmp_path / "in", queries, gold_answers__jsonl=answers))
    assert [q.query_id for q in made.queries] == ["7", "007"]
    assert made.gold_answers() == {"7": "Seven.", "007": "Agent."}


@pytest.mark.parametrize("other", ["a.jsonl", "b.csv"])
def test_c15_one_id_with_two_texts_is_an_error_naming_both_places(tmp_path, other):
    folder = source(tmp_path / "in", documents=[D2, D1])
    changed = {**D1, "text": "Ice flows."}
    if other == "a.jsonl":
        put(folder / "documents" / "a.jsonl", lines([D2, D1, changed]))
    else:
        put(folder / "documents" / "b.csv", "id,text\nx,y\nd1,Ice flows.\n")
    message = error_of(folder)
    assert f"{folder / 'documents' / other}:3" in message
    assert f"{folder / 'documents' / 'a.jsonl'}:2" in message
    assert "'d1'" in message
    assert "keep one" in message


@pytest.mark.parametrize("copy", [D1, {"text": "Ice creeps.", "docid": "d1"}])
def test_c15_identical_copies_collapse_with_a_warning_naming_both_places(tmp_path, copy):
    folder = source(tmp_path / "in", documents=[D1, D2, copy])
    made = prepare(folder)
    path = folder / "documents" / "a.jsonl"
    assert [d.doc_id for d in made.all_documents()] == ["d1", "d2"]
    assert f"{path}:3" in the_problem(made)
    assert f"{path}:1" in the_problem(made)


def test_c15_an_integer_and_a_text_id_of_the_same_spelling_are_one_id(tmp_path):
    folder = source(tmp_path / "in", [{**QUERY, "doc_ids": [7]}], [{"id": 7, "text": "a"}, {"id": "7", "text": "b"}])
    assert "'7'" in error_of(folder)


def test_c15_copies_of_documents_that_nobody_wants_do_not_matter(tmp_path):
    made = prepare(source(tmp_path / "in", documents=[D1, D2, {"id": "x", "text": "a"}, {"id": "x", "text": "b"}]))
    assert made.report.problems == []


@pytest.mark.parametrize("doc_id", [1.5, True, ["d1"], {"a": 1}])
def test_c15_a_document_id_that_is_none_is_an_error_with_its_line(tmp_path, doc_id):
    folder = source(tmp_path / "in", documents=[D1, {"id": doc_id, "text": "x"}, D2])
    assert f"{folder / 'documents' / 'a.jsonl'}:2" in error_of(folder)


def test_c16_table_ids_are_kept_and_a_blank_one_is_told_with_its_line(tmp_path):
    ids = ["101", "0042", "NA", "12E4", "TRUE"]
    folder = source(tmp_path / "in", [{**QUERY, "doc_ids": ids}], documents=None)
    path = put(folder / "documents.csv", "doc_id,text\n" + "".join(f"{i},Text {i}.\n" for i in ids) + " ,No id.\n,None.\n")
    made = prepare(folder)
    assert {d.doc_id: d.text for d in made.documents(made.queries[0])} == {i: f"Text {i}." for i in ids}
    assert [f"{path}:{line}:" in problem for line, problem in zip((7, 8), made.report.problems, strict=True)] == [True] * 2
    assert all("doc_id" in problem for problem in made.report.problems)


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_c18_what_cannot_be_seen_is_no_full_text(blank):
    with_abstract = preparing.make_document("d1", {"fullText": blank, "abstract": "Ice creeps.", "title": "Ice"})
    without = preparing.make_document("d1", {"fullText": blank, "abstract": blank, "title": "Ice"})
    nothing = preparing.make_document("d1", {"fullText": blank, "abstract": blank, "title": blank})
    assert (with_abstract.text, with_abstract.text_source) == ("Ice creeps.", "abstract")
    assert (without.text, without.text_source) == ("Ice", "title")
    assert (nothing.text, nothing.text_source) == ("", "none")


@pytest.mark.parametrize("blank", IGNORABLE, ids=ascii)
def test_c18_characters_that_unicode_calls_ignorable_are_no_text(blank):
    assert preparing.make_document("d1", {"fullText": blank, "abstract": "Ice creeps."}).text_source == "abstract"


@pytest.mark.parametrize("blank", [None, "", " ", "\u00a0\u200b"], ids=ascii)
@pytest.mark.parametrize("name", FULL_TEXT_NAMES[1:])
def test_c18_a_blank_full_text_gives_way_to_one_under_another_name(blank, name):
    document = preparing.make_document("d1", {"fullText": blank, name: "Ice creeps.", "abstract": "Ice."})
    assert (document.text, document.text_source) == ("Ice creeps.", "fullText")


@pytest.mark.parametrize("text", ["x", "7", "∅", "．", "é", "\u200bx\u200b", "氷"])
def test_c18_what_can_be_seen_is_text(text):
    assert preparing.make_document("d1", {"fullText": text, "abstract": "Ice."}).text == text


@pytest.mark.parametrize("value", [7, ["Ice creeps."], {"text": "Ice creeps."}, True])
def test_c18_a_value_that_is_no_text_does_not_become_one(value):
    document = preparing.make_document("d1", {"fullText": value, "abstract": "Ice.", "title": value})
    assert (document.text, document.title) == ("Ice.", "")


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_c18_a_document_without_text_is_counted_told_and_not_retrieved(tmp_path, blank):
    folder = source(tmp_path / "in", documents=[D1, {"id": "d2", "fullText": blank, "abstract": blank, "title": blank}])
    made = prepare(folder)
    assert made.report.text_sources == {"fullText": 1, "abstract": 0, "title": 0, "none": 1}
    assert f"{folder / 'documents' / 'a.jsonl'}:2" in the_problem(made)
    assert "'d2'" in the_problem(made)
    assert "no text" in the_problem(made)
    assert made.document("d2").text == ""
    assert not re.search(r"None|nan|null", made.document("d2").title)
    rule = load_variants(["single-query-bm25"])[0]
    assert chunk(made.document("d2"), {"rule": rule}, None) == {"rule": []}
    assert len(chunk(made.document("d1"), {"rule": rule}, None)["rule"]) == 1


def test_c18_empty_cells_of_a_table_are_no_text(tmp_path):
    folder = source(tmp_path / "in", documents=None)
    put(folder / "documents.csv", "id,title,abstract,fullText\nd1,,Ice creeps.,\nd2,Ice,,\n")
    made = prepare(folder)
    assert [(d.text, d.text_source) for d in made.all_documents()] == [("Ice creeps.", "abstract"), ("Ice", "title")]


def test_a_document_that_is_absent_is_told_with_its_query(tmp_path):
    made = prepare(source(tmp_path / "in", [QUERY, {**QUERY, "query_id": "q2", "doc_ids": ["d1"]}], [D1]))
    assert "'q1'" in the_problem(made)
    assert "'d2'" in the_problem(made)
    assert [d.doc_id for d in made.documents(made.query("q1"))] == ["d1"]
    assert made.queries[0].doc_ids == ("d1", "d2")
    assert sum(made.report.text_sources.values()) == made.report.instances - 1


def test_an_absent_document_is_an_error_when_strict(tmp_path):
    message = error_of(source(tmp_path / "in", documents=[D1]), strict=True)
    assert "'q1'" in message
    assert "'d2'" in message


@pytest.mark.parametrize(
    "documents", [[], [{"id": "x", "text": "Other."}], [{"id": "D1", "text": "x"}, {"id": "d02", "text": "y"}]]
)
def test_a_query_of_whose_candidates_none_is_there_is_an_error(tmp_path, documents):
    message = error_of(source(tmp_path / "in", documents=documents))
    assert "'q1'" in message
    assert "do not match" in message


def test_one_query_without_its_documents_is_an_error_though_another_has_them(tmp_path):
    assert "'q2'" in error_of(source(tmp_path / "in", [QUERY, {**QUERY, "query_id": "q2", "doc_ids": ["x", "y"]}]))


@pytest.mark.parametrize("field", [{}, {"doc_ids": []}, {"doc_ids": None}, {"doc_ids": ""}])
def test_a_query_without_candidates_is_told(tmp_path, field):
    query = {"query_id": "q2", "query": "Water?"} | field
    folder = source(tmp_path / "in", [QUERY, query])
    made = prepare(folder)
    assert f"{folder / 'queries.jsonl'}:2" in the_problem(made)
    assert "'q2' has no candidates" in the_problem(made)
    assert made.documents(made.query("q2")) == []


@pytest.mark.parametrize("blank", BLANKS + [7, ["Ice?"]], ids=ascii)
def test_a_query_without_text_is_told(tmp_path, blank):
    folder = source(tmp_path / "in", [{**QUERY, "query_id": "q0"}, {**QUERY, "query": blank}])
    made = prepare(folder)
    assert f"{folder / 'queries.jsonl'}:2" in the_problem(made)
    assert "'q1' has no text" in the_problem(made)


def test_a_query_without_an_id_is_told_with_the_accepted_names(tmp_path):
    folder = source(tmp_path / "in", [QUERY, {"query_id": " ", "query": "Ice?", "doc_ids": ["d1"]}])
    made = prepare(folder)
    assert [q.query_id for q in made.queries] == ["q1"]
    assert f"{folder / 'queries.jsonl'}:2" in the_problem(made)
    assert all(name in the_problem(made) for name in ("narrative_id", "query_id", "qid", "id"))


def test_two_queries_of_one_id_are_an_error_naming_both_places(tmp_path):
    folder = source(tmp_path / "in", [QUERY, {**QUERY, "query_id": "q2"}, {**QUERY, "query": "Water?"}])
    message = error_of(folder)
    path = folder / "queries.jsonl"
    assert f"{path}:3" in message
    assert f"{path}:1" in message
    assert "keep one" in message


def test_identical_queries_collapse_with_a_warning(tmp_path):
    made = prepare(source(tmp_path / "in", [QUERY, QUERY]))
    assert len(made.queries) == made.report.queries == 1
    assert "'q1'" in the_problem(made)
    assert "kept once" in the_problem(made)


def test_a_candidate_listed_twice_is_kept_once_and_told(tmp_path):
    folder = source(tmp_path / "in", [{**QUERY, "doc_ids": ["d2", "d1", "d2"]}])
    made = prepare(folder)
    assert made.queries[0].doc_ids == ("d2", "d1")
    assert f"{folder / 'queries.jsonl'}:1" in the_problem(made)
    assert "'d2'" in the_problem(made)


@pytest.mark.parametrize("doc_ids", [7, {"d1": 1}, ["d1", None], [1.5], "['d1']"])
def test_candidates_that_are_no_list_are_an_error_with_their_line(tmp_path, doc_ids):
    folder = source(tmp_path / "in", [QUERY, {**QUERY, "query_id": "q2", "doc_ids": doc_ids}])
    assert f"{folder / 'queries.jsonl'}:2" in error_of(folder)


def names_the_formats(message: str) -> bool:
    return all(name in message for name in ACCEPTED)


def test_a_missing_folder_is_an_error_naming_it_and_what_may_be_given(tmp_path):
    message = error_of(tmp_path / "absent")
    assert str(tmp_path / "absent") in message
    assert names_the_formats(message)
    assert "sample" in message
    assert "longeval-sci-2026/clef-2026/rag" in message


@pytest.mark.parametrize("name", [None, "queries.txt", "queries.xml", "topics.jsonl"])
def test_a_folder_without_queries_is_an_error_naming_it_and_the_formats(tmp_path, name):
    (tmp_path / "in").mkdir()
    if name:
        put(tmp_path / "in" / name, lines([QUERY]))
    message = error_of(tmp_path / "in")
    assert str(tmp_path / "in") in message
    assert "queries" in message
    assert names_the_formats(message)


@pytest.mark.parametrize("kind", ["none", "empty folder", "unknown format"])
def test_a_folder_without_documents_is_an_error_naming_it_and_the_formats(tmp_path, kind):
    folder = source(tmp_path / "in", documents=None)
    if kind != "none":
        (folder / "documents").mkdir()
    if kind == "unknown format":
        put(folder / "documents" / "a.parquet", "PAR1")
    message = error_of(folder)
    assert str(folder) in message
    assert "documents" in message
    assert names_the_formats(message)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_no_queries_at_all_are_an_error(tmp_path, content):
    folder = source(tmp_path / "in")
    put(folder / "queries.jsonl", content)
    message = error_of(folder)
    assert str(folder) in message
    assert "no queries" in message


@pytest.mark.parametrize("stem", ["queries", "documents", "candidates", "citations"])
def test_two_files_for_one_part_are_an_error_naming_both(tmp_path, stem):
    folder = source(tmp_path / "in", documents=None if stem == "documents" else (D1, D2))
    for suffix in ("csv", "jsonl"):
        put(folder / f"{stem}.{suffix}", "")
    message = error_of(folder)
    assert f"{stem}.csv" in message
    assert f"{stem}.jsonl" in message


@pytest.mark.parametrize("field", ["queries", "documents"])
def test_an_id_that_utf8_cannot_hold_is_kept_or_told_never_a_crash(tmp_path, field):
    doc_id, query_id = ("d\ud800", "q1") if field == "documents" else ("d1", "q\ud800")
    queries = json.dumps({**QUERY, "query_id": query_id, "doc_ids": [doc_id, "d2"]})
    folder = source(tmp_path / "in", [queries], [json.dumps({**D1, "id": doc_id}), D2])
    try:
        assert len(prepare(folder).queries) == 1
    except WorkbookError as error:
        assert str(folder) in str(error)


@pytest.mark.parametrize("part", ["documents", "citations"])
def test_a_failed_preparation_leaves_no_file_of_its_own_in_a_folder_that_was_there(tmp_path, part):
    folder = source(tmp_path / "in", citations__csv="citing_doc_id,cited_doc_id\nd1,d2\n")
    made = prepare(folder)
    before = {path.name for path in made.folder.iterdir()}
    put(folder / "documents" / "b.jsonl" if part == "documents" else folder / "citations.csv", '{"broken\n"')
    with pytest.raises(WorkbookError):
        prepare(folder)
    assert {path.name for path in made.folder.iterdir()} <= before
    slice_file = made.folder / "slice.json"
    assert not slice_file.exists() or [d.text for d in slices.Slice(made.folder).all_documents()] == [
        "Ice creeps.",
        "Ice melts.",
    ]


@pytest.mark.parametrize("bad", ['{"query_id": "q1", "ans', '{"query_id": "q1"}', '{"answer": "Yes."}', '["q1", "Yes."]'])
def test_a_malformed_gold_answer_is_an_error_with_its_line(tmp_path, bad):
    folder = source(tmp_path / "in", gold_answers__jsonl=lines([{"query_id": "q0", "answer": "No."}, bad]))
    with pytest.raises(WorkbookError, match=r"gold_answers\.jsonl:2"):
        prepare(folder).gold_answers()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2009", "2009"),
        (2009, "2009"),
        ("2009-05", "2009-05"),
        ("2009-05-17", "2009-05-17"),
        ("2009-05-17T00:00:00", "2009-05-17"),
        ("2009-05-17T23:59:59+09:00", "2009-05-17"),
        ("2009-05-17 10:00", "2009-05-17"),
        (" 2009-05-17", "2009-05-17"),
        ("1900-01-01", None),
        ("1900-01-01T00:00:00", None),
        ("1900-01-01T00:00:00+00:00", None),
        ("1970-01-01T00:00:00Z", None),
        ("0001-01-01", None),
        ("9999-12-31", None),
        ("0000-00-00", None),
        ("0000", None),
        (None, None),
        ("", None),
        (" ", None),
        ("unknown", None),
        ("n.d.", None),
        (0, None),
        (1700000000, None),
        (["2009"], None),
        ({"year": 2009}, None),
        (True, None),
    ],
    ids=repr,
)
def test_dates_and_placeholders(value, expected):
    assert preparing.parse_date({"publishedDate": value}) == expected


@pytest.mark.parametrize("unknown", [None, "", "n.d.", "1900-01-01T00:00:00"])
def test_an_unknown_date_gives_way_to_the_next_name(unknown):
    assert preparing.parse_date({"publishedDate": unknown, "createdDate": "2016-03-02T10:00:00"}) == "2016-03-02"
    assert preparing.parse_date({"createdDate": unknown, "year": 2014}) == "2014"


def test_the_published_date_comes_before_the_created_one():
    assert preparing.parse_date({"createdDate": "2016-03-02", "publishedDate": "2011"}) == "2011"


@pytest.mark.parametrize(("value", "year"), [("2009-05-17", 2009), ("2009", 2009), ("1900-01-01", None), (None, None)])
def test_the_year_of_a_document(value, year):
    assert preparing.make_document("d1", {"text": "x", "publishedDate": value}).year == year


@property_test
@given(st.none() | st.text() | st.integers() | st.floats() | st.from_regex(r"\d{1,5}(-\d{1,3}){0,3}(T.*)?"))
def test_any_value_is_a_date_of_the_stated_form_or_unknown(value):
    found = preparing.parse_date({"publishedDate": value})
    assert found is None or re.fullmatch(r"\d{4}(-\d\d(-\d\d)?)?", found)
    assert slices.Document("d1", "", "", "none", found).year in {None, *range(1500, 2101)}


def degrees(tmp_path: Path, content: str, suffix: str = "csv") -> tuple[dict[str, int], list[str]]:
    problems: list[str] = []
    return preparing.citation_degrees(put(tmp_path / f"citations.{suffix}", content), problems.append), problems


HEADER = "citing_doc_id,cited_doc_id\n"


def test_c07_degrees_count_both_ends_and_no_self_citation(tmp_path):
    assert degrees(tmp_path, HEADER + "A,B\nA,C\nA,A\nB,Z\n") == ({"A": 2, "B": 2, "C": 1, "Z": 1}, [])


def test_c07_a_network_without_edges_has_no_degrees(tmp_path):
    assert degrees(tmp_path, HEADER) == ({}, [])
    assert degrees(tmp_path, HEADER + "A,A\n") == ({}, [])


@pytest.mark.parametrize("row", ["A,", ",B", " ,B", "A,\t", 'A,""', ","])
def test_c07_a_row_with_a_blank_id_is_told_with_its_line_and_left_out(tmp_path, row):
    found, problems = degrees(tmp_path, HEADER + f"A,B\n{row}\nB,C\n")
    assert found == {"A": 1, "B": 2, "C": 1}
    assert len(problems) == 1
    assert f"{tmp_path / 'citations.csv'}:3" in problems[0]
    assert "citing_doc_id,cited_doc_id" in problems[0]


def test_c07_an_edge_that_stands_twice_counts_once(tmp_path):
    assert degrees(tmp_path, HEADER + "A,B\nA,B\nB,A\n")[0] == {"A": 2, "B": 2}


def test_c07_other_columns_are_told_row_by_row(tmp_path):
    found, problems = degrees(tmp_path, "source,target\nA,B\nB,C\n")
    assert found == {}
    assert [f"citations.csv:{line}:" in p for line, p in zip((2, 3), problems, strict=True)] == [True, True]


def test_c07_integer_ids_are_those_of_the_documents(tmp_path):
    rows = lines([{"citing_doc_id": 7, "cited_doc_id": "007"}, {"citing_doc_id": "7", "cited_doc_id": 8}])
    assert degrees(tmp_path, rows, "jsonl") == ({"007": 1, "7": 2, "8": 1}, [])


def test_c07_a_cited_document_outside_the_slice_never_becomes_a_candidate(tmp_path):
    folder = source(
        tmp_path / "in", documents=[D1, D2, {"id": "Z", "text": "Cited."}], citations__csv=HEADER + "d1,d2\nd2,Z\n,Z\n"
    )
    made = prepare(folder)
    assert made.citation_degrees == {"d1": 1, "d2": 2, "Z": 1}
    assert made.queries[0].doc_ids == ("d1", "d2")
    assert [d.doc_id for d in made.all_documents()] == ["d1", "d2"]
    assert f"{folder / 'citations.csv'}:4" in the_problem(made)


@property_test
@given(st.lists(st.tuples(st.sampled_from("ABCDE"), st.sampled_from("ABCDE"))))
def test_c07_degrees_of_any_network_are_in_degree_plus_out_degree(tmp_path, edges):
    found, problems = degrees(tmp_path, HEADER + "".join(f"{a},{b}\n" for a, b in edges))
    distinct = {(a, b) for a, b in edges if a != b}
    expected = {node: sum(node == a for a, _ in distinct) + sum(node == b for _, b in distinct) for node in "ABCDE"}
    assert (found, problems) == ({node: n for node, n in expected.items() if n}, [])


def test_a_slice_without_citations_has_no_degrees(tmp_path):
    assert prepare(source(tmp_path / "in")).citation_degrees == {}


@pytest.mark.parametrize(
    "text", ["a\u2028b\u2029c\u0085d", "\r\nIce\r", "😀 𝑥² – Лёд", '"\\"', "nul\x00l", "\ufeffIce"], ids=ascii
)
def test_a_text_is_kept_to_the_character(tmp_path, text):
    made = prepare(source(tmp_path / "in", documents=[{"id": "d1", "text": text}, D2]))
    assert made.document("d1").text == text
    assert [d.text for d in made.all_documents()] == [text, "Ice melts."]


def test_half_a_surrogate_pair_is_one_other_character_so_that_offsets_hold(tmp_path):
    row = '{"id": "d1", "text": "Ice \\ud83d creeps."}'
    text = prepare(source(tmp_path / "in", documents=[row, D2])).document("d1").text
    assert (text[:4], text[5:], len(text)) == ("Ice ", " creeps.", 13)


@property_test
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(preparing.has_text), min_size=1, max_size=6))
def test_any_texts_are_kept_to_the_character(tmp_path, texts):
    documents = [{"id": n, "text": text} for n, text in enumerate(texts)]
    folder = source(tmp_path / "in", [{**QUERY, "doc_ids": list(range(len(texts)))[::-1]}], documents)
    made = prepare(folder)
    assert [d.text for d in made.documents(made.queries[0])] == texts[::-1]


@property_test
@given(
    st.integers(0, 10_000),
    st.binary(min_size=1, max_size=4),
    st.sampled_from(["queries.jsonl", "documents/a.jsonl", "citations.csv", "candidates.csv"]),
)
def test_harmed_bytes_give_a_slice_or_an_error_naming_the_place(tmp_path, at, piece, name):
    files = {"citations__csv": HEADER + "d1,d2\n", "candidates__csv": "query_id,doc_id\nq1,d1\nq1,d2\n"}
    folder = source(tmp_path / "in", **files)
    content = (folder / name).read_bytes()
    at %= len(content)
    put(folder / name, content[:at] + piece + content[at + len(piece) :])
    try:
        assert prepare(folder).queries
    except WorkbookError as error:
        assert str(folder) in str(error) or "do not match" in str(error)


def test_an_unknown_query_is_an_error_naming_it(tmp_path):
    with pytest.raises(WorkbookError, match="q9"):
        prepare(source(tmp_path / "in")).query("q9")


def test_a_source_may_lack_documents_where_only_answers_are_scored(tmp_path):
    with preparing.opened(str(source(tmp_path / "in", documents=None))) as slice_:
        assert [q.query_id for q in slice_.queries] == ["q1"]
        assert list(slice_.all_documents()) == []
        folder = slice_.folder
    assert not folder.exists()


def test_a_prepared_slice_is_opened_as_it_is(tmp_path):
    made = prepare(source(tmp_path / "in"))
    with preparing.opened(str(made.folder)) as slice_:
        assert slice_.folder == made.folder
    assert made.folder.exists()


def test_the_files_of_a_source_are_those_that_are_read(tmp_path):
    folder = source(tmp_path / "in", qrels__txt="", citations__csv=HEADER, notes__txt="", candidates__csv="qid,docid\n")
    expected = ["candidates.csv", "citations.csv", "documents/a.jsonl", "qrels.txt", "queries.jsonl"]
    assert [path.relative_to(folder).as_posix() for path in preparing.source_files(str(folder))] == expected
    assert preparing.source_files("longeval-sci-2026/clef-2026/rag") == []


def test_the_availability_of_the_real_slice(real_data, tmp_path):
    """26 full texts and 34 abstracts of 60: README.md of the real data."""
    report = preparing.prepare(str(real_data / "slice"), tmp_path / "out", strict=True)
    made = slices.Slice(tmp_path / "out")
    assert report.text_sources == {"fullText": 26, "abstract": 34, "title": 0, "none": 0}
    assert (report.queries, report.instances, report.documents, report.problems) == (6, 60, 60, [])
    assert [len(made.documents(query)) for query in made.queries] == [10] * 6
    assert sorted(len(ids) for ids in made.qrels().values()) == [2] * 5
    assert made.gold_answers().keys() == {query.query_id for query in made.queries}


def test_the_real_slice_keeps_its_order_ids_and_texts(real_data, tmp_path):
    folder = real_data / "slice"
    raw = [json.loads(line) for file in folder.glob("documents/*") for line in file.read_bytes().split(b"\n") if line]
    texts = {str(row["id"]): row["fullText"] if (row.get("fullText") or "").strip() else row["abstract"] for row in raw}
    preparing.prepare(str(folder), tmp_path / "out")
    made = slices.Slice(tmp_path / "out")
    asked = [json.loads(line) for line in (folder / "queries.jsonl").read_bytes().split(b"\n") if line]
    assert made.queries == [slices.Query(q["query_id"], q["query"], tuple(map(str, q["doc_ids"]))) for q in asked]
    assert {d.doc_id: d.text for d in made.all_documents()} == texts


def test_the_published_queries_open_without_documents(real_data):
    with preparing.opened(str(real_data / "published")) as slice_:
        assert len(slice_.queries) == 24
        assert {len(query.doc_ids) for query in slice_.queries} == {10}
        assert [len(ids) for ids in slice_.qrels().values()] == [2] * 19
        assert len(slice_.gold_answers()) == 24


def raw_sample() -> dict[str, dict]:
    files = sorted((paths.SAMPLE / "documents").iterdir())
    rows = [json.loads(line) for file in files for line in file.read_bytes().split(b"\n") if line]
    return {str(row["id"]): row for row in rows}


def test_a_dataset_loaded_by_the_official_library(official):
    import ir_datasets_longeval

    made = preparing.irds_records(ir_datasets_longeval.load(str(official)), "longeval")
    problems: list[str] = []
    queries = preparing.read_queries(made, problems.append)
    asked = [json.loads(line) for line in (paths.SAMPLE / "queries.jsonl").read_bytes().split(b"\n") if line]
    assert queries == [slices.Query(q["query_id"], q["query"], tuple(map(str, q["doc_ids"]))) for q in asked]
    assert problems == []
    records = list(made.documents)
    assert len(records) == 80
    assert {readers.as_id(record.fields["doc_id"], record.place) for record in records} == raw_sample().keys()
    assert [record.place for record in records[:2]] == ["longeval:document 1", "longeval:document 2"]


def test_an_official_id_is_prepared_through_the_library(official, tmp_path, monkeypatch):
    """The library gives a TIRA sandbox its mounted folder, which stands here for the download."""
    monkeypatch.setenv("TIRA_INPUT_DATASET", str(official))
    report = preparing.prepare("longeval-sci-2026/clef-2026/rag", tmp_path / "out")
    abstracts = sum(bool((row["abstract"] or "").strip()) for row in raw_sample().values())
    assert report.text_sources == {"fullText": 0, "abstract": abstracts, "title": 80 - abstracts, "none": 0}
    assert (report.queries, report.documents, report.problems) == (8, 80, [])
    made = slices.Slice(tmp_path / "out")
    dates = {i: (row["publishedDate"] or "")[:10] or None for i, row in raw_sample().items()}
    assert {d.doc_id: d.date for d in made.all_documents()} == dates


def test_an_official_id_that_cannot_be_loaded_is_an_error_naming_it(official, tmp_path, monkeypatch):
    monkeypatch.setenv("TIRA_INPUT_DATASET", str(tmp_path / "absent"))
    with pytest.raises(WorkbookError, match="longeval-sci-2026/clef-2026/rag"):
        preparing.prepare("longeval-sci-2026/clef-2026/rag", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["queries.jsonl", "documents/documents_000001.jsonl"])
def test_official_files_that_are_damaged_are_an_error_naming_the_id(official, tmp_path, monkeypatch, name):
    monkeypatch.setenv("TIRA_INPUT_DATASET", str(official))
    content = (official / name).read_bytes()
    put(official / name, content[: len(content) // 2])
    with pytest.raises(WorkbookError, match="longeval-sci-2026/clef-2026/rag"):
        preparing.prepare("longeval-sci-2026/clef-2026/rag", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", names_of(bad_sources) + names_of(bad_documents))
def test_preparing_bad_input_tells_what_is_wrong_and_leaves_nothing(tmp_path, kind):
    spec, parts = (bad_sources(tmp_path / "a") | bad_documents(tmp_path / "b"))[kind]
    with pytest.raises(WorkbookError) as caught:
        preparing.prepare(str(spec), tmp_path / "out")
    assert [part for part in parts if part not in str(caught.value)] == []
    assert not (tmp_path / "out").exists()
