import dataclasses
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from lib import preparing, retrieval, slices, steps
from lib.chunking import Passage, chunk
from lib.encoders import Encoder
from lib.retrieval import BM25, Pool, Ranked, citation_prior, feedback_terms, query_variants, rank, ranked_list, select
from lib.slices import Document, Query
from lib.text import Span, tokens
from lib.variants import Variant, load_variants

PROJECT = Path(__file__).resolve().parents[1]
DEFAULT = Variant("default")
ONE_LIST = dataclasses.replace(DEFAULT, retrieval="bm25", query_expansion=False, prf=False, rerank=False)
FUSED = dataclasses.replace(DEFAULT, rerank=False)

CORPORA = st.lists(st.lists(st.sampled_from("abcde"), max_size=8), max_size=12)
QUERIES = st.lists(st.sampled_from("abcdef"), max_size=6)


def pool_of(query: str, texts: dict[str, str], dates: dict[str, str] | None = None) -> Pool:
    """A pool of one passage a document, in the order of `texts`."""
    documents = [Document(doc_id, "", text, "fullText", (dates or {}).get(doc_id)) for doc_id, text in texts.items()]
    passages = [Passage(f"{d.doc_id}#0", d.doc_id, 0, len(d.text), (Span(0, len(d.text)),)) for d in documents]
    return Pool.of(Query("q1", query, tuple(texts)), documents, passages)


def bm25_of(pool: Pool) -> BM25:
    return BM25(pool.tokens)


def doc_ids(ranked: list[Ranked]) -> list[str]:
    return [item.passage.doc_id for item in ranked]


def in_order(pool: Pool) -> list[Ranked]:
    return [Ranked(passage, n, 1 / n) for n, passage in enumerate(pool.passages, 1)]


def idf_by_hand(corpus, term):
    holding = sum(term in passage for passage in corpus)
    return math.log(1 + (len(corpus) - holding + 0.5) / (holding + 0.5))


def bm25_by_hand(corpus, query, k1, b):
    mean_length = sum(map(len, corpus)) / len(corpus) if corpus else 0
    scores = []
    for passage in corpus:
        score = 0.0
        for term in query:
            frequency = passage.count(term)
            if frequency:
                norm = k1 * (1 - b + b * len(passage) / mean_length)
                score += idf_by_hand(corpus, term) * frequency * (k1 + 1) / (frequency + norm)
        scores.append(score)
    return scores


@settings(deadline=None)
@given(CORPORA, QUERIES, st.floats(0.1, 3), st.floats(0, 0.95))
def test_bm25_is_the_formula_of_the_paper(corpus, query, k1, b):
    assert BM25(corpus, k1, b).get_scores(query) == pytest.approx(bm25_by_hand(corpus, query, k1, b))


@settings(deadline=None)
@given(CORPORA, QUERIES)
def test_bm25_is_rank_bm25_with_another_idf(corpus, query):
    assume(any(corpus))
    stock = BM25Okapi(corpus, k1=1.5, b=0.75)
    stock.idf = {term: idf_by_hand(corpus, term) for term in stock.idf}
    assert BM25(corpus).get_scores(query) == pytest.approx(stock.get_scores(query))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("k1", "b"), [(0.0, 0.75), (1.5, 1.0), (0.0, 1.0), (1.5, 0.0)])
def test_c02_scores_are_numbers_at_the_ends_of_the_allowed_parameters(k1, b):
    corpus = [["a", "b"], ["b"], []]
    Variant("v", bm25_k1=k1, bm25_b=b)
    assert BM25(corpus, k1, b).get_scores(["a", "b"]) == pytest.approx(bm25_by_hand(corpus, ["a", "b"], k1, b))


def test_c01_idf_is_positive_in_small_pools():
    """ln(1 + 1.5 / 1.5) = 0.6931 for the term in one of two passages, ln(1 + 0.5 / 2.5) = 0.1823 for the one in both."""
    bm25 = BM25([["graphene", "oxide"], ["graphene", "film"]])
    assert bm25.idf["oxide"] == pytest.approx(0.6931, abs=5e-5)
    assert bm25.idf["graphene"] == pytest.approx(0.1823, abs=5e-5)
    first, second = bm25.get_scores(["graphene", "oxide"])
    assert first > second >= 0


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_c01_a_term_in_every_passage_still_has_a_positive_idf(size):
    assert BM25([["ice"]] * size).idf["ice"] == pytest.approx(math.log(1 + 0.5 / (size + 0.5)))


