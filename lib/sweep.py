"""A sweep: every notebook for every system, as many at a time as there are jobs, and only what is needed.

A task is one run of one notebook. Its key is a hash of all that it depends on: the notebook's code
and the modules it imports, its parameters, the content of its input files and the locked versions
of the packages. A task is done when its marker, written last, holds that key and the hashes of
files that are still there; everything else is run again. Inputs are known by content, so a step
that comes out the same leaves what follows alone.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lib import chunking, notebooks, paths, slices
from lib.encoders import locate
from lib.errors import WorkbookError
from lib.notebooks import Failure
from lib.variants import Profile, Variant

PREPARE, CHUNK = "01_prepare_data", "02_study_chunking"
RETRIEVE, GENERATE = "03_ablate_retrieval", "04_generate_answers"


@dataclass(frozen=True)
class Task:
    """One run of one notebook: its parameters, the tasks before it, and the files it reads and writes."""

    name: str
    notebook: Path
    parameters: dict[str, Any]
    after: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()
    outputs: tuple[Path, ...] = ()


@dataclass
class Outcome:
    """What became of the tasks of a sweep, by name: run anew, unchanged, failed, or not run after a failure."""

    ran: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: dict[str, Failure] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0


def prepare_folder(out: Path, variants: list[Variant], profile: Profile) -> None:
    """Write the resolved systems and profile of a sweep, `variants/*.yaml` and `profile.yaml`."""
    for variant in variants:
        _write_yaml(out / "variants" / f"{variant.name}.yaml", asdict(variant))
    for path in (out / "variants").glob("*.yaml"):
        if path.stem not in {variant.name for variant in variants}:
            path.unlink()
    _write_yaml(out / "profile.yaml", asdict(profile))


def check_models(variants: list[Variant], profile: Profile) -> None:
    """Raise WorkbookError if a model that some variant needs is not there; nothing is loaded."""
    if any(chunking.needs_vectors(v) or v.dense for v in variants):
        locate(profile.encoder)
    if any(v.sentence_rerank for v in variants):
        locate(profile.sentence_reranker)


def tasks(out: Path, spec: str, variants: list[Variant]) -> list[Task]:
    """The tasks of a sweep, each after those that it depends on."""
    slice_files = tuple(out / "slice" / n for n in ("documents.jsonl", "queries.jsonl", "citation_degrees.json"))
    folder = str(out)
    profile = out / "profile.yaml"
    chunks = {v.name: out / "chunks" / chunking.chunker_id(v) / "passages.jsonl" for v in variants if v.reads_text}
    variant_files = tuple(out / "variants" / f"{v.name}.yaml" for v in variants)
    made = [
        _task(PREPARE, {"sweep_dir": folder, "slice_source": spec}, (), slices.source_files(spec), slice_files),
        _task(
            CHUNK,
            {"sweep_dir": folder, "variants": str(out / "variants"), "profile": str(profile)},
            (PREPARE,),
            (*slice_files, profile, *variant_files),
            tuple(dict.fromkeys(chunks.values())),
        ),
    ]
    for variant, variant_file in zip(variants, variant_files, strict=True):
        run = out / "runs" / variant.name
        given = {"sweep_dir": folder, "variant": str(variant_file), "profile": str(profile)}
        own = tuple(chunks[name] for name in (variant.name,) if name in chunks)
        evidence = (run / "evidence.jsonl",)
        responses = tuple(run / n for n in ("responses.jsonl", "provenance.jsonl", "ir-metadata.yml"))
        reads = (*slice_files, profile, variant_file)
        name = f"{RETRIEVE}.{variant.name}"
        made.append(_task(name, given, (CHUNK,), (*reads, *own), evidence))
        submission = paths.PARAMS / "submission.yaml"
        made.append(_task(f"{GENERATE}.{variant.name}", given, (name,), (*reads, *evidence, submission), responses))
    return made


def _task(name: str, given: dict[str, Any], after: tuple, inputs, outputs: tuple) -> Task:
    notebook = paths.NOTEBOOKS / f"{name.split('.')[0]}.ipynb"
    return Task(name, notebook, given, after, tuple(inputs), outputs)


def key_of(task: Task, out: Path) -> str:
    """The hash of all that a task depends on; paths count by their place in the sweep or the project only."""
    given = {k: v.replace(str(out), "OUT") if isinstance(v, str) else v for k, v in task.parameters.items()}
    if task.inputs and not task.after:
        given.pop("slice_source")  # the files behind it are inputs, wherever they lie
    lock = paths.PROJECT / "requirements.lock"
    parts = {
        "code": notebooks.code_key(task.notebook),
        "parameters": given,
        "inputs": [[path.name, paths.sha256(path)] for path in task.inputs],
        "packages": paths.sha256(lock) if lock.exists() else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def run(out: Path, todo: list[Task], jobs: int, tell: Callable[[str, Task, Failure | None], None]) -> Outcome:
    """Run the tasks, at most `jobs` notebooks at a time; a failed one only stops what depends on it.

    `tell(event, task, failure)` hears of every `start`, `ran`, `unchanged`, `failed` and `skipped`.
    """
    outcome, started = Outcome(), time.monotonic()
    waiting = list(todo)
    with ThreadPoolExecutor(jobs) as pool:
        running: dict[Future, Task] = {}
        while waiting or running:
            for task in list(waiting):
                if any(name in outcome.failed or name in outcome.skipped for name in task.after):
                    waiting.remove(task)
                    outcome.skipped.append(task.name)
                    tell("skipped", task, None)
                elif len(running) < jobs and set(task.after) <= {*outcome.ran, *outcome.unchanged}:
                    waiting.remove(task)
                    if is_done(task, out):
                        outcome.unchanged.append(task.name)
                        tell("unchanged", task, None)
                    else:
                        tell("start", task, None)
                        running[pool.submit(_execute, task, out)] = task
            if running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    _record(future.result(), running.pop(future), outcome, tell)
    outcome.seconds = time.monotonic() - started
    return outcome


def is_done(task: Task, out: Path) -> bool:
    """Whether a task's marker holds its present key and its files are those that it wrote."""
    marker = _marker(task, out)
    if not marker.exists():
        return False
    try:
        noted = json.loads(marker.read_text(encoding="utf-8"))
    except ValueError:
        return False
    if noted.get("key") != key_of(task, out):
        return False
    files = {path.relative_to(out).as_posix(): path for path in (*task.outputs, executed(task, out))}
    if noted.get("files", {}).keys() != files.keys():
        return False
    return all(path.exists() and paths.sha256(path) == noted["files"][name] for name, path in files.items())


