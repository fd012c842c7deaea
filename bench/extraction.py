"""Extraction from a synthetic snapshot, against `grep -c` and against parsing every line with `json`.

All are timed one after the other in every round, with the files in the memory of the operating system. Ratios
are taken within a round, so that what else the machine does weighs on all sides. An extraction is the whole
command, start of Python included, by as many processes as there are cores, as `grep` has too. Lines are parsed
by a loop, as code that reads a snapshot is written, and by a loop on every core; the bar is for the former,
since on all cores five times the latter would be faster than `grep` itself.
"""

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.processes import workbook
from bench.show import show
from lib import paths
from lib.errors import WorkbookError

CORES = os.cpu_count() or 1
N_FILES = 8
N_QUERIES, N_CANDIDATES = 47, 10


class Round(NamedTuple):
    """Wall seconds of one round; `extraction` starts without an index, `indexed` repeats it with one. Peak in bytes."""

    grep: float
    loop: float
    loops: float
    extraction: float
    indexed: float
    peak: int


def measure(folder: Path, n_bytes: int = 2_000_000_000, n_rounds: int = 3) -> None:
    """Show the medians over the rounds, on a snapshot of about `n_bytes`."""
    found = rounds(folder, n_bytes, n_rounds)
    seconds = median(r.extraction for r in found)
    loop, loops, grep = (median(getattr(r, name) / r.extraction for r in found) for name in ("loop", "loops", "grep"))
    show("times as fast as a loop that parses every line", loop, "at least 5", f"{n_bytes / 1e9:.3g} GB in {seconds:.2f} s")
    show("times as fast as such a loop on every core", loops, note=f"grep -c on every core: {loops / grep:.1f} times")
    show("share of the rate of grep -c", grep, "at least 0.5")
    show("seconds with the index", median(r.indexed for r in found), "at most 1")
    show("peak memory of an extraction, MB", max(r.peak for r in found) / 1e6)


def rounds(folder: Path, n_bytes: int, n_rounds: int) -> list[Round]:
    """Write a snapshot and queries with candidates from all over it, and time everything on it in each round."""
    ids = write_snapshot(folder / "snapshot", n_bytes)
    chosen = random.Random(1).sample(ids, min(N_QUERIES * N_CANDIDATES, len(ids)))
    lists = [chosen[n : n + N_CANDIDATES] for n in range(0, len(chosen), N_CANDIDATES)]
    rows = ({"query_id": f"q{n}", "query": "Why?", "doc_ids": doc_ids} for n, doc_ids in enumerate(lists))
    paths.write_jsonl(folder / "queries.jsonl", rows)
    files = sorted((folder / "snapshot").iterdir())
    grep(files, chosen[0])  # brings the files into memory
    return [_round(folder, files, chosen) for _ in range(n_rounds)]


def write_snapshot(folder: Path, n_bytes: int, seed: int = 0) -> list[int]:
    """Files of records as in CORE, about `n_bytes` in all; returns their ids.

    Records have 2 to 60 KB, 31 KB on average; in the organisers' slice it is 24. The text is the sample's,
    paragraph by paragraph.
    """
    rng = random.Random(seed)
    bodies = list(_bodies(rng, min(2000, max(n_bytes // 20_000, 20))))
    folder.mkdir(parents=True)
    ids, number = [], 1_000_000
    for n in range(N_FILES):
        with open(folder / f"documents_{n + 1:06d}.jsonl", "wb") as file:
            while file.tell() < n_bytes // N_FILES:
                number += rng.randint(1, 3000)
                ids.append(number)
                file.write(b'{"id": %d, %b\n' % (number, rng.choice(bodies)))
    return ids


def _bodies(rng: random.Random, count: int) -> Iterator[bytes]:
    """Records without their ids: the rest of the line, from the second field on."""
    records = [fields for file in sorted((paths.SAMPLE / "documents").glob("*.jsonl")) for fields in paths.read_jsonl(file)]
    texts = [fields[name] or "" for fields in records for name in ("fullText", "abstract")]
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n") if paragraph]
    for _ in range(count):
        fields = {name: value for name, value in rng.choice(records).items() if name != "id"}
        fields["fullText"] = _text(rng, paragraphs, rng.randint(2_000, 60_000))
        yield json.dumps(fields, ensure_ascii=False).encode()[1:]


def _text(rng: random.Random, paragraphs: list[str], n_characters: int) -> str:
    chosen, length = [], 0
    while length < n_characters:
        chosen.append(rng.choice(paragraphs))
        length += len(chosen[-1]) + 2
    return "\n\n".join(chosen)


def _round(folder: Path, files: list[Path], ids: list[int]) -> Round:
    shutil.rmtree(folder / "cache", ignore_errors=True)
    grepped = _seconds(lambda: grep(files, ids[0]), 1)
    loop, loops = (_seconds(lambda n=n: parse_every_line(files, ids, n), len(ids)) for n in (1, CORES))
    first, again = (_extract(folder, len(ids)) for _ in range(2))
    return Round(grepped, loop, loops, first.seconds, again.seconds, first.peak)


def _extract(folder: Path, n_documents: int):
    shutil.rmtree(folder / "slice", ignore_errors=True)
    options = {"--from": folder / "snapshot", "--queries": folder / "queries.jsonl", "--out": folder / "slice"}
    ran = workbook("slice", *(part for pair in options.items() for part in pair), cache=folder / "cache")
    _check((folder / "slice" / "documents" / "documents.jsonl").read_bytes().count(b"\n"), n_documents)
    return ran


def _seconds(count: Callable[[], int], expected: int) -> float:
    started = time.perf_counter()
    found = count()
    seconds = time.perf_counter() - started
    _check(found, expected)
    return seconds


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise WorkbookError(f"bench: {found} records found, not {expected}; the bench or the extraction is wrong")


def grep(files: list[Path], doc_id: int) -> int:
    """The lines with one id, counted by `grep -c`, a process a file, as many at a time as there are cores."""

    def count(file: Path) -> int:
        return int(subprocess.run(["grep", "-c", f'"id": {doc_id},', file], stdout=subprocess.PIPE).stdout)

    with ThreadPoolExecutor(CORES) as pool:
        return sum(pool.map(count, files))


def parse_every_line(files: list[Path], ids: list[int], jobs: int) -> int:
    """The records of some ids, counted by parsing every line in so many processes; nothing is written."""
    with ProcessPoolExecutor(jobs) as pool:
        return sum(pool.map(_count, files, [frozenset(ids)] * len(files)))


def _count(file: Path, ids: frozenset[int]) -> int:
    with open(file, "rb") as lines:
        return sum(json.loads(line)["id"] in ids for line in lines)
