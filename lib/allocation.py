"""Late sentence allocation: which of a query's candidate sentences to keep, seen together and not one by one.

The paper scores each sentence alone and takes the best; its future work asks for a choice that knows
what has been chosen. Two greedy ones stand here. Both choose from the same gated pool, in two rounds: first what fits
the answer's budget, then the rest of the evidence. The extractive generator says it in that order, but for
temporal queries, whose answer opens with a comparison of two years.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lib.variants import Variant

Gain = Callable[[int, list[int]], float]  # candidate, chosen so far -> what it adds


def choose(relevance: Sequence[float], vectors: np.ndarray, lengths: Sequence[int], variant: Variant) -> list[int]:
    """Indices of the candidates in the order chosen, at most `max_selected_answer_candidates`.

    `relevance` (n,), on any scale; `vectors` (n, d) of unit length; `lengths` (n,) in words. The first
    `max_answer_sentences` are chosen among those that still fit `max_answer_words`; equal gains keep
    the order of the candidates.
    """
    # Rounded, so that the last bits of a product of matrices decide nothing.
    similarity = np.round(np.asarray(vectors, float) @ np.asarray(vectors, float).T, 6)
    gain = {"mmr": _marginal_relevance, "coverage": _coverage}[variant.sentence_selection](relevance, similarity, variant)
    chosen: list[int] = []
    used = 0
    while len(chosen) < min(variant.max_selected_answer_candidates, len(lengths)):
        rest = [i for i in range(len(lengths)) if i not in chosen]
        fitting = [i for i in rest if used + lengths[i] <= variant.max_answer_words]
        if not fitting or len(chosen) >= variant.max_answer_sentences:
            fitting, used = rest, variant.max_answer_words
        best = max(fitting, key=lambda i: (round(gain(i, chosen), 6), -i))
        chosen.append(best)
        used += lengths[best]
    return chosen


def _marginal_relevance(relevance: Sequence[float], similarity: np.ndarray, variant: Variant) -> Gain:
    """Maximal marginal relevance (Carbonell and Goldstein 1998) of a worth that may include consensus.

    worth = (1 - c) x relevance + c x consensus, each scaled to [0, 1] over the pool; consensus is the mean
    similarity to the other candidates. gain = (1 - r) x worth - r x largest similarity to a chosen one.
    """
    consensus = (similarity.sum(axis=1) - similarity.diagonal()) / max(1, len(similarity) - 1)
    share = variant.consensus_weight
    worth = (1 - share) * scaled(relevance) + share * scaled(consensus)
    penalty = variant.redundancy_weight

    def gain(i: int, chosen: list[int]) -> float:
        return float((1 - penalty) * worth[i] - penalty * similarity[i, chosen].max(initial=0.0))

    return gain


def _coverage(relevance: Sequence[float], similarity: np.ndarray, variant: Variant) -> Gain:
    """Facility location, which is submodular: the similarity of every candidate to its nearest chosen one, summed.

    The candidates in the pool stand for the aspects of the query; a sentence gains by those that no chosen
    one is as near to.
    """
    near = np.maximum(similarity, 0.0)

    def gain(i: int, chosen: list[int]) -> float:
        reached = near[:, chosen].max(axis=1, initial=0.0)
        return float(np.maximum(near[:, i] - reached, 0.0).sum())

    return gain


def scaled(values: Sequence[float]) -> np.ndarray:
    """`values` mapped to [0, 1] by their least and largest; all 0 where they are equal but for float noise."""
    data = np.asarray(values, float)
    width = np.ptp(data) if len(data) else 0.0
    noise = 1e-9 * max(1.0, np.abs(data).max(initial=0.0))
    return (data - data.min()) / width if width > noise else np.zeros_like(data)
