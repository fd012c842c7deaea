import json
import re

import pytest

from lib import paths
from lib.errors import WorkbookError
from lib.measures import banks
from lib.measures.banks import Bank, Nugget
from tests.measures.nugget_cases import Q1, Q2

# Reading and freezing banks


def bank_file(folder, *rows):
    """A file of rows, each an object or the text of a line."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return paths.write_text(folder / "bank.jsonl", "".join(f"{line}\n" for line in lines))


def test_the_bank_of_the_sample_holds_what_its_file_says():
    file = paths.SAMPLE / "nuggets.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    bank = banks.read_bank(file)
    assert bank.source == "nuggets.jsonl"
    assert {query_id: [n[:4] for n in found] for query_id, found in bank.nuggets.items()} == {
        row["query_id"]: [(n["nugget_id"], n["question"], n["answer"], n["importance"]) for n in row["nuggets"]]
        for row in rows
    }
    assert not any(n.is_claim for found in bank.nuggets.values() for n in found)


def test_nuggets_without_an_id_are_numbered_and_whole_numbers_are_ids_as_text(tmp_path):
    listed = [{"question": "Why?"}, {"question": "How?", "nugget_id": None}, {"question": "When?", "nugget_id": 7}]
    bank = banks.read_bank(bank_file(tmp_path, {"query_id": 5, "nuggets": listed}))
    assert [n.nugget_id for n in bank.nuggets["5"]] == ["n1", "n2", "7"]


ROUND_TRIPS = {
    "questions": {"q1": [Nugget("n1", "Why?"), Nugget("n2", "How far?", "3.5 mm", "vital")]},
    "claims": {"q1": [Nugget("n1", "Ice melts.", is_claim=True)], "q2": [Nugget("n1", "Ice melts.", is_claim=True)]},
    "empty": {"q1": [], "q2": [Nugget("n1", "Why?")]},
    "non-ascii": {"q1": [Nugget("α", "Тает ли лёд\u2028 — 氷?", "5\u202fkW\u0085", "okay")]},
    "surrogate": {"q1": [Nugget("n1", "Why \ud83d?", "So \udc00.")]},
    "twenty": {"q1": [Nugget(f"n{n}", f"Question {n}?") for n in range(20)]},
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_a_frozen_bank_reads_back_with_its_source_pool_and_version(tmp_path, name):
    bank = Bank("mined by proxy m", ROUND_TRIPS[name], "3 runs 0123456789ab")
    file = banks.write_bank(tmp_path / "frozen.jsonl", bank, [Q1, Q2])
    again = banks.read_bank(file)
    assert (again.source, again.pool) == (bank.source, bank.pool)
    assert [json.loads(line)["metadata"]["version"] for line in file.read_text(encoding="utf-8").split("\n")[:-1]] == [
        again.version
    ] * len(bank.nuggets)
    if name != "surrogate":  # UTF-8 cannot hold it
        assert again.nuggets == bank.nuggets
        assert again.version == bank.version


def test_a_frozen_bank_of_more_queries_than_the_slice_reads_back(tmp_path):
    bank = Bank("nuggets.jsonl", {"q1": [Nugget("n1", "Why?")], "q2": [Nugget("n1", "How?")]})
    again = banks.read_bank(banks.write_bank(tmp_path / "frozen.jsonl", bank, [Q1]))
    assert again.nuggets["q1"] == bank.nuggets["q1"]


def without_a_query(rows):
    del rows[0]


def with_a_query(rows):
    rows.append({"query_id": "q3", "nuggets": [{"question": "When?"}]})


def without_a_nugget(rows):
    rows[0]["nugget_bank"].pop("How?")


def with_other(field, value):
    def change(rows):
        rows[0]["nugget_bank"]["Why?"][field] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        without_a_query,
        with_a_query,
        without_a_nugget,
        with_other("question", "Why not?"),
        with_other("question_id", "n9"),
        with_other("importance", "okay"),
        with_other("answers", {"Soot.": {"answer": "Soot."}}),
        with_other("answers", {}),
    ],
    ids=["a query less", "a query more", "a nugget less", "text", "id", "importance", "answer", "no answer"],
)
def test_a_bank_that_was_changed_after_freezing_is_refused(tmp_path, change):
    bank = Bank("hand", {"q1": [Nugget("n1", "Why?", "Sun.", "vital"), Nugget("n2", "How?")], "q2": [Nugget("n1", "A?")]})
    file = banks.write_bank(tmp_path / "frozen.jsonl", bank, [Q1, Q2])
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    change(rows)
    paths.write_jsonl(file, rows)
    with pytest.raises(WorkbookError, match="changed") as error:
        banks.read_bank(file)
    assert str(error.value).startswith(str(file))
    assert bank.version in str(error.value) and "restore" in str(error.value)


def listed(*rows):
    return {"query_id": "q2", "nuggets": list(rows)}


def frozen(**fields):
    return {"query_id": "q2", "nugget_bank": {}, "claim_bank": {}} | fields


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"query_id": "q2", "nuggets": [', "malformed JSON"),
        ('{"query_id": "q2", "nuggets": [NaN]}', "NaN"),
        ("[]", "object"),
        ({"nuggets": [{"question": "Why?"}]}, "query_id"),
        ({"query_id": " ", "nuggets": [{"question": "Why?"}]}, "query_id"),
        ({"query_id": 1.5, "nuggets": [{"question": "Why?"}]}, "1.5"),
        ({"query_id": "q2"}, "nuggets"),
        ({"query_id": "q2", "nuggets": "Why?"}, "nuggets"),
        (listed("Why?"), "question"),
        (listed({"nugget_id": "n1"}), "question"),
        (listed({"question": None}), "question"),
        (listed({"question": 3}), "question"),
        (listed({"question": " \u00a0"}), "question"),
        (listed({"question": "Why?", "nugget_id": ["n1"]}), "n1"),
        (listed({"question": "Why?", "nugget_id": "n1"}, {"question": "How?", "nugget_id": "n1"}), "one id"),
        (listed({"question": "Why?", "nugget_id": 1}, {"question": "How?", "nugget_id": "1"}), "one id"),
        (listed({"question": "Why?"}, {"question": "Why?"}), "one text"),
        ({"query_id": "q1", "nuggets": [{"question": "How?"}]}, "one record a query"),
        (frozen(nugget_bank=["Why?"]), "nugget"),
        (frozen(nugget_bank={"Why?": "n1"}), "nugget"),
        (frozen(nugget_bank={"Why?": {"question": "Why?"}}), "question_id"),
        (frozen(nugget_bank={"Why?": {"question_id": "n1"}}), "question"),
        (frozen(claim_bank={"Ice.": {"claim": "Ice."}}), "claim_id"),
        (frozen(metadata="mine"), "metadata"),
        (
            frozen(
                nugget_bank={"a": {"question": "Why?", "question_id": "n1"}, "b": {"question": "Why?", "question_id": "n2"}}
            ),
            "one text",
        ),
    ],
)
def test_a_malformed_bank_is_refused_with_file_and_line(tmp_path, row, said):
    file = bank_file(tmp_path, {"query_id": "q1", "nuggets": [{"question": "Why?"}]}, "", row)
    with pytest.raises(WorkbookError) as error:
        banks.read_bank(file)
    assert str(error.value).startswith(f"{file}:3: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_torn_last_line_of_a_bank_is_refused(tmp_path):
    whole = json.dumps({"query_id": "q1", "nuggets": [{"question": "Why?"}]})
    file = paths.write_text(tmp_path / "bank.jsonl", f'{whole}\n{{"query_id": "q2", "nugg')
    with pytest.raises(WorkbookError, match=re.escape(f"{file}:2: malformed JSON")):
        banks.read_bank(file)
