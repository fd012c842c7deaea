import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import yardstick
from lib import chunking
from lib.chunking import chunk, chunk_ranges, rule_ranges, semantic_ranges, topic_shift_ranges
from lib.encoders import Encoder
from lib.slices import Document
from lib.variants import Variant

RULE = Variant("rule", passage_max_words=8)
ALL = {
    "rule": Variant("a"),
    "semantic": Variant("b", chunker="semantic"),
    "topic-shift": Variant("c", chunker="topic-shift"),
}

COUNTS = st.lists(st.integers(1, 60), min_size=1, max_size=25)


@st.composite
def counts_and_vectors(draw):
    """Word counts and as many unit vectors of few dimensions, so that their cosines fall on both sides of a threshold."""
    counts = draw(COUNTS)
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    vectors = rng.normal(size=(len(counts), draw(st.integers(2, 4)))) + draw(st.sampled_from([0.0, 1.0, 2.0]))
    return counts, (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def document(text: str) -> Document:
    return Document("d1", "", text, "fullText", None)


def similarity(a, b) -> float:
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def naive_rule(counts, budget, overlap):
    return [(chunk[0], chunk[-1] + 1) for chunk in yardstick.rule(counts, budget, overlap)]


def naive_without_overlap(counts, budget, joins):
    chunks = [[0]]
    for i in range(1, len(counts)):
        if sum(counts[j] for j in chunks[-1]) + counts[i] <= budget and joins(chunks[-1], i):
            chunks[-1].append(i)
        else:
            chunks.append([i])
    return [(c[0], c[-1] + 1) for c in chunks]


@settings(deadline=None)
@given(COUNTS, st.integers(5, 200), st.integers(0, 3))
def test_rule_ranges_are_the_greedy_windows_of_the_method(counts, budget, overlap):
    assert rule_ranges(counts, budget, overlap) == naive_rule(counts, budget, overlap)


@settings(deadline=None)
@given(COUNTS, st.integers(5, 80), st.integers(0, 3))
def test_c11_rule_ranges_advance_cover_everything_and_break_the_budget_only_for_one_long_sentence(counts, budget, overlap):
    ranges = rule_ranges(counts, budget, overlap)
    assert {i for start, end in ranges for i in range(start, end)} == set(range(len(counts)))
    assert all(sum(counts[start:end]) <= budget or end - start == 1 for start, end in ranges)
    assert all(a < c and b < d and b - c <= overlap for (a, b), (c, d) in zip(ranges, ranges[1:], strict=False))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([50, 50, 40, 30], [(0, 3), (2, 4)]),  # 50 + 50 + 40 = 140 fits; the next chunk is 40 + 30
        ([50, 50, 41, 30], [(0, 2), (1, 4)]),  # 141 does not fit; the next chunk is 50 + 41 + 30 = 121
        ([200], [(0, 1)]),
        ([10, 200, 10], [(0, 1), (1, 2), (2, 3)]),
        ([100, 100, 100], [(0, 1), (1, 2), (2, 3)]),  # no room for the overlap
    ],
)
def test_rule_ranges_by_hand_at_140_words(counts, expected):
    assert rule_ranges(counts, 140, 1) == expected


@settings(deadline=None)
@given(counts_and_vectors(), st.integers(20, 200), st.sampled_from([0.72, 0.3, 0.9]))
def test_semantic_ranges_join_while_close_to_the_mean_of_the_chunk(data, budget, threshold):
    counts, vectors = data
    expected = naive_without_overlap(
        counts,
        budget,
        lambda current, i: similarity(vectors[i], np.mean([vectors[j] for j in current], axis=0)) >= threshold,
    )
    assert semantic_ranges(counts, vectors, budget, threshold) == expected


@settings(deadline=None)
@given(counts_and_vectors(), st.integers(20, 200), st.sampled_from([0.18, 0.6, 1.0]))
def test_topic_shift_ranges_start_where_the_drift_exceeds_the_threshold(data, budget, threshold):
    counts, vectors = data
    expected = naive_without_overlap(
        counts, budget, lambda current, i: not 1 - similarity(vectors[i - 1], vectors[i]) > threshold
    )
    assert topic_shift_ranges(counts, vectors, budget, threshold) == expected


