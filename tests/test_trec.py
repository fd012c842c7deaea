import copy
import json

import pytest
import yaml
from tira.check_format import _fmt, check_format

from lib import paths, steps, trec
from lib.errors import WorkbookError
from lib.evidence import Evidence, EvidenceSet
from lib.generation import Sentence
from lib.slices import Document, Query
from lib.text import words
from lib.variants import Profile, load_variants

QUERIES = [Query("q1", "How does ice creep?", ("d1", "d2", "007")), Query("42", "Why did debris sink?", ("7", "d2"))]
TEXTS = {
    "d1": "Ice creeps. It also melts.",
    "d2": "Debris sank.",
    "7": "Heat fell.",
    "007": "Yield doubled.",
    "far": "A document of nobody's query.",
}
DOCUMENTS = {doc_id: Document(doc_id, f"Title of {doc_id}", text, "fullText", None) for doc_id, text in TEXTS.items()}


def first() -> dict:
    about = {"team_id": "t", "run_id": "r", "type": "automatic", "narrative_id": "q1", "narrative": "How does ice creep?"}
    answer = [{"text": "Ice creeps.", "citations": [0]}, {"text": "Debris sank.", "citations": [1, 0]}]
    return {"metadata": about, "references": ["d1", "d2"], "answer": answer}


def second() -> dict:
    about = {"team_id": "t", "run_id": "r", "type": "automatic", "narrative_id": "42", "narrative": "Why did debris sink?"}
    return {"metadata": about, "references": ["7"], "answer": [{"text": "Heat fell.", "citations": []}]}


def evidence() -> dict:
    item = {"evidence_id": 0, "doc_id": "d1", "passage_id": "d1#0", "start": 12, "end": 26, "text": "It also melts."}
    return {"query_id": "q1", "status": "ok", "references": ["d1", "d2"], "evidence": [{**item, "citations": [0]}]}


def sources() -> dict:
    of_d1 = {"field": "text", "doc_id": "d1", "start": 0, "end": 11}
    sentences = [
        {"sentence": 0, "text": "Ice creeps.", "sources": [of_d1]},
        {"sentence": 1, "text": "Debris sank.", "sources": [{"field": "title", "doc_id": "d2"}, of_d1]},
    ]
    return {"query_id": "q1", "status": "ok", "sentences": sentences}


def changed(record: dict, *path, to) -> dict:
    """A copy of `record` with the value at `path` set to `to`."""
    record = copy.deepcopy(record)
    place = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return record


def without(record: dict, *path) -> dict:
    record = copy.deepcopy(record)
    place = record
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return record


def write(path, *lines):
    parts = (line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode() for line in lines)
    path.write_bytes(b"".join(part + b"\n" for part in parts))
    return path


def faults(folder, *lines, queries=QUERIES, documents=DOCUMENTS) -> list[str]:
    """The faults of a responses file of these lines, without the folder's name."""
    path = write(folder / "responses.jsonl", *lines)
    return [fault.replace(f"{folder}/", "") for fault in trec.validate(path, queries, documents)]


def one_fault(found: list[str], place: str, *parts: str):
    """Exactly one fault, at `place`, that says all of `parts`."""
    assert len(found) == 1, found
    assert found[0].startswith(f"{place}: ")
    assert all(part in found[0] for part in parts), found[0]


def test_a_valid_run_has_no_fault(tmp_path):
    write(tmp_path / "evidence.jsonl", evidence())
    write(tmp_path / "provenance.jsonl", sources())
    assert faults(tmp_path, first(), second()) == []
    assert faults(tmp_path, second(), b"", b"  ", first()) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"metadata": {"team_id": ', "not JSON"),
        (b"{'metadata': 1}", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"metadata": {"score": NaN}}', "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1, 2]", "not an object"),
        (b"7", "not an object"),
        (b"null", "not an object"),
        (b'"a string"', "not an object"),
        (b'""', "not an object"),
    ],
    ids=["torn", "quotes", "bytes", "nan", "deep", "list", "number", "null", "text", "empty-text"],
)
def test_a_line_that_is_no_json_object_is_named_by_its_number(tmp_path, line, reason):
    one_fault(faults(tmp_path, first(), b"", line, second()), "responses.jsonl:3", reason)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\u000b"])
