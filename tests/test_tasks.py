"""What the tasks of a sweep are, what each depends on, and in which order they may run."""

import dataclasses
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import notebooks, paths, preparing, sweep, tasks
from lib.notebooks import Failure
from lib.sweep import Workers
from lib.tasks import Plan, Task
from lib.variants import ModelSpec, Profile, ServiceSpec, load_variants
from tests.slice_files import put, source

TWO = ["default", "official-naive-baseline"]


def plan(out: Path, profile: Profile, **given) -> Plan:
    return Plan(out, "sample", load_variants(TWO), **{"profile": profile, **given})


def names(todo: list[Task]) -> list[str]:
    return [task.name for task in todo]


def by_name(todo: list[Task]) -> dict[str, Task]:
    assert len(set(names(todo))) == len(todo)
    return {task.name: task for task in todo}


# Which tasks there are


def test_a_slice_in_one_piece_is_neither_split_nor_joined(tmp_path, embedded):
    """One task a notebook, and for each system one of 03 and one of 04."""
    todo = tasks.tasks(plan(tmp_path, embedded))
    assert sorted(names(todo)) == [
        "01_prepare_data",
        "02_study_chunking",
        *(f"03_ablate_retrieval.{name}" for name in TWO),
        *(f"04_generate_answers.{name}" for name in TWO),
        "05_evaluate_primary",
        "06_evaluate_supplementary",
        "07_compare_systems",
    ]


def test_a_system_and_a_shard_are_a_task(tmp_path, embedded):
    """5 queries in shards of 2; the naive baseline reads no text, so that one chunker's passages are joined."""
    todo = tasks.tasks(plan(tmp_path, embedded, shard_size=2, n_queries=5, score=False))
    ends = ["0001", "0002", "0003"]
    steps = [f"{step}.{name}" for step in ("03_ablate_retrieval", "04_generate_answers") for name in TWO]
    (chunker,) = plan(tmp_path, embedded).chunkers.values()
    expected = ["01_prepare_data", "split", *(f"{step}.{end}" for step in ("02_study_chunking", *steps) for end in ends)]
    joins = [f"{join}.{name}" for join in ("join_evidence", "join_answers") for name in TWO]
    assert sorted(names(todo)) == sorted([*expected, f"join_chunks.{chunker}", *joins])


@pytest.mark.parametrize("size", [0, 3])
def test_tasks_stand_after_those_that_they_depend_on_and_read_what_those_write(tmp_path, embedded, size):
    """No file is read before the task that writes it has ended."""
    todo = tasks.tasks(plan(tmp_path, embedded, shard_size=size, n_queries=8))
    writers = {path: task.name for task in todo for path in task.outputs}
    before: dict[str, set[str]] = {}
    for task in todo:
        assert set(task.after) <= before.keys(), task.name
        before[task.name] = set(task.after).union(*(before[name] for name in task.after))
        assert {writers[path] for path in task.inputs if path in writers} <= before[task.name], task.name


@pytest.mark.parametrize("size", [0, 3])
def test_no_two_tasks_write_the_same_file(tmp_path, embedded, size):
    todo = tasks.tasks(plan(tmp_path, embedded, shard_size=size, n_queries=8))
    written = Counter(path for task in todo for path in task.outputs)
    assert written.most_common(1)[0][1] == 1


@pytest.mark.parametrize("size", [0, 3])
def test_notebooks_get_parameters_that_they_have(tmp_path, embedded, size):
    for task in tasks.tasks(plan(tmp_path, embedded, shard_size=size, n_queries=8, budget=1.5)):
        if not task.function:
            notebooks.check_parameters(task.notebook, task.parameters)


@pytest.fixture
def asking(embedded) -> Profile:
    service = ServiceSpec("gpt-4o-mini", base_url="http://127.0.0.1:9/v1")
    return dataclasses.replace(embedded, name="asking", generator="openai", service=service)


