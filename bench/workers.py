"""One, two and three local workers on the sample, with the vectors cached."""

from pathlib import Path

from bench.processes import workbook
from bench.show import show


def measure(folder: Path) -> None:
    cache = folder / "cache"
    workbook("sweep", "--no-score", "--out", folder / "before", cache=cache)
    seconds = {}
    for jobs in (1, 2, 3):
        given = ("--no-score", "--jobs", str(jobs), "--out", folder / f"jobs-{jobs}")
        seconds[jobs] = workbook("sweep", *given, cache=cache).seconds
    for jobs, taken in seconds.items():
        show(f"sweep with --jobs {jobs} / --jobs 1", taken / seconds[1], note=f"{taken:.0f} s")
