"""What a sweep consists of: one task a notebook run or a join, each with all that it depends on.

A system and a shard of queries are a task for retrieval and one for generation; a run is a task for the
measures that depend on no other run. Without `--shard-size` the whole slice is the one shard, and all
runs are scored together, so that no gold answer is encoded twice.
"""

import hashlib
import importlib
import json
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from lib import batch, chunking, comparing, notebooks, paths, preparing, scoring, shards
from lib.models import backend_versions
from lib.variants import Profile, Variant

PREPARE, CHUNK = "01_prepare_data", "02_study_chunking"
RETRIEVE, GENERATE = "03_ablate_retrieval", "04_generate_answers"
EVALUATE_PRIMARY, EVALUATE_SUPPLEMENTARY = "05_evaluate_primary", "06_evaluate_supplementary"
COMPARE = "07_compare_systems"
JOIN_ANSWERS = "join_answers"
ANSWERS = (GENERATE, JOIN_ANSWERS)  # what a dry run leaves out
JUDGE_PROMPTS = ("prefer", "mine", "grade", "judge", "reference")
GOLD = ("gold_answers.jsonl", "qrels.txt", "nuggets.jsonl", "reference_answers.jsonl")


@dataclass(frozen=True)
class Task:
    """One run of one notebook or one call of a function: its parameters, the tasks before it, what it reads and writes.

    `function` is `module:function`; where it is empty, `name` begins with a notebook's. An input that is
    not there counts as such; `settings` are what the task depends on that is no file.
    Of the tasks with `service`, which ask a model service, one runs at a time: their requests run side by
    side already. A task whose `pending` file is there when it ends has left queries to be asked again,
    and is never taken for done. One whose `blockers` are there when its turn comes is put off. What is to
    be run `here` reads files that no other machine may have.
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
    function: str = ""
    here: bool = False

    @property
    def notebook(self) -> Path:
        return paths.NOTEBOOKS / f"{self.name.split('.')[0]}.ipynb"

    def call(self) -> None:
        """Call the task's function with its parameters."""
        module, _, name = self.function.partition(":")
        getattr(importlib.import_module(module), name)(**self.parameters)


@dataclass(frozen=True)
class Plan:
    """What is to be swept: a folder, the slice behind it, the systems, and how they are run and scored.

    `budget` (dollars, 0 for none) holds for all that asks a model; `fallback` is 04's; `score` says whether
    the runs are evaluated too. `shard_size` is a number of the slice's `n_queries`, 0 for one piece.
    """

    out: Path
    spec: str
    variants: list[Variant]
    profile: Profile
    budget: float = 0.0
    fallback: str = ""
    score: bool = True
    shard_size: int = 0
    n_queries: int = 0

    @property
    def parts(self) -> dict[str, Path]:
        """End of a task's name -> the folder that the task works in: the sweep's own, or its shards'."""
        if not self.shard_size:
            return {"": self.out}
        return {f".{p.name}": p for p in shards.folders(self.out, self.n_queries, self.shard_size)}

    @property
    def variant_files(self) -> dict[str, Path]:
        return {variant.name: self.out / "variants" / f"{variant.name}.yaml" for variant in self.variants}

    @property
    def chunkers(self) -> dict[str, str]:
        """System -> the chunker that it reads, for those that read text."""
        return {variant.name: chunking.chunker_id(variant) for variant in self.variants if variant.reads_text}


def tasks(plan: Plan) -> list[Task]:
    """The tasks of a sweep, each after those that it depends on."""
    made = [_prepare(plan)]
    if plan.shard_size:
        made.append(_split(plan))
    before = made[-1]
    for end, folder in plan.parts.items():
        chunk = _chunk(plan, end, folder, before)
        made.append(chunk)
        for variant in plan.variants:
            retrieve = _retrieve(plan, variant, end, folder, chunk if variant.reads_text else before)
            made += [retrieve, _answer(plan, variant, end, folder, retrieve)]
    if plan.shard_size:
        made += _joins(plan)
    if not plan.score:
        return made
    if plan.shard_size:
        made += _run_scores(plan)
    evaluations = _evaluations(plan, made)
    return [*made, *evaluations, _comparison(plan, evaluations)]


def _slice_files(folder: Path) -> tuple[Path, ...]:
    return tuple(folder / "slice" / name for name in shards.SLICE_FILES)


def _read_too(folder: Path) -> tuple[Path, ...]:
    """What makes a slice's files a slice; it says nothing that they do not say."""
    return tuple(folder / "slice" / name for name in ("documents.index.json", "slice.json"))