@pytest.mark.parametrize("query", ["ice", "ice sheet"])
def test_c01_passages_with_a_term_in_half_of_the_pool_rank_above_the_others(query):
    pool = pool_of(query, {"d1": "bond market", "d2": "sea ice", "d3": "stock market", "d4": "lake ice"})
    scores = bm25_of(pool).get_scores(tokens(query))
    assert min(scores[1], scores[3]) > max(scores[0], scores[2])
    assert doc_ids(rank(pool, ONE_LIST, {})) == ["d2", "d4"]


def test_c01_a_shared_term_makes_a_match_and_not_a_positive_score():
    pool = pool_of("ice", {"d1": "bond market", "d2": "sea ice", "d3": "stock market", "d4": "lake ice"})
    stock = BM25Okapi(pool.tokens)
    assert not stock.get_scores(["ice"]).any()
    assert [index for index, _ in ranked_list(pool, stock, ["ice"])] == [1, 3]


def write_slice(folder: Path, queries: list[dict], documents: list[dict]) -> Path:
    (folder / "documents").mkdir(parents=True)
    lines = "".join(json.dumps(record) + "\n" for record in queries)
    (folder / "queries.jsonl").write_text(lines, encoding="utf-8")
    lines = "".join(json.dumps(record) + "\n" for record in documents)
    (folder / "documents" / "part.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["single-query-bm25", "rrf-no-rerank", "caes-rag-rrf", "concat-baseline"])
def test_c02_topics_without_text_give_an_empty_ranking_with_a_reason(tmp_path, embedded, name):
    queries = [
        {"query_id": "T1", "query": "Why does ice melt?", "doc_ids": []},
        {"query_id": "T2", "query": "Why does ice melt?", "doc_ids": ["blank", "dots"]},
        {"query_id": "T3", "query": "Why does ice melt?", "doc_ids": ["blank", "dots", "full"]},
    ]
    documents = [
        {"id": "blank", "fullText": ""},
        {"id": "dots", "fullText": "..."},
        {"id": "full", "fullText": "Sea ice has begun to melt in June because the air is warm."},
    ]
    source = write_slice(tmp_path / "source", queries, documents)
    preparing.prepare(str(source), tmp_path / "sweep" / "slice")
    slice_ = slices.Slice(tmp_path / "sweep" / "slice")
    [variant] = load_variants([name])
    models = steps.models_of(embedded)
    found = {q.query_id: steps.collect_one(tmp_path / "sweep", slice_, q, variant, models) for q in slice_.queries}
    assert {query_id: (e.status, e.references) for query_id, e in found.items()} == {
        "T1": ("no-candidates", []),
        "T2": ("no-passages", []),
        "T3": ("ok", ["full"]),
    }
    assert "NaN" not in json.dumps([e.record() for e in found.values()])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("corpus", [[], [[]], [[], []], [["ice"], []], [[], ["ice"], []]])
def test_c02_empty_pools_and_blank_passages_score_zero(corpus):
    scores = BM25(corpus).get_scores(["ice"])
    assert scores.shape == (len(corpus),)
    assert np.isfinite(scores).all()
    assert [bool(score) for score in scores] == [bool(passage) for passage in corpus]


def test_c02_a_blank_passage_is_never_ranked():
    pool = pool_of("ice", {"d1": "", "d2": "ice", "d3": "..."})
    for variant in (ONE_LIST, FUSED, DEFAULT):
        assert doc_ids(rank(pool, variant, {})) == ["d2"]


def test_c03_equal_scores_keep_candidate_order_and_their_own_passages():
    alike = pool_of("ice melt", {f"d{i}": "Sea ice will melt." for i in range(7)})
    unlike = pool_of("ice melt", {"d0": "Rain.", "d1": "Ice on a lake.", "d2": "The ice will melt."})
    for variant in (ONE_LIST, FUSED, DEFAULT):
        assert doc_ids(rank(alike, variant, {}))[:3] == ["d0", "d1", "d2"]
        assert doc_ids(rank(unlike, variant, {})) == ["d2", "d1"]
    for item in rank(unlike, ONE_LIST, {}):
        own = bm25_by_hand(unlike.tokens, ["ice", "melt"], 1.5, 0.75)[unlike.passages.index(item.passage)]
        assert item.score == item.scores["bm25"] == pytest.approx(own)


def test_c03_ties_are_broken_by_candidate_order_then_position():
    documents = [Document(doc_id, "", "Sea ice. Sea ice.", "fullText", None) for doc_id in ("z", "a")]
    single = Variant("v", passage_max_words=2, passage_stride_sentences=0)
    passages = [p for d in documents for p in chunk(d, {"rule": single}, None)["rule"]]
    pool = Pool.of(Query("q", "ice", ("z", "a")), documents, passages)
    for variant in (ONE_LIST, FUSED, DEFAULT):
        assert [item.passage.passage_id for item in rank(pool, variant, {})] == ["z#0", "z#1", "a#0", "a#1"]


def test_c03_asking_for_more_than_there_is_gives_what_there_is():
    pool = pool_of("ice", {"d1": "Sea ice.", "d2": "Lake ice grew.", "d3": "Ice fell from the roof."})
    selected = select(pool, rank(pool, DEFAULT, {}), DEFAULT)
    assert DEFAULT.top_k_passages == 20
    assert [item.rank for item in selected] == [1, 2, 3]


@pytest.mark.parametrize("variant", [ONE_LIST, FUSED, DEFAULT])
@pytest.mark.parametrize("query", ["zebra", "What is the zebra doing in the zoo?", "the of and"])
def test_c03_a_query_of_words_found_nowhere_ranks_nothing(variant, query):
    pool = pool_of(query, {"d1": "The ice of the sea is what it is.", "d2": "In the lake."})
    assert rank(pool, variant, {}) == []
    assert select(pool, [], variant) == []


@pytest.mark.parametrize("query", ["membrane", "tio2", "TIO2-coated", "TiO₂", "Membrane?"])
def test_c04_queries_and_passages_are_cut_by_one_tokeniser(query):
    pool = pool_of(query, {"d1": "Rain fell.", "d2": "The TiO2-coated membrane.", "d3": "Bonds rose."})
    scores = bm25_of(pool).get_scores(tokens(query))
    assert scores[1] > max(scores[0], scores[2])
    assert doc_ids(rank(pool, DEFAULT, {})) == ["d2"]


def test_c04_a_string_where_a_token_list_is_expected_is_refused():
    for corpus in ("ice", ["ice melts", "rain"], [["ice"], "rain"]):
        with pytest.raises(TypeError, match="token"):
            BM25(corpus)
    for corpus in ([["ice"]], [[]], []):
        with pytest.raises(TypeError, match="token"):
            BM25(corpus).get_scores("ice")
    with pytest.raises(TypeError, match="token"):
        ranked_list(pool_of("ice", {"d1": "ice"}), BM25([["ice"]]), "ice")


def variants_of(
    query: str, variant: Variant = DEFAULT, text: str = "Sunlight heats plankton daily."
) -> dict[str, list[str]]:
    pool = pool_of(query, {"d1": f"{query} {text}"})
    return query_variants(pool, variant, bm25_of(pool))


def test_query_variants_are_five_at_most_and_in_the_order_of_the_method():
    query = "Which methods measure the trends of ice in recent decades?"
    found = variants_of(query)
    assert list(found) == ["original", "keywords", "temporal", "method", "prf"]
    keywords = ["methods", "measure", "trends", "ice", "recent", "decades"]
    assert found["original"] == "which methods measure the trends of ice in recent decades".split()
    assert found["keywords"] == keywords
    assert found["prf"] == [*keywords, "sunlight", "heats", "plankton", "daily"]
    for name in ("temporal", "method"):
        assert found[name][: len(keywords)] == keywords
        assert len(set(found[name])) == len(found[name]) > len(keywords)
    assert list(variants_of(query, dataclasses.replace(DEFAULT, query_variant_limit=3))) == [
        "original",
        "keywords",
        "temporal",
    ]
    assert list(variants_of(query, dataclasses.replace(DEFAULT, query_variant_limit=1))) == ["original"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Why is sea ice blue?", ["original", "keywords", "prf"]),
        ("What is the trend of sea ice?", ["original", "keywords", "temporal", "prf"]),
        ("Which algorithm maps sea ice?", ["original", "keywords", "method", "prf"]),
    ],
)
def test_temporal_and_method_variants_need_an_overlap_with_their_lists(query, expected):
    assert list(variants_of(query)) == expected