def test_only_what_asks_a_service_takes_its_turn(tmp_path, asking):
    """The naive baseline asks no model; the nugget grader of 05 and 06 may."""
    todo = tasks.tasks(plan(tmp_path, asking, shard_size=4, n_queries=8))
    assert {task.name for task in todo if task.service} == {
        "04_generate_answers.default.0001",
        "04_generate_answers.default.0002",
        "05_evaluate_primary",
        "06_evaluate_supplementary",
    }


def test_a_dry_run_leaves_out_the_answers_of_every_shard_and_their_joins(tmp_path, embedded):
    todo = tasks.tasks(plan(tmp_path, embedded, shard_size=4, n_queries=8, score=False))
    kept = {task.name.split(".")[0] for task in todo if not task.name.startswith(tasks.ANSWERS)}
    assert kept == {"01_prepare_data", "split", "02_study_chunking", "03_ablate_retrieval", "join_chunks", "join_evidence"}


# The key of a task


class Made(NamedTuple):
    """A plan whose files are there, and what makes them."""

    plan: Plan
    keys: Callable[..., dict[str, str]]


@pytest.fixture(params=[0, 4], ids=["whole", "shards"])
def made(request, tmp_path, embedded) -> Made:
    """A sweep up to its split slice, whose other files hold what they are called."""

    def make(folder: Path, **changes) -> Plan:
        planned = plan(folder, embedded, shard_size=request.param, n_queries=8, **changes)
        sweep.prepare_folder(planned)
        preparing.prepare("sample", folder / "slice")
        todo = tasks.tasks(planned)
        for task in todo:
            if task.function == "lib.shards:split":
                task.call()
            for path in (*task.inputs, *task.outputs):
                if not path.exists() and folder in path.parents:
                    put(path, path.relative_to(folder).as_posix())
        return planned

    def keys(planned: Plan, **changes) -> dict[str, str]:
        planned = dataclasses.replace(planned, **changes)
        return {task.name: tasks.key_of(task, planned.out) for task in tasks.tasks(planned)}

    made = Made(make(tmp_path / "out"), keys)
    elsewhere = make(tmp_path / "elsewhere")
    assert keys(elsewhere) == keys(made.plan), "the folder must not count"
    return made


def changed(made: Made, before: dict[str, str], **changes) -> set[str]:
    """The tasks whose key is another than before."""
    after = made.keys(made.plan, **changes)
    assert after.keys() == before.keys()
    return {name for name in after if after[name] != before[name]}


def stages(found: set[str]) -> set[str]:
    return {name.split(".")[0] for name in found}


def test_the_key_follows_the_content_of_every_input(made):
    """Each input in turn is changed, its size kept, and put back: the keys of all that read it change, and no other.

    A file that is not there counts as such.
    """
    before = made.keys(made.plan)
    todo = tasks.tasks(made.plan)
    inputs = {path for task in todo for path in task.inputs if made.plan.out in path.parents}
    assert len(inputs) > 20
    for path in sorted(inputs):
        content = path.read_bytes() if path.exists() else None
        replace(path, content[:-1] + bytes([content[-1] ^ 1]) if content else b"x")
        assert changed(made, before) == {task.name for task in todo if path in task.inputs}, path
        path.unlink()
        if path.parent == made.plan.out / "slice":
            assert changed(made, before) == {task.name for task in todo if path in task.inputs}, path
        if content is not None:
            replace(path, content)
    assert made.keys(made.plan) == before


def replace(path: Path, content: bytes) -> None:
    with paths.atomic(path, "wb") as file:
        file.write(content)


def test_the_key_does_not_follow_the_budget_nor_what_a_task_writes(made):
    before = made.keys(made.plan)
    assert changed(made, before, budget=2.5) == set()
    report = made.plan.out / "results" / "leaderboard.csv"
    put(report, "another")
    assert changed(made, before) == set()


