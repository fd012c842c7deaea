"""Queries, nuggets and runs for the tests of banks, graders and nugget scores."""

from lib.measures.banks import Nugget
from lib.runs import Response
from lib.slices import Query

Q1 = Query("q1", "Why does sea ice melt?", ("d1",))
Q2 = Query("q2", "What drives lake blooms?", ("d2",))
MEASURES = ["nugget_coverage", "nugget_coverage_3", "average_grade", "maximum_grade", "covered_count"]
FOUR = [
    Nugget("n1", "Does warm water melt it?", importance="vital"),
    Nugget("n2", "Does sunlight melt it?", importance="vital"),
    Nugget("n3", "Does soot darken it?", importance="okay"),
    Nugget("n4", "Do winds move it?", importance="okay"),
]


def runs_of(*queries: Query, **answers):
    """Runs by name, each with a list of sentences a query; None for a query without a record."""
    return {
        run: {
            query.query_id: Response(run, query.query_id, present=False)
            if sentences is None
            else Response(run, query.query_id, tuple(sentences), ((),) * len(sentences))
            for query, sentences in zip(queries, given, strict=True)
        }
        for run, given in answers.items()
    }


def three_runs():
    return runs_of(
        *(Q1, Q2),
        a=[["Sea ice melts in warm water.", "Soot darkens it."], ["Warm lakes bloom early.", "Nutrients feed algae."]],
        b=[["Sunlight melts sea ice."], ["Banks raised interest rates."]],
        c=[["Lithium plates on graphite.", "Sea ice melts in warm water!"], None],
    )


def reordered(runs):
    return {run: dict(reversed(answers.items())) for run, answers in reversed(runs.items())}


VALID = [(0, 0), (5, 5), ("4", 4), (" 4\n", 4), (4.0, 4)]
INVALID = [
    9,
    6,
    -1,
    4.5,
    True,
    False,
    None,
    "",
    "9",
    "-1",
    "4.5",
    "4/5",
    "excellent",
    "four",
    "²",
    "４",
    "9" * 5000,
    [4],
    {},
]
