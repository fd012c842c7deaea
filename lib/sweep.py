"""A sweep: every task of every system, as many at a time as there are jobs, and only what is needed.

A task's key is a hash of all that it depends on: the code of its notebook or function and the modules
that are imported, its parameters, the content of its input files and the locked versions of the
packages. A task is done when its marker, written last, holds that key and the hashes of files that are
still there; everything else is run again. Inputs are known by content, so a step that comes out the
same leaves what follows alone.
"""

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lib import chunking, notebooks, paths
from lib.errors import StopEverything, WorkbookError
from lib.models import locate
from lib.notebooks import Failure
from lib.tasks import Plan, Task, content, key_of
from lib.variants import Profile, Variant

Tell = Callable[[str, Task, Failure | None], None]


@dataclass
class Outcome:
    """What became of the tasks of a sweep, by name: run anew, unchanged, failed, or not run after a failure."""

    ran: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: dict[str, Failure] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0


def prepare_folder(plan: Plan) -> None:
    """Write the resolved systems and profile of a sweep, `variants/*.yaml` and `profile.yaml`."""
    for variant in plan.variants:
        _write_yaml(plan.variant_files[variant.name], asdict(variant))
    for path in set((plan.out / "variants").glob("*.yaml")) - set(plan.variant_files.values()):
        path.unlink()
    _write_yaml(plan.out / "profile.yaml", asdict(plan.profile))


def check_models(variants: list[Variant], profile: Profile, score: bool = True) -> None:
    """Raise WorkbookError if a model that some variant needs, or the scoring, is not there; nothing is loaded."""
    if any(chunking.needs_vectors(v) or v.dense or v.allocates_together for v in variants):
        locate(profile.encoder)
    if any(v.sentence_rerank for v in variants):
        locate(profile.sentence_reranker)
    if score:
        locate(profile.bertscore or profile.encoder.plain)


class _Queue:
    """The tasks that have not begun; one may be taken when all before it are done, in the order of the list."""

    def __init__(self, todo: list[Task]):
        self._place = {task.name: number for number, task in enumerate(todo)}
        self._waiting = {task.name: task for task in todo}
        self._missing = {task.name: set(task.after) & self._place.keys() for task in todo}
        self._followers: dict[str, list[Task]] = defaultdict(list)
        for task in todo:
            for name in self._missing[task.name]:
                self._followers[name].append(task)
        self._ready: dict[bool, list[int]] = {False: [], True: []}  # heaps of places, of those that ask a service apart
        self._todo = todo
        for task in todo:
            if not self._missing[task.name]:
                heappush(self._ready[task.service], self._place[task.name])

    def take(self, busy: bool) -> Task | None:
        """The next task that may start; none that asks a service while that is `busy`."""
        heaps = [heap for service, heap in self._ready.items() if heap and not (busy and service)]
        if not heaps:
            return None
        return self._waiting.pop(self._todo[heappop(min(heaps))].name)

    def done(self, task: Task) -> None:
        """Let those start that waited for this task alone."""
        for follower in self._followers[task.name]:
            self._missing[follower.name].discard(task.name)
            if not self._missing[follower.name] and follower.name in self._waiting:
                heappush(self._ready[follower.service], self._place[follower.name])

    def drop_after(self, task: Task) -> list[Task]:
        """Take out what depends on a task, directly or not; returns it in order."""
        dropped: dict[str, Task] = {}
        reached = [task]
        while reached:
            for follower in self._followers[reached.pop().name]:
                if follower.name in self._waiting:
                    dropped[follower.name] = self._waiting.pop(follower.name)
                    reached.append(follower)
        return sorted(dropped.values(), key=lambda follower: self._place[follower.name])

    def drop_services(self) -> list[Task]:
        """Take out all that asks a service, and what depends on it; returns it in order."""
        asking = [task for task in self._waiting.values() if task.service]
        for task in asking:
            self._waiting.pop(task.name, None)
        self._ready[True].clear()
        dropped = [*asking, *(follower for task in asking for follower in self.drop_after(task))]
        return sorted(dropped, key=lambda task: self._place[task.name])


class Workers(NamedTuple):
    """Who runs tasks, and how many at a time now: `submit(task, out, engine)` has `execute` called somewhere."""

    submit: Callable[[Task, Path, str], Future]
    jobs: Callable[[], int]


