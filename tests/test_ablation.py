import dataclasses

import pandas as pd
import pytest

from lib import ablation, steps
from lib.chunking import Passage, chunk
from lib.evidence import Models, collect
from lib.retrieval import Pool, Ranked, rank
from lib.slices import Document, Query
from lib.variants import Variant, load_variants

DEFAULT = Variant("default")
NO_MODELS = Models(None, None)
STAGES = ["BM25", "+ query variants", "+ feedback", "+ reranking"]

TEXTS = {
    "other": "Bonds and shares were sold by the bank on Monday.",
    "late": "Lake warming was slower in this decade than in that of our parents.",
    "original": "Sea ice was thinner and the plankton beneath it was scarce.",
    "plankton": "Krill were seen to feed on plankton in all of the bays.",
}


def small_pool() -> Pool:
    """The query matches one document; the temporal variant (`decade`) brings a second, feedback (`plankton`) a third."""
    documents = [Document(doc_id, "", text, "abstract", None) for doc_id, text in TEXTS.items()]
    passages = [p for d in documents for p in chunk(d, {"rule": DEFAULT}, None)["rule"]]
    return Pool.of(Query("q1", "What is the trend of sea ice?", tuple(TEXTS)), documents, passages)


def ranked_list(*passage_ids: str, **scores) -> list[Ranked]:
    passages = [Passage(passage_id, passage_id.split("#")[0], 0, 1, ()) for passage_id in passage_ids]
    return [Ranked(passage, n, None, dict(scores)) for n, passage in enumerate(passages, 1)]


def test_stage_documents_by_hand():
    table = ablation.stage_documents(small_pool(), DEFAULT, {}, NO_MODELS, {"late", "plankton"})
    assert list(table.columns) == ["query_id", "stage", "documents", "gained", "lost", "relevant", "best_rank"]
    assert list(table["stage"]) == STAGES
    assert list(table["documents"]) == [
        {"original"},
        {"original", "late"},
        {"original", "late", "plankton"},
        {"original", "late", "plankton"},
    ]
    assert list(table["gained"]) == [0, 1, 1, 0]
    assert list(table["lost"]) == [0, 0, 0, 0]
    assert list(table["relevant"]) == [0, 1, 2, 2]
    assert pd.isna(table["best_rank"][0])
    assert list(table["best_rank"][1:]) == [2, 2, 2]
    assert set(table["query_id"]) == {"q1"}


def test_documents_that_leave_the_evidence_count_as_lost():
    one = dataclasses.replace(DEFAULT, top_k_passages=1, temporal_coverage=False)
    table = ablation.stage_documents(small_pool(), one, {"plankton": 1}, NO_MODELS, set())
    assert list(table["documents"]) == [{"original"}, {"original"}, {"original"}, {"plankton"}]
    assert list(table["gained"]) == [0, 0, 0, 1]
    assert list(table["lost"]) == [0, 0, 0, 1]


def test_a_query_without_judgements_has_no_best_rank():
    table = ablation.stage_documents(small_pool(), DEFAULT, {}, NO_MODELS, set())
    assert list(table["relevant"]) == [0] * 4
    assert table["best_rank"].isna().all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("single-query-bm25", STAGES[:1]),
        ("rrf-no-rerank", STAGES[:3]),
        ("caes-rag-rrf", STAGES),
        ("rule-minilm", [*STAGES, "+ sentence reranking"]),
        ("concat-baseline", ["concat-baseline"]),
    ],
)
def test_the_stages_of_a_system_end_with_the_system_itself(name, expected):
    [variant] = load_variants([name])
    pool = small_pool()
    rankings = ablation.stage_rankings(pool, variant, {"late": 3}, NO_MODELS)
    assert list(rankings) == expected
    own = rank(pool, variant, {"late": 3})
    assert [(i.passage, i.rank, i.score) for i in rankings[expected[-1]]] == [(i.passage, i.rank, i.score) for i in own]


