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

from lib import batch, chunking, comparing, notebooks, paths, preparing, scoring
from lib.errors import StopEverything, WorkbookError
from lib.models import locate
from lib.notebooks import Failure
from lib.variants import Profile, Variant

PREPARE, CHUNK = "01_prepare_data", "02_study_chunking"
RETRIEVE, GENERATE = "03_ablate_retrieval", "04_generate_answers"
EVALUATE_PRIMARY, EVALUATE_SUPPLEMENTARY = "05_evaluate_primary", "06_evaluate_supplementary"
COMPARE = "07_compare_systems"
JUDGE_PROMPTS = ("prefer", "mine", "grade", "judge", "reference")
GOLD = ("gold_answers.jsonl", "qrels.txt", "nuggets.jsonl", "reference_answers.jsonl")


@dataclass(frozen=True)
class Task:
    """One run of one notebook: its parameters, the tasks before it, and the files it reads and writes.

    An input that is not there counts as such; `settings` are what it depends on that is no file.
    Of the tasks with `service`, which ask a model service, one runs at a time: their requests run side by
    side already. A task whose `pending` file is there when it ends has left queries to be asked again,
    and is never taken for done. One whose `blockers` are there when its turn comes is put off.
    """

    name: str
    parameters: dict[str, Any]
    after: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()
    outputs: tuple[Path, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    service: bool = False
    pending: Path | None = None
    blockers: tuple[Path, ...] = ()

    @property
    def notebook(self) -> Path:
        return paths.NOTEBOOKS / f"{self.name.split('.')[0]}.ipynb"


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


def check_models(variants: list[Variant], profile: Profile, score: bool = True) -> None:
    """Raise WorkbookError if a model that some variant needs, or the scoring, is not there; nothing is loaded."""
    if any(chunking.needs_vectors(v) or v.dense or v.allocates_together for v in variants):
        locate(profile.encoder)
    if any(v.sentence_rerank for v in variants):
        locate(profile.sentence_reranker)
    if score:
        locate(profile.bertscore or profile.encoder)


def tasks(
    out: Path,
    spec: str,
    variants: list[Variant],
    profile: Profile,
    budget: float = 0.0,
    fallback: str = "",
    score: bool = True,
) -> list[Task]:
    """The tasks of a sweep, each after those that it depends on.

    `budget` (dollars, 0 for none) holds for all that asks a model; `fallback` is 04's; `score` says
    whether the runs are evaluated too.
    """
    slice_files = tuple(out / "slice" / n for n in ("documents.jsonl", "queries.jsonl", "citation_degrees.json"))
    variant_files = {v.name: out / "variants" / f"{v.name}.yaml" for v in variants}
    chunks = {v.name: out / "chunks" / chunking.chunker_id(v) / "passages.jsonl" for v in variants if v.reads_text}
    models = {"encoder": asdict(profile.encoder), "sentence_reranker": asdict(profile.sentence_reranker)}
    common = {"sweep_dir": str(out), "profile": str(out / "profile.yaml")}
    prepare = Task(
        PREPARE,
        {"sweep_dir": str(out), "slice_source": spec},
        inputs=tuple(preparing.source_files(spec)),
        outputs=slice_files,
    )
    chunk = Task(
        CHUNK,
        {**common, "variants": str(out / "variants")},
        after=(PREPARE,),
        inputs=(*slice_files, *variant_files.values()),
        outputs=tuple(dict.fromkeys(chunks.values())),
        settings=models,
    )
    made = [prepare, chunk]
    for variant in variants:
        run = out / "runs" / variant.name
        retrieve = Task(
            f"{RETRIEVE}.{variant.name}",
            {**common, "variant": str(variant_files[variant.name])},
            after=(CHUNK,),
            inputs=(*slice_files, out / "slice" / "qrels.txt", variant_files[variant.name], *chunks_of(variant, chunks)),
            outputs=(run / "evidence.jsonl",),
            settings=models,
        )
        made += [retrieve, _answer_task(retrieve, out, variant, profile, budget, fallback)]
    if not score:
        return made
    evaluations = _evaluations(made, out, variants, profile, budget)
    return [*made, *evaluations, _comparison(evaluations, out, variant_files, profile.repeat)]


def _evaluations(made: list[Task], out: Path, variants: list[Variant], profile: Profile, budget: float) -> list[Task]:
    """The tasks that score all runs together; of those that ask a service, one runs at a time."""
    given = {
        "sweep_dir": str(out),
        "profile": str(out / "profile.yaml"),
        "variants": str(out / "variants"),
        "budget": budget,
    }
    runs = [out / "runs" / variant.name for variant in variants]
    gold = tuple(out / "slice" / name for name in ("queries.jsonl", "documents.jsonl", *GOLD))
    prompts = tuple(paths.PARAMS / "prompts" / f"{name}.txt" for name in JUDGE_PROMPTS)
    names = {EVALUATE_PRIMARY: scoring.PRIMARY_FILES, EVALUATE_SUPPLEMENTARY: scoring.SUPPLEMENTARY_FILES}
    return [
        Task(
            name,
            given,
            after=tuple(task.name for task in made),
            inputs=(*gold, *prompts, *(run / file for run in runs for file in ("responses.jsonl", "provenance.jsonl"))),
            outputs=tuple(out / "scores" / file for file in files),
            settings={"profile": asdict(profile), "runs": [variant.name for variant in variants]},
            service=profile.judge == "openai" or profile.generator != "extractive",
            pending=out / "scores" / f"{name}.pending.json",
            blockers=tuple(run / "pending.json" for run in runs),
        )
        for name, files in names.items()
    ]


def _comparison(evaluations: list[Task], out: Path, variant_files: dict[str, Path], repeat: int) -> Task:
    """The task that compares all runs, from their scores, evidence and responses."""
    runs = [out / "runs" / name for name in variant_files]
    draws = [run / f"draw-{number}" / "responses.jsonl" for run in runs for number in range(2, repeat + 1)]
    return Task(
        COMPARE,
        evaluations[0].parameters,
        after=tuple(task.name for task in evaluations),
        inputs=(
            *(path for task in evaluations for path in (*task.inputs, *task.outputs)),
            *variant_files.values(),
            *(run / "evidence.jsonl" for run in runs),
            *draws,
        ),
        outputs=tuple(out / file for file in comparing.FILES),
        settings={"runs": list(variant_files)},
    )


def chunks_of(variant: Variant, chunks: dict[str, Path]) -> tuple[Path, ...]:
    """The file of a variant's chunks, if it has any."""
    return (chunks[variant.name],) if variant.name in chunks else ()


def _answer_task(retrieve: Task, out: Path, variant: Variant, profile: Profile, budget: float, fallback: str) -> Task:
    run = out / "runs" / variant.name
    asks = variant.reads_text and profile.generator != "extractive"
    prompt = paths.PARAMS / "prompts" / f"{profile.prompt}.txt"
    return Task(
        f"{GENERATE}.{variant.name}",
        {**retrieve.parameters, "fallback": fallback, "budget": budget},
        after=(retrieve.name,),
        inputs=(
            *retrieve.inputs,
            *retrieve.outputs,
            out / "slice" / "gold_answers.jsonl",
            paths.PARAMS / "submission.yaml",
            prompt,
            *((run / batch.RESULTS,) if asks else ()),
        ),
        outputs=tuple(run / n for n in ("responses.jsonl", "provenance.jsonl", "ir-metadata.yml")),
        settings=asdict(profile),
        service=asks and profile.generator == "openai",
        pending=run / "pending.json",
    )


def key_of(task: Task, out: Path) -> str:
    """The hash of all that a task depends on; paths count by their place in the sweep or the project only."""
    given = {k: v.replace(str(out), "OUT") if isinstance(v, str) else v for k, v in task.parameters.items()}
    given.pop("budget", None)  # says how far to go, not where
    if task.inputs and not task.after:
        given.pop("slice_source")  # the files behind it are inputs, wherever they lie
    lock = paths.PROJECT / "requirements.lock"
    parts = {
        "code": notebooks.code_key(task.notebook),
        "parameters": given,
        "inputs": [[path.name, paths.sha256(path) if path.exists() else None] for path in task.inputs],
        "settings": task.settings,
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
                elif _may_start(task, running, jobs, outcome):
                    waiting.remove(task)
                    if any(path.exists() for path in task.blockers):
                        outcome.skipped.append(task.name)
                        tell("skipped", task, None)
                    elif is_done(task, out):
                        outcome.unchanged.append(task.name)
                        tell("unchanged", task, None)
                    else:
                        tell("start", task, None)
                        running[pool.submit(_execute, task, out)] = task
            if running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    task, failure = running.pop(future), future.result()
                    _record(failure, task, outcome, tell)
                    if failure and failure.error == StopEverything.__name__:
                        for other in [other for other in waiting if other.service]:
                            waiting.remove(other)
                            outcome.skipped.append(other.name)
                            tell("skipped", other, None)
    outcome.seconds = time.monotonic() - started
    return outcome


def _may_start(task: Task, running: dict[Future, Task], jobs: int, outcome: Outcome) -> bool:
    busy = task.service and any(other.service for other in running.values())
    return len(running) < jobs and not busy and set(task.after) <= {*outcome.ran, *outcome.unchanged}


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
    if task.pending and task.pending.exists():
        return None
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
