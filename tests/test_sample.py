"""The sample slice meets its specification, read here without the project's own readers."""

import csv
import json
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from lib import paths, trec

SAMPLE = paths.SAMPLE


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (SAMPLE / name).read_bytes().split(b"\n") if line]


QUERIES = {row["query_id"]: row for row in rows("queries.jsonl")}
DOCUMENTS = [row for file in sorted((SAMPLE / "documents").iterdir()) for row in rows(f"documents/{file.name}")]
QRELS = [line.split() for line in (SAMPLE / "qrels.txt").read_text(encoding="utf-8").splitlines()]
RELEVANT = {q: {d for query, _, d, grade in QRELS if query == q and int(grade) > 0} for q in QUERIES}
GOLD = {row["query_id"]: row["answer"] for row in rows("gold_answers.jsonl")}
NUGGETS = {row["query_id"]: row["nuggets"] for row in rows("nuggets.jsonl")}
REFERENCE = {row["metadata"]["narrative_id"]: row for row in rows("reference_answers.jsonl")}
EDGES = [(row["citing_doc_id"], row["cited_doc_id"]) for row in csv.DictReader((SAMPLE / "citations.csv").open(newline=""))]


def words(text: str | None) -> int:
    return len((text or "").split())


def candidates(query_id: str) -> list[str]:
    return [str(doc_id) for doc_id in QUERIES[query_id]["doc_ids"]]


def test_there_are_eight_queries_with_ten_candidates_each():
    assert len(QUERIES) == len(rows("queries.jsonl")) == 8
    assert [len(set(candidates(q))) for q in QUERIES] == [10] * 8
    assert [len(candidates(q)) for q in QUERIES] == [10] * 8


def test_every_candidate_is_one_document_and_every_document_a_candidate():
    ids = [str(row["id"]) for row in DOCUMENTS]
    assert len(ids) == len(set(ids)) == 80
    assert set(ids) == {doc_id for q in QUERIES for doc_id in candidates(q)}


def test_the_ids_are_integers_as_in_the_official_files():
    assert {type(row["id"]) for row in DOCUMENTS} == {int}
    assert {type(doc_id) for row in QUERIES.values() for doc_id in row["doc_ids"]} == {int}


def test_exactly_two_of_each_querys_ten_candidates_are_relevant():
    judged = defaultdict(list)
    for query_id, _, doc_id, _ in QRELS:
        judged[query_id].append(doc_id)
    assert {q: sorted(ids) for q, ids in judged.items()} == {q: sorted(candidates(q)) for q in QUERIES}
    assert {q: len(ids) for q, ids in RELEVANT.items()} == dict.fromkeys(QUERIES, 2)


def test_at_least_35_documents_have_a_full_text_of_500_to_900_words():
    lengths = [words(row["fullText"]) for row in DOCUMENTS if words(row["fullText"])]
    assert len(lengths) >= 35
    assert [n for n in lengths if not 500 <= n <= 900] == []


def test_the_others_have_an_abstract_of_120_to_200_words_but_for_one_with_a_title_only():
    others = [row for row in DOCUMENTS if not words(row["fullText"])]
    lengths = sorted(words(row["abstract"]) for row in others)
    assert lengths[0] == 0
    assert [n for n in lengths[1:] if not 120 <= n <= 200] == []


def test_every_document_has_a_title():
    assert all(words(row["title"]) for row in DOCUMENTS)


def test_dates_are_from_2009_to_2025_with_two_unknown_and_two_years_only():
    dates = [row["publishedDate"] for row in DOCUMENTS]
    known = [date for date in dates if date]
    assert dates.count(None) == 2
    assert sum(bool(re.fullmatch(r"\d{4}", date)) for date in known) == 2
    assert sum(bool(re.match(r"\d{4}-\d\d-\d\d", date)) for date in known) == 76
    assert {int(date[:4]) for date in known} <= set(range(2009, 2026))


def test_the_citation_network_has_120_edges_or_more_and_no_self_citation():
    assert len(set(EDGES)) == len(EDGES) >= 120
    assert [edge for edge in EDGES if edge[0] == edge[1]] == []
    assert all(end.strip() for edge in EDGES for end in edge)