def test_a_line_separator_inside_a_text_does_not_shift_the_line_numbers(tmp_path, separator):
    record = changed(first(), "answer", 0, "text", to=f"Ice{separator}creeps.")
    assert faults(tmp_path, record, second()) == []
    one_fault(faults(tmp_path, record, b"?", second()), "responses.jsonl:2", "not JSON")


@pytest.mark.parametrize(
    "record",
    [
        without(first(), "metadata"),
        without(first(), "references"),
        without(first(), "answer"),
        changed(first(), "metadata", to=None),
        changed(first(), "metadata", to="q1"),
        changed(first(), "references", to="d1"),
        changed(first(), "references", to={"0": "d1"}),
        changed(first(), "answer", to="Ice creeps."),
    ],
    ids=["metadata", "references", "answer", "null", "text", "one-reference", "map", "one-text"],
)
def test_a_record_without_its_three_fields_is_a_fault(tmp_path, record):
    found = faults(tmp_path, second(), record)
    one_fault([f for f in found if "is missing" not in f], "responses.jsonl:2", "metadata", "references", "answer")
    one_fault([f for f in found if "is missing" in f], "responses.jsonl", "'q1'")


@pytest.mark.parametrize("key", ["team_id", "run_id", "type", "narrative"])
def test_metadata_that_lack_a_field_are_a_fault(tmp_path, key):
    one_fault(faults(tmp_path, without(first(), "metadata", key), second()), "responses.jsonl:1", f"'{key}'")


def test_metadata_without_the_query_id_are_a_fault(tmp_path):
    found = faults(tmp_path, second(), without(first(), "metadata", "narrative_id"))
    assert any(fault.startswith("responses.jsonl:2: ") and "'narrative_id'" in fault for fault in found)
    assert any(fault.startswith("responses.jsonl: ") and "'q1' is missing" in fault for fault in found)


def test_c43_each_query_is_answered_exactly_once(tmp_path):
    one_fault(faults(tmp_path, first()), "responses.jsonl", "'42' is missing")
    one_fault(faults(tmp_path, first(), second(), first()), "responses.jsonl:3", "'q1'", "line 1")
    one_fault(
        faults(tmp_path, first(), second(), changed(first(), "metadata", "narrative_id", to="q9")),
        "responses.jsonl:3",
        "'q9'",
    )


def test_an_empty_file_lacks_every_query(tmp_path):
    found = faults(tmp_path)
    assert len(found) == 2
    assert all(f"'{query.query_id}' is missing" in fault for query, fault in zip(QUERIES, found, strict=True))


@pytest.mark.parametrize("name", ["responses.jsonl", "."])
def test_a_file_that_is_not_there_is_an_error(tmp_path, name):
    with pytest.raises(WorkbookError, match="no such file; give the responses.jsonl") as error:
        list(trec.validate(tmp_path / name, QUERIES, DOCUMENTS))
    assert str(tmp_path / name) in str(error.value)


def test_integer_and_string_ids_are_the_same(tmp_path):
    record = changed(changed(second(), "metadata", "narrative_id", to=42), "references", to=[7])
    assert faults(tmp_path, first(), record) == []
    one_fault(faults(tmp_path, first(), second(), record), "responses.jsonl:3", "'42'", "line 2")


@pytest.mark.parametrize(
    ("line", "record", "doc_id"),
    [
        (1, changed(first(), "references", 1, to="far"), "far"),
        (1, changed(first(), "references", 1, to="7"), "7"),
        (1, changed(first(), "references", 1, to=7), "7"),
        (2, changed(second(), "references", 0, to="007"), "007"),
        (2, changed(second(), "references", 0, to="d1"), "d1"),
        (2, changed(second(), "references", 0, to="7 "), "7 "),
        (2, changed(second(), "references", 0, to=7.0), "7.0"),
        (2, changed(second(), "references", 0, to=None), "None"),
        (2, changed(second(), "references", 0, to=["7"]), "['7']"),
    ],
)
def test_a_reference_that_is_no_candidate_of_the_query_is_a_fault(tmp_path, line, record, doc_id):
    lines = [record, second()] if line == 1 else [first(), record]
    one_fault(faults(tmp_path, *lines), f"responses.jsonl:{line}", f"'{doc_id}'", "not a candidate")


