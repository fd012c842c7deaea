"""Sweeps as a user meets them: through the command line, real notebooks, real kernels."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tira.check_format

from lib import cli, cluster, paths, sweep
from lib.errors import WorkbookError
from lib.score_tables import read_scores
from lib.sweep import Outcome, Tell
from lib.tasks import Task
from tests.process import interruptible, workbook

COMPARED = ("evidence.jsonl", "responses.jsonl", "provenance.jsonl", "ir-metadata.yml")


def files(out: Path) -> dict[str, bytes]:
    """The bytes of every compared file of every run."""
    return {p.relative_to(out).as_posix(): p.read_bytes() for name in COMPARED for p in sorted(out.glob(f"runs/*/{name}"))}


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """All thirteen systems on the sample."""
    out = tmp_path_factory.mktemp("swept") / "sample"
    done = workbook("sweep", "--out", out, "--jobs", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "31 tasks run, 0 unchanged" in done.stdout
    assert f"report: {out / 'results' / 'report.html'}" == done.stdout.splitlines()[-1]
    assert "nugget_coverage[proxy]" in done.stdout
    return out


def test_all_thirteen_systems_answer_every_query(swept):
    assert len(list(swept.glob("runs/*/responses.jsonl"))) == 13
    for path in swept.glob("runs/*/provenance.jsonl"):
        assert [row["status"] for row in paths.read_jsonl(path)] == ["ok"] * 8


def test_every_run_of_the_sample_is_valid(swept, capsys):
    for path in swept.glob("runs/*/responses.jsonl"):
        assert cli.main(["validate", str(path), "--slice", "sample"]) == 0
    assert "valid (8 queries)" in capsys.readouterr().out


def test_the_control_pair_differs_in_name_only(swept):
    one, other = (swept / "runs" / name / "evidence.jsonl" for name in ("caes-rag-rrf", "default"))
    assert one.read_bytes() == other.read_bytes()


def test_answers_keep_to_their_budgets(swept):
    for path in swept.glob("runs/*/responses.jsonl"):
        for row in paths.read_jsonl(path):
            if path.parent.name != "official-naive-baseline":
                assert 1 <= len(row["answer"]) <= 5
                assert sum(len(s["text"].split()) for s in row["answer"]) <= 60


def test_hash_seed_jobs_cache_and_working_directory_do_not_matter(swept, tmp_path):
    """One system of each chunker and each generator, its vectors made anew."""
    some = ("rule-minilm", "semantic-minilm", "topic-shift-current", "official-naive-baseline")
    changes = {"PYTHONHASHSEED": "7", "WORKBOOK_CACHE": str(tmp_path / "cache")}
    given = ("--out", "elsewhere", "--jobs", 1, "--no-score", "--variants", ",".join(some))
    done = workbook("sweep", *given, cwd=tmp_path, **changes)
    assert done.returncode == 0, done.stderr[-2000:]
    reference = files(swept)
    assert files(tmp_path / "elsewhere") == {n: b for n, b in reference.items() if n.split("/")[1] in some}


def test_an_unchanged_sweep_runs_nothing(swept):
    done = workbook("sweep", "--out", swept)
    assert "0 tasks run, 31 unchanged" in done.stdout


def test_a_changed_system_runs_only_what_depends_on_it(tmp_path):
    out, own = tmp_path / "out", tmp_path / "mine.yaml"
    own.write_text("name: mine\nsentence_rerank: true\n")
    systems = ["--out", out, "--no-score", "--variants", f"default,{own}"]
    assert "6 tasks run, 0 unchanged" in workbook("sweep", *systems).stdout
    before = files(out)
    own.write_text("name: mine\nsentence_rerank: true\nmax_answer_words: 30\n")
    # 01 and the two notebooks of `default` read nothing that changed; 02 and 03 of `mine` come out the same.
    assert "3 tasks run, 3 unchanged" in workbook("sweep", *systems).stdout
    after = files(out)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"runs/mine/{name}" for name in ("responses.jsonl", "provenance.jsonl")}


def test_a_damaged_output_is_made_again(swept):
    path = swept / "runs" / "default" / "responses.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    done = workbook("sweep", "--out", swept)
    assert "1 tasks run, 30 unchanged" in done.stdout
    assert path.read_bytes() == whole


def test_a_sweep_killed_at_any_moment_ends_like_an_undisturbed_one(swept, tmp_path):
    out = tmp_path / "killed"
    given = ["--out", str(out), "--no-score", "--variants", "rule-minilm,concat-baseline"]
    command = [sys.executable, "-m", "lib.cli", "sweep", *given]
    for seconds in (1.5, 4, 7):
        process = subprocess.Popen(command, cwd=paths.PROJECT, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert subprocess.run(command, cwd=paths.PROJECT, capture_output=True).returncode == 0
    reference = files(swept)
    assert files(out) == {n: reference[n] for n in reference if n.split("/")[1] in ("rule-minilm", "concat-baseline")}
    assert not list(out.rglob("*.tmp"))


def test_a_sweep_ends_with_a_leaderboard_of_all_measures(swept):
    scores = [score for name in ("primary", "supplementary") for score in read_scores(swept / "scores" / f"{name}.csv")]
    with open(swept / "results" / "leaderboard.csv", encoding="utf-8", newline="") as file:
        board = {(row["run"], row["measure"]): row for row in csv.DictReader(file)}
    assert board.keys() == {(score.run, score.measure) for score in scores}
    assert len({run for run, _ in board}) == 13
    assert all(row["n"] == "8" for row in board.values())
    assert float(board["official-naive-baseline", "cited_precision"]["mean"]) == pytest.approx(0.2)
    gold = [s.value for s in scores if (s.run, s.measure) == ("rule-minilm", "rougeL_f1")]
    assert float(board["rule-minilm", "rougeL_f1"]["mean"]) == pytest.approx(sum(gold) / 8, abs=1e-6)


def test_a_slice_without_gold_data_is_swept_to_its_end(tmp_path):
    source = tmp_path / "bare"
    (query, *_) = paths.read_jsonl(paths.SAMPLE / "queries.jsonl")
    documents = [d for p in sorted((paths.SAMPLE / "documents").glob("*.jsonl")) for d in paths.read_jsonl(p)]
    wanted = {str(doc_id) for doc_id in query["doc_ids"]}
    paths.write_jsonl(source / "queries.jsonl", [query])
    paths.write_jsonl(source / "documents.jsonl", [d for d in documents if str(d["id"]) in wanted])
    out = tmp_path / "out"
    done = workbook("sweep", "--slice", source, "--out", out, "--variants", "single-query-bm25")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "7 tasks run, 0 unchanged" in done.stdout
    scores = {s.measure: (s.value, s.status) for s in read_scores(out / "scores" / "primary.csv")}
    assert scores["rougeL_f1"] == (None, "no-gold")
    assert scores["cited_precision"] == (None, "not-judged")


def test_the_submission_bundle_passes_the_organisers_check(swept, tmp_path, capsys):
    assert cli.main(["bundle", str(swept / "runs" / "rule-minilm"), "--out", str(tmp_path / "bundle")]) == 0
    level, message = tira.check_format.check_format(tmp_path / "bundle", "LongEvalRAG")
    assert level == tira.check_format._fmt.OK, message


def test_executed_notebooks_hold_the_parameters_they_ran_with(swept):
    text = (swept / "notebooks" / "03_ablate_retrieval.semantic-current.ipynb").read_text(encoding="utf-8")
    assert "variants/semantic-current.yaml" in text


def notebook_task(folder: Path, name: str, *cells, after=()) -> Task:
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in ("x: int = 1", *cells)])
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(notebook, folder / f"{name}.ipynb")
    return Task(name, {"x": 2}, after, (), (folder / "out" / f"{name}.txt",))


def run(out: Path, todo: list[Task], jobs: int = 1, tell: Tell = lambda *_: None) -> Outcome:
    """A sweep of these tasks in threads of this process."""
    with cluster.workers(None, out, jobs) as workers:
        return sweep.run(out, todo, workers, tell)


def test_c23_one_dying_notebook_leaves_the_others_alone_and_is_done_again(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    write = f"from pathlib import Path\nPath({str(out)!r}, NAME + '.txt').write_text('done')"
    todo = [
        notebook_task(tmp_path, "good", f"NAME = 'good'\n{write}"),
        notebook_task(tmp_path, "dying", "import os\nprint('partial', flush=True)\nos._exit(1)"),
        notebook_task(tmp_path, "after-dying", "pass", after=("dying",)),
        notebook_task(tmp_path, "fine", f"NAME = 'fine'\n{write}", after=("good",)),
    ]
    told = []
    outcome = run(out, todo, 2, lambda event, task, failure: told.append((event, task.name)))
    assert sorted(outcome.ran) == ["fine", "good"]
    assert list(outcome.failed) == ["dying"]
    assert outcome.skipped == ["after-dying"]
    again = run(out, todo)
    assert sorted(again.unchanged) == ["fine", "good"]
    assert list(again.failed) == ["dying"]


def test_a_task_is_put_off_while_its_blocker_is_there(tmp_path, monkeypatch):
    """Runs whose answers are pending are not scored yet."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    out, pending = tmp_path / "out", tmp_path / "pending.json"
    out.mkdir()
    pending.write_text("[]")
    task = notebook_task(
        tmp_path, "scores", f"from pathlib import Path\nPath({str(out)!r}, 'scores.txt').write_text('done')"
    )
    task = dataclasses.replace(task, blockers=(pending,))
    assert run(out, [task]).skipped == ["scores"]
    pending.unlink()
    assert run(out, [task]).ran == ["scores"]


