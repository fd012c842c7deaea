import json
from pathlib import Path

import pytest

from lib import preparing
from lib.errors import WorkbookError
from lib.runs import Response, pool_label, read_run, read_runs, responses
from lib.slices import Query

QUERIES = [Query("q1", "Does ice melt?", ("d1", "d2")), Query("q2", "Does ice creep?", ("d1",))]


def record(query_id="q1", references=("d1", "d2"), answer=(("Ice melts.", [0]),)) -> dict:
    sentences = [{"text": text, "citations": citations} for text, citations in answer]
    return {"metadata": {"narrative_id": query_id}, "references": list(references), "answer": sentences}


def write(folder: Path, run: str, *lines) -> Path:
    file = folder / run / "responses.jsonl"
    file.parent.mkdir(parents=True)
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    file.write_bytes(b"\n".join(texts))
    return file


def test_runs_are_named_by_their_folders_and_queries_stand_in_the_slices_order(tmp_path):
    write(tmp_path, "zeta", record("q2"), record("q1"))
    write(tmp_path, "alpha", record("q1"), record("q2"))
    (tmp_path / "notes").mkdir()
    (tmp_path / "table.csv").write_text("query_id\n")
    runs = read_runs(tmp_path, QUERIES)
    assert [(run, list(rows)) for run, rows in runs.items()] == [("alpha", ["q1", "q2"]), ("zeta", ["q1", "q2"])]
    assert [(r.run, r.query_id) for r in responses(runs)] == [
        ("alpha", "q1"),
        ("alpha", "q2"),
        ("zeta", "q1"),
        ("zeta", "q2"),
    ]


def test_the_scored_text_is_the_sentences_joined_by_one_space(tmp_path):
    file = write(tmp_path, "a", record(answer=[("Лёд тает.", []), ("It creeps.", [1])]))
    response = read_run(file, QUERIES)["q1"]
    assert response.text == "Лёд тает. It creeps."
    assert response.citations == ((), ("d2",))
    assert response.present


@pytest.mark.parametrize(
    ("references", "answer", "expected"),
    [
        (["d1", "d2"], [("Ice.", [0, 0, 1])], (("d1", "d2"),)),
        (["d1", "d1"], [("Ice.", [0, 1])], (("d1",),)),
        (["d1", "d2"], [("Ice.", [1]), ("Heat.", [1, 0])], (("d2",), ("d2", "d1"))),
        ([4, "007"], [("Ice.", [0, 1])], (("4", "007"),)),
        ([], [("Ice.", [])], ((),)),
        ([], [], ()),
    ],
)
def test_citations_are_document_ids_as_text_each_once_a_sentence(tmp_path, references, answer, expected):
    response = read_run(write(tmp_path, "a", record("q1", references, answer)), QUERIES)["q1"]
    assert response.citations == expected
    assert response.cited == {doc_id for sentence in expected for doc_id in sentence}


def test_a_query_id_given_as_a_number_is_the_same_id_as_text(tmp_path):
    file = write(tmp_path, "a", record(7))
    assert read_run(file, [Query("7", "Does ice melt?", ())])["7"].text == "Ice melts."


def test_a_query_without_a_record_is_an_empty_answer_that_is_not_present_and_is_reported(tmp_path):
    file, told = write(tmp_path, "a", record("q1")), []
    found = read_run(file, QUERIES, told.append)
    assert found["q2"] == Response("a", "q2", (), (), False)
    assert (found["q2"].text, found["q2"].cited) == ("", frozenset())
    assert len(told) == 1
    for part in (str(file), "1 of 2", "'q2'", "lowest"):
        assert part in told[0]


def test_an_empty_file_is_a_run_that_answers_nothing(tmp_path):
    found = read_run(write(tmp_path, "a"), QUERIES)
    assert [response.present for response in found.values()] == [False, False]


def test_records_outside_the_slice_are_left_out_and_counted(tmp_path):
    told = []
    file = write(tmp_path, "a", record("q8"), record("q1"), record("q9"), record("q2"))
    assert list(read_run(file, QUERIES, told.append)) == ["q1", "q2"]
    assert len(told) == 1
    assert str(file) in told[0]
    assert "2 records" in told[0]