@pytest.mark.parametrize(("references", "twice"), [(["d1", "d2", "d1"], "d1"), (["007", "d1", "007", "007"], "007")])
def test_c43_a_reference_that_is_listed_twice_is_a_fault(tmp_path, references, twice):
    record = changed(first(), "references", to=references)
    one_fault(faults(tmp_path, record, second()), "responses.jsonl:1", f"'{twice}'", "more than once")


def test_a_reference_listed_as_number_and_as_text_is_listed_twice(tmp_path):
    record = changed(second(), "references", to=[7, "7"])
    one_fault(faults(tmp_path, first(), record), "responses.jsonl:2", "'7'", "more than once")


@pytest.mark.parametrize("index", [2, 99, -1, "0", True, False, 0.0, 1.5, None, [0], {"0": 0}], ids=repr)
def test_c43_a_citation_that_is_no_index_into_the_references_is_a_fault(tmp_path, index):
    record = changed(first(), "answer", 1, "citations", to=[0, index])
    one_fault(faults(tmp_path, record, second()), "responses.jsonl:1", "sentence 1", f"citation {index!r}")


@pytest.mark.parametrize("citations", [[0, 0], [1, 0, 1]])
def test_c43_a_sentence_that_cites_a_reference_twice_is_a_fault(tmp_path, citations):
    record = changed(first(), "answer", 0, "citations", to=citations)
    one_fault(faults(tmp_path, record, second()), "responses.jsonl:1", "sentence 0", str(citations), "twice")


def test_c43_a_sentence_with_no_citation_and_an_answer_with_no_sentence_are_valid(tmp_path):
    assert faults(tmp_path, changed(first(), "answer", 0, "citations", to=[]), second()) == []
    assert faults(tmp_path, changed(first(), "answer", to=[]), changed(second(), "references", to=[])) == []


@pytest.mark.parametrize("citations", [None, "0", 0, {"0": 1}])
def test_citations_that_are_no_list_are_a_fault(tmp_path, citations):
    record = changed(first(), "answer", 0, "citations", to=citations)
    one_fault(faults(tmp_path, record, second()), "responses.jsonl:1", "sentence 0", "'citations'", "list")


@pytest.mark.parametrize("text", ["", "  ", "\n\t", "\u00a0"])
def test_a_blank_sentence_is_a_fault(tmp_path, text):
    record = changed(first(), "answer", 1, "text", to=text)
    one_fault(faults(tmp_path, record, second()), "responses.jsonl:1", "sentence 1", "blank")


@pytest.mark.parametrize("sentence", ["Ice creeps.", None, 3, [], {"citations": [0]}, {"text": None, "citations": []}])
def test_a_sentence_without_its_fields_is_a_fault(tmp_path, sentence):
    record = changed(first(), "answer", 1, to=sentence)
    one_fault(faults(tmp_path, record, second()), "responses.jsonl:1", "sentence 1", "'text'", "'citations'")


def test_every_fault_of_a_record_is_told(tmp_path):
    record = changed(changed(first(), "references", 1, to="far"), "answer", 0, to={"text": "", "citations": [5, "x"]})
    found = faults(tmp_path, record, second())
    assert len(found) == 4
    for part in ("'far'", "blank", "citation 5", "citation 'x'"):
        assert sum(part in fault for fault in found) == 1


