"""Score tables -> intervals, paired tests and agreement."""

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.errors import WorkbookError

Row = dict[str, float | None]  # query_id -> value
Table = dict[str, Row]  # run -> query_id -> value

RESAMPLES = 10_000  # of the bootstrap interval of a mean
NOISE = 1e-12  # more than floating point adds to a value, relative to it
CELLS = 4_000_000  # numbers in a block of a resampling matrix: thousands of queries must not fill the memory


def bootstrap_interval(values: Sequence[float], seed: int = 0, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over queries: (low, high), NaN for no value.

    RESAMPLES resamples of `values` with replacement, drawn from `seed`; the interval of a constant is a point.
    """
    data = np.asarray(values, dtype=float)
    if not len(data):
        return float("nan"), float("nan")
    if len(set(data)) == 1:
        return float(data[0]), float(data[0])
    from scipy.stats import bootstrap

    drawn = {"n_resamples": RESAMPLES, "batch": max(1, CELLS // len(data)), "rng": np.random.default_rng(seed)}
    found = bootstrap((data,), np.mean, confidence_level=level, method="percentile", **drawn)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def intervals(table: Table) -> pd.DataFrame:
    """Mean of each run with its bootstrap interval; columns `mean`, `low`, `high`, runs without a value left out."""
    there = {run: [value for value in row.values() if value is not None] for run, row in table.items()}
    rows = {run: [sum(v) / len(v), *bootstrap_interval(v)] for run, v in there.items() if v}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high"])


class Agreement(NamedTuple):
    """Kendall's tau-b between two measures of the same runs, with 95 % bootstrap intervals over queries.

    That of `over_runs` holds the middle of the taus over resampled queries. Resampling adds noise to the
    means and so pulls tau towards 0: the interval lies low, and may even leave out the tau itself.
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


def agreement(first: Table, second: Table, seed: int = 0, resamples: int = 2000) -> Agreement:
    """How far two measures rank runs alike, over the runs and queries for which both have all values."""
    runs = sorted(first.keys() & second.keys())
    shared = set.intersection(*(first[run].keys() & second[run].keys() for run in runs)) if runs else set()
    queries = sorted(q for q in shared if all(t[run][q] is not None for t in (first, second) for run in runs))
    tables = [np.array([[table[run][q] for q in queries] for run in runs], dtype=float) for table in (first, second)]
    a, b = (table.reshape(len(runs), len(queries)) for table in tables)
    taus = _resampled_taus(a.T, b.T, seed, resamples) if queries else np.array([])
    low, high = np.percentile(taus, [2.5, 97.5]) if len(taus) else (np.nan, np.nan)
    within = [float(tau) for tau in kendalls(a.T, b.T) if not np.isnan(tau)]
    # Rounded, so that means which differ by float noise tie.
    whole = kendall(a.mean(axis=1).round(12), b.mean(axis=1).round(12)) if queries else np.nan
    mean = float(np.mean(within)) if within else np.nan
    return Agreement(whole, float(low), float(high), mean, *bootstrap_interval(within, seed), len(runs), len(within))


def agreements(tables: dict[str, Table]) -> pd.DataFrame:
    """The agreement of every pair of measures: columns `first`, `second` and the fields of `Agreement`."""
    pairs = itertools.combinations(tables, 2)
    rows = [(first, second, *agreement(tables[first], tables[second])) for first, second in pairs]
    return pd.DataFrame(rows, columns=["first", "second", *Agreement._fields])


def _resampled_taus(a: np.ndarray, b: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    """Tau-b of the runs' means over each resample of the queries, where there is one; `a` and `b` are queries x runs."""
    drawn = _resampled(len(a), resamples, seed, cells=a.size)
    taus = np.concatenate(
        [kendalls(a[chosen].mean(axis=1).round(12), b[chosen].mean(axis=1).round(12)) for chosen in drawn]
    )
    return taus[~np.isnan(taus)]


def _resampled(n: int, resamples: int, seed: int, cells: int) -> Iterator[np.ndarray]:
    """Indices of resamples of n values, resamples x n, in blocks; `cells` numbers are needed for each resample."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, n, (rows, n)) for rows in _blocks(resamples, cells))


def _blocks(rows: int, cells: int) -> Iterator[int]:
    size = max(1, CELLS // max(1, cells))
    return (min(size, rows - start) for start in range(0, rows, size))


def kendall(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b in [-1, 1]; NaN where all values of one side are equal."""
    from scipy.stats import kendalltau

    if len(set(first)) < 2 or len(set(second)) < 2:
        return float("nan")
    return float(kendalltau(first, second).statistic)


def kendalls(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`kendall` of each row of two arrays of one shape: all rows at once, with the same digits."""
    agreeing, first_untied, second_untied = np.zeros((3, len(first)))
    for n in range(first.shape[1] - 1):
        a, b = (np.sign(values[:, n, None] - values[:, n + 1 :]) for values in (first, second))
        agreeing += (a * b).sum(axis=1)
        first_untied += np.abs(a).sum(axis=1)
        second_untied += np.abs(b).sum(axis=1)
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN of a side without two different values
        return np.clip(agreeing / np.sqrt(first_untied) / np.sqrt(second_untied), -1, 1)


ALIKE = "not distinguishable"


class Difference(NamedTuple):
    """How two runs differ on one measure, over the `n` queries for which both have a value.

    `difference` is mean(first) - mean(second), `low` and `high` are its 95 % bootstrap interval; NaN where n is 0.
    `p` is that of the paired sign-flip test, `p_holm` the same corrected by Holm over all pairs of runs on the
    measure. The family is one measure because each measure asks its own question, whether any of the runs differ
    on it, and its reader looks through all pairs for the answer; another measure in the table is another question.
    `detectable` is the smallest true difference that a paired t test at Holm's first level, 0.05 / pairs, would
    find four times in five; NaN where the sign-flip test could find none, however large (see `can_detect`).
    """

    measure: str
    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    detectable: float
    n: int
    verdict: str  # ALIKE, `<first> higher` or `<second> higher`


def pairwise(
    table: Table, measure: str, seed: int = 0, resamples: int | None = None, level: float = 0.05
) -> list[Difference]:
    """Every pair of runs, in the order of the table, compared on one measure.

    `resamples` are 20,000, or more where Holm's first level asks for it.

    Fast because one matrix of random signs serves all pairs, and one matrix of resampled queries all pairs with as
    many queries. Raises WorkbookError where so few resamples could show no difference among so many pairs.
    """
    from statsmodels.stats.multitest import multipletests

    pairs = list(itertools.combinations(table, 2))
    if not pairs:
        return []
    rows = [paired(table[first], table[second]) for first, second in pairs]
    resamples = max(20_000, math.ceil(4 * len(pairs) / level)) if resamples is None else resamples
    _check_resamples(measure, rows, resamples, level)
    p = sign_flip_tests(rows, _noise(table), resamples, seed)
    p_holm = multipletests(p, alpha=level, method="holm")[1]
    ends = _mean_intervals([list(row.values()) for row in rows], seed)
    found = []
    for (first, second), row, interval, *tested in zip(pairs, rows, ends, p, p_holm, strict=True):
        mean = _mean(row.values())
        verdict = ALIKE if tested[1] > level else f"{first if mean > 0 else second} higher"
        able = can_detect(sum(value != 0 for value in row.values()), len(pairs), level)
        needed = detectable(row.values(), level / len(pairs)) if able else math.nan
        found.append(Difference(measure, first, second, mean, *interval, *map(float, tested), needed, len(row), verdict))
    return found


def paired(first: Row, second: Row) -> dict[str, float]:
    """query_id -> first - second where both have a value, in order of query_id; 0 where only float noise differs."""
    both = [q for q in sorted(first.keys() & second.keys()) if first[q] is not None and second[q] is not None]
    return {q: 0.0 if math.isclose(first[q], second[q], rel_tol=NOISE) else first[q] - second[q] for q in both}


def sign_flip_tests(rows: Sequence[dict[str, float]], noise: float, resamples: int, seed: int = 0) -> np.ndarray:
    """Two-sided p of the mean of each row of paired differences, against each query's sign being a coin's.

    Exact, over all sign patterns, where there are at most `resamples`; otherwise (count + 1) / (resamples + 1) over
    random ones. A query without a difference has no sign to flip: it adds no pattern. Sums within `noise` of the
    observed one count as equally extreme. A row without any difference has one pattern, so its p is 1.
    """
    queries = sorted(set().union(*rows))
    table = np.array([[row.get(q, 0.0) for row in rows] for q in queries]).reshape(len(queries), len(rows))
    reached = np.abs(table.sum(axis=0)) - noise
    p = np.empty(len(rows))
    drawn = np.array([not _exact(row, resamples) for row in rows], dtype=bool)
    for n in np.flatnonzero(~drawn):
        p[n] = np.mean(np.abs(_all_sums(table[:, n])) >= reached[n])
    if drawn.any():
        p[drawn] = (_count_reached(table[:, drawn], reached[drawn], resamples, seed) + 1) / (resamples + 1)
    return p


def _exact(row: dict[str, float], resamples: int) -> bool:
    return 2 ** sum(value != 0 for value in row.values()) <= resamples


def _all_sums(differences: np.ndarray) -> np.ndarray:
    """The sums under every pattern of signs."""
    sums = np.zeros(1)
    for value in differences[differences != 0]:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _count_reached(table: np.ndarray, reached: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    count = np.zeros(table.shape[1], dtype=int)
    for rows in _blocks(resamples, sum(table.shape)):
        signs = 2.0 * rng.integers(0, 2, (rows, len(table)), dtype=np.int8) - 1
        count += (np.abs(signs @ table) >= reached).sum(axis=0)
    return count


def _check_resamples(measure: str, rows: Sequence[dict[str, float]], resamples: int, level: float) -> None:
    """Random patterns give no p below 1 / (resamples + 1), which Holm multiplies by the number of pairs."""
    needed = math.ceil(len(rows) / level)
    if resamples < needed and not all(_exact(row, resamples) for row in rows):
        raise WorkbookError(
            f"{measure}: {resamples} resamples can show no difference among {len(rows)} pairs of runs; "
            f"compare fewer runs or set resamples to {needed} or more"
        )


def _noise(table: Table) -> float:
    """How far two sums of differences lie apart at most when they are equal but for float noise."""
    sizes = [abs(value) for row in table.values() for value in row.values() if value is not None]
    return NOISE * max(sizes, default=0.0) * max(map(len, table.values()), default=0)


def _mean(values: Collection[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _mean_intervals(rows: Sequence[Sequence[float]], seed: int) -> list[tuple[float, float]]:
    """`bootstrap_interval` of each row, from one matrix of resamples for all rows of one length."""
    found: dict[int, tuple[float, float]] = {}
    for length in {len(row) for row in rows}:
        places = [n for n, row in enumerate(rows) if len(row) == length]
        ends = _mean_intervals_of_table(np.array([rows[n] for n in places], dtype=float), seed)
        found.update(zip(places, ends, strict=True))
    return [found[n] for n in range(len(rows))]


def _mean_intervals_of_table(table: np.ndarray, seed: int) -> list[tuple[float, float]]:
    n = table.shape[1]
    if not n:
        return [(math.nan, math.nan)] * len(table)
    drawn = _resampled(n, RESAMPLES, seed, cells=n + len(table))
    means = np.concatenate([_shares(chosen) @ table.T for chosen in drawn])
    ends = np.percentile(means, [2.5, 97.5], axis=0)
    return list(map(tuple, np.where(np.ptp(table, axis=1) == 0, table[:, 0], ends).T.tolist()))


def _shares(chosen: np.ndarray) -> np.ndarray:
    """How much of each resample each value makes up: indices, resamples x n -> weights of the same shape."""
    rows, n = chosen.shape
    counts = np.bincount((chosen + n * np.arange(rows)[:, None]).ravel(), minlength=rows * n)
    return counts.reshape(rows, n) / n


def detectable(differences: Collection[float], alpha: float, power: float = 0.8) -> float:
    """The minimum detectable difference: that which a two-sided paired t test at `alpha` finds with this power.

    From the standard deviation of the differences themselves; 0 where they are all equal, NaN for fewer than two.
    For `alpha` take Holm's first level, level / pairs, which the first difference to be found must pass. The t test
    stands in for the sign-flip test, which finds as much from some twenty queries on and less below: see `can_detect`.
    """
    if len(differences) < 2:
        return math.nan
    if len(set(differences)) == 1:
        return 0.0
    return _detectable_effect(len(differences), alpha, power) * float(np.std(list(differences), ddof=1))


@functools.cache
def _detectable_effect(n: int, alpha: float, power: float) -> float:
    """The minimum detectable difference in standard deviations.

    The power is that of the tail on the side of the difference, as the other one's is below 1e-6 for levels of 0.05
    and less. Not by statsmodels' `TTestPower.solve_power`: for the small levels of many pairs it meets NaN in that
    other tail and, without a warning, returns effects whose power is anything from 0 to 0.8 (0.15.0).
    """
    from scipy.optimize import brentq
    from scipy.stats import chi, nct, norm, t

    degrees = n - 1
    critical = float(t.isf(alpha / 2, degrees))
    if critical > 1e4:  # the spread of the mean is nothing beside that of its estimated deviation, and nct overflows
        return critical * chi.ppf(power, degrees) / math.sqrt(degrees * n)
    # the mean and its deviation each keep to their side with a probability of sqrt(power): more than enough
    enough = critical * chi.ppf(math.sqrt(power), degrees) / math.sqrt(degrees) + norm.ppf(math.sqrt(power))
    return brentq(lambda shift: nct.sf(critical, degrees, shift) - power, 0, enough, xtol=1e-9) / math.sqrt(n)


def smallest_p(n: int) -> float:
    """The smallest p that an exact two-sided sign-flip test of n differences can give: 2 of 2^n patterns."""
    return min(1.0, 2.0 ** (1 - n))


def can_detect(n: int, pairs: int, level: float = 0.05) -> bool:
    """Whether n queries can show any difference, however large, among so many pairs of runs after Holm.

    Five cannot for a single pair (2/32 > 0.05); 55 pairs need twelve. A query on which two runs have the same score
    counts for neither, so with equal scores more are needed.
    """
    return smallest_p(n) * pairs <= level


class Noise(NamedTuple):
    """Mean difference of two runs of one system, with its 95 % bootstrap interval over n queries; NaN where n is 0."""

    source: str
    difference: float
    low: float
    high: float
    n: int


def noise_floor(pairs: dict[str, tuple[Row, Row]]) -> list[Noise]:
    """What chance alone does to one measure: source -> (a run, another run of the same system) -> first - second."""
    rows = {source: list(paired(*two).values()) for source, two in pairs.items()}
    return [Noise(source, _mean(row), *bootstrap_interval(row), len(row)) for source, row in rows.items()]


def indistinguishable_from_best(differences: Sequence[Difference], means: dict[str, float | None]) -> list[str]:
    """The run with the highest mean (the first of equals) and those that no test tells apart from it, as in `means`.

    A run without a mean is left out. Raises WorkbookError for differences of several measures and where a test lacks.
    """
    measures = dict.fromkeys(found.measure for found in differences)
    if len(measures) > 1:
        raise WorkbookError(f"the best run is that of one measure; choose one of {', '.join(measures)}")
    verdicts = {frozenset((found.first, found.second)): found.verdict for found in differences}
    there = [run for run, mean in means.items() if mean is not None and not math.isnan(mean)]
    best = max(there, key=lambda run: means[run], default=None)
    for run in there:
        if run != best and frozenset((best, run)) not in verdicts:
            raise WorkbookError(f"no test compares the runs '{best}' and '{run}'; test all runs that have a mean")
    return [run for run in there if run == best or verdicts[frozenset((best, run))] == ALIKE]
