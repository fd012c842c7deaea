"""A command in a process of its own, with its wall time and the peak memory of all its processes."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from lib import paths
from lib.errors import WorkbookError

_SECONDS_BETWEEN_LOOKS = 0.3


class Ran(NamedTuple):
    """What a command took: wall seconds, the time of its start (seconds since 1970), bytes of memory, and what it printed.

    `peak` is the largest sum of the resident memory of its processes at one time. On Linux a page that
    several share, as forked kernels do, counts once; elsewhere once for each.
    """

    seconds: float
    started: float
    peak: int
    output: str


def slice_at_hand() -> str:
    """The real slice where `WORKBOOK_REAL_DATA` names the folder that holds it, else the sample."""
    real = os.environ.get("WORKBOOK_REAL_DATA")
    return str(Path(real).resolve() / "slice") if real else "sample"


def workbook(*arguments: str | Path, cache: Path) -> Ran:
    """Run `workbook ARGUMENTS` with the vector cache in the folder `cache`; see `python`."""
    return python("lib.cli", *arguments, cache=cache)


def python(module: str, *arguments: str | Path, cache: Path) -> Ran:
    """Run `python -m MODULE ARGUMENTS` in the project's folder. Raises WorkbookError with its last words if it fails."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = os.environ | {"WORKBOOK_CACHE": str(cache)}
    started, clock = time.time(), time.perf_counter()
    process = subprocess.Popen(
        command, cwd=paths.PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak))
    watcher.start()
    output, errors = process.communicate()
    seconds = time.perf_counter() - clock
    watcher.join()
    if process.returncode:
        raise WorkbookError(f"{' '.join(command[1:])}: failed with status {process.returncode}\n{errors[-2000:]}")
    return Ran(seconds, started, peak[0], output)


def _watch(process: subprocess.Popen, peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], resident(process.pid))
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def resident(pid: int) -> int:
    """Bytes of resident memory of a process and all that it started, 0 if it has ended."""
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(map(_own, family))


def _own(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except (psutil.NoSuchProcess, FileNotFoundError):  # it ended while the others were being counted
        return 0
    return getattr(memory, "pss", memory.rss)
