"""Figures: every function takes an Axes, draws on it, and returns it; `save_svg` writes a figure."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from lib import paths
from lib.text import one_line

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#9A9A9A"
FAINT, DIM = "#E5E5E5", "#595959"  # of grids and bands, and of words beside the data
# Where a relevant document is lost, in pipeline order: the earlier the darker, and only what is cited is blue.
STAGE_COLOURS = {
    "no-text": DIM,
    "below-shortlist": "#8C3B00",
    "not-selected": RED,
    "no-sentence": ORANGE,
    "not-used": "#F6D58A",
    "cited": BLUE,
}
AGREEMENT = LinearSegmentedColormap.from_list("agreement", [RED, "white", BLUE])


def save_svg(figure: Figure, path: Path) -> Path:
    """Write `figure` as SVG, atomically and with the same bytes for the same figure; returns the path.

    Letters are drawn as outlines: a page that shows the file in an `<img>` lends it no fonts, and another
    font's widths would make labels overlap. Its words for readers without sight belong in the `alt` text.
    """
    told = {"Date": None, "Creator": None}  # they would change from day to day and from version to version
    with matplotlib.rc_context({"svg.hashsalt": "workbook", "svg.fonttype": "path"}), paths.atomic(path) as file:
        figure.savefig(file, format="svg", metadata=told)
    return path


def bare(ax: Axes) -> Axes:
    """The axes without the frame's upper and right side."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def availability(ax: Axes, counts: dict[str, int]) -> Axes:
    """Bars of how many query-document instances use which text (the shape of the paper's Table 1)."""
    names = list(counts)
    bars = ax.barh(names, [counts[name] for name in names], color=[BLUE, ORANGE, RED, GREY][: len(names)])
    total = sum(counts.values()) or 1
    ax.bar_label(bars, [f"{counts[n]} ({counts[n] / total:.0%})" for n in names], padding=3)
    ax.set(xlabel="query-document instances", xlim=(0, max(counts.values()) * 1.25 or 1))
    ax.invert_yaxis()
    return bare(ax)


def years(ax: Axes, values: Sequence[int | None]) -> Axes:
    """Documents by year of publication; the number of undated ones stands in the title."""
    known = [year for year in values if year]
    bins = np.arange(min(known, default=2000), max(known, default=2001) + 2) - 0.5
    ax.hist(known, bins=bins, color=BLUE, rwidth=0.85)
    ax.set(xlabel="year of publication", ylabel="documents", title=f"{len(values) - len(known)} undated")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    return bare(ax)


def chunk_lengths(ax: Axes, lengths: dict[str, Sequence[int]], budget: int) -> Axes:
    """Box plots of chunk lengths in words, one a chunker: quartiles, whiskers at the 5th and 95th percentile."""
    names = list(lengths)
    ax.boxplot(
        [lengths[name] for name in names],
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": "#CFE3F1", "edgecolor": BLUE},
        medianprops={"color": RED, "linewidth": 2},
        widths=0.6,
    )
    ax.set_yticks(range(1, len(names) + 1), [f"{name}  (n = {len(lengths[name])})" for name in names])
    ax.axvline(budget, color=GREY, linestyle=":", linewidth=1)
    ax.annotate(f"budget {budget}", (budget, 1.01), xycoords=("data", "axes fraction"), va="bottom", ha="center", color=DIM)
    widest = max([budget, *(np.percentile(values, 95) for values in lengths.values() if len(values))])
    ax.set(xlabel="words in a chunk", xlim=(0, 1.1 * widest))
    ax.invert_yaxis()
    return bare(ax)