def _prepare(plan: Plan) -> Task:
    return Task(
        PREPARE,
        {"sweep_dir": str(plan.out), "slice_source": plan.spec},
        inputs=tuple(preparing.source_files(plan.spec)),
        outputs=(*_slice_files(plan.out), *_read_too(plan.out)),
        here=True,
    )


def _split(plan: Plan) -> Task:
    gold = tuple(plan.out / "slice" / name for name in shards.GOLD)
    return Task(
        "split",
        {"sweep": str(plan.out), "size": plan.shard_size},
        after=(PREPARE,),
        inputs=(*_slice_files(plan.out), *gold),
        outputs=tuple(path for folder in plan.parts.values() for path in (*_slice_files(folder), *_read_too(folder))),
        function="lib.shards:split",
    )


def _common(plan: Plan, folder: Path) -> dict[str, str]:
    return {"sweep_dir": str(folder), "profile": str(plan.out / "profile.yaml")}


def _models(profile: Profile) -> dict[str, Any]:
    backend = backend_versions(profile.encoder)
    return {"encoder": asdict(profile.encoder), "sentence_reranker": asdict(profile.sentence_reranker), "backend": backend}


def _passages(folder: Path, chunker: str) -> Path:
    return folder / "chunks" / chunker / "passages.jsonl"


def _chunk(plan: Plan, end: str, folder: Path, before: Task) -> Task:
    return Task(
        f"{CHUNK}{end}",
        {**_common(plan, folder), "variants": str(plan.out / "variants")},
        after=(before.name,),
        inputs=(*_slice_files(folder), *plan.variant_files.values()),
        outputs=tuple(dict.fromkeys(_passages(folder, chunker) for chunker in plan.chunkers.values())),
        settings=_models(plan.profile),
    )


def _retrieve(plan: Plan, variant: Variant, end: str, folder: Path, before: Task) -> Task:
    file = plan.variant_files[variant.name]
    chunks = (_passages(folder, plan.chunkers[variant.name]),) if variant.reads_text else ()
    return Task(
        f"{RETRIEVE}.{variant.name}{end}",
        {**_common(plan, folder), "variant": str(file)},
        after=(before.name,),
        inputs=(*_slice_files(folder), folder / "slice" / "qrels.txt", file, *chunks),
        outputs=(folder / "runs" / variant.name / "evidence.jsonl",),
        settings=_models(plan.profile),
    )


def _answer(plan: Plan, variant: Variant, end: str, folder: Path, retrieve: Task) -> Task:
    run, profile = folder / "runs" / variant.name, plan.profile
    asks = variant.reads_text and profile.generator != "extractive"
    return Task(
        f"{GENERATE}.{variant.name}{end}",
        {**retrieve.parameters, "fallback": plan.fallback, "budget": plan.budget},
        after=(retrieve.name,),
        inputs=(
            *retrieve.inputs,
            *retrieve.outputs,
            folder / "slice" / "gold_answers.jsonl",
            paths.PARAMS / "submission.yaml",
            paths.PARAMS / "prompts" / f"{profile.prompt}.txt",
            *((run / batch.RESULTS,) if asks else ()),
        ),
        outputs=tuple(run / name for name in (*shards.ANSWER_FILES, "ir-metadata.yml")),
        settings=asdict(profile),
        service=asks and profile.generator == "openai",
        pending=run / "pending.json",
    )


def _joins(plan: Plan) -> list[Task]:
    """The tasks that put together what the shards have: chunks, and each run's evidence and answers."""
    ends, folders = list(plan.parts), list(plan.parts.values())
    documents = _slice_files(plan.out)[0]
    joins = [
        Task(
            f"join_chunks.{chunker}",
            {"sweep": str(plan.out), "chunker": chunker},
            after=tuple(f"{CHUNK}{end}" for end in ends),
            inputs=(documents, *(_passages(folder, chunker) for folder in folders)),
            outputs=(_passages(plan.out, chunker),),
            settings={"encoder": asdict(plan.profile.encoder)},  # which is named beside the passages
            function="lib.shards:join_chunks",
        )
        for chunker in dict.fromkeys(plan.chunkers.values())
    ]
    made = {RETRIEVE: ("evidence.jsonl",), GENERATE: (*shards.ANSWER_FILES, "ir-metadata.yml")}
    # Written in some cases only: a model's replies, what is pending, the further draws.
    draws = [f"draw-{number}" for number in range(2, plan.profile.repeat + 1)]
    perhaps = ("replies.jsonl", "pending.json", *(f"{draw}/{name}" for draw in draws for name in shards.ANSWER_FILES))
    for variant in plan.variants:
        run = Path("runs", variant.name)
        for notebook, join in ((RETRIEVE, "join_evidence"), (GENERATE, JOIN_ANSWERS)):
            names = (*made[notebook], *(perhaps if join == JOIN_ANSWERS else ()))
            joins.append(
                Task(
                    f"{join}.{variant.name}",
                    {"sweep": str(plan.out), "run": variant.name},
                    after=tuple(f"{notebook}.{variant.name}{end}" for end in ends),
                    inputs=tuple(folder / run / name for folder in folders for name in names),
                    outputs=tuple(plan.out / run / name for name in made[notebook]),
                    function=f"lib.shards:{join}",
                )
            )
    return joins