def test_an_intent_word_past_the_twelfth_keyword_does_not_count():
    query = "zinc iron gold lead silver copper nickel cobalt barium radon xenon argon trend method"
    assert list(variants_of(query)) == ["original", "keywords", "prf"]
    assert not retrieval.is_temporal(query, DEFAULT)


def test_query_expansion_and_feedback_switch_off_alone():
    query = "What is the trend of sea ice?"
    assert list(variants_of(query, dataclasses.replace(DEFAULT, query_expansion=False))) == ["original", "prf"]
    assert list(variants_of(query, dataclasses.replace(DEFAULT, prf=False))) == ["original", "keywords", "temporal"]


def test_feedback_enters_no_other_variant_than_its_own():
    query = "What is the trend of sea ice?"
    with_prf, without = variants_of(query), variants_of(query, dataclasses.replace(DEFAULT, prf=False))
    assert {name: terms for name, terms in with_prf.items() if name != "prf"} == without


FEEDBACK = {
    # Each holds "lake" and "ice" once, so the shorter ranks higher.
    "late": f"lake ice {'zebra ' * 20}",
    "one": "lake ice algae algae algae bloom",
    "two": "lake ice bloom bloom with with 2015 2015 2015 12.5",
    "three": "lake ice cod cod cod cod cod plankton diatom",
    "four": "lake ice these these these daphnia copepod rotifer silica",
}