def drift(ax: Axes, drifts: np.ndarray, threshold: float) -> Axes:
    """Histogram of adjacent-sentence drift, 1 - cosine, with the boundary threshold."""
    share = float((drifts > threshold).mean()) if len(drifts) else 0.0
    ax.hist(np.clip(drifts, 0, 2), bins=np.linspace(0, 2, 81), color=BLUE)
    ax.axvline(threshold, color=RED, linewidth=2)
    told = f"{share:.1%} of pairs lie above {threshold:g}"
    ax.annotate(told, (threshold, 1.01), xycoords=("data", "axes fraction"), va="bottom", color=RED)
    ax.set(xlabel="drift between adjacent sentences (1 − cosine)", ylabel="sentence pairs")
    ax.set_xlim(-0.02, max([1.2, *drifts[drifts > 1.2] + 0.05]))
    return bare(ax)


def rank_lines(ax: Axes, movement: pd.DataFrame, relevant: set[str]) -> Axes:
    """How the passages' ranks move from stage to stage; relevant documents' passages in colour, rank 1 on top."""
    names = [column for column in movement.columns if column != "doc_id"]
    for _, row in movement.sort_values("doc_id", key=lambda ids: ids.isin(relevant)).iterrows():
        hit = row["doc_id"] in relevant
        ranks = row[names].astype(float)
        ax.plot(range(len(names)), ranks, color=BLUE if hit else GREY, alpha=0.9 if hit else 0.35, marker="o", markersize=4)
    ax.plot([], [], color=BLUE, marker="o", label="relevant document")
    ax.plot([], [], color=GREY, marker="o", label="other document")
    ax.set_xticks(range(len(names)), names)
    ax.set(ylabel="rank of the passage", xlim=(-0.3, len(names) - 0.7))
    ax.invert_yaxis()
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return bare(ax)


def stacked_terms(ax: Axes, terms: pd.DataFrame) -> Axes:
    """The terms of the reranking score, stacked, one bar a passage in rank order."""
    left = np.zeros(len(terms))
    for column, colour in zip(terms.columns, (BLUE, ORANGE, RED), strict=True):
        ax.bar(range(1, len(terms) + 1), terms[column], bottom=left, color=colour, label=column.replace("_", " "))
        left += terms[column].to_numpy()
    ax.set(xlabel="rank after reranking", ylabel="score")
    ax.legend(frameon=False)
    return bare(ax)


def gained_and_lost(ax: Axes, totals: pd.DataFrame) -> Axes:
    """Documents that enter (up) and leave (down) the evidence at each stage; columns `gained` and `lost`."""
    ax.bar(totals.index, totals["gained"], color=BLUE, label="gained")
    ax.bar(totals.index, -totals["lost"], color=RED, label="lost")
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set(ylabel="documents with evidence, all queries")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")
    ax.legend(frameon=False)
    return bare(ax)


