from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402

from lib import diagnosis, plots  # noqa: E402
from lib.paths import write_text  # noqa: E402
from lib.score_tables import by_run, read_scores  # noqa: E402
from lib.stats import intervals  # noqa: E402
from tests.process import finished, python  # noqa: E402


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    figure.canvas.draw()
    plt.close(figure)


def heights(ax) -> list[float]:
    return [bar.get_height() for bar in ax.patches]


def labels(ax, axis: str) -> list[str]:
    return [tick.get_text() for tick in getattr(ax, f"get_{axis}ticklabels")()]


def notes(ax) -> str:
    return " ".join(text.get_text() for text in ax.texts)


def visible(ax, values) -> bool:
    low, high = sorted(ax.get_xlim())
    return all(low <= value <= high for value in values)


def test_availability_draws_a_bar_a_source_with_its_share(ax):
    counts = {"fullText": 222, "abstract": 248, "title": 0, "none": 0}
    assert plots.availability(ax, counts) is ax
    assert [bar.get_width() for bar in ax.patches] == [222, 248, 0, 0]
    assert labels(ax, "y") == list(counts)
    assert notes(ax) == "222 (47%) 248 (53%) 0 (0%) 0 (0%)"
    assert ax.get_xlabel()
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_availability_of_an_empty_slice_can_be_drawn(ax):
    plots.availability(ax, {"fullText": 0, "abstract": 0})
    assert [bar.get_width() for bar in ax.patches] == [0, 0]


def test_years_counts_the_documents_of_each_year_and_the_undated(ax):
    assert plots.years(ax, [2001, None, 2003, 2003, None, 2004]) is ax
    centres = [bar.get_x() + bar.get_width() / 2 for bar in ax.patches]
    assert centres == pytest.approx([2001, 2002, 2003, 2004])
    assert heights(ax) == [1, 0, 2, 1]
    assert ax.get_title() == "2 undated"
    assert ax.get_xlabel() and ax.get_ylabel()


def test_years_of_undated_documents_only(ax):
    plots.years(ax, [None, None])
    assert sum(heights(ax)) == 0
    assert ax.get_title() == "2 undated"


LENGTHS = {"rule": [100, 120, 140], "semantic": [10, 20, 30, 40], "topic-shift": [5, 5, 6]}


def medians(ax) -> list[float]:
    return [line.get_xdata()[0] for line in ax.lines if to_hex(line.get_color()) == plots.RED.lower()]


def test_chunk_lengths_draws_a_box_a_chunker_at_its_median(ax):
    assert plots.chunk_lengths(ax, LENGTHS, 140) is ax
    assert medians(ax) == [120, 25, 5]
    assert labels(ax, "y") == ["rule  (n = 3)", "semantic  (n = 4)", "topic-shift  (n = 3)"]
    assert "budget 140" in notes(ax)
    assert [140, 140] in [list(line.get_xdata()) for line in ax.lines]
    assert ax.get_xlabel()


def test_chunk_lengths_shows_boxes_of_sentences_longer_than_the_budget(ax):
    """With a budget of 20 words most chunks are single sentences that exceed it."""
    plots.chunk_lengths(ax, {"rule": [18, 25, 32, 40, 41]}, 20)
    assert medians(ax) == [32]
    assert visible(ax, medians(ax))


def test_drift_draws_every_pair_and_names_the_share_above_the_threshold(ax):
    drifts = np.array([0.0, 0.1, 0.18, 0.5, 0.67, 0.7, 0.9, 1.0])
    assert plots.drift(ax, drifts, 0.18) is ax
    assert sum(heights(ax)) == 8
    assert "0.18" in notes(ax) and "62.5%" in notes(ax)
    assert [0.18, 0.18] in [list(line.get_xdata()) for line in ax.lines]
    assert ax.get_xlabel() and ax.get_ylabel()


@pytest.mark.parametrize("value", [-2e-16, 1.25, 2.0])
def test_drift_loses_no_pair_at_the_ends_of_one_minus_a_cosine(ax, value):
    """1 - cosine lies in [0, 2]; that of equal sentences may be rounded to just below 0."""
    plots.drift(ax, np.array([0.5, value]), 0.18)
    assert sum(heights(ax)) == 2


def test_drift_without_pairs(ax):
    plots.drift(ax, np.array([]), 0.18)
    assert sum(heights(ax)) == 0


