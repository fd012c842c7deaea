"""Score tables -> intervals and agreement."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd


def bootstrap_interval(values: Sequence[float], seed: int = 0, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over queries: (low, high), NaN for no value.

    10,000 resamples of `values` with replacement, drawn from `seed`; the interval of a constant is a point.
    """
    data = np.asarray(values, dtype=float)
    if not len(data):
        return float("nan"), float("nan")
    if len(set(data)) == 1:
        return float(data[0]), float(data[0])
    from scipy.stats import bootstrap

    rng = np.random.default_rng(seed)
    found = bootstrap((data,), np.mean, n_resamples=10_000, confidence_level=level, method="percentile", rng=rng)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def intervals(table: "Table") -> pd.DataFrame:
    """Mean of each run with its bootstrap interval; columns `mean`, `low`, `high`, runs without a value left out."""
    there = {run: [value for value in row.values() if value is not None] for run, row in table.items()}
    rows = {run: [sum(v) / len(v), *bootstrap_interval(v)] for run, v in there.items() if v}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high"])


class Agreement(NamedTuple):
    """Kendall's tau-b between two measures of the same runs, with 95 % bootstrap intervals over queries.

    `over_runs` compares the runs' means; `per_query` is the mean over queries of the tau within each,
    `n_queries` of which have one (where either measure ties all runs there is none). NaN where undefined.
    """

    over_runs: float
    runs_low: float
    runs_high: float
    per_query: float
    query_low: float
    query_high: float
    n_runs: int
    n_queries: int


Table = dict[str, dict[str, float | None]]  # run -> query_id -> value


def agreement(first: Table, second: Table, seed: int = 0, resamples: int = 2000) -> Agreement:
    """How far two measures rank runs alike, over the runs and queries for which both have all values."""
    runs = sorted(first.keys() & second.keys())
    shared = set.intersection(*(first[run].keys() & second[run].keys() for run in runs)) if runs else set()
    queries = sorted(q for q in shared if all(t[run][q] is not None for t in (first, second) for run in runs))
    tables = [np.array([[table[run][q] for q in queries] for run in runs], dtype=float) for table in (first, second)]
    a, b = (table.reshape(len(runs), len(queries)) for table in tables)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(queries), (resamples, len(queries))) if queries else np.zeros((0, 0), int)
    taus = np.array([kendall(a[:, chosen].mean(axis=1), b[:, chosen].mean(axis=1)) for chosen in drawn])
    taus = taus[~np.isnan(taus)]
    low, high = np.percentile(taus, [2.5, 97.5]) if len(taus) else (np.nan, np.nan)
    within = [tau for tau in (kendall(a[:, n], b[:, n]) for n in range(len(queries))) if not np.isnan(tau)]
    whole = kendall(a.mean(axis=1), b.mean(axis=1)) if queries else np.nan
    mean = float(np.mean(within)) if within else np.nan
    return Agreement(whole, float(low), float(high), mean, *bootstrap_interval(within, seed), len(runs), len(within))


def kendall(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b in [-1, 1]; NaN where all values of one side are equal."""
    from scipy.stats import kendalltau

    if len(set(first)) < 2 or len(set(second)) < 2:
        return float("nan")
    return float(kendalltau(first, second).statistic)