def test_a_notebook_that_ends_without_its_output_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    (tmp_path / "out").mkdir()
    task = notebook_task(tmp_path, "idle", "pass")
    outcome = run(tmp_path / "out", [task])
    assert outcome.failed["idle"].error == "MissingOutput"


def wrote(path: str, text: str) -> None:
    """What the tasks below call."""
    if text == "refused":
        raise WorkbookError(f"{path}: refused")
    Path(path).write_text(text if text != "broken" else 1 / 0)


def calls(out: Path, name: str, text: str, *after: str, written: str | None = None) -> Task:
    path = out / f"{written or name}.txt"
    return Task(name, {"path": str(path), "text": text}, after, (), (out / f"{name}.txt",), function=f"{__name__}:wrote")


def test_a_task_may_be_the_call_of_a_function(tmp_path):
    """Its marker vouches for what it writes; a failure stops what follows only, and is done again."""
    out = tmp_path / "out"
    out.mkdir()
    todo = [
        calls(out, "good", "1"),
        calls(out, "refused", "refused"),
        calls(out, "broken", "broken"),
        calls(out, "elsewhere", "1", written="other"),
        calls(out, "after-good", "1", "good"),
        calls(out, "after-both", "1", "good", "refused"),
    ]
    outcome = run(out, todo, 2)
    assert sorted(outcome.ran) == ["after-good", "good"]
    assert outcome.skipped == ["after-both"]
    assert {name: tuple(failure)[1:] for name, failure in outcome.failed.items()} == {
        "refused": ("WorkbookError", f"{out / 'refused.txt'}: refused"),
        "broken": ("ZeroDivisionError", "division by zero"),
        "elsewhere": ("MissingOutput", "the task ended without writing elsewhere.txt"),
    }
    assert {path.name for path in (out / "notebooks" / ".done").iterdir()} == {"good.json", "after-good.json"}
    (out / "good.txt").write_text("damaged")
    outcome = run(out, todo, 2)
    assert (outcome.ran, outcome.unchanged) == (["good"], ["after-good"])
    assert (out / "good.txt").read_text() == "1"
    assert run(out, [calls(out, "good", "2")]).ran == ["good"]