def test_rank_lines_draws_a_line_a_passage_with_relevant_documents_in_colour(ax):
    movement = pd.DataFrame(
        {"doc_id": ["d1", "d2", "d1"], "first": [1.0, 2.0, 3.0], "second": [2.0, float("nan"), 1.0]}, index=["a", "b", "c"]
    )
    assert plots.rank_lines(ax, movement, {"d1"}) is ax
    drawn = [line for line in ax.lines if len(line.get_xdata())]
    data = {(to_hex(line.get_color()), *np.nan_to_num(line.get_ydata(), nan=-1)) for line in drawn}
    blue, grey = plots.BLUE.lower(), plots.GREY.lower()
    assert data == {(blue, 1.0, 2.0), (grey, 2.0, -1.0), (blue, 3.0, 1.0)}
    assert labels(ax, "x") == ["first", "second"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["relevant document", "other document"]
    assert ax.get_ylabel()
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_stacked_terms_draws_the_terms_on_top_of_each_other(ax):
    terms = pd.DataFrame({"rrf": [0.03, 0.02], "citation_prior": [0.05, 0.0], "temporal": [0.0, 0.1]}, index=["a", "b"])
    assert plots.stacked_terms(ax, terms) is ax
    assert heights(ax) == pytest.approx([0.03, 0.02, 0.05, 0.0, 0.0, 0.1])
    assert [bar.get_y() for bar in ax.patches] == pytest.approx([0, 0, 0.03, 0.02, 0.08, 0.02])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["rrf", "citation prior", "temporal"]
    assert ax.get_xlabel() and ax.get_ylabel()
    assert terms["rrf"].tolist() == [0.03, 0.02]


def test_gained_and_lost_point_up_and_down(ax):
    totals = pd.DataFrame({"gained": [0, 3], "lost": [2, 1]}, index=["BM25", "+ feedback"])
    assert plots.gained_and_lost(ax, totals) is ax
    assert heights(ax) == [0, 3, -2, -1]
    assert labels(ax, "x") == ["BM25", "+ feedback"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["gained", "lost"]
    assert ax.get_ylabel()
    assert not [text for text in labels(ax, "y") if "-" in text or "−" in text]


def test_answer_lengths_draws_a_bar_a_query_and_the_budget(ax):
    assert plots.answer_lengths(ax, [60, 0, 42], 60) is ax
    assert heights(ax) == [60, 0, 42]
    assert [bar.get_x() + bar.get_width() / 2 for bar in ax.patches] == pytest.approx([1, 2, 3])
    assert [60, 60] in [list(line.get_ydata()) for line in ax.lines]
    assert "budget 60" in notes(ax)
    assert ax.get_xlabel() and ax.get_ylabel()


# ---- figures of the comparison of systems

RUNS = """rule-minilm default caes-rag-rrf official-naive-baseline concat-baseline single-query-bm25 rrf-no-rerank
    semantic-current semantic-minilm topic-shift-current topic-shift-minilm""".split()
MANY = [*RUNS, *(f"{run}-words-{n}" for run, n in zip(RUNS, range(60, 260, 20), strict=False))]
HOSTILE = ["$\\frac$ a_b {", "two\nlines\x00\u2028and more", "_hidden", "x" * 300, ""]


class Pair(NamedTuple):
    first: str
    second: str
    difference: float
    low: float
    high: float
    p_holm: float
    verdict: str = ""
    detectable: float = float("nan")


def page(height: float):
    return plt.subplots(figsize=(7, height), layout="constrained")


def boxes(figure, texts) -> list:
    figure.canvas.draw()
    return [text.get_window_extent() for text in texts if text.get_visible() and text.get_text().strip()]


def readable(figure, *groups) -> None:
    """Every text lies inside the figure, and no two of one group overlap; closes the figure."""
    for group in groups:
        found = boxes(figure, group)
        assert found
        for box in found:
            assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1, box
            assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1, box
        assert not [(a, b) for a, b in combinations(found, 2) if a.overlaps(b)]
    plt.close(figure)


def words_of(ax) -> list:
    legend = ax.get_legend()
    return [ax.xaxis.label, *ax.texts, *(legend.get_texts() if legend else [])]


def legend_of(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()] if ax.get_legend() else []


def dots(ax) -> dict[tuple[float, float], tuple[str, str]]:
    """(x, y) of every dot -> (colour of its edge, of its inside)."""
    found = {}
    for line in ax.lines:
        if line.get_marker() == "o":
            colours = (to_hex(line.get_markeredgecolor()), to_hex(line.get_markerfacecolor()))
            found |= {(float(x), float(y)): colours for x, y in zip(*line.get_data(), strict=True)}
    return found


def spans(ax) -> set[tuple[float, float, float]]:
    """(y, from, to) of every horizontal line."""
    segments = [segment for lines in ax.collections for segment in lines.get_segments()]
    return {(float(s[0][1]), float(s[0][0]), float(s[1][0])) for s in segments}


FILLED, HOLLOW = (plots.BLUE.lower(), plots.BLUE.lower()), (plots.GREY.lower(), "#ffffff")
BOARD = pd.DataFrame(
    {"mean": [0.1, 0.3, -0.2], "low": [0.0, 0.2, -0.4], "high": [0.2, 0.4, -0.1]}, index=["middle", "best", "worst"]
)


def test_the_leaderboard_draws_means_and_intervals_with_the_best_on_top(ax):
    assert plots.leaderboard(ax, BOARD, "BERTScore", {"best", "middle"}) is ax
    assert labels(ax, "y") == ["best", "middle", "worst"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert dots(ax) == {(0.3, 0): FILLED, (0.1, 1): FILLED, (-0.2, 2): HOLLOW}
    assert spans(ax) == {(0, 0.2, 0.4), (1, 0.0, 0.2), (2, -0.4, -0.1)}
    assert legend_of(ax) == ["not distinguishable from the best", "distinguishable from the best"]
    assert ax.get_xlabel() == "BERTScore"
    assert BOARD.index.tolist() == ["middle", "best", "worst"]


def test_the_leaderboards_axis_fits_negative_values_with_a_small_margin(ax):
    plots.leaderboard(ax, BOARD, "BERTScore")
    low, high = ax.get_xlim()
    assert -0.45 < low < -0.4 and 0.4 < high < 0.45
    assert [0, 0] in [list(line.get_xdata()) for line in ax.lines]


def test_the_best_is_filled_whether_or_not_it_is_among_the_indistinguishable(ax):
    plots.leaderboard(ax, BOARD, "BERTScore", [])
    assert dots(ax) == {(0.3, 0): FILLED, (0.1, 1): HOLLOW, (-0.2, 2): HOLLOW}


def test_without_a_test_no_run_is_said_to_differ(ax):
    plots.leaderboard(ax, BOARD, "BERTScore")
    assert set(dots(ax).values()) == {FILLED}
    assert ax.get_legend() is None


def test_equal_means_keep_their_order_on_the_leaderboard(ax):
    table = pd.DataFrame({"mean": [0.5] * 3, "low": [0.5] * 3, "high": [0.5] * 3}, index=["b", "a", "c"])
    plots.leaderboard(ax, table, "x", {"b"})
    assert labels(ax, "y") == ["b", "a", "c"]
    assert visible(ax, [0.5])
    assert set(dots(ax).values()) == {FILLED}  # all three are the best


@pytest.mark.parametrize("value", [0.0, 1.0, -0.118, 1e-9, 140.0])
@pytest.mark.filterwarnings("error")  # of an axis of no length
def test_a_leaderboard_of_one_run_without_spread(ax, value):
    plots.leaderboard(ax, pd.DataFrame({"mean": [value], "low": [value], "high": [value]}, index=["only"]), "x", {"only"})
    low, high = ax.get_xlim()
    assert low < value < high
    assert dots(ax) == {(value, 0): FILLED}


def test_runs_without_a_value_stand_below_and_say_so(ax):
    nan = float("nan")
    table = pd.DataFrame({"mean": [nan, 0.4, nan], "low": [nan, 0.3, nan], "high": [nan, 0.5, nan]}, index=list("abc"))
    plots.leaderboard(ax, table, "x", {"b"})
    assert labels(ax, "y") == ["b", "a", "c"]
    assert [(text.get_text().strip(), text.xy[1]) for text in ax.texts] == [("no value", 1), ("no value", 2)]
    assert [place for place in dots(ax) if not np.isnan(place[0])] == [(0.4, 0)]


def test_a_leaderboard_without_any_value_can_be_drawn(ax):
    plots.leaderboard(ax, pd.DataFrame(np.nan, index=["a", "b"], columns=["mean", "low", "high"]), "x", set())
    assert notes(ax).split() == ["no", "value"] * 2


@pytest.mark.parametrize("n", [1, 2, 9, 21])
def test_the_leaderboard_is_readable(n):
    figure, ax = page(0.3 * n + 1.2)
    means = np.linspace(-0.12, 0.37, n)
    table = pd.DataFrame({"mean": means, "low": means - 0.05, "high": means + 0.05}, index=MANY[:n])
    plots.leaderboard(ax, table, "bertscore_f1[all-MiniLM-L6-v2]: mean, 95 % bootstrap interval", MANY[n // 2 : n])
    readable(figure, ax.get_yticklabels(), words_of(ax))


def test_the_leaderboard_of_the_published_bertscores_shows_all_ends(ax, real_data):
    table = intervals(by_run(read_scores(real_data / "published" / "official_scores.csv"), "bertscore_f1"))
    plots.leaderboard(ax, table, "BERTScore F1", set(table.index) - {"official-naive-baseline"})
    assert len(dots(ax)) == 10
    assert labels(ax, "y")[-1] == "official-naive-baseline"
    assert list(dots(ax).values()).count(HOLLOW) == 1
    assert visible(ax, table[["low", "high"]].to_numpy().ravel())


PAIRS = [
    Pair("a", "b", -0.2, -0.3, -0.1, 0.05),
    Pair("c", "d", 0.1, -0.1, 0.3, 0.051),
    Pair("a", "d", 0.4, 0.2, 0.6, 0.0002),
]


def test_differences_draws_a_line_a_pair_with_the_largest_on_top_and_those_that_differ_in_colour(ax):
    assert plots.differences(ax, PAIRS) is ax
    assert labels(ax, "y") == ["a − d", "c − d", "a − b"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert dots(ax) == {(0.4, 0): FILLED, (0.1, 1): HOLLOW, (-0.2, 2): FILLED}
    assert spans(ax) == {(0, 0.2, 0.6), (1, -0.1, 0.3), (2, -0.3, -0.1)}
    assert [0, 0] in [list(line.get_xdata()) for line in ax.lines]
    assert legend_of(ax) == ["differs (Holm-corrected p ≤ 0.05)", "not distinguishable"]
    assert "first − second" in ax.get_xlabel()
    assert not ax.patches and not ax.texts


def test_another_level_of_significance(ax):
    plots.differences(ax, PAIRS, alpha=0.01)
    assert dots(ax) == {(0.4, 0): FILLED, (0.1, 1): HOLLOW, (-0.2, 2): HOLLOW}
    assert legend_of(ax)[0] == "differs (Holm-corrected p ≤ 0.01)"


def test_the_noise_floor_is_a_band_around_zero_with_its_name(ax):
    plots.differences(ax, PAIRS, noise=0.034)
    [band] = ax.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((-0.034, 0.034))
    assert notes(ax).strip() == "noise floor ±0.034"
    assert ax.texts[0].xy[1] == 3  # a row of its own
    assert ax.get_ylim()[0] > 3


def test_a_noise_floor_wider_than_every_difference_is_in_sight(ax):
    plots.differences(ax, [Pair("a", "b", 0.01, 0.0, 0.02, 1.0)], noise=0.5)
    assert visible(ax, [-0.5, 0.5])


def test_identical_runs_have_no_spread_and_a_noise_floor_of_nothing(ax):
    plots.differences(ax, [Pair("a", "b", 0.0, 0.0, 0.0, 1.0)], noise=0.0)
    assert dots(ax) == {(0.0, 0): HOLLOW}
    assert notes(ax).strip() == "noise floor ±0"


@pytest.mark.parametrize("noise", [-0.01, float("nan")])
def test_a_noise_floor_that_is_no_width_is_refused(ax, noise):
    with pytest.raises(ValueError, match="noise"):
        plots.differences(ax, PAIRS, noise=noise)


def test_a_pair_without_shared_queries_stands_below_and_says_so(ax):
    nan = float("nan")
    plots.differences(ax, [Pair("a", "b", nan, nan, nan, nan), Pair("a", "c", -0.1, -0.2, 0.0, 1.0)], noise=0.01)
    assert labels(ax, "y") == ["a − c", "a − b"]
    assert notes(ax).split()[:2] == ["no", "value"]


def test_no_pairs_can_be_drawn(ax):
    plots.differences(ax, [], noise=0.01)
    assert not dots(ax)
    assert legend_of(ax) == []


@pytest.mark.parametrize(("n", "noise"), [(1, 0.02), (3, None), (20, 0.02), (21, 0.02), (36, 0.02), (55, None)])
def test_differences_are_readable_at_their_height(n, noise):
    figure, ax = page(plots.differences_height(n))
    pairs = list(combinations(MANY[:21], 2))[-n:]
    rows = [Pair(*pair, d, d - 0.1, d + 0.1, abs(d)) for pair, d in zip(pairs, np.linspace(-0.9, 0.3, n), strict=True)]
    plots.differences(ax, rows, noise)
    ticks = ax.get_yticklabels()
    assert len(ticks) == n
    size = min(tick.get_fontsize() for tick in ticks)
    figure.canvas.draw()
    row = ax.get_window_extent().height / abs(np.ptp(ax.get_ylim())) * 72 / figure.dpi
    assert size >= 8 and row >= 1.3 * size
    readable(figure, ticks, words_of(ax))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_name_of_the_noise_floor_is_in_sight_where_all_differences_are_of_one_sign(sign):
    figure, ax = page(plots.differences_height(2))
    d = sign * 0.9
    plots.differences(ax, [Pair("a", "b", d, d - 0.05, d + 0.05, 0.0), Pair("c", "b", d, d - 0.01, d + 0.01, 0.0)], 0.02)
    [box] = boxes(figure, ax.texts)
    assert ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1
    readable(figure, words_of(ax))


MEASURES = ["rougeL_f1", "bertscore_f1[all-MiniLM-L6-v2]", "cited_precision"]
TAUS = pd.DataFrame([[1.0, 0.25, -0.3], [0.25, 1.0, np.nan], [-0.3, np.nan, 1.0]], index=MEASURES, columns=MEASURES)


def cells(ax) -> dict[tuple[float, float], str]:
    """(row, column) -> the number in the cell."""
    return {(text.get_position()[1], text.get_position()[0]): text.get_text() for text in ax.texts}


def test_the_agreement_map_writes_every_tau_but_the_diagonals(ax):
    assert plots.agreement_map(ax, TAUS) is ax
    expected = {(0, 1): ".25", (0, 2): "−.30", (1, 0): ".25", (1, 2): "–", (2, 0): "−.30", (2, 1): "–"}
    assert cells(ax) == expected
    assert labels(ax, "x") == labels(ax, "y") == MEASURES
    assert ax.get_xlabel().startswith("Kendall's tau")
    [image] = ax.images
    assert image.get_clim() == (-1, 1)
    assert np.ma.filled(image.get_array(), 9.0).tolist() == [[9, 0.25, -0.3], [0.25, 9, 9], [-0.3, 9, 9]]
    assert {(patch.get_y() + 0.5, patch.get_x() + 0.5) for patch in ax.patches} == {(1, 2), (2, 1)}
    assert TAUS.iloc[0, 0] == 1.0


def test_an_unsymmetric_agreement_map_shows_both_halves(ax):
    plots.agreement_map(ax, pd.DataFrame([[1, 0.999], [-1.0, 1]], index=list("ab"), columns=list("ab")))
    assert cells(ax) == {(0, 1): "1.00", (1, 0): "−1.00"}


def test_a_tau_that_rounds_to_zero_has_no_sign(ax):
    plots.agreement_map(ax, pd.DataFrame([[1, -0.001], [0.0, 1]], index=list("ab"), columns=list("ab")))
    assert set(cells(ax).values()) == {".00"}


@pytest.mark.parametrize("taus", [np.full((2, 2), np.nan), np.ones((1, 1))], ids=["all NaN", "one measure"])
def test_agreement_maps_without_a_number(ax, taus):
    names = list("ab")[: len(taus)]
    plots.agreement_map(ax, pd.DataFrame(taus, index=names, columns=names))
    assert set(cells(ax).values()) <= {"–"}


def contrast(a, b) -> float:
    """Contrast ratio of two colours after WCAG 2.1."""

    def luminance(colour) -> float:
        rgb = np.array(matplotlib.colors.to_rgb(colour))
        return float(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_ratio_is_that_of_the_standards_examples():
    """Black on white is 21; the grey #767676 is the lightest with 4.5 on white."""
    assert contrast("black", "white") == pytest.approx(21)
    assert contrast("#767676", "white") >= 4.5 > contrast("#777777", "white")


def test_numbers_stand_out_from_their_cells_by_the_ratio_for_small_text(ax):
    names = [str(n) for n in range(21)]
    taus = pd.DataFrame(np.linspace(-1, 1, 441).reshape(21, 21), index=names, columns=names)
    plots.agreement_map(ax, taus)
    colours = {place: text.get_color() for place, text in zip(cells(ax), ax.texts, strict=True)}
    assert set(colours.values()) == {"black", "white"}
    for (row, column), colour in colours.items():
        shade = plots.AGREEMENT((taus.iloc[int(row), int(column)] + 1) / 2)
        assert contrast(colour, shade) >= 4.5


@pytest.mark.parametrize("n", [2, 9, 21])
def test_the_agreement_map_is_readable(n):
    figure, ax = page(0.36 * n + 2.4)
    names = [f"ir-axioms:MEASURE-{k}" if k % 3 else f"bertscore_f1[all-MiniLM-{k}]" for k in range(n)]
    plots.agreement_map(ax, pd.DataFrame(np.full((n, n), -0.88), index=names, columns=names))
    slanted = boxes(figure, ax.get_xticklabels())
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in slanted)
    assert all(box.y0 >= ax.xaxis.label.get_window_extent().y1 for box in slanted)
    readable(figure, ax.get_yticklabels(), words_of(ax))


def test_stages_have_colours_in_the_pipelines_order():
    assert tuple(plots.STAGE_COLOURS) == diagnosis.STAGES


COUNTS = pd.DataFrame(
    [[2, 0, 10, 1, 27, 54], [0, 0, 0, 0, 0, 94]], index=["z-run", "a-run"], columns=list(plots.STAGE_COLOURS)
)


def test_loss_bars_stack_the_stages_in_the_given_order_of_rows(ax):
    assert plots.loss_bars(ax, COUNTS) is ax
    assert labels(ax, "y") == ["z-run", "a-run"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    segments = {
        (stage, round(bar.get_y() + bar.get_height() / 2)): (bar.get_x(), bar.get_width())
        for stage, bars in zip(COUNTS.columns, ax.containers, strict=True)
        for bar in bars
    }
    assert [segments[stage, 0] for stage in COUNTS.columns] == [(0, 2), (2, 0), (2, 10), (12, 1), (13, 27), (40, 54)]
    assert segments["cited", 1] == (0, 94)
    assert legend_of(ax) == list(COUNTS.columns)
    assert ax.get_xlabel()
    assert visible(ax, [0, 94])
    assert COUNTS.loc["z-run"].tolist() == [2, 0, 10, 1, 27, 54]


def test_only_what_is_cited_is_blue(ax):
    plots.loss_bars(ax, COUNTS)
    colours = [to_hex(bars.patches[0].get_facecolor()) for bars in ax.containers]
    assert len(set(colours)) == 6
    assert colours.index(plots.BLUE.lower()) == 5


def test_counts_stand_where_there_is_room(ax):
    plots.loss_bars(ax, COUNTS)
    assert sorted(text.get_text() for text in ax.texts if text.get_text()) == ["10", "27", "54", "94"]


@pytest.mark.parametrize(("n", "total"), [(1, 12), (2, 94), (9, 20_000), (21, 94)])
def test_counts_lie_inside_their_segments(n, total):
    figure, ax = page(0.3 * n + 1.4)
    shares = np.random.default_rng(3).dirichlet([1, 1, 1, 1, 2, 6], size=n)
    counts = pd.DataFrame((shares * total).astype(int), index=MANY[-n:], columns=list(plots.STAGE_COLOURS))
    plots.loss_bars(ax, counts)
    figure.canvas.draw()
    for text, bar in zip(ax.texts, ax.patches, strict=True):
        box, segment = text.get_window_extent(), bar.get_window_extent()
        if text.get_text():
            assert segment.x0 < box.x0 and box.x1 < segment.x1
            assert text.get_text() == f"{bar.get_width():.0f}"
            assert contrast(text.get_color(), bar.get_facecolor()) >= 4.5
    assert not ax.get_legend().get_window_extent().overlaps(ax.bbox)
    readable(figure, ax.get_yticklabels(), words_of(ax))


def test_runs_without_relevant_documents_and_stages_that_are_left_out(ax):
    plots.loss_bars(ax, pd.DataFrame({"not-used": [0], "cited": [0]}, index=["a"]))
    assert [bar.get_width() for bar in ax.patches] == [0, 0]
    assert legend_of(ax) == ["not-used", "cited"]


def test_a_column_that_is_no_stage_is_refused_by_name(ax):
    with pytest.raises(ValueError, match="'lost'.*no-text"):
        plots.loss_bars(ax, pd.DataFrame({"lost": [1]}, index=["a"]))


POINTS = pd.DataFrame({"mean": [0.2, 0.3, -0.1], "low": [0.1, 0.2, -0.2], "high": [0.3, 0.5, 0.0]})


def test_numbers_of_a_parameter_stand_at_their_places(ax):
    assert plots.along(ax, [60, 140, 220.5], POINTS, "passage_max_words of $a$", "rougeL_f1") is ax
    assert set(dots(ax)) == {(60, 0.2), (140, 0.3), (220.5, -0.1)}
    assert {tuple(segment[:, 1]) for segment in ax.collections[0].get_segments()} == {(0.1, 0.3), (0.2, 0.5), (-0.2, 0.0)}
    assert labels(ax, "x") == ["60", "140", "220.5"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("passage_max_words of $a$", "rougeL_f1")


@pytest.mark.parametrize("values", [["max", "sum", "none"], [True, False, True], [None, 5, 2.0]])
def test_values_that_are_no_numbers_stand_in_the_given_order(ax, values):
    plots.along(ax, values, POINTS, "parameter", "rougeL_f1")
    assert set(dots(ax)) == {(0, 0.2), (1, 0.3), (2, -0.1)}
    assert labels(ax, "x") == [str(value) for value in values]


GRID = pd.DataFrame([[0.1, np.nan, -0.5], [0.3, 0.2, 0.9]], index=["b", "a"], columns=["q1", "q2", "q10"])


def bar_of(ax):
    """The axes of the colour bar."""
    return next((other for other in ax.figure.axes if other is not ax), None)


def test_the_query_grid_draws_every_value_in_the_tables_order(ax):
    assert plots.query_grid(ax, GRID, "ROUGE-L") is ax
    [image] = ax.images
    assert image.get_array().tolist() == [[0.1, None, -0.5], [0.3, 0.2, 0.9]]
    assert image.get_clim() == (-0.5, 0.9)
    assert labels(ax, "y") == ["b", "a"]
    assert labels(ax, "x") == ["q1", "q2", "q10"]
    assert ax.get_xlabel() == "query_id"
    assert ax.get_ylim() == (1.5, -0.5) and ax.get_xlim() == (0.5, 3.5)
    assert bar_of(ax).get_ylabel() == "ROUGE-L"


def test_a_query_without_a_value_is_hatched_and_the_hatching_explained(ax):
    plots.query_grid(ax, GRID, "ROUGE-L")
    [behind] = ax.patches
    assert behind.get_hatch() and behind.get_zorder() < ax.images[0].get_zorder()
    assert ax.images[0].to_rgba(ax.images[0].get_array())[0, 1, 3] == 0  # transparent, so the hatching shows
    assert legend_of(ax) == ["no value"]


def test_a_full_grid_has_no_hatching(ax):
    plots.query_grid(ax, GRID.fillna(0.0), "ROUGE-L")
    assert not ax.patches and ax.get_legend() is None


def test_long_query_ids_are_numbered(ax):
    ids = [f"{n:032x}" for n in range(24)]
    plots.query_grid(ax, pd.DataFrame(np.random.default_rng(1).random((2, 24)), index=["a", "b"], columns=ids), "x")
    ax.figure.canvas.draw()
    assert ax.get_xlabel() == "query (numbered 1 to 24 in the order of the table)"
    shown = [text for text in labels(ax, "x") if text]
    assert {"5", "10", "20"} <= set(shown) and all(text.isdigit() for text in shown)


def test_a_grid_of_nothing_but_missing_values_has_no_colour_bar(ax):
    plots.query_grid(ax, pd.DataFrame(np.nan, index=["a"], columns=["q1", "q2"]), "x")
    assert bar_of(ax) is None
    assert legend_of(ax) == ["no value"]


@pytest.mark.parametrize("value", [0.0, -0.4, 1.0])
def test_a_grid_of_one_value_keeps_it_in_the_middle_of_the_colours(ax, value):
    plots.query_grid(ax, pd.DataFrame(value, index=["a", "b"], columns=["q1", "q2"]), "x")
    assert ax.images[0].norm(value) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("n", "ids"), [(1, ["q1", "q2", "q3"]), (2, ["x" * 32]), (9, list("abcdefgh")), (21, [f"{n:032x}" for n in range(47)])]
)
def test_the_query_grid_is_readable(n, ids):
    figure, ax = page(0.3 * n + 1.2)
    values = pd.DataFrame(np.linspace(-1, 1, n * len(ids)).reshape(n, -1), index=MANY[:n], columns=ids)
    values.iloc[0, 0] = np.nan
    plots.query_grid(ax, values, "bertscore_f1")
    figure.canvas.draw()
    readable(figure, ax.get_yticklabels(), ax.get_xticklabels(), words_of(ax))


def test_hostile_names_are_drawn_on_one_line_as_they_are_spelt():
    n = len(HOSTILE)
    figure, axes = plt.subplots(5, figsize=(7, 24), layout="constrained")
    values = pd.DataFrame(np.eye(n), index=HOSTILE, columns=HOSTILE)
    plots.leaderboard(axes[0], pd.DataFrame(0.5, index=HOSTILE, columns=["mean", "low", "high"]), "$\\frac$", {"a"})
    plots.differences(axes[1], [Pair(a, b, 0.1, 0.0, 0.2, 0.5) for a, b in combinations(HOSTILE, 2)], 0.1)
    plots.agreement_map(axes[2], values)
    plots.loss_bars(axes[3], pd.DataFrame(1, index=HOSTILE, columns=list(plots.STAGE_COLOURS)))
    plots.query_grid(axes[4], values, "$\\frac$")
    figure.canvas.draw()
    names = {text for ax in (axes[0], axes[2], axes[3], axes[4]) for text in labels(ax, "y")}
    assert names == {"$\\frac$ a_b {", "two lines and more", "_hidden", "x" * 19 + "…" + "x" * 20, ""}
    assert not [text for text in labels(axes[1], "y") if len(text) > 55 or not text.isprintable()]
    plt.close(figure)


SVG = """
import sys
from pathlib import Path
import matplotlib
matplotlib.use("Agg")
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from lib import plots

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
table = pd.DataFrame({"mean": [0.1, 0.2], "low": [0.0, 0.1], "high": [0.2, 0.3]}, index=["α-run", "b"])
plots.leaderboard(left, table, "mean", {"α-run", "b"})
plots.query_grid(right, pd.DataFrame([[0.1, np.nan], [0.3, 0.2]], index=["a", "b"], columns=["q1", "q2"]), "x")
plots.save_svg(figure, Path(sys.argv[1]))
print("{}")
"""


def test_an_svg_has_the_same_bytes_whatever_the_hash_seed_and_the_day(tmp_path):
    day, night = tmp_path / "day.svg", tmp_path / "night.svg"
    running = [
        python(SVG, str(day), PYTHONHASHSEED="1", SOURCE_DATE_EPOCH="0"),
        python(SVG, str(night), PYTHONHASHSEED="2", SOURCE_DATE_EPOCH="1000000000"),
    ]
    for process in running:
        finished(process)
    assert day.read_bytes() == night.read_bytes()


def test_an_svg_needs_no_font_and_names_neither_date_nor_version(ax, tmp_path):
    plots.leaderboard(ax, BOARD, "BERTScore", {"best"})
    path = plots.save_svg(ax.figure, tmp_path / "figures" / "a.svg")
    assert path == tmp_path / "figures" / "a.svg"
    text = path.read_text(encoding="utf-8")
    names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert "svg" in names and "path" in names
    assert not names & {"text", "tspan", "date", "creator", "script"}
    assert "font-family" not in text and matplotlib.__version__ not in text
    assert matplotlib.rcParams["svg.hashsalt"] is None


def test_a_figure_that_cannot_be_drawn_leaves_the_old_svg(tmp_path):
    figure, ax = plt.subplots()
    ax.set_title("$\\frac$")
    path = write_text(tmp_path / "a.svg", "old")
    with pytest.raises(ValueError):
        plots.save_svg(figure, path)
    plt.close(figure)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.svg"]