def answer_lengths(ax: Axes, lengths: Sequence[int], budget: int) -> Axes:
    """Words of each answer in the slice's order, with the word budget as a line."""
    ax.bar(range(1, len(lengths) + 1), lengths, color=BLUE)
    ax.axhline(budget, color=RED, linestyle=":")
    ax.annotate(f"budget {budget}", (0.995, budget), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=RED)
    ax.set(xlabel="query", ylabel="words in the answer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return bare(ax)


def leaderboard(ax: Axes, table: pd.DataFrame, label: str, indistinguishable: Collection[str] | None = None) -> Axes:
    """A dot with its interval for each run; columns `mean`, `low`, `high`, best on top, runs without a value below.

    `indistinguishable` holds the runs that a test does not tell from the best: these and the best are
    filled, the others hollow. With None, where nothing was tested, all are alike.
    """
    shown = table.sort_values("mean", ascending=False, kind="stable")
    best = shown["mean"] == shown["mean"].max()
    alike = best | shown.index.isin(list(shown.index if indistinguishable is None else indistinguishable))
    for chosen, colour, fill, words in (
        (alike, BLUE, BLUE, "not distinguishable from the best"),
        (~alike, GREY, "white", "distinguishable from the best"),
    ):
        _dots(ax, shown[chosen], np.flatnonzero(chosen), colour, fill, words)
    _rows(ax, [_name(run) for run in shown.index], shown["mean"])
    _x_label(ax, label)
    ax.set_xlim(_limits(shown[["mean", "low", "high"]].to_numpy(float)))
    if indistinguishable is not None:
        _legend(ax)
    return _with_zero(ax)


def differences(
    ax: Axes,
    rows: Sequence[Any],
    noise: float | None = None,
    label: str = "difference of the means, first − second, with 95 % interval",
    alpha: float = 0.05,
) -> Axes:
    """A dot with its interval for each pair of runs, largest difference on top; draw at `differences_height(len(rows))`.

    A row has the fields `first`, `second`, `difference`, `low`, `high` and `p_holm`; pairs with
    `p_holm` at most `alpha` are filled, in colour. `noise` is the half width of a band around zero: a difference
    within it is no larger than that of two runs of the same system. Raises ValueError if it is negative.
    """
    if noise is not None and not noise >= 0:
        raise ValueError(f"noise must be a number of at least 0, not {noise}")
    given = [(f"{_name(r.first, 26)} − {_name(r.second, 26)}", r.difference, r.low, r.high, r.p_holm) for r in rows]
    shown = pd.DataFrame(given, columns=["pair", "mean", "low", "high", "p"])
    shown = shown.sort_values("mean", ascending=False, kind="stable", ignore_index=True)
    differ = shown["p"].astype(float) <= alpha
    _dots(ax, shown[differ], np.flatnonzero(differ), BLUE, BLUE, f"differs (Holm-corrected p ≤ {alpha:g})", 5)
    _dots(ax, shown[~differ], np.flatnonzero(~differ), GREY, "white", "not distinguishable", 5)
    size = _pair_row(len(shown))[0]
    _rows(ax, list(shown["pair"]), shown["mean"], size)
    reach = [0.0] if noise is None else [-noise, 0.0, noise]
    ax.set_xlim(_limits(np.append(shown[["mean", "low", "high"]].to_numpy(float), reach)))
    _x_label(ax, label)
    _legend(ax, size)
    if noise is not None:
        _noise_band(ax, noise, len(shown), size)
    return _with_zero(ax)


def differences_height(n: int) -> float:
    """Height in inches of a figure of `n` differences, at which their labels are readable."""
    return 1.5 + n * _pair_row(n)[1]


def _pair_row(n: int) -> tuple[int, float]:
    """Size of the letters, in points, and height of a row, in inches, for `n` pairs."""
    return (9, 0.22) if n <= 20 else (8, 0.17)


def _noise_band(ax: Axes, noise: float, row: int, size: float) -> None:
    """The band from -noise to noise, named in a row of its own below the others."""
    ax.axvspan(-noise, noise, color=FAINT, zorder=0)
    ax.set_ylim(row + 0.6, -0.6)
    low, high = ax.get_xlim()
    to_the_right = high - noise >= -noise - low
    place, side = (noise, "left") if to_the_right else (-noise, "right")
    ax.annotate(f" noise floor ±{noise:.2g} ", (place, row), ha=side, va="center", color=DIM, fontsize=size)


def agreement_map(ax: Axes, taus: pd.DataFrame) -> Axes:
    """Kendall's tau of every pair of measures as coloured cells with their numbers; NaN is grey with a dash.

    The diagonal, where each measure meets itself, stays empty. There is no colour bar, as every cell has
    its number. `taus` need not be symmetric: the halves may show two kinds of agreement.
    """
    n = len(taus)
    values = taus.to_numpy(float)
    shown = np.where(np.eye(n, dtype=bool), np.nan, values)
    ax.imshow(shown, cmap=AGREEMENT, norm=Normalize(-1, 1), aspect="auto")
    size = 9 if n <= 8 else 8 if n <= 12 else 7
    for i, j in ((i, j) for i in range(n) for j in range(n) if i != j):
        missing = np.isnan(values[i, j])
        colour = FAINT if missing else AGREEMENT((values[i, j] + 1) / 2)
        if missing:
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, color=FAINT, linewidth=0))
        ax.text(j, i, _short_number(values[i, j]), ha="center", va="center", color=_ink(colour), fontsize=size)
    names = max(size, 8)
    ax.set_xticks(range(n), [_name(c) for c in taus.columns], rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(n), [_name(c) for c in taus.index])
    for text in [*ax.get_xticklabels(), *ax.get_yticklabels()]:
        text.set(fontsize=names, parse_math=False)
    _x_label(ax, "Kendall's tau (1: same order of the runs, −1: reverse, –: undefined)")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def loss_bars(ax: Axes, counts: pd.DataFrame) -> Axes:
    """Relevant documents by the stage that lost them, a stacked bar a run from the top; columns as in `STAGE_COLOURS`.

    A count is written where its segment has room for it. Raises ValueError for a column that is no stage.
    """
    unknown = [column for column in counts.columns if column not in STAGE_COLOURS]
    if unknown:
        raise ValueError(f"no stage is called {unknown[0]!r}; stages: {', '.join(STAGE_COLOURS)}")
    widest = max(counts.sum(axis=1).max() if len(counts) else 0, 1)
    left = np.zeros(len(counts))
    for stage in counts.columns:
        colour, widths = STAGE_COLOURS[stage], counts[stage].to_numpy(float)
        bars = ax.barh(range(len(counts)), widths, left=left, color=colour, edgecolor="white", label=stage)
        # A digit at 8 points takes about 2 % of the narrowest axes that names leave.
        texts = [f"{w:.0f}" if w / widest >= 0.012 + 0.02 * len(f"{w:.0f}") else "" for w in widths]
        ax.bar_label(bars, texts, label_type="center", color=_ink(colour), fontsize=8)
        left += widths
    _rows(ax, [_name(run) for run in counts.index])
    ax.grid(visible=False)
    ax.set(xlabel="relevant documents, all queries", xlim=(0, 1.01 * widest))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(ax, 9, columns=3)
    return bare(ax)