def test_the_key_of_the_preparation_does_not_follow_where_the_source_lies(tmp_path, embedded):
    keys = []
    for name in ("here", "there"):
        given = source(tmp_path / name)
        (task, *_) = tasks.tasks(dataclasses.replace(plan(tmp_path / "out", embedded), spec=str(given)))
        keys.append(tasks.key_of(task, tmp_path / "out"))
    assert keys[0] == keys[1]
    put(tmp_path / "there" / "qrels.txt", "q1 0 d1 1\n")
    (task, *_) = tasks.tasks(dataclasses.replace(plan(tmp_path / "out", embedded), spec=str(tmp_path / "there")))
    assert tasks.key_of(task, tmp_path / "out") != keys[0]


def test_the_key_follows_the_part_of_the_profile_that_a_task_uses(made):
    before, profile = made.keys(made.plan), made.plan.profile
    scoring = {"05_evaluate_primary", "06_evaluate_supplementary"} | ({"score_run"} if made.plan.shard_size else set())
    answers = {"04_generate_answers"} | scoring
    late = dataclasses.replace(profile, sentence_reranker=ModelSpec("another", "cross-encoder"))
    assert stages(changed(made, before, profile=late)) == {"02_study_chunking", "03_ablate_retrieval"} | answers
    named = dataclasses.replace(profile, name="another")
    assert stages(changed(made, before, profile=named)) == answers
    assert stages(changed(made, before, fallback="extractive")) == {"04_generate_answers"}


def test_the_encoder_stands_in_what_is_joined_of_the_chunks(made):
    """`chunks.json` names it, so that the join depends on it even where the passages come out the same."""
    if not made.plan.shard_size:
        pytest.skip("nothing is joined of a slice in one piece")
    before, profile = made.keys(made.plan), made.plan.profile
    other = dataclasses.replace(profile, encoder=ModelSpec("another"))
    assert "join_chunks" in stages(changed(made, before, profile=other))


@pytest.fixture
def own_project(tmp_path, monkeypatch) -> Path:
    """A copy of the project's code, to be changed."""
    for name in ("lib", "notebooks"):
        shutil.copytree(paths.PROJECT / name, tmp_path / "project" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(paths.PROJECT / "requirements.lock", tmp_path / "project")
    monkeypatch.setattr(paths, "PROJECT", tmp_path / "project")
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "project" / "notebooks")
    return tmp_path / "project"


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_the_key_follows_the_code_behind_a_task(own_project, made):
    """The modules that a notebook or a function reaches, and no others."""
    before = made.keys(made.plan)
    append(own_project / "lib" / "cluster.py", "# who runs tasks is nothing to what they do\n")
    assert changed(made, before) == set()
    append(own_project / "lib" / "generation.py", "# another generator\n")
    found = stages(changed(made, before))
    assert {"03_ablate_retrieval", "04_generate_answers"} <= found
    assert not found & {"01_prepare_data", "split", "join_chunks", "join_evidence", "join_answers"}
    before = made.keys(made.plan)
    append(own_project / "lib" / "slices.py", "# another slice\n")
    assert changed(made, before) == before.keys()
    if made.plan.shard_size:
        before = made.keys(made.plan)
        append(own_project / "lib" / "shards.py", "# another split\n")
        assert {"split", "join_chunks", "join_evidence", "join_answers"} <= stages(changed(made, before))


def test_the_key_follows_a_module_that_is_imported_from_now_on(own_project, made):
    """A process may live for long, such as a worker of a cluster."""
    made.keys(made.plan)
    put(own_project / "lib" / "newly.py", "A = 1\n")
    append(own_project / "lib" / "slices.py", "from lib import newly  # noqa\n")
    before = made.keys(made.plan)
    append(own_project / "lib" / "newly.py", "B = 2\n")
    assert changed(made, before) == before.keys()


def test_the_key_follows_a_notebooks_code_and_not_its_prose(own_project, made):
    before = made.keys(made.plan)
    path = own_project / "notebooks" / "03_ablate_retrieval.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    prose = next(cell for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    prose["source"].append("\nMore of it.")
    path.write_text(json.dumps(notebook), encoding="utf-8")
    assert changed(made, before) == set()
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"][-1]
    code["source"].append("\n1 + 1")
    path.write_text(json.dumps(notebook), encoding="utf-8")
    assert stages(changed(made, before)) == {"03_ablate_retrieval"}