def test_feedback_terms_by_hand():
    """algae 3, bloom 1 + 2, then one each in the order of the ranked passages, whose lengths are 6, 9, 9, 10 and 22.

    Left out: `cod` (three letters), `with` and `these` (stopwords), 2015 and 12.5 (numbers), `lake` (a keyword), `zebra`
    (fifth passage), and what comes after the sixth term.
    """
    pool = pool_of("lake ice", FEEDBACK)
    top = [pool.passages[i].doc_id for i, _ in ranked_list(pool, bm25_of(pool), ["lake", "ice"])]
    assert top == ["one", "three", "four", "two", "late"]
    assert feedback_terms(pool, DEFAULT, bm25_of(pool)) == ["algae", "bloom", "plankton", "diatom", "daphnia", "copepod"]


def test_feedback_counts_raw_frequency_over_the_top_passages():
    pool = pool_of(
        "ice", {"d1": "ice gull gull seal", "d2": "ice seal seal", "d3": "ice krill", "d4": "ice seal gull krill"}
    )
    assert feedback_terms(pool, DEFAULT, bm25_of(pool)) == ["seal", "gull", "krill"]
    two = dataclasses.replace(DEFAULT, prf_terms=2)
    assert feedback_terms(pool, two, bm25_of(pool)) == ["seal", "gull"]


def test_feedback_comes_from_matching_passages_only():
    pool = pool_of("ice", {"d1": "krill plankton", "d2": "ice floe"})
    assert feedback_terms(pool, DEFAULT, bm25_of(pool)) == ["floe"]
    assert feedback_terms(pool_of("ice", {"d1": "krill plankton"}), DEFAULT, BM25([["krill", "plankton"]])) == []


SEEDED = """
import json, sys
from lib.retrieval import BM25, Pool, feedback_terms, query_variants, rank, select
from lib.chunking import Passage
from lib.slices import Document, Query
from lib.text import Span
from lib.variants import Variant

texts = json.loads(sys.argv[1])
documents = [Document(doc_id, "", text, "fullText", None) for doc_id, text in texts.items()]
passages = [Passage(d.doc_id + "#0", d.doc_id, 0, len(d.text), (Span(0, len(d.text)),)) for d in documents]
pool = Pool.of(Query("q", "lake ice trend method", tuple(texts)), documents, passages)
variant, bm25 = Variant("v"), BM25(pool.tokens)
ranked = select(pool, rank(pool, variant, {}), variant)
print(json.dumps([query_variants(pool, variant, bm25), [[r.passage.passage_id, r.scores] for r in ranked]]))
"""


def test_order_does_not_depend_on_the_hash_seed():
    outputs = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SEEDED, json.dumps(FEEDBACK)]
        outputs.add(
            subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=True).stdout
        )
    assert len(outputs) == 1
    assert "daphnia" in outputs.pop()


