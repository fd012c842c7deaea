"""`make bench`: what the workbook costs, as ratios measured side by side in one run.

On the sample, and on the real slice where `WORKBOOK_REAL_DATA` names one. Absolute seconds are
printed for orientation only: machines differ and are noisy.
"""

import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from lib import paths, steps
from lib.encoders import forward_passes
from lib.preparing import prepare
from lib.slices import Slice
from lib.variants import load_profile, load_variants
from lib.vector_cache import VectorCache

FLOP_A_TOKEN = 21.3e6  # of all-MiniLM-L6-v2's matrix products, attention aside


def main() -> None:
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    real = os.environ.get("WORKBOOK_REAL_DATA")
    spec = str(Path(real) / "slice") if real else "sample"
    with tempfile.TemporaryDirectory() as name:
        encoding(spec, Path(name))
        sweeps(spec, Path(name))
        scoring(Path(name))


def encoding(spec: str, folder: Path) -> None:
    """Encoding rate over all texts of the slice against torch's fp32 matrix-product rate, measured before and after."""
    prepare(spec, folder / "slice")
    texts = steps.texts_to_encode(Slice(folder / "slice"), load_variants(["all"]))
    encoder = load_profile("embedded").encoder
    list(forward_passes(encoder, texts[:64]))
    before = _matrix_rate()
    rate = _encoding_rate(encoder, texts)
    show("encoding / fp32 matrix product", rate / ((before + _matrix_rate()) / 2), "at least 0.50")


def _encoding_rate(encoder, texts: list[str]) -> float:
    """FLOP/s of the model's matrix products over real tokens; padding and dummy rows earn nothing."""
    started = time.perf_counter()
    lengths = [min(n, encoder.max_tokens) for part in forward_passes(encoder, texts) for _, _, n in part]
    return sum(lengths) * FLOP_A_TOKEN / (time.perf_counter() - started)


def _matrix_rate(seconds: float = 2.0) -> float:
    import torch

    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        a @ b
        count += 1
    return count * 2 * 2048**3 / (time.perf_counter() - started)


def sweeps(spec: str, folder: Path) -> None:
    """A first sweep with an empty cache, the same again, and one in another folder with the vectors cached."""
    os.environ["WORKBOOK_CACHE"] = str(folder / "cache")
    first, memory = _sweep(spec, folder / "first")
    again, _ = _sweep(spec, folder / "first")
    cached, _ = _sweep(spec, folder / "second")
    n_notebooks = len(list((folder / "first" / "notebooks").glob("*.ipynb")))
    rows = _cached_vectors(folder / "cache")
    show("unchanged sweep / first sweep", again / first, "at most 0.10")
    show("seconds beyond encoding, a notebook", cached / n_notebooks, "at most 4")
    show("peak memory of all processes, GB", memory / 1e9, "at most 2.5")
    show("sweep with cached vectors / first sweep", cached / first, f"{rows:,} vectors")
    print(f"for orientation: first {first:.0f} s, vectors cached {cached:.0f} s, unchanged {again:.1f} s")


def _sweep(spec: str, out: Path) -> tuple[float, int]:
    """Wall seconds of a whole `workbook sweep`, and the peak of its processes' resident memory in bytes."""
    command = [sys.executable, "-m", "lib.cli", "sweep", "--slice", spec, "--out", str(out)]
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=paths.PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process.pid, peak), daemon=True)
    watcher.start()
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"the sweep failed: {errors.decode()[-2000:]}")
    return time.perf_counter() - started, peak[0]


def scoring(folder: Path) -> None:
    """`workbook score` on 11 runs of 47 and of 94 queries, no text of which was seen before."""
    small, large = (_score_seconds(folder / f"scored-{n}", n) for n in (47, 94))
    show("seconds to score 11 runs of 47 queries", small, "at most 60")
    show("94 queries / 47 queries, scoring", large / small, "linear: at most 2")


def _score_seconds(folder: Path, n_queries: int) -> float:
    """Wall seconds of scoring, model load included, with an empty cache; the answers are the sample's, made distinct."""
    queries = list(paths.read_jsonl(paths.SAMPLE / "queries.jsonl"))
    records = list(paths.read_jsonl(paths.SAMPLE / "reference_answers.jsonl"))
    gold = list(paths.read_jsonl(paths.SAMPLE / "gold_answers.jsonl"))
    chosen = [(f"q{n}", n % len(queries)) for n in range(n_queries)]
    rows = {
        "queries": [{**queries[i], "query_id": name} for name, i in chosen],
        "gold_answers": [{"query_id": name, "answer": f"{gold[i]['answer']} ({name})"} for name, i in chosen],
        "reference_answers": [_copy(records[i], name, "reference") for name, i in chosen],
    }
    for name, lines in rows.items():
        paths.write_jsonl(folder / "slice" / f"{name}.jsonl", lines)
    for run in (f"run-{n}" for n in range(11)):
        lines = [_copy(records[i], name, run) for name, i in chosen]
        paths.write_jsonl(folder / "runs" / run / "responses.jsonl", lines)
    command = [sys.executable, "-m", "lib.cli", "score", "--slice", str(folder / "slice"), "--runs", str(folder / "runs")]
    started = time.perf_counter()
    environment = os.environ | {"WORKBOOK_CACHE": str(folder / "cache")}
    subprocess.run(
        [*command, "--out", str(folder)], cwd=paths.PROJECT, check=True, stdout=subprocess.DEVNULL, env=environment
    )
    return time.perf_counter() - started


def _copy(record: dict, query_id: str, run: str) -> dict:
    answer = [{**s, "text": f"{s['text']} ({run}, {query_id})"} for s in record["answer"]]
    return {**record, "metadata": {**record["metadata"], "narrative_id": query_id, "run_id": run}, "answer": answer}


def _watch(pid: int, peak: list[int]) -> None:
    while psutil.pid_exists(pid):
        total = 0
        try:
            parent = psutil.Process(pid)
            for process in [parent, *parent.children(recursive=True)]:
                total += process.memory_info().rss
        except psutil.NoSuchProcess:
            total = 0  # a process ended while it was being counted; the next look counts again
        peak[0] = max(peak[0], total)
        time.sleep(0.5)


def _cached_vectors(cache: Path) -> int:
    import sqlite3

    with sqlite3.connect(VectorCache(cache / "vectors.sqlite").path) as db:
        return db.execute("SELECT count(*) FROM vectors").fetchone()[0]


def show(name: str, value: float, bar: str) -> None:
    print(f"{name:<42}{value:>10.3f}   ({bar})", flush=True)


if __name__ == "__main__":
    main()
