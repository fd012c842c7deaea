"""`make bench`: what the workbook costs, as ratios measured side by side in one run.

`python -m bench SECTION...` runs the named sections only. Every row that has a bar says whether it
holds; the status is 1 if one does not. Absolute seconds are for orientation only: machines differ
and are noisy.
"""

import importlib
import os
import platform
import re
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import psutil

from bench import show
from lib.errors import WorkbookError

SECTIONS = ("encoding", "sweeps", "scale", "extraction", "kernels", "workers", "scoring")


def main(names: list[str]) -> int:
    """Run the sections and say what fell short; returns the exit status."""
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        print(f"bench: no section '{unknown[0]}'; there are: {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    print(machine(), flush=True)
    try:
        for name in names or SECTIONS:
            section = importlib.import_module(f"bench.{name}")
            show.heading(f"{name}: {section.__doc__.splitlines()[0]}")
            with tempfile.TemporaryDirectory() as folder:
                section.measure(Path(folder))
    except WorkbookError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    fallen = show.fallen_short
    print(f"\n{len(fallen)} rows fall short: {'; '.join(fallen)}" if fallen else "\nevery bar holds")
    return 1 if fallen else 0


def machine() -> str:
    """One line that names the machine and what computes on it."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"machine: {processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}, torch {metadata.version('torch')}"
    )


def processor() -> str:
    """The processor's model, as Linux tells it, or what the platform calls it elsewhere."""
    about = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", about.read_text(), re.MULTILINE) if about.exists() else None
    return named[1].strip() if named else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
