"""Grades -> nugget scores: what an answer should say, and how much of it each answer says (METHOD, section 7)."""

from collections.abc import Callable, Iterator, Sequence

from lib.measures.banks import Bank, Nugget
from lib.measures.graders import Grades
from lib.runs import Runs, responses
from lib.score_tables import MISSING, Score

COVERED = 4  # a nugget graded so high counts as covered


def covered(grades: Sequence[int], threshold: int = COVERED) -> int:
    """How many grades reach the threshold."""
    return sum(grade >= threshold for grade in grades)


def support(grade: int) -> float:
    """Credit for a nugget: 1 if covered, half if graded 3, else 0."""
    return 1.0 if grade >= COVERED else 0.5 if grade == COVERED - 1 else 0.0


def credit(grades: Sequence[int], strict: bool) -> float:
    """Mean credit over nuggets, without half credits if `strict`; 0 where there is no nugget."""
    given = [support(grade) for grade in grades]
    return sum(value for value in given if not strict or value == 1.0) / len(given) if given else 0.0


MEASURES: dict[str, Callable[[Sequence[int]], float]] = {
    "nugget_coverage": lambda grades: covered(grades) / len(grades),
    "nugget_coverage_3": lambda grades: covered(grades, COVERED - 1) / len(grades),
    "average_grade": lambda grades: sum(grades) / len(grades),
    "maximum_grade": lambda grades: float(max(grades)),
    "covered_count": lambda grades: float(covered(grades)),
}


def nugget_scores(runs: Runs, bank: Bank, grades: Grades, grader: str, model: str) -> Iterator[Score]:
    """Coverage at grade 4 and at 3, average and maximum grade, covered count; all over the whole bank of the query.

    Where the bank says which nuggets are vital, also the credit of the vital and of all nuggets, strict
    and with half credits. A response without a usable judgement has no value.
    """
    model = f"{model}, bank {bank.version}"
    vital = any(nugget.importance for nuggets in bank.nuggets.values() for nugget in nuggets)
    for response in responses(runs):
        nuggets = bank.nuggets.get(response.query_id, [])
        found, status = grades[response.run, response.query_id]
        status = "no-nuggets" if not nuggets else MISSING if not response.present else status
        values = _values(nuggets, found, vital) if found else dict.fromkeys(_names(vital))
        for name, value in values.items():
            yield Score(response.query_id, response.run, f"{name}[{grader}]", value, status, bank.pool, model)


def _names(vital: bool) -> list[str]:
    more = [f"nugget_{kind}{which}" for which in ("vital", "all") for kind in ("strict_", "")] if vital else []
    return [*MEASURES, *more]


def _values(nuggets: list[Nugget], found: dict[str, int], vital: bool) -> dict[str, float]:
    grades = [found[nugget.nugget_id] for nugget in nuggets]
    values = {name: measure(grades) for name, measure in MEASURES.items()}
    if vital:
        chosen = {"vital": [found[n.nugget_id] for n in nuggets if n.importance == "vital"], "all": grades}
        for which, given in chosen.items():
            values |= {f"nugget_strict_{which}": credit(given, True), f"nugget_{which}": credit(given, False)}
    return {name: values[name] for name in _names(vital)}