def run(out: Path, todo: list[Task], workers: Workers, tell: Tell, engine: str = "fresh") -> Outcome:
    """Run the tasks, as many at a time as there are jobs; a failed one only stops what depends on it.

    `tell(event, task, failure)` hears of every `start`, `ran`, `unchanged`, `failed` and `skipped`.
    """
    started = time.monotonic()
    outcome = _Run(out, _Queue(todo), workers, tell, engine).to_its_end()
    outcome.seconds = time.monotonic() - started
    return outcome


class _Run:
    """A sweep that is under way: what waits, what runs, and what became of the rest."""

    def __init__(self, out: Path, queue: _Queue, workers: Workers, tell: Tell, engine: str):
        self.out, self.queue, self.workers, self.tell, self.engine = out, queue, workers, tell, engine
        self.running: dict[Future, Task] = {}
        self.outcome = Outcome()

    def to_its_end(self) -> Outcome:
        self._start()
        while self.running:
            done, _ = wait(self.running, return_when=FIRST_COMPLETED)
            for future in done:
                self._finish(self.running.pop(future), future)
            self._start()
        return self.outcome

    def _start(self) -> None:
        """Begin with as many tasks as there are jobs free; what is done already takes none."""
        while len(self.running) < self.workers.jobs():
            task = self.queue.take(busy=any(other.service for other in self.running.values()))
            if task is None:
                return
            if any(path.exists() for path in task.blockers):
                self._skip([task, *self.queue.drop_after(task)])
            elif is_done(task, self.out):
                self._pass(task, self.outcome.unchanged, "unchanged")
            else:
                self.tell("start", task, None)
                self.running[self.workers.submit(task, self.out, self.engine)] = task

    def _finish(self, task: Task, future: Future) -> None:
        try:
            failure = future.result()
        except Exception as error:  # of the machine: a disk that is full, a worker that is lost again and again
            failure = Failure(None, type(error).__name__, str(error))
        if failure is None:
            self._pass(task, self.outcome.ran, "ran")
            return
        self.outcome.failed[task.name] = failure
        self.tell("failed", task, failure)
        stopped = self.queue.drop_services() if failure.error == StopEverything.__name__ else []
        self._skip([*stopped, *self.queue.drop_after(task)])

    def _pass(self, task: Task, names: list[str], event: str) -> None:
        names.append(task.name)
        self.queue.done(task)
        self.tell(event, task, None)

    def _skip(self, tasks: list[Task]) -> None:
        for task in tasks:
            self.outcome.skipped.append(task.name)
            self.tell("skipped", task, None)


def is_done(task: Task, out: Path) -> bool:
    """Whether a task's marker holds its present key and its files are those that it wrote."""
    marker = _marker(task, out)
    if not marker.exists():
        return False
    try:
        noted = json.loads(marker.read_text(encoding="utf-8"))
    except ValueError:
        return False
    files = _files(task, out)
    return noted.get("key") == key_of(task, out) and noted.get("files") == files and None not in files.values()


def _files(task: Task, out: Path) -> dict[str, str | None]:
    """What a task vouches for: its output files, and the executed copy of its notebook, with their hashes."""
    written = task.outputs if task.function else (*task.outputs, executed(task, out))
    return {path.relative_to(out).as_posix(): content(path) for path in written}


def executed(task: Task, out: Path) -> Path:
    """Where the executed copy of a task's notebook lies."""
    return out / "notebooks" / f"{task.name}.ipynb"


def execute(task: Task, out: Path, engine: str = "fresh") -> Failure | None:
    """Run one task and write its marker; returns what went wrong, if anything did. It may run on another machine."""
    marker = _marker(task, out)
    marker.unlink(missing_ok=True)
    key = key_of(task, out)
    if task.function:
        try:
            task.call()
        except WorkbookError as error:
            return Failure(None, type(error).__name__, str(error))
    elif failure := notebooks.run(task.notebook, executed(task, out), task.parameters, engine):
        return failure
    files = _files(task, out)
    absent = [name for name, found in files.items() if found is None]
    if absent:
        return Failure(None, "MissingOutput", f"the task ended without writing {absent[0]}")
    if task.pending and task.pending.exists():
        return None
    paths.write_text(marker, json.dumps({"key": key, "files": files}, indent=1) + "\n")
    return None


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


def check_number(value: int, option: str, least: int = 1) -> int:
    if value < least:
        raise WorkbookError(f"{option} must be at least {least}, not {value}")
    return value