def test_c43_an_answer_of_more_than_400_words_is_a_fault(tmp_path):
    long = [{"text": " ".join(["ice"] * 200), "citations": [0]}, {"text": " ".join(["ice"] * 200), "citations": []}]
    assert faults(tmp_path, changed(first(), "answer", to=long), second()) == []
    longer = [*long, {"text": "Ice.", "citations": []}]
    one_fault(faults(tmp_path, changed(first(), "answer", to=longer), second()), "responses.jsonl:1", "401", "400")


def test_c43_more_than_100_references_are_a_fault(tmp_path):
    names = [f"d{number}" for number in range(101)]
    queries = [Query("q1", "How does ice creep?", tuple(names))]
    assert faults(tmp_path, changed(first(), "references", to=names[:100]), queries=queries, documents=None) == []
    found = faults(tmp_path, changed(first(), "references", to=names), queries=queries, documents=None)
    one_fault(found, "responses.jsonl:1", "101", "100")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"text": "It also melted."}, ["text differs", "12-26", "'d1'"]),
        ({"text": "It also melts"}, ["text differs"]),
        ({"start": 11}, ["text differs", "11-26"]),
        ({"end": 27}, ["12-27", "'d1'", "26 characters"]),
        ({"start": -14, "end": 26}, ["-14-26", "'d1'"]),
        ({"start": 26, "end": 12}, ["26-12", "'d1'"]),
        ({"start": 12, "end": 12, "text": ""}, ["12-12", "'d1'"]),
        ({"start": "12"}, ["'d1'"]),
        ({"end": None}, ["None", "'d1'"]),
        ({"doc_id": "gone"}, ["'gone'"]),
        ({"doc_id": 7}, ["'7'"]),
        ({"text": None}, []),
    ],
)
def test_evidence_that_is_not_its_span_of_the_document_is_a_fault(tmp_path, changes, parts):
    row = changed(evidence(), "evidence", 0, to={**evidence()["evidence"][0], **changes})
    write(tmp_path / "evidence.jsonl", {"query_id": "42", "references": [], "evidence": []}, row)
    one_fault(faults(tmp_path, first(), second()), "evidence.jsonl:2", "evidence 0", *parts)


def test_evidence_from_a_document_that_is_no_candidate_of_the_query_is_a_fault(tmp_path):
    item = {"evidence_id": 3, "doc_id": "7", "start": 0, "end": 10, "text": "Heat fell."}
    write(tmp_path / "evidence.jsonl", changed(evidence(), "evidence", to=[item]))
    one_fault(faults(tmp_path, first(), second()), "evidence.jsonl:1", "evidence 3", "'7'", "candidate")


def test_references_of_the_evidence_are_checked_as_those_of_the_answer(tmp_path):
    write(tmp_path / "evidence.jsonl", changed(evidence(), "references", to=["d1", "d1", "far"]))
    found = faults(tmp_path, first(), second())
    assert len(found) == 2
    assert all(fault.startswith("evidence.jsonl:1: ") for fault in found)
    assert "'d1'" in found[0] and "more than once" in found[0]
    assert "'far'" in found[1] and "not a candidate" in found[1]


def test_spans_are_not_checked_without_the_documents(tmp_path):
    write(tmp_path / "evidence.jsonl", changed(evidence(), "evidence", 0, "text", to="Something else."))
    assert faults(tmp_path, first(), second(), documents=None) == []


@pytest.mark.parametrize(
    "documents",
    [[], ["d2"], ["d1", "d2"], ["7"]],
    ids=["none", "another", "one-more", "of-another-query"],
)
def test_provenance_of_other_documents_than_the_cited_ones_is_a_fault(tmp_path, documents):
    named = [{"field": "title", "doc_id": doc_id} for doc_id in documents]
    write(tmp_path / "provenance.jsonl", changed(sources(), "sentences", 0, "sources", to=named))
    one_fault(faults(tmp_path, first(), second()), "provenance.jsonl:1", "sentence 0", "not the documents", "cites")