@settings(deadline=None)
@given(counts_and_vectors(), st.sampled_from(["semantic", "topic-shift"]), st.sampled_from(["absolute", "percentile"]))
def test_semantic_and_topic_shift_chunks_partition_the_sentences(data, chunker, mode):
    counts, vectors = data
    ranges = chunk_ranges(counts, vectors, Variant("v", chunker=chunker, threshold_mode=mode))
    assert [i for start, end in ranges for i in range(start, end)] == list(range(len(counts)))


@pytest.mark.parametrize(
    ("chunker", "expected"),
    [
        ("rule", [(0, 15), (14, 29), (28, 40)]),
        ("semantic", [(0, 15), (15, 30), (30, 40)]),
        ("topic-shift", [(0, 15), (15, 30), (30, 40)]),
    ],
)
def test_forty_alike_sentences_of_nine_words_fill_140_words_by_fifteens(chunker, expected):
    same = np.ones((40, 2), dtype=np.float32)
    assert chunk_ranges([9] * 40, same, Variant("v", chunker=chunker)) == expected


def at_angles(*degrees: float) -> np.ndarray:
    return np.array([[np.cos(np.radians(d)), np.sin(np.radians(d))] for d in degrees], dtype=np.float32)


def test_the_thresholds_of_the_paper_by_hand():
    """cos 34° = 0.829 (drift 0.171), cos 35° = 0.819 (drift 0.181); cos 43° = 0.731, cos 44° = 0.719."""
    topic, semantic = Variant("t", chunker="topic-shift"), Variant("s", chunker="semantic")
    assert chunk_ranges([5, 5], at_angles(0, 34), topic) == [(0, 2)]
    assert chunk_ranges([5, 5], at_angles(0, 35), topic) == [(0, 1), (1, 2)]
    assert chunk_ranges([5, 5], at_angles(0, 43), semantic) == [(0, 2)]
    assert chunk_ranges([5, 5], at_angles(0, 44), semantic) == [(0, 1), (1, 2)]


def test_semantic_compares_with_the_mean_and_topic_shift_with_the_neighbour():
    """At 0°, 30°, 60° the third lies 45° from the mean of the others (cos = 0.707), and 30° from its neighbour (0.866)."""
    vectors = at_angles(0, 30, 60)
    assert semantic_ranges([5, 5, 5], vectors, 140, 0.72) == [(0, 2), (2, 3)]
    assert topic_shift_ranges([5, 5, 5], vectors, 140, 0.18) == [(0, 3)]


def test_percentile_mode_takes_the_threshold_from_the_document_itself():
    """Steps of 10°, 20°, 60°, 30° drift by 0.015, 0.060, 0.5, 0.134: the 75th percentile is 0.134 + 0.25 (0.5 - 0.134)."""
    vectors = at_angles(0, 10, 30, 90, 120)
    topic = Variant("t", chunker="topic-shift", threshold_mode="percentile", topic_shift_boundary_percentile=75)
    assert chunk_ranges([1] * 5, vectors, topic) == [(0, 3), (3, 5)]


@settings(deadline=None)
@given(counts_and_vectors(), st.sampled_from([0.0, 25.0, 50.0, 75.0, 100.0]))
def test_percentile_mode_is_the_absolute_mode_at_the_percentile_of_the_neighbours(data, percentile):
    counts, vectors = data
    neighbours = [similarity(a, b) for a, b in zip(vectors, vectors[1:], strict=False)] or [1.0]
    topic = Variant("t", chunker="topic-shift", threshold_mode="percentile", topic_shift_boundary_percentile=percentile)
    boundary = np.percentile([1 - value for value in neighbours], percentile)
    # The drift that is itself the percentile lies on the threshold, where rounding must not decide.
    expected = naive_without_overlap(counts, 140, lambda current, i: 1 - neighbours[i - 1] <= boundary + 1e-9)
    assert chunk_ranges(counts, vectors, topic) == expected


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_percentile_mode_joins_two_sentences_whose_only_similarity_is_the_threshold(seed):
    vectors = np.random.default_rng(seed).normal(size=(2, 8)).astype(np.float32)
    for percentile in (0.0, 25.0, 100.0):
        semantic = Variant("s", chunker="semantic", threshold_mode="percentile", semantic_merge_percentile=percentile)
        assert chunk_ranges([5, 5], vectors, semantic) == [(0, 2)]