def along(ax: Axes, at: Sequence[float | str], table: pd.DataFrame, label: str, measure: str) -> Axes:
    """A measure along the values of a parameter, a dot with its interval each; columns `mean`, `low` and `high`.

    Numbers stand at their place on the axis, anything else at equal distances in the given order.
    """
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in at)
    if numbers:  # a line goes from left to right
        order = np.argsort(np.array(at, float), kind="stable")
        at, table = [at[n] for n in order], table.iloc[order]
    places = [float(value) for value in at] if numbers else list(range(len(at)))
    ax.vlines(places, table["low"], table["high"], color=GREY, linewidth=3)
    ax.plot(places, table["mean"], "o-" if numbers else "o", color=BLUE, markersize=8, linewidth=1)
    ax.set_xticks(places, [f"{value:g}" if numbers else str(value) for value in at], parse_math=False)
    ax.set_xlabel(label, parse_math=False)
    ax.set_ylabel(measure, parse_math=False)
    ax.margins(x=0.08)
    return bare(ax)


def query_grid(ax: Axes, values: pd.DataFrame, label: str) -> Axes:
    """One measure as a heat map, a row a run and a column a query; hatched where there is no value.

    Queries are named where their ids fit, and numbered from 1 where they do not.
    """
    data = values.to_numpy(float)
    runs, queries = data.shape
    there = data[~np.isnan(data)]
    span = Normalize(there.min(), there.max()) if len(there) else Normalize(0, 1)
    whole = (0.5, queries + 0.5, runs - 0.5, -0.5)
    image = ax.imshow(np.ma.masked_invalid(data), cmap="cividis", norm=span, aspect="auto", extent=whole, zorder=1)
    if len(there):
        ax.figure.colorbar(image, ax=ax).set_label(label, parse_math=False)
    if len(there) < data.size:
        hatch = {"facecolor": "white", "edgecolor": GREY, "hatch": "////", "linewidth": 0}
        ax.add_patch(Rectangle((0.5, -0.5), queries, runs, zorder=0, **hatch))
        handle = Patch(label="no value", **hatch)
        ax.legend(handles=[handle], frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    ax.set_yticks(range(runs), [_name(run) for run in values.index], parse_math=False)
    ax.hlines(np.arange(runs - 1) + 0.5, 0.5, queries + 0.5, color="white", linewidth=1)
    _query_ticks(ax, [_name(query) for query in values.columns])
    ax.set(xlim=(0.5, queries + 0.5), ylim=(runs - 0.5, -0.5))
    ax.spines[:].set_visible(False)
    return ax


def _query_ticks(ax: Axes, ids: list[str]) -> None:
    """The ids under their columns where at most 48 letters stand in a row, else numbers."""
    if len(ids) * (max(map(len, ids), default=0) + 1) <= 48:
        ax.set_xticks(range(1, len(ids) + 1), ids, fontsize=8, parse_math=False)
        ax.set_xlabel("query_id")
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        ax.set_xlabel(f"query (numbered 1 to {len(ids)} in the order of the table)")


def _dots(ax: Axes, rows: pd.DataFrame, at: Sequence[int], colour: str, fill: str, words: str, size: float = 8) -> None:
    """Dots at `mean` with lines from `low` to `high`, and an entry for the legend if there is any."""
    if not len(rows):
        return
    ax.hlines(at, rows["low"], rows["high"], color=colour, alpha=0.5, linewidth=size / 3)
    ax.plot(rows["mean"], at, "o", color=colour, markerfacecolor=fill, markersize=size, label=words)


def _rows(ax: Axes, names: list[str], values: Sequence[float] = (), size: float | None = None) -> None:
    """Names of rows from the top down; a row whose value is NaN says that it has none."""
    ax.set_yticks(range(len(names)), names, fontsize=size, parse_math=False)
    ax.set_ylim(len(names) - 0.4, -0.6)
    for row in np.flatnonzero(np.isnan(np.asarray(values, dtype=float))):
        ax.annotate(" no value", (0, row), xycoords=("axes fraction", "data"), va="center", color=DIM, fontsize=size)
    ax.grid(axis="x", color=FAINT)
    ax.set_axisbelow(True)


def _legend(ax: Axes, size: float | None = None, columns: int = 1) -> None:
    """The legend above the axes, flush right: where it is wide it reaches over the names, not out of the figure."""
    if ax.get_legend_handles_labels()[0]:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
        ax.legend(frameon=False, fontsize=size, ncols=columns, **place)


def _x_label(ax: Axes, label: str) -> None:
    """The label below, flush right for the same reason as the legend."""
    ax.set_xlabel(label, loc="right", parse_math=False)


def _with_zero(ax: Axes) -> Axes:
    """The axes with a line at zero if zero is in sight."""
    low, high = ax.get_xlim()
    if low < 0 < high:
        ax.axvline(0, color="black", linewidth=0.8, zorder=1)
    return bare(ax)


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Ends of an axis that shows all finite values with a small margin."""
    there = values[np.isfinite(values)]
    low, high = (there.min(), there.max()) if len(there) else (0.0, 1.0)
    margin = max(0.04 * (high - low), 0.02 * max(abs(low), abs(high)), 1e-3)
    return float(low - margin), float(high + margin)


def _name(text: Any, longest: int = 40) -> str:
    """A name on one line; a very long one loses its middle."""
    line = one_line(str(text))
    return line if len(line) <= longest else f"{line[: longest // 2 - 1]}…{line[-(longest // 2) :]}"


def _short_number(value: float) -> str:
    """Two decimals without the zero before the point, as in papers: `.25`, `−.30`, `1.00`; a dash for NaN."""
    if math.isnan(value):
        return "–"
    digits = f"{abs(value):.2f}"
    sign = "−" if value < 0 and float(digits) else ""
    return sign + digits.removeprefix("0")


def _ink(colour: Any) -> str:
    """Black or white, whichever stands out more against `colour` (the contrast ratio of WCAG 2.1 is at least 4.5)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "white"