def test_provenance_compares_ids_as_text(tmp_path):
    record = changed(second(), "answer", 0, "citations", to=[0])
    row = {"query_id": 42, "sentences": [{"sentence": 0, "sources": [{"field": "title", "doc_id": 7}]}]}
    write(tmp_path / "provenance.jsonl", row)
    assert faults(tmp_path, first(), record) == []
    write(tmp_path / "provenance.jsonl", changed(row, "sentences", 0, "sources", 0, "doc_id", to="007"))
    one_fault(faults(tmp_path, first(), record), "provenance.jsonl:1", "sentence 0", "cites")


@pytest.mark.parametrize("span", [(0, 27), (-1, 5), (5, 5), (9, 4), ("0", 5), (0, None)])
def test_provenance_with_a_span_outside_its_document_is_a_fault(tmp_path, span):
    row = sources()
    row["sentences"][0]["sources"][0] = {"field": "text", "doc_id": "d1", "start": span[0], "end": span[1]}
    write(tmp_path / "provenance.jsonl", row)
    one_fault(faults(tmp_path, first(), second()), "provenance.jsonl:1", "sentence 0", f"{span[0]}-{span[1]}", "'d1'")


def test_provenance_of_another_number_of_sentences_is_a_fault(tmp_path):
    write(tmp_path / "provenance.jsonl", without(sources(), "sentences", 1))
    one_fault(faults(tmp_path, first(), second()), "provenance.jsonl:1", "1 sentences", "has 2")


@pytest.mark.parametrize("name", ["evidence.jsonl", "provenance.jsonl"])
def test_a_line_of_a_query_outside_the_slice_is_a_fault_in_the_files_beside(tmp_path, name):
    write(tmp_path / name, {"query_id": "q9", "references": [], "evidence": [], "sentences": []})
    one_fault(faults(tmp_path, first(), second()), f"{name}:1", "'q9'")


SIDECARS = ["evidence.jsonl", "provenance.jsonl"]
UNREADABLE = [
    (b'{"query_id": "q1", "evi', "not JSON"),
    (b"[]", "not an object"),
    (b"7", "not an object"),
    (b'"x"', "not an object"),
]


@pytest.mark.parametrize("name", SIDECARS)
@pytest.mark.parametrize(("line", "reason"), UNREADABLE)
def test_a_line_beside_the_responses_that_is_no_json_object_is_a_fault(tmp_path, name, line, reason):
    write(tmp_path / name, b"", line)
    one_fault(faults(tmp_path, first(), second()), f"{name}:2", reason)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("evidence.jsonl", changed(evidence(), "references", to=None)),
        ("evidence.jsonl", changed(evidence(), "references", to=3)),
        ("evidence.jsonl", changed(evidence(), "evidence", to=None)),
        ("evidence.jsonl", changed(evidence(), "evidence", to=["It also melts."])),
        ("provenance.jsonl", changed(sources(), "sentences", to=None)),
        ("provenance.jsonl", changed(sources(), "sentences", to=["Ice creeps.", "Debris sank."])),
        ("provenance.jsonl", changed(sources(), "sentences", 0, "sources", to=None)),
        ("provenance.jsonl", changed(sources(), "sentences", 0, "sources", to=["d1"])),
    ],
)
def test_a_field_of_the_wrong_kind_beside_the_responses_is_a_fault_and_no_crash(tmp_path, name, line):
    write(tmp_path / name, line)
    found = faults(tmp_path, first(), second())
    assert found
    assert all(fault.startswith(f"{name}:1: ") for fault in found)


@pytest.mark.parametrize("system", ["rule-minilm", "default", "concat-baseline", "semantic-current", "topic-shift-minilm"])
def test_runs_that_the_organisers_took_have_no_fault(real_data, system):
    rows = paths.read_jsonl(real_data / "published" / "queries.jsonl")
    queries = [Query(row["query_id"], row["query"], tuple(map(str, row["doc_ids"]))) for row in rows]
    responses = real_data / "published" / "runs" / system / "responses.jsonl"
    assert list(trec.validate(responses, queries, None)) == []