@pytest.mark.parametrize("chunker", ["rule", "semantic", "topic-shift"])
def test_c11_no_sentence_gives_no_chunk_and_one_gives_one(chunker):
    variant = Variant("v", chunker=chunker)
    assert chunk_ranges([], np.zeros((0, 384), np.float32), variant) == []
    assert chunk_ranges([5], np.ones((1, 384), np.float32), variant) == [(0, 1)]


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_c11_a_zero_embedding_has_similarity_zero(zero):
    vectors = np.ones((3, 4), dtype=np.float32)
    vectors[zero] = 0
    with np.errstate(all="raise"):
        drifts = chunking.adjacent_drifts(vectors)
        apart = semantic_ranges([1, 1, 1], vectors, 140, 1e-9)
        together = semantic_ranges([1, 1, 1], vectors, 140, 0.0)
        shifts = topic_shift_ranges([1, 1, 1], vectors, 140, 0.999)
    assert [d for i, d in enumerate(drifts) if zero in (i, i + 1)] == [1.0] * (1 if zero != 1 else 2)
    assert together == [(0, 3)]
    assert (zero, zero + 1) in shifts
    assert (zero, zero + 1) in apart


@pytest.mark.parametrize("overlap", [8, 9, 100, -1])
def test_c11_an_overlap_that_leaves_no_room_is_refused_at_once(overlap):
    with pytest.raises(ValueError, match="overlap"):
        rule_ranges([3, 3], 8, overlap)
    with pytest.raises(ValueError, match="passage_stride_sentences"):
        Variant("v", passage_max_words=8, passage_stride_sentences=overlap)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("   \n", []),
        (" . ", []),
        ("Only one sentence stands here.", ["Only one sentence stands here."]),
        ("Ice melts. Fish swim.", ["Ice melts. Fish swim."]),
        (
            "Ice melts fast now. Fish swim up here. Owls fly.",
            ["Ice melts fast now. Fish swim up here.", "Fish swim up here. Owls fly."],
        ),
    ],
)
def test_c11_rule_chunks_of_edge_texts_at_eight_words(text, expected):
    passages = chunk(document(text), {"rule": RULE}, None)["rule"]
    assert [p.text(document(text)) for p in passages] == expected


@pytest.mark.parametrize("end", [" .", " . .", "\n.\n", " …", " —"])
def test_c11_stray_punctuation_at_the_end_makes_no_chunk_of_its_own(end):
    text = f"Ice melts fast now. Fish swim up here.{end}"
    passages = chunk(document(text), {"rule": Variant("v")}, None)["rule"]
    assert [[text[a:b].split()[0] for a, b in p.sentences] for p in passages] == [["Ice", "Fish"]]


@pytest.fixture(scope="module")
def encoder(embedded) -> Encoder:
    return Encoder(embedded.encoder)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("text", "sentences"),
    [("   \n", 0), ("One sentence only.", 1), ("Ice melts in June. The bond market fell.", 2), ("Ice melts in June. .", 1)],
)
def test_c11_edge_texts_under_the_real_encoder(encoder, name, text, sentences):
    passages = chunk(document(text), ALL, encoder)[name]
    assert sum(len(p.sentences) for p in passages) == sentences
    assert all(any(c.isalnum() for c in p.text(document(text))) for p in passages)


def test_topics_far_apart_are_cut_by_the_real_encoder_and_not_by_the_rule(encoder):
    text = "Sea ice melts in June. The ice on the sea melts in June. The bond market fell on Monday."
    found = chunk(document(text), ALL, encoder)
    assert [len(p.sentences) for p in found["rule"]] == [3]
    assert [len(p.sentences) for p in found["semantic"]] == [2, 1]
    assert [len(p.sentences) for p in found["topic-shift"]] == [2, 1]


