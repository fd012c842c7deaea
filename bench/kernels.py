"""Notebooks 01 to 04 on the sample: what a notebook takes beyond its cells' own time, on warm kernels and on fresh ones."""

import json
import os
import re
import statistics
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from bench.show import show
from lib import kernels, notebooks, paths
from lib.errors import WorkbookError

ROUNDS = 3
ENGINES = ("fresh", "warm")
BAR = "at most 0.5"
_NAMES = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # what Jupyter gives to widgets and files


class Took(NamedTuple):
    """Seconds that a notebook took, and that its cells took by papermill's count."""

    all: float
    cells: float

    @property
    def beyond(self) -> float:
        return self.all - self.cells


def measure(folder: Path) -> None:
    """Print the median seconds beyond the cells for every notebook and engine, taken in turns. Raises if outputs differ."""
    took: dict[tuple[str, str], list[Took]] = {}
    sweep = folder / "sweep"
    with mock.patch.dict(os.environ, WORKBOOK_CACHE=str(folder / "cache")):
        os.environ.pop("MPLBACKEND", None)  # with another than ipykernel's own no figure would be shown
        started = time.perf_counter()
        run_all(sweep, "warm")  # encodes, and starts what forks the kernels
        first = time.perf_counter() - started
        for _ in range(ROUNDS):
            outputs = {}
            for engine in ENGINES:
                for name, seconds in run_all(sweep, engine).items():
                    took.setdefault((name, engine), []).append(seconds)
                outputs[engine] = {path.name: output(path) for path in sorted((sweep / "notebooks").iterdir())}
            compare(outputs)
        kernels.end()
    for name in dict.fromkeys(name for name, _ in took):
        fresh, warm = (statistics.median(seconds.beyond for seconds in took[name, engine]) for engine in ENGINES)
        show(f"{name}: seconds beyond its cells, fresh", fresh)
        show(f"{name}: seconds beyond its cells, warm", warm, BAR)
        show(f"{name}: fresh / warm", fresh / warm)
    whole = {
        engine: sum(statistics.median(t.all for t in seconds) for (_, e), seconds in took.items() if e == engine)
        for engine in ENGINES
    }
    show("all four, cells included: fresh / warm", whole["fresh"] / whole["warm"])
    show("all four for the first time, seconds", first, note="encoding included, and all imports")


def run_all(sweep: Path, engine: str) -> dict[str, Took]:
    """Run notebooks 01 to 04 with their defaults; returns what each took. Raises WorkbookError if one fails."""
    took = {}
    for path in sorted(paths.NOTEBOOKS.glob("0[1-4]_*.ipynb")):
        made = sweep / "notebooks" / path.name
        started = time.perf_counter()
        failure = notebooks.run(path, made, {"sweep_dir": str(sweep)}, engine)
        seconds = time.perf_counter() - started
        if failure:
            raise WorkbookError(f"{path} on a {engine} kernel: {failure}")
        cells = json.loads(made.read_text(encoding="utf-8"))["cells"]
        took[path.stem] = Took(seconds, sum(cell["metadata"]["papermill"]["duration"] or 0 for cell in cells))
    return took


def output(path: Path) -> list[str]:
    """What each cell of an executed notebook put out, without the names that Jupyter makes up anew each time."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [_NAMES.sub("", json.dumps(cell["outputs"])) for cell in cells if cell["cell_type"] == "code"]


def compare(outputs: dict[str, dict[str, list[str]]]) -> None:
    """Raise WorkbookError that names the first cell whose output is not the same on both engines."""
    for name, fresh in outputs["fresh"].items():
        warm = outputs["warm"][name]
        if fresh != warm:
            number = next(i for i, (a, b) in enumerate(zip(fresh, warm, strict=True), start=1) if a != b)
            raise WorkbookError(f"{name}: code cell {number} puts out something else on a warm kernel than on a fresh one")