def test_the_key_follows_the_locked_packages(own_project, made):
    before = made.keys(made.plan)
    append(own_project / "requirements.lock", "another==1.0\n")
    assert changed(made, before) == before.keys()
    (own_project / "requirements.lock").unlink()
    assert changed(made, before) == before.keys()


def test_the_key_of_a_module_follows_what_it_imports(own_project):
    shard, text = notebooks.module_key("lib.shards"), notebooks.module_key("lib.text")
    assert shard != text
    append(own_project / "lib" / "chunking.py", "# another chunker\n")
    assert notebooks.module_key("lib.shards") != shard
    assert notebooks.module_key("lib.text") == text


# The content of a file


def test_the_content_of_a_file_is_read_again_only_when_it_has_changed(tmp_path, monkeypatch):
    reads = []
    whole = paths.sha256
    monkeypatch.setattr(paths, "sha256", lambda path: reads.append(path) or whole(path))
    path = paths.write_text(tmp_path / "a", "abc")
    # FIPS 180-2, appendix B.1: the digest of "abc".
    assert tasks.content(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert [tasks.content(path) for _ in range(3)] == [tasks.content(path)] * 3
    assert reads == [path]


def test_a_file_that_was_written_anew_is_read_again_though_its_size_is_the_same(tmp_path):
    path = paths.write_text(tmp_path / "a", "abc")
    before = tasks.content(path)
    # Another file in its place, with the same time and size.
    stat = path.stat()
    paths.write_text(path, "abd")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    after = tasks.content(path)
    assert after == paths.sha256(path) != before
    # The same file, written over a moment later.
    path.write_bytes(b"abe")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert tasks.content(path) == paths.sha256(path) not in (before, after)


def test_a_file_that_is_not_there_has_no_content(tmp_path):
    path = tmp_path / "a"
    assert tasks.content(path) is None
    paths.write_text(path, "abc")
    assert tasks.content(path) is not None
    path.unlink()
    assert tasks.content(path) is None


# The order of tasks


FATES = ("ran", "unchanged", "failed", "lost", "stopped", "blocked")


@st.composite
def graphs(draw) -> tuple[list[Task], dict[str, str]]:
    """Tasks that depend on each other in no circle, in any order, and what becomes of each when its turn comes."""
    count = draw(st.integers(0, 12))
    order = draw(st.permutations(range(count)))
    todo, fates = [], {}
    for number in range(count):
        before = draw(st.sets(st.integers(0, number - 1), max_size=4)) if number else set()
        after = (*(f"t{n}" for n in sorted(before)), *draw(st.sampled_from([(), ("left-out",)])))
        service = draw(st.booleans())
        fate = draw(st.sampled_from(FATES if service else [fate for fate in FATES if fate != "stopped"]))
        blocker = Path(__file__) if fate == "blocked" else Path("nowhere")
        todo.append(Task(f"t{number}", {}, after, service=service, blockers=(blocker,)))
        fates[f"t{number}"] = fate
    return [todo[n] for n in order], fates


class Stage:
    """Where tasks run without notebooks and threads: `end` decides which of the running ones end next."""

    def __init__(self, todo: list[Task], fates: dict[str, str], jobs: int, end: Callable[[int], list[int]]):
        self.fates, self.jobs, self.end = fates, jobs, end
        self.running: dict[Future, Task] = {}
        self.told: list[tuple[str, str]] = []
        self.at_work: list[list[Task]] = []  # what ran whenever the sweep waited
        self.todo = todo

    def submit(self, task: Task, *_) -> Future:
        future: Future = Future()
        self.running[future] = task
        return future

    def wait(self, futures, **_) -> tuple[set[Future], set[Future]]:
        assert set(futures) == self.running.keys()
        self.at_work.append(list(self.running.values()))
        waiting = list(self.running)
        done = {waiting[n] for n in self.end(len(waiting))}
        for future in done:
            fate = self.fates[self.running.pop(future).name]
            if fate == "lost":
                future.set_exception(OSError("no space left"))
            else:
                error = {"failed": "ValueError", "stopped": "StopEverything"}.get(fate)
                future.set_result(Failure(1, error, "no") if error else None)
        return done, set(futures) - done

    def play(self) -> sweep.Outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep, "wait", self.wait)
            patch.setattr(sweep, "is_done", lambda task, _: self.fates[task.name] == "unchanged")
            workers = Workers(self.submit, lambda: self.jobs)
            return sweep.run(Path("out"), self.todo, workers, lambda event, task, _: self.told.append((event, task.name)))