def test_c06_reciprocal_rank_fusion_by_hand():
    fused = retrieval.reciprocal_rank_fusion([["P1", "P2", "P3"], ["P4", "P5", "P3"]])
    assert fused == pytest.approx({"P3": 2 / 63, "P1": 1 / 61, "P4": 1 / 61, "P2": 1 / 62, "P5": 1 / 62})
    assert round(fused["P3"], 6) == 0.031746
    assert round(fused["P1"], 6) == 0.016393
    assert round(fused["P2"], 6) == 0.016129
    assert sorted(fused, key=lambda item: (-fused[item], item)) == ["P3", "P1", "P4", "P2", "P5"]


def test_c06_a_repeat_within_a_list_adds_nothing_and_takes_no_rank():
    assert retrieval.reciprocal_rank_fusion([["P1", "P1", "P2"]]) == pytest.approx({"P1": 1 / 61, "P2": 1 / 62})


def test_c06_an_id_written_as_number_and_as_text_is_one_document(tmp_path):
    """The only passage has rank 1 in both lists, original and keywords: 2 / 61."""
    queries = [{"query_id": 1, "query": "sea ice", "doc_ids": [4, "4"]}]
    source = write_slice(tmp_path / "source", queries, [{"id": "4", "fullText": "Sea ice melts in June."}])
    preparing.prepare(str(source), tmp_path / "slice")
    slice_ = slices.Slice(tmp_path / "slice")
    [query] = slice_.queries
    documents = slice_.documents(query)
    passages = [p for d in documents for p in chunk(d, {"rule": DEFAULT}, None)["rule"]]
    ranked = rank(Pool.of(query, documents, passages), dataclasses.replace(FUSED, prf=False), {})
    assert [(item.passage.doc_id, item.score) for item in ranked] == [("4", pytest.approx(2 / 61))]


def test_fusion_of_no_list_and_of_empty_lists_is_empty():
    assert retrieval.reciprocal_rank_fusion([]) == {}
    assert retrieval.reciprocal_rank_fusion([[], []]) == {}


@settings(deadline=None)
@given(st.lists(st.permutations("abcdef"), min_size=1, max_size=5), st.integers(1, 100))
def test_fusion_sums_the_reciprocal_ranks_of_every_list(lists, k):
    expected = {item: sum(1 / (k + ranked.index(item) + 1) for ranked in lists) for item in "abcdef"}
    assert retrieval.reciprocal_rank_fusion(lists, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ranks", "others"),
    [((1, 2), (2, 1)), ((1, 2, 4), (4, 1, 2)), ((1, 2, 7), (7, 1, 2)), ((2, 8, 1), (1, 2, 8)), ((1, 3, 9), (3, 9, 1))],
)
def test_the_same_ranks_in_another_order_of_lists_give_equal_scores(ranks, others):
    """Otherwise rounding, and not candidate order, breaks the tie: 1/61 + 1/62 + 1/67 depends on the order of its terms."""
    lists = []
    for a, b in zip(ranks, others, strict=True):
        ranked = [f"filler {position}" for position in range(1, 10)]
        ranked[a - 1], ranked[b - 1] = "a", "b"
        lists.append(ranked)
    fused = retrieval.reciprocal_rank_fusion(lists)
    assert fused["a"] == fused["b"]


def test_each_passage_keeps_its_rank_in_every_list_and_their_fused_score():
    pool = pool_of("Which method maps the trend of sea ice?", FEEDBACK | {"sea": "Sea ice trend method."})
    lists = query_variants(pool, DEFAULT, bm25_of(pool))
    for item in rank(pool, FUSED, {}):
        index = pool.passages.index(item.passage)
        expected = {}
        for name, terms in lists.items():
            order = [i for i, _ in ranked_list(pool, bm25_of(pool), terms)]
            if index in order:
                expected[f"rank:{name}"] = order.index(index) + 1
        assert {key: value for key, value in item.scores.items() if key.startswith("rank:")} == expected
        assert item.score == item.scores["rrf"] == pytest.approx(sum(1 / (60 + r) for r in expected.values()))


def test_without_retrieval_passages_stand_in_candidate_order_and_unscored():
    pool = pool_of("ice", {"d2": "Rain fell.", "d1": "Sea ice."})
    ranked = rank(pool, dataclasses.replace(ONE_LIST, retrieval="none"), {})
    assert [(item.passage.doc_id, item.rank, item.score) for item in ranked] == [("d2", 1, None), ("d1", 2, None)]