def executed(task: Task, out: Path) -> Path:
    """Where the executed copy of a task's notebook lies."""
    return out / "notebooks" / f"{task.name}.ipynb"


def _execute(task: Task, out: Path) -> Failure | None:
    marker = _marker(task, out)
    marker.unlink(missing_ok=True)
    key = key_of(task, out)
    failure = notebooks.run(task.notebook, executed(task, out), task.parameters)
    if failure:
        return failure
    absent = [path for path in task.outputs if not path.exists()]
    if absent:
        return Failure(None, "MissingOutput", f"the notebook ended without writing {absent[0].relative_to(out)}")
    files = {p.relative_to(out).as_posix(): paths.sha256(p) for p in (*task.outputs, executed(task, out))}
    paths.write_text(marker, json.dumps({"key": key, "files": files}, indent=1) + "\n")
    return None


def _record(failure: Failure | None, task: Task, outcome: Outcome, tell: Callable) -> None:
    if failure:
        outcome.failed[task.name] = failure
    else:
        outcome.ran.append(task.name)
    tell("failed" if failure else "ran", task, failure)


def _marker(task: Task, out: Path) -> Path:
    return out / "notebooks" / ".done" / f"{task.name}.json"


def _write_yaml(path: Path, values: dict[str, Any]) -> None:
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        paths.write_text(path, text)


def remove_new(out: Path, existed: bool) -> None:
    """Take back a sweep folder that did not exist before, after input that could not be used."""
    if not existed:
        shutil.rmtree(out, ignore_errors=True)


def check_jobs(jobs: int) -> int:
    if jobs < 1:
        raise WorkbookError(f"--jobs must be at least 1, not {jobs}")
    return jobs