@pytest.mark.parametrize("space", [" ", "\u00a0"])
def test_c10_passages_are_spans_of_the_document_under_every_chunker(encoder, space):
    text = f"It failed. We{space}retried. It failed. " * 30
    source = document(text)
    for passages in chunk(source, ALL, encoder).values():
        for passage in passages:
            assert passage.text(source) == text[passage.start : passage.end]
            assert (passage.start, passage.end) == (passage.sentences[0].start, passage.sentences[-1].end)
            assert {text[a:b] for a, b in passage.sentences} <= {"It failed.", f"We{space}retried."}
        assert len({p.passage_id for p in passages}) == len(passages)
        assert {p.doc_id for p in passages} == {"d1"}


def test_one_sentence_over_the_budget_is_one_whole_passage():
    long = f"Word {'word ' * 198}end."
    text = f"Ice melts. {long} Fish swim."
    passages = chunk(document(text), {"rule": Variant("v")}, None)["rule"]
    assert [p.text(document(text)) for p in passages] == ["Ice melts.", long, "Fish swim."]


def test_adjacent_drifts_are_one_minus_the_cosine_of_neighbours():
    assert chunking.adjacent_drifts(at_angles(0, 60, 60, 150)) == pytest.approx([0.5, 0.0, 1.0], abs=1e-6)
    assert chunking.adjacent_drifts(at_angles(7)).shape == (0,)
    assert chunking.adjacent_drifts(np.zeros((0, 2))).shape == (0,)


def test_chunker_ids_differ_where_chunks_may_differ():
    variants = [
        *(
            Variant("v", chunker=c, threshold_mode=m)
            for c in ("semantic", "topic-shift")
            for m in ("absolute", "percentile")
        ),
        Variant("v"),
        Variant("v", passage_max_words=100),
        Variant("v", passage_stride_sentences=2),
        Variant("v", chunker="semantic", semantic_merge_threshold=0.7),
        Variant("v", chunker="semantic", passage_max_words=100),
        Variant("v", chunker="topic-shift", topic_shift_boundary_threshold=0.2),
        Variant("v", chunker="semantic", threshold_mode="percentile", semantic_merge_percentile=10),
        Variant("v", chunker="topic-shift", threshold_mode="percentile", topic_shift_boundary_percentile=10),
    ]
    assert len({chunking.chunker_id(variant) for variant in variants}) == len(variants)


def test_chunker_ids_ignore_what_does_not_touch_the_chunks():
    assert chunking.chunker_id(Variant("a", rerank=False, bm25_k1=2)) == chunking.chunker_id(Variant("b"))
    assert chunking.chunker_id(Variant("a", semantic_merge_threshold=0.1)) == chunking.chunker_id(Variant("b"))


def test_passages_come_back_from_their_file_as_they_were_written(tmp_path):
    documents = [
        Document(doc_id, "", text, "fullText", None)
        for doc_id, text in [
            ('a", "passages": [', "Ice melts. Fish swim north today. Birds fly south, and the rest stays."),
            ("ü\u2028\\", "Лёд тает. It failed."),
            ("empty", ""),
        ]
    ]
    expected = {d.doc_id: chunk(d, {"rule": RULE}, None)["rule"] for d in documents}
    path = tmp_path / "passages.jsonl"
    path.write_text("".join(chunking.passages_line(*item) for item in expected.items()), encoding="utf-8")
    file = chunking.PassageFile(path)
    assert file.doc_ids() == list(expected)
    assert {doc_id: file.passages(doc_id) for doc_id in reversed(file.doc_ids())} == expected


def test_length_statistics_by_hand():
    """Percentiles by linear interpolation: the 5th of 10, 20, 30, 40, 50 lies a fifth of the way from 10 to 20."""
    found = chunking.length_statistics([50, 10, 40, 20, 30])
    assert found == {"chunks": 5, "mean_words": 30.0, "p5_words": 12.0, "p50_words": 30.0, "p95_words": 48.0}
    assert chunking.length_statistics([]) == dict.fromkeys(found, 0)