def test_a_task_that_left_something_pending_is_never_taken_for_done(tmp_path):
    out, pending = tmp_path / "out", tmp_path / "pending.json"
    out.mkdir()
    task = dataclasses.replace(calls(out, "answers", "1"), pending=pending)
    pending.write_text("[]")
    assert [run(out, [task]).ran for _ in range(2)] == [["answers"], ["answers"]]
    pending.unlink()
    assert run(out, [task]).ran == ["answers"]
    assert run(out, [task]).unchanged == ["answers"]


def test_a_failing_system_is_reported_with_cell_and_message_and_exit_code_1(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for path in paths.NOTEBOOKS.glob("[0-9]*.ipynb"):
        (folder / path.name).write_bytes(path.read_bytes())
    broken = folder / "04_generate_answers.ipynb"
    text = broken.read_text(encoding="utf-8")
    assert '"assert not faults, faults[0]' in text
    broken.write_text(text.replace('"assert not faults, faults[0]', '"assert system.name != \\"default\\", \\"planted\\"'))
    monkeypatch.setattr(paths, "NOTEBOOKS", folder)
    out = tmp_path / "out"
    assert cli.main(["sweep", "--out", str(out), "--variants", "default,single-query-bm25"]) == 1
    said = capsys.readouterr().out
    # The fourteenth code cell, counting the one that papermill injects; so it stands in the failed copy too.
    assert "failed: 04_generate_answers.default: cell 14: AssertionError: planted" in said
    assert (out / "runs" / "single-query-bm25" / "responses.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slice", "no/such/folder"], "no/such/folder: no such slice folder"),
        (["--variants", "rule-minlm"], "no system 'rule-minlm'"),
        (["--set", "top_k_pasages=5"], "unknown parameter 'top_k_pasages'; did you mean 'top_k_passages'?"),
        (["--set", "top_k_passages=many"], "parameter 'top_k_passages' must be a whole number, not 'many'"),
        (["--set", "rrf_k=1e-3"], "--set rrf_k=1e-3"),
        (["--profile", "embeded"], "no profile 'embeded'"),
        (["--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["--jobs", "-2"], "--jobs must be at least 1, not -2"),
        (["--shard-size", "-1"], "--shard-size must be at least 0, not -1"),
    ],
)
def test_bad_arguments_are_one_line_and_write_nothing(tmp_path, capsys, arguments, message):
    out = tmp_path / "out"
    assert cli.main(["sweep", "--out", str(out), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_malformed_document_found_by_the_first_notebook_is_one_line_and_writes_nothing(tmp_path, capsys):
    source, out = tmp_path / "slice", tmp_path / "out"
    source.mkdir()
    (source / "queries.jsonl").write_text('{"query_id": "q", "query": "ice", "doc_ids": [1]}\n')
    (source / "documents.jsonl").write_text('{"id": 1, "title": "Ice"}\n{"id": 2,\n{"id": 3}\n')
    assert cli.main(["sweep", "--slice", str(source), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert f"{source / 'documents.jsonl'}:2: malformed JSON" in error
    assert not out.exists()


def test_a_missing_model_is_one_message_before_any_notebook(tmp_path):
    done = workbook("sweep", "--profile", "paper", "--out", tmp_path / "out", HF_HOME=str(tmp_path / "empty"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "model sentence-transformers/all-MiniLM-L6-v2: not in the local model cache" in done.stderr
    assert not (tmp_path / "out").exists()


def test_every_marker_names_the_files_it_vouches_for(swept):
    for path in (swept / "notebooks" / ".done").glob("*.json"):
        assert all((swept / name).exists() for name in json.loads(path.read_text())["files"])


def test_notebooks_of_a_sweep_ran_from_top_to_bottom(swept):
    for path in (swept / "notebooks").glob("*.ipynb"):
        cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
        assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))


def test_an_interrupt_keeps_what_is_finished(tmp_path):
    out = tmp_path / "out"
    given = ["--out", str(out), "--no-score", "--variants", "rule-minilm,concat-baseline"]
    command = [sys.executable, "-m", "lib.cli", "sweep", *given]
    process = subprocess.Popen(command, cwd=paths.PROJECT, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible)
    while not (out / "notebooks" / ".done" / "01_prepare_data.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("workbook: interrupted; what was finished is kept")
    assert (out / "notebooks" / ".done" / "01_prepare_data.json").exists()
    done = workbook("sweep", *given)
    assert done.returncode == 0 and " 0 unchanged" not in done.stdout
