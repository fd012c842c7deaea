import math

import numpy as np
import pytest
from scipy.stats import binom

from lib.stats import bootstrap_interval


@pytest.mark.parametrize(("ones", "size"), [(12, 24), (5, 6), (4, 10)])
def test_the_interval_of_zeros_and_ones_is_that_of_the_binomial_distribution(ones, size):
    """The mean of a resample is Binomial(size, ones / size) / size, so its 2.5th and 97.5th percentiles are known."""
    low, high = bootstrap_interval([1.0] * ones + [0.0] * (size - ones))
    assert low * size == pytest.approx(binom.ppf(0.025, size, ones / size), abs=1e-9)
    assert high * size == pytest.approx(binom.ppf(0.975, size, ones / size), abs=1e-9)


def test_the_interval_is_that_of_a_direct_percentile_bootstrap():
    values = np.random.default_rng(5).normal(0.15, 0.05, size=47)
    resamples = np.random.default_rng(6).choice(values, size=(100_000, 47)).mean(axis=1)
    assert bootstrap_interval(values) == pytest.approx(tuple(np.percentile(resamples, [2.5, 97.5])), abs=5e-4)
    assert bootstrap_interval(values, level=0.8) == pytest.approx(tuple(np.percentile(resamples, [10, 90])), abs=5e-4)


def test_the_same_seed_gives_the_same_interval_and_another_nearly_the_same():
    values = [0.1, 0.4, 0.35, 0.8, 0.2]
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) == pytest.approx(bootstrap_interval(values, seed=4), abs=0.02)


def test_the_interval_holds_the_mean_and_lies_within_the_values():
    values = [0.1, 0.4, 0.35, 0.8, 0.2]
    low, high = bootstrap_interval(values)
    assert min(values) < low < np.mean(values) < high < max(values)


@pytest.mark.parametrize("values", [[0.3], [0.3, 0.3, 0.3], [0] * 47])
def test_the_interval_of_a_constant_is_a_point(values):
    assert bootstrap_interval(values) == (values[0], values[0])


def test_no_value_has_no_interval():
    assert all(math.isnan(end) for end in bootstrap_interval([]))