def test_dense_retrieval_is_off_by_default_and_one_more_ranked_list_when_on(embedded):
    pool = pool_of("sea ice", {"d1": "The bond market fell.", "d2": "Sea ice melted.", "d3": "Frozen ocean water thawed."})
    assert not DEFAULT.dense
    assert doc_ids(rank(pool, FUSED, {})) == ["d2"]
    dense = rank(pool, dataclasses.replace(FUSED, dense=True), {}, Encoder(embedded.encoder))
    assert [item.scores["rank:dense"] for item in dense] == [1, 2, 3]
    assert doc_ids(dense) == ["d2", "d3", "d1"]
    assert dense[1].score == pytest.approx(1 / 62)


NETWORK = [("A", "B"), ("A", "C"), ("A", "A"), ("B", "Z")]


def write_network(folder: Path, rows: list[tuple[str, str]]) -> Path:
    path = folder / "citations.csv"
    path.write_text("citing_doc_id,cited_doc_id\n" + "".join(f"{a},{b}\n" for a, b in rows), encoding="utf-8")
    return path


def test_c07_the_prior_is_the_degree_over_the_maximum_degree(tmp_path):
    problems: list[str] = []
    degrees = preparing.citation_degrees(write_network(tmp_path, NETWORK), problems.append)
    assert {doc_id: degrees.get(doc_id) for doc_id in "ABC"} == {"A": 2, "B": 2, "C": 1}
    assert citation_prior(("A", "B", "C"), degrees) == {"A": 1.0, "B": 1.0, "C": 0.5}
    assert problems == []


def test_c07_the_sum_form_divides_by_the_sum_over_the_candidates(tmp_path):
    degrees = preparing.citation_degrees(write_network(tmp_path, NETWORK), print)
    assert citation_prior(("A", "B", "C"), degrees, "sum") == {"A": 0.4, "B": 0.4, "C": 0.2}
    assert citation_prior(("C", "D"), degrees, "sum") == {"C": 1.0, "D": 0.0}


def test_c07_the_maximum_is_that_of_the_whole_network():
    assert citation_prior(("A", "B"), {"A": 1, "B": 2, "Z": 8}) == {"A": 0.125, "B": 0.25}


@pytest.mark.parametrize("normalization", ["max", "sum"])
@pytest.mark.parametrize("degrees", [{}, {"Z": 3}])
def test_c07_without_edges_of_the_candidates_the_prior_is_zero(degrees, normalization):
    assert citation_prior(("A", "B"), degrees, normalization) == {"A": 0.0, "B": 0.0}
    assert citation_prior((), degrees, normalization) == {}


def test_c07_a_row_with_a_blank_id_is_reported_and_left_out(tmp_path):
    problems: list[str] = []
    path = write_network(tmp_path, [("A", "B"), ("", "B"), ("A", " ")])
    assert preparing.citation_degrees(path, problems.append) == {"A": 1, "B": 1}
    assert [problem.split(": ")[0] for problem in problems] == [f"{path}:3", f"{path}:4"]
    assert all("blank id" in problem and "citing_doc_id,cited_doc_id" in problem for problem in problems)


def test_c07_a_cited_document_outside_the_candidates_never_enters_the_ranking():
    pool = pool_of("sea ice", {"A": "Sea ice.", "B": "Sea ice melts.", "C": "Ice."})
    ranked = rank(pool, DEFAULT, {"A": 2, "B": 2, "C": 1, "Z": 9})
    assert sorted(doc_ids(ranked)) == ["A", "B", "C"]


def dated(**dates: str | None) -> list[Document]:
    return [Document(doc_id, "", "text", "abstract", date) for doc_id, date in dates.items()]


@pytest.mark.parametrize(
    ("dates", "expected"),
    [
        # Days 0, 2, 4, 6, 8 of a range of 8: 1 - 2 x (distance to the nearer end) / 8.
        (
            {"a": "2020-01-01", "b": "2020-01-03", "c": "2020-01-05", "d": "2020-01-07", "e": "2020-01-09"},
            {"a": 1.0, "b": 0.5, "c": 0.0, "d": 0.5, "e": 1.0},
        ),
        ({"a": "2020-01-01", "b": None, "c": "2020-01-09"}, {"a": 1.0, "b": 0.0, "c": 1.0}),
        ({"a": "2020-01-01", "b": None}, {"a": 0.0, "b": 0.0}),
        ({"a": "2020-01-01", "b": "2020-01-01"}, {"a": 0.0, "b": 0.0}),
        ({"a": None, "b": None}, {"a": 0.0, "b": 0.0}),
        ({}, {}),
        # Years 2000, 2001, 2005 stand for their middles; 365 of 1826 days is 1 - 730 / 1826.
        ({"a": "2000", "b": "2001", "c": "2005"}, {"a": 1.0, "b": 1 - 730 / 1826, "c": 1.0}),
    ],
)
def test_temporal_closeness_by_hand(dates, expected):
    assert retrieval.temporal_closeness(dated(**dates)) == pytest.approx(expected)