def ended(outcome: sweep.Outcome) -> dict[str, str]:
    """Task -> what became of it."""
    found = [(name, what) for what in ("ran", "unchanged", "failed", "skipped") for name in getattr(outcome, what)]
    assert len(dict(found)) == len(found), "a task ended twice"
    return dict(found)


@settings(deadline=None, max_examples=400)
@given(graphs(), st.integers(1, 4), st.data())
def test_every_task_ends_once_and_none_begins_before_its_time(graph, jobs, data):
    todo, fates = graph
    dependencies = {task.name: set(task.after) - {"left-out"} for task in todo}
    services = {task.name for task in todo if task.service}

    def end(count: int) -> list[int]:
        return data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))

    stage = Stage(todo, fates, jobs, end)
    outcome = stage.play()
    became = ended(outcome)
    assert became.keys() == dependencies.keys()

    # Each is told of once when it ends, and before that of its start, if it was run.
    ends = [name for event, name in stage.told if event != "start"]
    assert sorted(ends) == sorted(became)
    assert [name for event, name in stage.told if event == became.get(name)] == ends
    started = [name for event, name in stage.told if event == "start"]
    assert sorted(started) == sorted(name for name, what in became.items() if what in ("ran", "failed"))

    # None begins before all before it ended well, nor a service after a service has refused for good.
    well, stopped = set(), False
    for event, name in stage.told:
        if event in ("start", "unchanged", "ran"):
            assert dependencies[name] <= well, name
        assert not (event in ("start", "unchanged") and stopped and name in services), name
        well |= {name} if event in ("ran", "unchanged") else set()
        stopped |= event == "failed" and fates[name] == "stopped"

    for running in stage.at_work:
        assert len(running) <= jobs
        assert sum(task.service for task in running) <= 1

    # What was skipped has a reason, and nothing is skipped without one.
    for name, what in became.items():
        ready = all(became[other] in ("ran", "unchanged") for other in dependencies[name])
        if what == "skipped":
            assert not ready or fates[name] == "blocked" or (stopped and name in services), name
        else:
            assert ready and what == fates[name].replace("lost", "failed").replace("stopped", "failed"), name


@settings(deadline=None, max_examples=200)
@given(graphs(), st.integers(1, 3), st.data())
def test_no_job_is_idle_while_a_task_may_begin_and_the_first_of_the_list_begins_first(graph, jobs, data):
    todo, fates = graph
    place = {task.name: number for number, task in enumerate(todo)}
    stage = Stage(todo, fates, jobs, lambda count: [data.draw(st.integers(0, count - 1))])

    def may_begin(of: set[str], busy: bool) -> list[str]:
        ok = {name for event, name in stage.told if event in ("ran", "unchanged")}
        free = [task for task in todo if task.name in of and not (busy and task.service)]
        return [task.name for task in free if set(task.after) - {"left-out"} <= ok]

    submit, wait = stage.submit, stage.wait

    def left() -> set[str]:
        return place.keys() - {name for _, name in stage.told}

    def checked_submit(task: Task, *given) -> Future:
        busy = any(other.service for other in stage.running.values())
        first = may_begin(left() | {task.name}, busy)
        assert first[0] == task.name, (task.name, first)
        return submit(task, *given)

    def checked_wait(futures, **given) -> tuple[set[Future], set[Future]]:
        busy = any(task.service for task in stage.running.values())
        assert len(stage.running) == jobs or not may_begin(left(), busy)
        return wait(futures, **given)

    stage.submit, stage.wait = checked_submit, checked_wait
    stage.play()


