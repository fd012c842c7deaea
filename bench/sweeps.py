"""From slice to responses: the paper's way against a cold sweep, one with the vectors cached, and an unchanged one.

The yardstick runs the paper's ten systems (`bench.yardstick`); the workbook runs eleven, all that are
not the late allocations, and every notebook on the way. With the vectors cached, where sentences end is
remembered too.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.processes import Ran, python, slice_at_hand, workbook
from bench.show import show
from lib import tasks
from lib.errors import WorkbookError
from lib.variants import load_variants


def measure(folder: Path) -> None:
    spec, cache = slice_at_hand(), folder / "cache"
    batch_size = python("bench.yardstick", "tune", spec, cache=cache).output.strip()
    yardstick = python("bench.yardstick", "run", spec, folder / "yardstick", batch_size, cache=cache)
    cold, cold_notebooks = _sweep(spec, folder / "first", cache)
    cached, cached_notebooks = _sweep(spec, folder / "second", cache)
    unchanged, notebooks = _sweep(spec, folder / "first", cache)
    if notebooks != cold_notebooks:
        raise WorkbookError(
            "notebooks ran again in an unchanged sweep; did code or data change meanwhile? Run the bench anew"
        )
    show("yardstick / cold sweep", yardstick.seconds / cold.seconds, "at least 4")
    show("yardstick / sweep with cached vectors", yardstick.seconds / cached.seconds, "at least 20")
    show("unchanged sweep / cold sweep", unchanged.seconds / cold.seconds, "at most 0.10")
    show("peak memory of a cold sweep, GB", cold.peak / 1e9, "at most 2.5")
    show("peak memory of the yardstick, GB", yardstick.peak / 1e9)
    encoding = json.loads(yardstick.output)["encoding"]
    show("yardstick, seconds", yardstick.seconds, note=f"{encoding:.0f} of them encoding, batches of {batch_size}")
    _show_parts("cold", cold, cold_notebooks)
    _show_parts("cached", cached, cached_notebooks)
    show("unchanged sweep, seconds", unchanged.seconds)


def systems() -> list[str]:
    """The names of the eleven systems: all but the late allocations, which the paper does not have."""
    return [variant.name for variant in load_variants(["all"]) if not variant.allocates_together]


class Executed(NamedTuple):
    """An executed notebook: its start and end (seconds since 1970), its cells' own seconds, and those of encoding."""

    name: str
    start: float
    end: float
    cells: float
    encoding: float


def _sweep(spec: str, out: Path, cache: Path) -> tuple[Ran, list[Executed]]:
    given = ("--slice", spec, "--variants", ",".join(systems()), "--out", out, "--no-score")
    return workbook("sweep", *given, cache=cache), executed_notebooks(out)


def executed_notebooks(out: Path) -> list[Executed]:
    """The executed notebooks of a sweep, by start."""
    files = (out / "notebooks").glob("*.ipynb")
    return sorted((executed(file) for file in files), key=lambda notebook: notebook.start)


def executed(file: Path) -> Executed:
    """What papermill and the kernel noted of one notebook.

    A cell's own time is from when the kernel took it up to when it replied.
    """
    notebook = json.loads(file.read_text(encoding="utf-8"))
    about = notebook["metadata"]["papermill"]
    cells = [(_own_seconds(c["metadata"]["execution"]), "".join(c["source"])) for c in notebook["cells"] if _ran(c)]
    encoding = sum(seconds for seconds, source in cells if "encoder.encode(texts, progress=True)" in source)
    start, end = _seconds(about["start_time"]), _seconds(about["end_time"])
    return Executed(file.stem, start, end, sum(seconds for seconds, _ in cells), encoding)


def _ran(cell: dict[str, Any]) -> bool:
    return cell["cell_type"] == "code" and bool("".join(cell["source"]).strip())


def _own_seconds(execution: dict[str, str]) -> float:
    return _seconds(execution["shell.execute_reply"]) - _seconds(execution["iopub.execute_input"])


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _show_parts(name: str, ran: Ran, notebooks: list[Executed]) -> None:
    """Where the wall time of a sweep went; notebooks run side by side, so their sums exceed it."""
    cells, count = sum(n.cells for n in notebooks), len(notebooks)
    beyond = sum(n.end - n.start - n.cells for n in notebooks)
    show(f"{name} sweep, seconds", ran.seconds)
    show("  start of the command, to the first notebook", notebooks[0].start - ran.started)
    show("  encoding", sum(n.encoding for n in notebooks))
    show("  all cells, encoding aside", cells - sum(n.encoding for n in notebooks), note=f"{count} notebooks")
    show("  beyond the cells, a notebook", beyond / count, note="start of the kernel, papermill's own work")
    for stage in (tasks.PREPARE, tasks.CHUNK, tasks.RETRIEVE, tasks.GENERATE):
        own = [n for n in notebooks if n.name.startswith(stage)]
        show(f"  {stage}: cells, a notebook", sum(n.cells for n in own) / len(own), note=f"{len(own)} notebooks")
    show("  end of the command, from the last notebook", ran.started + ran.seconds - max(n.end for n in notebooks))
