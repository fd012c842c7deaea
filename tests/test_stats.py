import math

import numpy as np
import pytest
from scipy.stats import binom

from lib import scoring
from lib.stats import agreement, bootstrap_interval, intervals, kendall


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


def test_kendalls_tau_by_hand():
    """Of six pairs of ranks 1 2 3 4 and 1 3 2 4, five agree and one does not; a tie on one side takes sqrt out of tau-b."""
    assert kendall([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx((5 - 1) / 6)
    assert kendall([1, 2, 3], [1, 1, 2]) == pytest.approx(2 / math.sqrt(3 * 2))
    assert math.isnan(kendall([1, 1, 1], [1, 2, 3]))


def test_agreement_by_hand_leaves_out_what_one_side_lacks():
    """Over q1 and q2 the means are a < b < c on both sides; within q1 tau is 1, within q2 -1; q3 lacks a value."""
    first = {"a": {"q1": 1, "q2": 2, "q3": 9}, "b": {"q1": 4, "q2": 1, "q3": None}, "c": {"q1": 7, "q2": 3, "q3": 0}}
    second = {"a": {"q1": 1, "q2": 2, "q3": 1}, "b": {"q1": 2, "q2": 3, "q3": 2}, "c": {"q1": 6, "q2": 1, "q3": 3}, "d": {}}
    second = {run: row for run, row in second.items() if row}
    found = agreement(first, second)
    assert (found.n_runs, found.n_queries) == (3, 2)
    assert found.over_runs == pytest.approx(1.0)
    assert found.per_query == pytest.approx((1 + -1) / 2)
    assert found.runs_low <= found.over_runs <= found.runs_high


def test_intervals_leave_out_what_has_no_value():
    table = intervals({"a": {"q1": 0.5, "q2": None, "q3": 0.5}, "b": {"q1": None}})
    assert table.to_dict("index") == {"a": {"mean": 0.5, "low": 0.5, "high": 0.5}}
    assert intervals({"b": {"q1": None}}).empty


def test_the_proxies_agree_with_the_published_figures_as_notebooks_05_and_06_say(real_data, embedded, tmp_path):
    official = scoring.agreement_with_official(real_data / "published", embedded, tmp_path)
    judge = scoring.agreement_with_judge(real_data / "published", embedded, tmp_path)
    said = {
        "tfc1": (0.96, 0.94),
        "bertscore_f1[all-MiniLM-L6-v2]": (0.47, 0.51),
        "nugget_coverage[proxy]": (0.38, 0.14),
        "average_grade[proxy]": (0.29, 0.16),
        "correctness[proxy]": (0.31, 0.19),
        "completeness[proxy]": (0.48, 0.32),
    }
    found = {name: tuple(row[["over_runs", "per_query"]]) for table in (official, judge) for name, row in table.iterrows()}
    assert found.keys() == said.keys()
    for name, values in said.items():
        assert found[name] == pytest.approx(values, abs=0.0051), name