def test_c43_repeated_references_become_one_and_the_citations_follow():
    record = {
        "references": ["A", "A", "B"],
        "answer": [{"text": "x", "citations": [0]}, {"text": "y", "citations": [1]}, {"text": "z", "citations": [2]}],
    }
    found = trec.normalise(record)
    assert found["references"] == ["A", "B"]
    assert [sentence["citations"] for sentence in found["answer"]] == [[0], [0], [1]]
    assert [sentence["text"] for sentence in found["answer"]] == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("references", "citations", "expected"),
    [
        (["A", "B"], [0, 0], [0]),
        (["A", "B"], [1, 0, 1], [1, 0]),
        (["A", "A"], [1, 0], [0]),
        (["B", "A", "B", "C"], [3, 2, 0], [2, 0]),
        (["A", "B"], [], []),
    ],
)
def test_c43_repeated_citations_become_one_in_order_of_first_use(references, citations, expected):
    found = trec.normalise({"references": references, "answer": [{"text": "x", "citations": citations}]})
    assert found["answer"] == [{"text": "x", "citations": expected}]


def test_references_that_are_equal_as_text_become_one():
    found = trec.normalise({"references": [7, "7", "007"], "answer": [{"text": "x", "citations": [1, 2]}]})
    assert [str(doc_id) for doc_id in found["references"]] == ["7", "007"]
    assert found["answer"][0]["citations"] == [0, 1]


@pytest.mark.parametrize("index", [2, -1, "0", True, 0.0, None], ids=repr)
def test_c43_citations_that_cannot_be_are_refused(index):
    record = {"references": ["A", "B"], "answer": [{"text": "x", "citations": [0, index]}]}
    with pytest.raises(ValueError, match="citation"):
        trec.normalise(record)


def test_normalise_leaves_its_argument_and_the_other_fields_alone():
    record = {"metadata": {"run_id": "r"}, "references": ["A", "A"], "answer": [{"text": "x", "citations": [1, 1]}]}
    before = copy.deepcopy(record)
    assert trec.normalise(record)["metadata"] == {"run_id": "r"}
    assert record == before


def test_c43_words_are_counted_after_nfkc_at_white_space():
    text = "Heat\u00a0flow was 5\u202fkW."
    assert words(text) == 5
    record = {"references": [], "answer": [{"text": text, "citations": []}]}
    assert trec.limit_words(record, 5)["answer"] == record["answer"]
    assert trec.limit_words(record, 4)["answer"] == []


def sentence_of(count: int, *citations: int) -> dict:
    return {"text": " ".join(["word"] * count), "citations": list(citations)}


def test_c43_the_last_sentence_beyond_400_words_goes_with_the_reference_only_it_used():
    """19 x 20 + 30 = 410 words; without the last sentence 380."""
    answer = [sentence_of(20, 0)] + [sentence_of(20, 2) for _ in range(18)] + [sentence_of(30, 1)]
    found = trec.limit_words({"references": ["A", "B", "C"], "answer": answer})
    assert sum(words(sentence["text"]) for sentence in found["answer"]) == 380
    assert found["references"] == ["A", "C"]
    assert [sentence["citations"] for sentence in found["answer"]] == [[0]] + [[1]] * 18


def test_c43_an_answer_of_exactly_400_words_is_kept_whole():
    record = {"references": ["A", "B"], "answer": [sentence_of(20, 1) for _ in range(20)]}
    assert trec.limit_words(copy.deepcopy(record)) == record


def test_as_many_sentences_go_as_it_takes_and_none_from_the_middle():
    record = {"references": ["A"], "answer": [sentence_of(390, 0), sentence_of(15, 0), sentence_of(5, 0)]}
    assert [words(sentence["text"]) for sentence in trec.limit_words(record)["answer"]] == [390]
    record = {"references": ["A"], "answer": [sentence_of(401, 0)]}
    assert trec.limit_words(record)["answer"] == []


def test_a_reference_that_no_dropped_sentence_cited_stays():
    """METHOD section 4: references are the documents of the selected passages, whether a sentence cites them or not."""
    record = {"references": ["A", "B", "C"], "answer": [sentence_of(300, 2), sentence_of(200, 1)]}
    found = trec.limit_words(record)
    assert found["references"] == ["A", "C"]
    assert found["answer"][0]["citations"] == [1]


