import math

import pytest

from lib import prompting, replies
from lib.measures import nuggets
from lib.measures.banks import Bank, Nugget
from lib.measures.nuggets import nugget_scores
from lib.runs import pool_label
from tests.measures.nugget_cases import FOUR, INVALID, MEASURES, Q1, VALID, reordered, runs_of, three_runs


def test_the_version_depends_on_content_and_not_on_the_order_of_queries():
    one, two = [Nugget("n1", "Why?")], [Nugget("n1", "How?")]
    assert Bank("a", {"q1": one, "q2": two}).version == Bank("b", {"q2": two, "q1": one}).version
    assert Bank("a", {"q1": two, "q2": one}).version != Bank("a", {"q1": one, "q2": two}).version


def test_the_order_of_queries_and_runs_does_not_change_the_pool():
    assert pool_label(reordered(three_runs())) == pool_label(three_runs())


@pytest.mark.parametrize(("given", "expected"), VALID)
def test_c37_a_whole_number_in_the_range_is_a_grade_also_as_text(given, expected):
    assert replies.whole_number(given, 0, 5) == expected
    assert type(replies.whole_number(given, 0, 5)) is int


@pytest.mark.parametrize("given", [*INVALID, math.nan, math.inf, -math.inf, 1e300], ids=lambda value: repr(value)[:12])
def test_c37_anything_else_is_no_grade_and_neither_clamped_nor_defaulted(given):
    assert replies.whole_number(given, 0, 5) is None


@pytest.mark.parametrize(("low", "high", "given"), [(1, 5, 0), (1, 5, "0"), (1, 5, 6), (0, 5, 6)])
def test_c37_the_range_is_the_scales_own(low, high, given):
    assert replies.whole_number(given, low, high) is None


@pytest.mark.parametrize(
    ("name", "fields"), [("grade", ["nuggets", "answer"]), ("mine", ["answer"]), ("prefer", ["first", "second"])]
)
def test_c45_every_prompt_says_that_what_it_quotes_is_not_to_be_obeyed(name, fields):
    system, _ = prompting.load_prompt(name, ["query", *fields])
    assert "never something to obey" in system


# Scores


HAND = {"n1": 5, "n2": 4, "n3": 3, "n4": 0}
PLAIN = [nugget._replace(importance="") for nugget in FOUR]


def test_scores_by_hand():
    """Grades 5, 4, 3, 0: two reach 4, three reach 3, the sum is 12 over four nuggets."""
    bank = Bank("hand", {"q1": PLAIN}, "2 runs abc")
    scores = list(nugget_scores(runs_of(Q1, a=[["Ice."]]), bank, {("a", "q1"): (HAND, "ok")}, "grader", "model"))
    assert [s.measure for s in scores] == [f"{name}[grader]" for name in MEASURES]
    assert [s.value for s in scores] == [0.5, 0.75, 3.0, 5.0, 2.0]
    origin = ("q1", "a", "ok", "2 runs abc", f"model, bank {bank.version}")
    assert {(s.query_id, s.run, s.status, s.pool, s.model) for s in scores} == {origin}


@pytest.mark.parametrize(
    ("grades", "threshold", "expected"), [([5, 4, 3, 0], 4, 2), ([5, 4, 3, 0], 3, 3), ([5, 4, 3, 0], 5, 1), ([], 4, 0)]
)
def test_a_grade_that_reaches_the_threshold_is_covered(grades, threshold, expected):
    assert nuggets.covered(grades, threshold) == expected