def test_the_last_stage_over_the_sample_has_the_documents_of_the_run(sample, tmp_path, embedded):
    (tmp_path / "slice").symlink_to(sample.folder)
    models = steps.models_of(embedded)
    qrels = sample.qrels()
    for query in sample.queries[:3]:
        pool = steps.pool_of(tmp_path, sample, query, DEFAULT, models)
        table = ablation.stage_documents(pool, DEFAULT, sample.citation_degrees, models, qrels[query.query_id])
        collected = collect(pool, sample.citation_degrees, DEFAULT, models)
        assert table["documents"].iloc[-1] == {item.doc_id for item in collected.evidence}
        for before, row in zip(table.itertuples(), table.iloc[1:].itertuples(), strict=False):
            assert (row.gained, row.lost) == (len(row.documents - before.documents), len(before.documents - row.documents))
            assert row.relevant == len(row.documents & qrels[query.query_id])


def test_rank_movement_has_a_row_a_passage_and_a_column_a_stage():
    movement = ablation.rank_movement(
        {"first": ranked_list("a#0", "b#0", "a#1"), "second": ranked_list("a#1", "a#0")}, top=3
    )
    assert list(movement.columns) == ["doc_id", "first", "second"]
    assert dict(movement["doc_id"]) == {"a#0": "a", "b#0": "b", "a#1": "a"}
    assert dict(movement["first"]) == {"a#0": 1, "b#0": 2, "a#1": 3}
    assert movement["second"].dropna().to_dict() == {"a#1": 1, "a#0": 2}


def test_rank_movement_leaves_out_what_is_never_among_the_first():
    movement = ablation.rank_movement(
        {"first": ranked_list("a#0", "b#0", "c#0"), "second": ranked_list("b#0", "a#0", "c#0")}, top=2
    )
    assert list(movement.index) == ["a#0", "b#0"]


def test_rank_movement_shows_where_a_passage_stood_before_it_came_among_the_first():
    movement = ablation.rank_movement(
        {"first": ranked_list("a#0", "b#0", "c#0"), "second": ranked_list("c#0", "a#0")}, top=2
    )
    assert movement.loc["c#0", "first"] == 3
    assert movement.loc["c#0", "second"] == 1
    assert pd.isna(movement.loc["b#0", "second"])


def test_score_terms_add_up_to_the_reranking_score():
    ranked = rank(small_pool(), DEFAULT, {"late": 2, "original": 1})
    terms = ablation.score_terms(ranked)
    assert list(terms.columns) == ["rrf", "citation_prior", "temporal"]
    assert list(terms.index) == [item.passage.passage_id for item in ranked]
    assert list(terms.sum(axis=1)) == pytest.approx([item.score for item in ranked])
    assert terms.loc["late#0", "citation_prior"] == pytest.approx(0.05)
    assert terms.loc["original#0", "citation_prior"] == pytest.approx(0.025)


def test_score_terms_are_zero_where_a_stage_did_not_run():
    terms = ablation.score_terms(ranked_list("a#0", rrf=0.5))
    assert terms.loc["a#0"].to_dict() == {"rrf": 0.5, "citation_prior": 0.0, "temporal": 0.0}
    assert ablation.score_terms([]).empty


def test_the_candidates_table_by_hand():
    documents = [
        Document("007", "T" * 61, "Ice melts in June.", "fullText", "2011-05"),
        Document("7", "T" * 60, "", "none", None),
    ]
    table = ablation.candidates_table(documents, {"007": 3, "9": 1}, {"7"})
    assert table.index.name == "doc_id"
    assert table.loc["007"].to_dict() == {
        "title": "T" * 60 + "…",
        "text": "fullText",
        "words": 4,
        "date": "2011-05",
        "degree": 3,
        "relevant": "",
    }
    assert table.loc["7"].to_dict() == {
        "title": "T" * 60,
        "text": "none",
        "words": 0,
        "date": "unknown",
        "degree": 0,
        "relevant": "yes",
    }