def test_a_date_that_no_calendar_has_does_not_stop_the_ranking():
    assert retrieval.temporal_closeness(dated(a="2015-02-30", b="2016-13-01", c="2020-01-01"))["c"] == 1.0


def test_rerank_score_is_rrf_plus_citation_prior_plus_temporal_by_hand():
    """Every list ranks d2, d1, d3. G = 0.5, 0, 1; the dates lie at an end, nowhere and at an end."""
    texts = {
        "d1": "Sea ice trend in a cold bay.",
        "d2": "Sea ice trend.",
        "d3": "Sea ice trend in a cold and very wide bay.",
    }
    pool = pool_of("sea ice trend", texts, {"d1": "2001", "d3": "2011"})
    variant = dataclasses.replace(DEFAULT, query_expansion=False, prf=False)
    ranked = rank(pool, variant, {"d1": 1, "d3": 2})
    expected = {"d1": 1 / 62 + 0.05 * 0.5 + 0.1, "d2": 1 / 61, "d3": 1 / 63 + 0.05 + 0.1}
    assert {item.passage.doc_id: item.score for item in ranked} == pytest.approx(expected)
    assert doc_ids(ranked) == ["d3", "d1", "d2"]
    assert [item.rank for item in ranked] == [1, 2, 3]


def test_the_temporal_term_needs_temporal_intent():
    pool = pool_of("blue sea ice", {"d1": "Sea ice is blue.", "d2": "Blue sea ice."}, {"d1": "2001", "d2": "2011"})
    assert [item.scores["temporal"] for item in rank(pool, DEFAULT, {})] == [0.0, 0.0]


def test_rerank_scores_over_the_sample_are_the_sums_of_their_terms(sample):
    boosted = 0
    for query in sample.queries:
        documents = sample.documents(query)
        passages = [p for d in documents for p in chunk(d, {"rule": DEFAULT}, None)["rule"]]
        pool = Pool.of(query, documents, passages)
        fused, reranked = rank(pool, FUSED, {}), rank(pool, DEFAULT, sample.citation_degrees)
        prior = citation_prior(query.doc_ids, sample.citation_degrees)
        assert {item.passage.passage_id for item in reranked} == {item.passage.passage_id for item in fused[:24]}
        assert [item.score for item in reranked] == sorted((item.score for item in reranked), reverse=True)
        for item in reranked:
            ranks = [value for key, value in item.scores.items() if key.startswith("rank:")]
            assert item.scores["rrf"] == pytest.approx(sum(1 / (60 + r) for r in ranks))
            assert item.scores["citation_prior"] == pytest.approx(0.05 * prior[item.passage.doc_id])
            assert 0 <= item.scores["temporal"] <= 0.1
            terms = item.scores["rrf"] + item.scores["citation_prior"] + item.scores["temporal"]
            assert item.score == item.scores["rerank"] == pytest.approx(terms)
            boosted += item.scores["temporal"] > 0
    assert boosted


WORDS = (
    "alder birch cedar daisy elm fern gorse hazel iris ivy kelp lily maple nettle oak pine quince rose sage thyme".split()
)


def thirty() -> Pool:
    """Thirty unlike passages that match `ice`, one a document."""
    return pool_of("ice", {f"d{i}": f"ice {WORDS[i % 20]} {WORDS[(i * 7 + i // 20) % 20]} number{i}" for i in range(30)})


def test_twenty_passages_are_selected_in_rank_order():
    pool = thirty()
    selected = select(pool, in_order(pool), DEFAULT)
    assert doc_ids(selected) == [f"d{i}" for i in range(20)]
    assert [item.rank for item in selected] == list(range(1, 21))


def test_selection_never_looks_past_the_shortlist_of_twenty_four():
    pool = thirty()
    thirty_wanted = dataclasses.replace(DEFAULT, top_k_passages=30)
    assert doc_ids(select(pool, in_order(pool), thirty_wanted)) == [f"d{i}" for i in range(24)]