def services_and_followers() -> list[Task]:
    """Two systems that ask a service, and one that does not, with all that depends on them."""
    made = []
    for name, service in (("a", True), ("b", True), ("c", False)):
        made += [
            Task(f"retrieve.{name}", {}),
            Task(f"answer.{name}", {}, (f"retrieve.{name}",), service=service),
            Task(f"join.{name}", {}, (f"answer.{name}",)),
        ]
    return [*made, Task("score", {}, ("join.a", "join.b", "join.c"), service=True), Task("compare", {}, ("score",))]


def test_a_service_that_refuses_for_good_is_asked_no_more():
    """All that asks it and all that depends on that is left out, and told of once; the rest runs to its end."""
    todo = services_and_followers()
    fates = dict.fromkeys(names(todo), "ran") | {"answer.a": "stopped"}
    outcome = Stage(todo, fates, 1, lambda _: [0]).play()
    assert list(outcome.failed) == ["answer.a"]
    assert sorted(outcome.skipped) == ["answer.b", "compare", "join.a", "join.b", "score"]
    assert outcome.ran == ["retrieve.a", "retrieve.b", "retrieve.c", "answer.c", "join.c"]


def test_a_failure_of_one_system_leaves_the_others_alone():
    todo = services_and_followers()
    fates = dict.fromkeys(names(todo), "ran") | {"answer.a": "failed"}
    outcome = Stage(todo, fates, 2, lambda _: [0]).play()
    assert outcome.skipped == ["join.a", "score", "compare"]
    assert {"join.b", "join.c"} <= set(outcome.ran)


class Counted(Task):
    """A task that counts how often something of it is looked at."""

    looks = 0

    def __getattribute__(self, name: str):
        Counted.looks += 1
        return super().__getattribute__(name)


def chain(count: int) -> list[Task]:
    return [Counted(f"t{n}", {}, (f"t{n - 1}",) if n else ()) for n in range(count)]


def fan(count: int) -> list[Task]:
    """One task, many that wait for it, and one that waits for all of these."""
    leaves = [Counted(f"leaf{n}", {}, ("root",)) for n in range(count - 2)]
    return [Counted("root", {}), *leaves, Counted("last", {}, tuple(task.name for task in leaves))]


def asking_all(count: int) -> list[Task]:
    """Each asks a service, and all may begin at once; one at the end of the list does not ask."""
    return [*(Counted(f"t{n}", {}, service=True) for n in range(count - 1)), Counted("quiet", {})]


def of_a_plan(count: int) -> list[Task]:
    """The sweep of all systems with a live service, over as many shards as make that many tasks."""
    variants = load_variants(["all"])
    spec = ModelSpec("m")
    profile = Profile("p", spec, spec, generator="openai", service=ServiceSpec("m"))
    todo = tasks.tasks(Plan(Path("/out"), "sample", variants, profile, shard_size=1, n_queries=count // 27))
    return [Counted(**{f.name: getattr(task, f.name) for f in dataclasses.fields(Task)}) for task in todo]


@pytest.mark.parametrize("ends", ["well", "refused"])
@pytest.mark.parametrize("graph", [chain, fan, asking_all, of_a_plan])
def test_five_thousand_tasks_cost_twice_what_half_of_them_cost(graph, ends):
    """Not four times: the looks at tasks grow with their number."""
    looks = []
    for count in (2500, 5000):
        todo = graph(count)
        fates = dict.fromkeys(names(todo), "ran")
        if ends == "refused":
            fates |= dict.fromkeys([task.name for task in todo if task.service][:1], "stopped")
        Counted.looks = 0
        outcome = Stage(todo, fates, 2, lambda count: [count - 1]).play()
        looks.append(Counted.looks)
        assert len(ended(outcome)) == len(todo)
    assert looks[1] < 2.5 * looks[0]