def test_a_record_holds_the_query_the_references_and_citations_as_indices():
    query = Query("q1", "How does ice creep?", ("d1", "d2", "d3"))
    answer = [Sentence("Ice creeps.", (0,), ("d3",)), Sentence("Slowly.", (), ()), Sentence("Both.", (1, 2), ("d1", "d3"))]
    assert trec.record(query, ["d3", "d1"], answer, "team", "run") == {
        "metadata": {
            "team_id": "team",
            "run_id": "run",
            "type": "automatic",
            "narrative_id": "q1",
            "narrative": "How does ice creep?",
        },
        "references": ["d3", "d1"],
        "answer": [
            {"text": "Ice creeps.", "citations": [0]},
            {"text": "Slowly.", "citations": []},
            {"text": "Both.", "citations": [1, 0]},
        ],
    }


def test_provenance_leads_a_sentence_to_its_spans_or_to_its_titles():
    item = Evidence(4, "d1", "d1#0", 12, 26, "It also melts.", 0.5, (0,))
    collected = EvidenceSet("q1", "ok", ["d1"], [], [item])
    answer = [Sentence("It also melts.", (4,), ("d1",)), Sentence("Title of d2", (), ("d2",))]
    found = trec.provenance(collected, answer, "ok", {"generator": "extractive"})
    span = {"field": "text", "evidence_id": 4, "passage_id": "d1#0", "doc_id": "d1", "start": 12, "end": 26}
    assert found == {
        "query_id": "q1",
        "status": "ok",
        "models": {"generator": "extractive"},
        "sentences": [
            {"sentence": 0, "text": "It also melts.", "sources": [span]},
            {"sentence": 1, "text": "Title of d2", "sources": [{"field": "title", "doc_id": "d2"}]},
        ],
    }


SUBMISSION = {"team": "ours", "research_goal": "which stage earns its place", "repository": "of the workbook"}
METHODS = {
    "rule-minilm": ("multi-query, query_expansion, prf, rerank", 20, True, True, False),
    "rrf-no-rerank": ("multi-query, query_expansion, prf", 20, True, True, True),
    "single-query-bm25": ("bm25", 20, True, True, True),
    "concat-baseline": ("none", 20, True, False, True),
    "official-naive-baseline": ("none", 20, False, False, True),
}


@pytest.mark.parametrize("name", METHODS)
def test_ir_metadata_tell_the_system_from_others(embedded: Profile, name):
    (variant,) = load_variants([name])
    models = steps.model_names(variant, embedded)
    found = trec.ir_metadata(variant, embedded, models, SUBMISSION)
    keys = ("name", "documents", "chunking", "chunk_ranking", "single_stage_retrieval")
    assert found["method"]["retrieval"] == dict(zip(keys, METHODS[name], strict=True))
    assert found["method"]["automatic"] is True
    assert found["tag"] == name
    assert found["actor"] == {"team": "ours"}
    assert found["research goal"] == {"description": "which stage earns its place"}
    assert found["implementation"] == {"source": {"repository": "of the workbook"}}
    assert found["method"]["generation"]["llm"] == ("titles" if name == "official-naive-baseline" else "extractive")
    assert found["profile"] == "embedded"


def test_ir_metadata_name_the_models_that_were_used_and_no_others(embedded):
    expected = {
        "rule-minilm": ("none", "cosine:all-MiniLM-L6-v2"),
        "semantic-current": ("all-MiniLM-L6-v2", "none"),
        "default": ("none", "none"),
    }
    for variant in load_variants(list(expected)):
        found = trec.ir_metadata(variant, embedded, steps.model_names(variant, embedded), SUBMISSION)["models"]
        assert (found["chunking_encoder"], found["sentence_reranker"]) == expected[variant.name]


