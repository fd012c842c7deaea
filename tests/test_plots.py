import matplotlib
import numpy as np
import pandas as pd
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402

from lib import plots  # noqa: E402


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


def test_interval_dots_draws_means_and_intervals_with_the_best_on_top(ax):
    table = pd.DataFrame({"mean": [0.9, 0.2], "low": [0.8, 0.1], "high": [1.0, 0.3]}, index=["good", "poor"])
    assert plots.interval_dots(ax, table, "cited precision") is ax
    assert labels(ax, "y") == ["poor", "good"]
    [dots] = [line for line in ax.lines if line.get_marker() == "o"]
    assert list(dots.get_xdata()) == [0.2, 0.9]
    [intervals] = ax.collections
    ends = [segment[:, 0].tolist() for segment in intervals.get_segments()]
    assert ends == [[0.1, 0.3], [0.8, 1.0]]
    assert ax.get_xlabel() == "cited precision"
    assert visible(ax, [0.1, 1.0])