def _run_scores(plan: Plan) -> list[Task]:
    """A task a run, for the measures that depend on no other run."""
    out = plan.out
    gold = tuple(out / "slice" / name for name in ("queries.jsonl", "gold_answers.jsonl", "qrels.txt"))
    return [
        Task(
            f"score_run.{variant.name}",
            {"sweep": str(out), "run": variant.name, "profile": str(out / "profile.yaml")},
            after=(f"{JOIN_ANSWERS}.{variant.name}",),
            inputs=(*gold, out / "runs" / variant.name / "responses.jsonl"),
            outputs=tuple(out / "scores" / "runs" / f"{variant.name}.{kind}" for kind in ("csv", "json")),
            settings={"profile": asdict(plan.profile)},
            blockers=(out / "runs" / variant.name / "pending.json",),
            function="lib.scoring:score_run",
        )
        for variant in plan.variants
    ]


def _evaluations(plan: Plan, made: list[Task]) -> list[Task]:
    """The tasks that score all runs together; of those that ask a service, one runs at a time."""
    out, profile = plan.out, plan.profile
    given = {**_common(plan, out), "variants": str(out / "variants"), "budget": plan.budget}
    runs = [out / "runs" / variant.name for variant in plan.variants]
    gold = tuple(out / "slice" / name for name in ("queries.jsonl", "documents.jsonl", *GOLD))
    prompts = tuple(paths.PARAMS / "prompts" / f"{name}.txt" for name in JUDGE_PROMPTS)
    names = {EVALUATE_PRIMARY: scoring.PRIMARY_FILES, EVALUATE_SUPPLEMENTARY: scoring.SUPPLEMENTARY_FILES}
    return [
        Task(
            name,
            given,
            after=tuple(task.name for task in made),
            inputs=(*gold, *prompts, *(run / file for run in runs for file in shards.ANSWER_FILES)),
            outputs=tuple(out / "scores" / file for file in files),
            settings={"profile": asdict(profile), "runs": [variant.name for variant in plan.variants]},
            service=profile.judge == "openai" or profile.generator != "extractive",
            pending=out / "scores" / f"{name}.pending.json",
            blockers=tuple(run / "pending.json" for run in runs),
        )
        for name, files in names.items()
    ]


def _comparison(plan: Plan, evaluations: list[Task]) -> Task:
    """The task that compares all runs, from their scores, evidence and responses."""
    out = plan.out
    runs = [out / "runs" / name for name in plan.variant_files]
    draws = [run / f"draw-{n}" / "responses.jsonl" for run in runs for n in range(2, plan.profile.repeat + 1)]
    return Task(
        COMPARE,
        evaluations[0].parameters,
        after=tuple(task.name for task in evaluations),
        inputs=(
            *(path for task in evaluations for path in (*task.inputs, *task.outputs)),
            *plan.variant_files.values(),
            *(run / "evidence.jsonl" for run in runs),
            *draws,
        ),
        outputs=tuple(out / file for file in comparing.FILES),
        settings={"runs": list(plan.variant_files)},
    )


def key_of(task: Task, out: Path) -> str:
    """The hash of all that a task depends on; paths count by their place in the sweep or the project only."""
    given = {k: v.replace(str(out), "OUT") if isinstance(v, str) else v for k, v in task.parameters.items()}
    given.pop("budget", None)  # says how far to go, not where
    if task.inputs and not task.after:
        given.pop("slice_source")  # the files behind it are inputs, wherever they lie
    lock = paths.PROJECT / "requirements.lock"
    code = notebooks.module_key(task.function.partition(":")[0]) if task.function else notebooks.code_key(task.notebook)
    parts = {
        "code": code,
        "parameters": given,
        "inputs": [[path.name, content(path)] for path in task.inputs],
        "settings": task.settings,
        "packages": content(lock),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def content(path: Path) -> str | None:
    """The hash of a file's bytes, None if it is not there; a file is read again only when it has changed."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return _content(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1 << 16)
def _content(path: Path, *_: int) -> str:
    return paths.sha256(path)
