import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.allocation import choose, scaled
from lib.variants import Variant

MMR = Variant("late", sentence_selection="mmr", redundancy_weight=0.5, max_answer_words=100)
COVERAGE = dataclasses.replace(MMR, sentence_selection="coverage")
# Two directions at right angles, and one at 45 degrees between them.
EAST, NORTH, BETWEEN = (1.0, 0.0), (0.0, 1.0), (0.5**0.5, 0.5**0.5)


def test_marginal_relevance_by_hand():
    """Worth .5 x scaled relevance - .5 x similarity: the repeat of the best comes last though it is second best."""
    vectors = np.array([EAST, EAST, NORTH])
    # first: 0.5, 0.4, 0 -> 0; then 0.4 - 0.5 = -0.1 against 0 - 0 = 0 -> 2; then 1
    assert choose([10, 8, 0], vectors, [5, 5, 5], MMR) == [0, 2, 1]
    assert choose([10, 8, 0], vectors, [5, 5, 5], dataclasses.replace(MMR, redundancy_weight=0.0)) == [0, 1, 2]


def test_consensus_by_hand():
    """With all weight on consensus the sentence that is nearest to the others comes first, whatever its relevance."""
    only = dataclasses.replace(MMR, consensus_weight=1.0, redundancy_weight=0.0)
    # mean similarity to the others: east .354, north .354, between .707
    assert choose([3, 2, 1], np.array([EAST, NORTH, BETWEEN]), [5, 5, 5], only) == [2, 0, 1]


def test_coverage_by_hand():
    """Sums of similarity to the nearest chosen: 1.707 for either axis, 2.414 for the one between; then 0.586 more."""
    assert choose([1, 1, 1], np.array([EAST, NORTH, BETWEEN]), [5, 5, 5], COVERAGE) == [2, 0, 1]
    assert choose([1, 1, 1], np.array([EAST, EAST, NORTH]), [5, 5, 5], COVERAGE) == [0, 2, 1]


def test_what_fits_the_answer_is_chosen_before_what_does_not():
    tight = dataclasses.replace(MMR, max_answer_words=12, redundancy_weight=0.0)
    vectors = np.eye(4)
    assert choose([4, 3, 2, 1], vectors, [10, 9, 2, 1], tight) == [0, 2, 1, 3]
    assert choose([4, 3, 2, 1], vectors, [10, 9, 2, 1], dataclasses.replace(tight, max_answer_sentences=1)) == [0, 1, 2, 3]
    assert choose([4, 3], vectors[:2], [50, 60], tight) == [0, 1]


def test_no_more_is_kept_than_evidence_may_hold():
    assert choose([4, 3, 2, 1], np.eye(4), [1] * 4, dataclasses.replace(MMR, max_selected_answer_candidates=2)) == [0, 1]
    assert choose([], np.zeros((0, 4)), [], MMR) == []


def test_equal_gains_keep_the_order_of_the_candidates():
    for variant in (MMR, COVERAGE):
        assert choose([1, 1, 1], np.array([EAST, EAST, EAST]), [5, 5, 5], variant) == [0, 1, 2]


def test_values_are_scaled_to_the_unit_interval():
    assert scaled([2.0, 4.0, 3.0]).tolist() == [0.0, 1.0, 0.5]
    assert scaled([-7.0, -7.0]).tolist() == [0.0, 0.0]
    assert scaled([0.3, 0.1 + 0.2]).tolist() == [0.0, 0.0]  # float noise is no difference
    assert scaled([]).tolist() == []


def unit(rows: list[list[float]]) -> np.ndarray:
    data = np.array(rows) + 1e-3
    return data / np.linalg.norm(data, axis=1, keepdims=True)


pools = st.lists(st.lists(st.floats(0, 1, width=16), min_size=3, max_size=3), min_size=2, max_size=7).map(unit)


@given(pools, st.sampled_from(["mmr", "coverage"]), st.floats(0, 1), st.floats(0, 1))
def test_every_candidate_is_chosen_once_and_nothing_depends_on_the_scale_of_relevance(vectors, kind, consensus, penalty):
    variant = dataclasses.replace(
        MMR, sentence_selection=kind, consensus_weight=consensus, redundancy_weight=penalty, max_answer_words=20
    )
    relevance = vectors[:, 0]
    lengths = [8] * len(vectors)
    order = choose(relevance, vectors, lengths, variant)
    assert sorted(order) == list(range(len(vectors)))
    assert choose(4 * relevance - 2, vectors, lengths, variant) == order  # as logits of another model would be


@given(pools, st.integers(1, 4))
def test_greedy_coverage_is_as_good_as_the_theory_of_submodular_functions_says(vectors, size):
    """Nemhauser, Wolsey and Fisher (1978): at least 1 - 1/e of the best set of the same size."""
    size = min(size, len(vectors))
    near = np.maximum(vectors @ vectors.T, 0)

    def value(chosen):
        return near[:, list(chosen)].max(axis=1).sum()

    best = max(value(chosen) for chosen in itertools.combinations(range(len(vectors)), size))
    greedy = choose([1.0] * len(vectors), vectors, [1] * len(vectors), COVERAGE)[:size]
    assert value(greedy) >= (1 - 1 / np.e) * best - 1e-4


@pytest.mark.parametrize("field", ["consensus_weight", "redundancy_weight"])
def test_weights_outside_the_unit_interval_are_refused(field):
    with pytest.raises(ValueError, match=f"{field} must lie in"):
        dataclasses.replace(MMR, **{field: 1.5})