def test_ir_metadata_of_every_system_pass_the_organisers_check(embedded, tmp_path):
    for variant in load_variants(["all"]):
        folder = tmp_path / variant.name
        about = trec.ir_metadata(variant, embedded, steps.model_names(variant, embedded), SUBMISSION)
        paths.write_text(folder / "ir-metadata.yml", yaml.safe_dump(about, sort_keys=False))
        level, message = check_format(folder / "ir-metadata.yml", "ir_metadata")
        assert level == _fmt.OK, message


def test_the_submission_file_is_filled_in():
    assert set(trec.load_submission()) == {"team", "research_goal", "repository"}


@pytest.mark.parametrize("missing", ["team", "research_goal", "repository"])
@pytest.mark.parametrize("value", [None, "  ", 7])
def test_a_submission_file_with_a_blank_is_an_error(tmp_path, monkeypatch, missing, value):
    monkeypatch.setattr(paths, "PARAMS", tmp_path)
    (tmp_path / "submission.yaml").write_text(yaml.safe_dump({**SUBMISSION, missing: value}))
    with pytest.raises(WorkbookError, match=f"submission.yaml: '{missing}' must be filled in"):
        trec.load_submission()


@pytest.mark.parametrize(
    "text", [None, "", "- team", "team: [", "\xff"], ids=["absent", "empty", "list", "malformed", "bytes"]
)
def test_a_submission_file_that_cannot_be_read_is_an_error_naming_it(tmp_path, monkeypatch, text):
    monkeypatch.setattr(paths, "PARAMS", tmp_path)
    if text is not None:
        (tmp_path / "submission.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(WorkbookError, match="submission.yaml"):
        trec.load_submission()


@pytest.fixture(scope="module", params=["official-naive-baseline", "concat-baseline", "caes-rag-rrf"])
def run(request, sample, embedded, tmp_path_factory):
    """A run's folder, made from the sample by the steps that the notebooks call."""
    sweep = tmp_path_factory.mktemp("sweep")
    (variant,) = load_variants([request.param])
    folder = steps.retrieve(sweep, sample, variant, steps.models_of(embedded))
    steps.generate(sweep, sample, variant, embedded, folder)
    return folder


def test_a_run_over_the_sample_has_no_fault(run, sample):
    assert steps.check_run(run, sample) == []


def test_a_bundle_holds_the_run_as_the_organisers_want_it(run, tmp_path):
    out = tmp_path / "submissions" / "one"
    assert trec.bundle(run, out) == out
    assert sorted(path.name for path in out.iterdir()) == ["ir-metadata.yml", "responses.jsonl"]
    assert sorted(path.name for path in out.parent.iterdir()) == ["one"]
    for path in out.iterdir():
        assert path.read_bytes() == (run / path.name).read_bytes()
    level, message = check_format(out, "LongEvalRAG")
    assert level == _fmt.OK, message


def test_a_bundle_may_go_into_an_empty_folder_and_over_the_rest_of_a_broken_one(run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "left.txt").write_text("left by a bundle that was killed")
    trec.bundle(run, out)
    assert sorted(path.name for path in out.iterdir()) == ["ir-metadata.yml", "responses.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_bundle_is_refused_over_a_folder_that_holds_something(run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(WorkbookError, match="not empty; give a new one") as error:
        trec.bundle(run, out)
    assert str(out) in str(error.value)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_bundle_is_refused_over_a_file(run, tmp_path):
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(WorkbookError) as error:
        trec.bundle(run, out)
    assert str(out) in str(error.value)
    assert out.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("present", [None, [], ["responses.jsonl"], ["ir-metadata.yml"]])
def test_a_bundle_of_a_folder_that_is_no_run_is_refused(tmp_path, present):
    folder = tmp_path / "run"
    if present is not None:
        folder.mkdir()
    for name in present or []:
        (folder / name).write_text("{}\n")
    absent = next(name for name in ("responses.jsonl", "ir-metadata.yml") if name not in (present or []))
    with pytest.raises(WorkbookError, match=f"no {absent}; give a run's folder") as error:
        trec.bundle(folder, tmp_path / "out")
    assert str(folder) in str(error.value)
    assert not [path for path in tmp_path.iterdir() if path != folder]