BAD = {
    "torn line": json.dumps(record("q2")).encode()[:40],
    "not UTF-8": b'{"metadata": "\xff"}',
    "NaN": b'{"metadata": {"narrative_id": "q2"}, "references": [NaN], "answer": []}',
    "a list": [],
    "no metadata": {"references": [], "answer": []},
    "metadata is text": {**record("q2"), "metadata": "q2"},
    "no query id": {**record("q2"), "metadata": {}},
    "query id is null": record(None),
    "query id is a list": record(["q2"]),
    "references is an object": {**record("q2"), "references": {"0": "d1"}},
    "no answer": {"metadata": {"narrative_id": "q2"}, "references": []},
    "answer is text": {**record("q2"), "answer": "Ice melts."},
    "sentence is text": {**record("q2"), "answer": ["Ice melts."]},
    "text is a number": record("q2", answer=[(5, [])]),
    "citations is a number": record("q2", answer=[("Ice.", 0)]),
    "citation out of range": record("q2", answer=[("Ice.", [2])]),
    "citation below zero": record("q2", answer=[("Ice.", [-1])]),
    "citation as text": record("q2", answer=[("Ice.", ["0"])]),
    "citation is true": record("q2", answer=[("Ice.", [True])]),
    "citation is 0.0": record("q2", answer=[("Ice.", [0.0])]),
    "blank text hides a bad citation": record("q2", answer=[(" ", [2])]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_record_that_cannot_be_read_is_an_error_naming_file_and_line(tmp_path, name):
    file = write(tmp_path, "a", record("q1"), b"", BAD[name])
    with pytest.raises(WorkbookError) as error:
        read_runs(tmp_path, QUERIES)
    assert str(error.value).startswith(f"{file}:3: ")


@pytest.mark.parametrize(("first", "again"), [("q1", "q1"), (7, "7")])
def test_a_query_that_is_answered_twice_is_refused_with_the_place_and_the_remedy(tmp_path, first, again):
    file = write(tmp_path, "a", record(first), record("q2"), record(again))
    with pytest.raises(WorkbookError) as error:
        read_run(file, [*QUERIES, Query("7", "Does heat fall?", ())])
    assert str(error.value).startswith(f"{file}:3: query '{again}'")
    assert "keep one" in str(error.value)


@pytest.mark.parametrize("name", ["absent", "empty", "file"])
def test_a_folder_without_runs_is_an_error_naming_it_and_what_is_expected(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkbookError) as error:
        read_runs(tmp_path / name, QUERIES)
    assert str(tmp_path / name) in str(error.value)
    assert "responses.jsonl" in str(error.value)


@pytest.mark.parametrize("answer", [[("", [0]), ("Ice.", [0])], [("Ice.", [0, 0])]], ids=["blank", "cited twice"])
def test_what_other_tools_write_is_scored_though_a_submission_may_not_hold_it(tmp_path, answer):
    response = read_run(write(tmp_path, "a", record("q1", answer=answer)), QUERIES)["q1"]
    assert response.text == " ".join(text for text, _ in answer)
    assert response.cited == {"d1"}


def test_half_a_character_does_not_reach_the_measures(tmp_path):
    file = write(tmp_path, "a", b'{"metadata": {"narrative_id": "q1"}, "references": [], "answer": '
                 b'[{"text": "Ice \\ud83d melts.", "citations": []}]}')  # fmt: skip
    text = read_run(file, QUERIES)["q1"].text
    assert len(text.encode("utf-8").decode("utf-8")) == len("Ice ? melts.")


def pool(**answers: str):
    return {run: {"q1": Response(run, "q1", (text,))} for run, text in answers.items()}


def test_the_pool_label_counts_the_runs_and_changes_with_any_answer():
    base = pool(a="Ice melts.", b="Ice creeps.")
    assert pool_label(base).startswith("2 runs ")
    assert pool_label(base) == pool_label(pool(a="Ice melts.", b="Ice creeps."))
    others = [
        pool(a="Ice melts.", b="Ice creeps"),
        pool(a="Ice creeps.", b="Ice melts."),
        pool(a="Ice melts.", c="Ice creeps."),
        pool(a="Ice melts."),
        pool(a="Ice melts.", b="Ice creeps.", c=""),
        {run: {"q2": rows["q1"]._replace(query_id="q2")} for run, rows in base.items()},
    ]
    assert len({pool_label(runs) for runs in [base, *others]}) == 1 + len(others)


def test_the_published_runs_are_complete(real_data):
    told = []
    with preparing.opened(str(real_data / "published")) as slice_:
        runs = read_runs(real_data / "published" / "runs", slice_.queries, told.append)
        candidates = {query.query_id: set(query.doc_ids) for query in slice_.queries}
    assert told == []
    assert len(runs) == 11
    assert len(list(responses(runs))) == 11 * 24
    assert all(response.present and response.cited <= candidates[response.query_id] for response in responses(runs))
