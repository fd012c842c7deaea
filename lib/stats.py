"""Score tables -> intervals."""

from collections.abc import Sequence

import numpy as np


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