def test_near_duplicates_are_dropped_and_the_next_take_their_places():
    """d1 repeats d0 in other case and punctuation, d2 has 9 of 10 terms in common with it, d3 8 of 10."""
    base = "ice alder birch cedar daisy elm fern gorse hazel iris"
    texts = {
        "d0": base,
        "d1": f"THE {base.upper()}!",
        "d2": base.replace(" iris", ""),
        "d3": base.replace(" hazel iris", ""),
    }
    texts |= {f"e{i}": f"ice {word} {word}s {word}er" for i, word in enumerate(WORDS)}
    pool = pool_of("ice", texts)
    selected = select(pool, in_order(pool), DEFAULT)
    assert doc_ids(selected) == ["d0", "d3", *(f"e{i}" for i in range(18))]


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (2, 2), (None, 4)])
def test_per_doc_limit_caps_the_passages_of_a_document(limit, expected):
    texts = ["Sea ice melts.", "Ice on a lake grew thick.", "Road ice was salted today.", "Ice cores hold old air."]
    document = Document("d1", "", " ".join(texts), "fullText", None)
    single = Variant("v", passage_max_words=5, passage_stride_sentences=0, per_doc_limit=limit)
    pool = Pool.of(Query("q", "ice", ("d1",)), [document], chunk(document, {"rule": single}, None)["rule"])
    assert len(select(pool, rank(pool, single, {}), single)) == expected


DATES = {"d3": "2010", "d5": "1999-05", "d8": "2020-01-01", "d9": "2005"}


def many(query: str, dates: dict[str, str]) -> Pool:
    return pool_of(query, {f"d{i}": f"ice trend {WORDS[i]} {WORDS[i + 9]}" for i in range(10)}, dates)


def test_the_earliest_and_the_latest_document_come_first_for_a_temporal_query():
    pool = many("ice trend", DATES)
    selected = select(pool, in_order(pool), DEFAULT)
    assert doc_ids(selected) == ["d5", "d8", "d0", "d1", "d2", "d3", "d4", "d6", "d7", "d9"]
    three = dataclasses.replace(DEFAULT, top_k_passages=3)
    assert doc_ids(select(pool, in_order(pool), three)) == ["d5", "d8", "d0"]


def test_an_end_of_the_date_range_gives_its_best_passage():
    text = "Old ice was thin. The ice trend was down in every bay."
    documents = [
        Document("old", "", text, "fullText", "1990"),
        Document("new", "", "New ice trend here.", "fullText", "2020"),
    ]
    single = Variant("v", passage_max_words=9, passage_stride_sentences=0)
    passages = [p for d in documents for p in chunk(d, {"rule": single}, None)["rule"]]
    pool = Pool.of(Query("q", "ice trend", ("old", "new")), documents, passages)
    ranked = [Ranked(passages[i], n, 1 / n) for n, i in enumerate((1, 0, 2), 1)]
    assert [item.passage.passage_id for item in select(pool, ranked, single)] == ["old#1", "new#0", "old#0"]


@pytest.mark.parametrize(
    ("query", "dates", "variant"),
    [
        ("ice", DATES, DEFAULT),
        ("ice trend", {}, DEFAULT),
        ("ice trend", {"d3": "2010"}, DEFAULT),
        ("ice trend", {"d3": "2010", "d5": "2010"}, DEFAULT),
        ("ice trend", DATES, dataclasses.replace(DEFAULT, temporal_coverage=False)),
    ],
)
def test_coverage_is_not_forced_without_intent_or_a_range_of_dates(query, dates, variant):
    pool = many(query, dates)
    assert doc_ids(select(pool, in_order(pool), variant)) == [f"d{i}" for i in range(10)]


def test_nothing_outside_the_candidates_is_ranked_in_the_sample(sample, tmp_path, embedded):
    models = steps.models_of(embedded)
    (tmp_path / "slice").symlink_to(sample.folder)
    for query in sample.queries:
        pool = steps.pool_of(tmp_path, sample, query, DEFAULT, models)
        selected = select(pool, rank(pool, DEFAULT, sample.citation_degrees), DEFAULT)
        assert set(doc_ids(selected)) <= set(query.doc_ids)
        assert max(Counter(item.passage.passage_id for item in selected).values()) == 1
