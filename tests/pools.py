"""Runs of a few words, for the tests of the measures."""

from lib.runs import Response


def pool(**answers: list[str | None]) -> dict[str, dict[str, Response]]:
    """Runs that answer the queries q1, q2, …; None where a run has no record."""
    return {
        run: {
            f"q{n}": Response(run, f"q{n}", present=False) if text is None else Response(run, f"q{n}", (text,))
            for n, text in enumerate(texts, 1)
        }
        for run, texts in answers.items()
    }
