"""Figures: every function takes an Axes, draws on it, and returns it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#9A9A9A"


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
    ax.annotate(f"budget {budget}", (budget, 0.99), xycoords=("data", "axes fraction"), va="top", ha="right", color=GREY)
    widest = max([budget, *(np.percentile(values, 95) for values in lengths.values() if len(values))])
    ax.set(xlabel="words in a chunk", xlim=(0, 1.1 * widest))
    ax.invert_yaxis()
    return bare(ax)


def drift(ax: Axes, drifts: np.ndarray, threshold: float) -> Axes:
    """Histogram of adjacent-sentence drift, 1 - cosine, with the boundary threshold."""
    share = float((drifts > threshold).mean()) if len(drifts) else 0.0
    ax.hist(np.clip(drifts, 0, 2), bins=np.linspace(0, 2, 81), color=BLUE)
    ax.axvline(threshold, color=RED, linewidth=2)
    ax.annotate(
        f" {threshold:g}: {share:.1%} of pairs lie above", (threshold, 0.95), xycoords=("data", "axes fraction"), color=RED
    )
    ax.set(xlabel="drift between adjacent sentences (1 − cosine)", ylabel="sentence pairs")
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


def interval_dots(ax: Axes, table: pd.DataFrame, label: str) -> Axes:
    """A dot with its interval for each row; columns `mean`, `low`, `high`, best on top."""
    shown = table.sort_values("mean")
    positions = range(len(shown))
    ax.hlines(positions, shown["low"], shown["high"], color=GREY, linewidth=3)
    ax.plot(shown["mean"], positions, "o", color=BLUE, markersize=8)
    ax.set_yticks(positions, shown.index)
    ax.set(xlabel=label, xlim=(-0.03, 1.03))
    ax.grid(axis="x", color="#E5E5E5")
    ax.set_axisbelow(True)
    return bare(ax)