@pytest.mark.parametrize("query_id", QUERIES)
def test_the_gold_answer_has_30_to_45_words(query_id):
    assert 30 <= words(GOLD[query_id]) <= 45


@pytest.mark.parametrize("query_id", QUERIES)
def test_there_are_6_to_8_nuggets_supported_by_relevant_documents(query_id):
    nuggets = NUGGETS[query_id]
    assert 6 <= len(nuggets) <= 8
    assert len({nugget["nugget_id"] for nugget in nuggets}) == len(nuggets)
    assert all(nugget["question"].strip() and nugget["answer"].strip() for nugget in nuggets)
    for nugget in nuggets:
        assert nugget["doc_ids"]
        assert set(nugget["doc_ids"]) <= RELEVANT[query_id]


@pytest.mark.parametrize("name", ["gold_answers.jsonl", "nuggets.jsonl"])
def test_gold_data_stand_once_for_each_query(name):
    assert Counter(row["query_id"] for row in rows(name)) == Counter(list(QUERIES))


@pytest.mark.parametrize("query_id", QUERIES)
def test_the_reference_answer_cites_from_references_among_the_candidates(query_id):
    row = REFERENCE[query_id]
    cited = {row["references"][i] for sentence in row["answer"] for i in sentence["citations"]}
    assert set() < cited <= set(row["references"]) <= set(candidates(query_id))
    assert all(i >= 0 for sentence in row["answer"] for i in sentence["citations"])
    assert row["metadata"]["narrative"] == QUERIES[query_id]["query"]


def test_the_reference_answers_are_valid(sample):
    documents = {document.doc_id: document for document in sample.all_documents()}
    assert list(trec.validate(SAMPLE / "reference_answers.jsonl", sample.queries, documents)) == []
    assert len(rows("reference_answers.jsonl")) == 8


def test_no_nine_words_in_a_row_stand_in_two_documents():
    """Lists of references aside, where one document rightly gives another's title."""
    places = defaultdict(set)
    for row in DOCUMENTS:
        for part in ("title", "abstract", "fullText"):
            body = re.split(r"\n(?:\d+\.? )?References\n", row[part] or "", flags=re.IGNORECASE)[0]
            tokens = re.findall(r"\w+", body.lower())
            for n in range(len(tokens) - 8):
                places[tuple(tokens[n : n + 9])].add(row["id"])
    assert len(places) > 20_000
    assert [" ".join(gram) for gram, ids in places.items() if len(ids) > 1] == []


def test_no_text_spells_a_missing_value():
    texts = {row[part] for row in DOCUMENTS for part in ("title", "abstract", "fullText")}
    assert {text.strip().lower() for text in texts if text} & {"none", "nan", "null"} == set()


def test_the_prepared_sample_reports_what_the_files_hold(sample):
    full = sum(bool(words(row["fullText"])) for row in DOCUMENTS)
    assert sample.report.text_sources == {"fullText": full, "abstract": 79 - full, "title": 1, "none": 0}
    assert (sample.report.queries, sample.report.instances, sample.report.documents) == (8, 80, 80)
    assert sample.report.problems == []
    assert {q: sorted(ids) for q, ids in sample.qrels().items()} == {q: sorted(ids) for q, ids in RELEVANT.items()}
    assert sample.gold_answers() == GOLD


def test_the_degrees_of_the_prepared_sample_count_its_edges(sample):
    assert sample.citation_degrees == Counter(end for edge in EDGES for end in edge)


@pytest.fixture
def copy(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIRA_INPUT_DATASET", raising=False)
    return Path(shutil.copytree(SAMPLE, tmp_path / "sample"))


def test_the_official_library_loads_a_copy(copy):
    import ir_datasets_longeval

    dataset = ir_datasets_longeval.load(str(copy))
    loaded = list(dataset.docs_iter())
    assert len(loaded) == 80
    assert {str(document.doc_id) for document in loaded} == {str(row["id"]) for row in DOCUMENTS}
    assert {q.query_id: q.doc_ids for q in dataset.queries_iter()} == {q: row["doc_ids"] for q, row in QUERIES.items()}
    qrels = Counter(row.query_id for row in dataset.qrels_iter() if row.relevance > 0)
    assert qrels == Counter(dict.fromkeys(QUERIES, 2))
