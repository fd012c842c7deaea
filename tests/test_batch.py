import functools
import json
import shutil
from collections import deque
from pathlib import Path

import ftfy
import pytest

from lib import applying, batch, cli, paths, preparing, shards, slices, steps, sweep
from lib.encoders import Encoder, reranker
from lib.errors import StopEverything, WorkbookError
from lib.evidence import Models
from lib.llm import Client, ReplyStore
from lib.prompting import ANSWER_SCHEMA, answer_fault
from lib.replies import Request
from lib.tasks import Plan
from lib.variants import Profile, ServiceSpec, load_profile, load_variants
from tests.stub_service import Ended, Stub, answer, completion, custom_ids, result_line

KEY = "dummy-key-123"
GOOD = completion(answer(("Finding 0.", [0])))
EXPIRED = {"code": "batch_expired", "message": "This request could not be executed before the window expired."}
BATCHES, FILES = "/v1/batches", "/v1/files"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("STUB_KEY", KEY)


def service(stub: Stub | None = None, **given) -> ServiceSpec:
    values = {"base_url": stub.url if stub else None, "key_env": "STUB_KEY", "max_waits": 1, "timeout_seconds": 20.0}
    return ServiceSpec("gpt-4o-mini", **(values | given))


def client(stub: Stub, folder: Path, **given) -> Client:
    return Client(service(stub, **given), ReplyStore(folder / "replies"))


def request(custom_id: str) -> Request:
    messages = ({"role": "system", "content": "Answer."}, {"role": "user", "content": f"Question {custom_id}: ледник?"})
    return Request(custom_id, messages, ANSWER_SCHEMA, 0, lambda value: answer_fault(value, frozenset({0, 1, 2}), 5))


def requests(*names: str) -> list[Request]:
    return [request(f"r|{name}") for name in names]


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def ids_in(path: Path) -> list[str]:
    return [row["custom_id"] for row in lines_of(path)]


def built(folder: Path) -> list[list[str]]:
    """The ids in each part of the manifest."""
    return [ids_in(folder / part["file"]) for part in batch.load(folder)["parts"]]


def uploads(stub: Stub) -> list[list[str]]:
    """The ids in the input file of each batch that was started."""
    return [custom_ids(stub.files[row["input_file_id"]].splitlines()) for row in stub.batches.values()]


def done(lines: list[bytes]) -> Ended:
    """Every request of a batch answered."""
    return Ended("completed", [result_line(custom_id, GOOD) for custom_id in custom_ids(lines)], None)


def results(folder: Path, *lines: bytes) -> Path:
    path = folder / "results.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


@pytest.fixture
def small_parts(monkeypatch):
    """Two requests a part."""
    monkeypatch.setattr(batch, "split", functools.partial(batch.split, max_requests=2))


# Input lines and parts


def test_an_input_line_holds_the_request_as_it_would_be_sent_live():
    (line,) = batch.request_lines(service(), requests("t1"))
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line) == {
        "custom_id": "r|t1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "gpt-4o-mini",
            "messages": [
                {"role": "system", "content": "Answer."},
                {"role": "user", "content": "Question r|t1: ледник?"},
            ],
            "max_tokens": 800,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": ANSWER_SCHEMA},
            },
        },
    }


@pytest.mark.parametrize(("names", "twice"), [(["t1", "t2", "t1"], "r|t1"), (["a", "b", "b"], "r|b")])
def test_c39_two_requests_of_one_id_are_refused_before_anything_is_written(tmp_path, names, twice):
    with pytest.raises(WorkbookError, match="twice") as caught:
        batch.build(tmp_path / "batch", service(), requests(*names))
    assert f"'{twice}'" in str(caught.value)
    assert not (tmp_path / "batch").exists()


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_c39_blank_ids_are_refused_before_anything_is_written(tmp_path, blank):
    with pytest.raises(WorkbookError, match="blank"):
        batch.build(tmp_path / "batch", service(), [request("r|t1"), request(blank)])
    assert not (tmp_path / "batch").exists()


def test_c42_a_schema_that_is_not_strict_is_refused_before_anything_is_written(tmp_path):
    bad = request("r|t1")._replace(schema={"type": "object", "properties": {}, "required": []})
    with pytest.raises(ValueError, match="open"):
        batch.build(tmp_path / "batch", service(), [bad])
    assert not (tmp_path / "batch").exists()


def test_c40_f_50001_requests_are_two_batches(tmp_path):
    short = ({"role": "user", "content": "Ice?"},)
    made = [Request(f"r|t{n}", short, {"type": "string"}) for n in range(50_001)]
    manifest = batch.build(tmp_path, service(), made)
    assert [part["requests"] for part in manifest["parts"]] == [50_000, 1]
    first, second = (tmp_path / part["file"] for part in manifest["parts"])
    assert first.read_bytes().count(b"\n") == 50_000
    assert ids_in(second) == ["r|t50000"]


def test_c40_f_parts_hold_at_most_200_megabytes():
    half = b"x" * 100_000_000
    assert [len(part) for part in batch.split(iter([half] * 5))] == [2, 2, 1]
    assert [len(part) for part in batch.split(iter([half, half + b"x", half]))] == [1, 1, 1]


@pytest.mark.parametrize(
    ("sizes", "max_requests", "max_bytes", "expected"),
    [
        ([], 2, 10, []),
        ([4], 2, 10, [[4]]),
        ([4, 4], 2, 10, [[4, 4]]),
        ([4, 4, 4], 2, 100, [[4, 4], [4]]),
        ([5, 5, 1], 9, 10, [[5, 5], [1]]),
        ([5, 6, 4, 1], 9, 10, [[5], [6, 4], [1]]),
        ([12, 3], 9, 10, [[12], [3]]),
        ([1] * 5, 1, 10, [[1]] * 5),
    ],
)
def test_parts_keep_to_both_limits_and_to_the_order(sizes, max_requests, max_bytes, expected):
    lines = [bytes([n]) * size for n, size in enumerate(sizes)]
    parts = list(batch.split(iter(lines), max_requests, max_bytes))
    assert [[len(line) for line in part] for part in parts] == expected
    assert [line for part in parts for line in part] == lines


# Build, submit, status, collect


def test_a_batch_from_building_to_collecting(tmp_path):
    folder = tmp_path / "batch"
    with Stub() as stub:
        batch.build(folder, service(stub), requests("t1", "t2", "t3"))
        assert not stub.seen
        batch.submit(folder, client(stub, tmp_path))
        (row,) = stub.batches.values()
        assert (row["endpoint"], row["completion_window"]) == ("/v1/chat/completions", "24h")
        assert stub.files[row["input_file_id"]] == (folder / "requests-001.jsonl").read_bytes()
        stub.finish = False
        (part,) = batch.status(folder, client(stub, tmp_path))["parts"]
        assert part["status"] == "in_progress"
        manifest, left = batch.collect(folder, client(stub, tmp_path))
        assert left == ["r|t1", "r|t2", "r|t3"]
        stub.finish = True
        (part,) = batch.status(folder, client(stub, tmp_path))["parts"]
        assert (part["status"], part["completed"], part["failed"]) == ("completed", 3, 0)
        manifest, left = batch.collect(folder, client(stub, tmp_path))
        assert ([part["status"] for part in manifest["parts"]], left) == (["collected"], [])
        assert {seen.authorization for seen in stub.seen} == {f"Bearer {KEY}"}
    assert sorted(ids_in(folder / "results.jsonl")) == ["r|t1", "r|t2", "r|t3"]
    replies = batch.replies(folder / "results.jsonl", requests("t1", "t2", "t3"))
    assert {reply.status for reply in replies.values()} == {"ok"}


def test_what_is_collected_is_not_fetched_again(tmp_path):
    folder = tmp_path / "batch"
    with Stub() as stub:
        batch.build(folder, service(stub), requests("t1"))
        for _ in range(2):
            batch.submit(folder, client(stub, tmp_path))
        before = []
        for _ in range(2):
            batch.collect(folder, client(stub, tmp_path))
            before.append(len(stub.seen))
        assert before[0] == before[1]
        assert (stub.count("POST", FILES), stub.count("POST", BATCHES)) == (1, 1)
    assert ids_in(folder / "results.jsonl") == ["r|t1"]


def test_several_parts_are_sent_and_collected_each_when_it_ends(tmp_path, small_parts):
    folder = tmp_path / "batch"
    with Stub() as stub:
        batch.build(folder, service(stub), requests("t1", "t2", "t3", "t4", "t5"))
        assert built(folder) == [["r|t1", "r|t2"], ["r|t3", "r|t4"], ["r|t5"]]
        batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub) == built(folder)
        stub.endings.extend([done, lambda lines: Ended("in_progress", None, None), done])
        manifest, left = batch.collect(folder, client(stub, tmp_path))
        assert [part["status"] for part in manifest["parts"]] == ["collected", "in_progress", "collected"]
        assert left == ["r|t3", "r|t4"]
        manifest, left = batch.collect(folder, client(stub, tmp_path))
        assert [part["status"] for part in manifest["parts"]] == ["collected"] * 3
        assert left == []
        assert len([seen for seen in stub.seen if seen.path.endswith("/content")]) == 3
    assert sorted(ids_in(folder / "results.jsonl")) == [f"r|t{n}" for n in range(1, 6)]


def test_c39_results_are_joined_by_id_whatever_their_order(tmp_path):
    """Lines t3, t1, t2, each naming itself, for requests t1, t2, t3; the line number says nothing."""
    said = {name: completion(answer((f"Finding of {name}.", [0]))) for name in ("t1", "t2", "t3")}
    lines = [result_line(f"r|{name}", said[name]) for name in ("t3", "t1", "t2")]
    replies = batch.replies(results(tmp_path, *lines), requests("t1", "t2", "t3"))
    assert {name: reply.value["answer"][0]["text"] for name, reply in replies.items()} == {
        f"r|{name}": f"Finding of {name}." for name in ("t1", "t2", "t3")
    }


def test_c39_a_missing_line_is_listed_and_made_into_the_next_batch(tmp_path):
    folder = tmp_path / "batch"
    with Stub() as stub:
        stub.endings.append(lambda lines: Ended("completed", [result_line("r|t3"), result_line("r|t1")], None))
        batch.build(folder, service(stub), requests("t1", "t2", "t3"))
        batch.submit(folder, client(stub, tmp_path))
        _, left = batch.collect(folder, client(stub, tmp_path))
        assert left == ["r|t2"]
        batch.build(folder, service(stub), requests("t1", "t2", "t3"))
        batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub) == [["r|t1", "r|t2", "r|t3"], ["r|t2"]]
    replies = batch.replies(folder / "results.jsonl", requests("t1", "t2", "t3"))
    assert [reply.status for reply in replies.values()] == ["ok", "failed", "ok"]
    assert replies["r|t2"].detail


@pytest.mark.parametrize("where", ["output", "errors"])
def test_c39_an_unknown_id_is_refused_and_nothing_is_taken(tmp_path, where):
    folder = tmp_path / "batch"
    good, unknown = [result_line("r|t1"), result_line("r|t2")], [result_line("r|t9", error=EXPIRED)]
    ended = Ended("completed", good + unknown, None) if where == "output" else Ended("completed", good, unknown)
    with Stub() as stub:
        stub.endings.append(lambda lines: ended)
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        for _ in range(2):
            with pytest.raises(WorkbookError, match="r|t9") as caught:
                batch.collect(folder, client(stub, tmp_path))
            assert "'r|t9'" in str(caught.value)
    assert not (folder / "results.jsonl").exists()


@pytest.mark.parametrize("no_file", [None, ""])
def test_c40_a_e_a_batch_with_errors_only_is_read_and_listed(tmp_path, no_file):
    """output_file_id null or blank; the error file holds a line for each request."""
    folder = tmp_path / "batch"
    error = {"error": {"message": "Invalid schema.", "code": "invalid"}}
    lines = [result_line("r|t1", error, status=400), result_line("r|t2", error=EXPIRED)]
    with Stub() as stub:
        stub.endings.append(lambda _: Ended("completed", None, lines, no_file))
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        manifest, left = batch.collect(folder, client(stub, tmp_path))
    assert left == ["r|t1", "r|t2"]
    assert [part["status"] for part in manifest["parts"]] == ["collected"]
    replies = batch.replies(folder / "results.jsonl", requests("t1", "t2"))
    assert [reply.status for reply in replies.values()] == ["failed", "failed"]
    assert "Invalid schema." in replies["r|t1"].detail
    assert "batch_expired" in replies["r|t2"].detail


@pytest.mark.parametrize("no_file", [None, ""])
def test_c40_e_a_blank_error_file_is_no_file(tmp_path, no_file):
    folder = tmp_path / "batch"
    with Stub() as stub:
        stub.endings.append(lambda lines: Ended("completed", [result_line(i) for i in custom_ids(lines)], None, no_file))
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        assert batch.collect(folder, client(stub, tmp_path))[1] == []
        assert not [seen.path for seen in stub.seen if seen.path == f"{FILES}//content"]


def test_c40_b_of_an_expired_batch_one_reply_is_kept_and_exactly_two_are_sent_again(tmp_path):
    folder, three = tmp_path / "batch", requests("t1", "t2", "t3")
    left_over = [result_line(f"r|{name}", error=EXPIRED) for name in ("t3", "t1")]
    with Stub() as stub:
        stub.endings.append(lambda _: Ended("expired", [result_line("r|t2", GOOD)], left_over))
        batch.build(folder, service(stub), three)
        batch.submit(folder, client(stub, tmp_path))
        _, left = batch.collect(folder, client(stub, tmp_path))
        assert left == ["r|t1", "r|t3"]
        kept = batch.replies(folder / "results.jsonl", three)
        assert [reply.status for reply in kept.values()] == ["failed", "ok", "failed"]
        batch.build(folder, service(stub), three)
        batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub)[1:] == [["r|t1", "r|t3"]]
        _, left = batch.collect(folder, client(stub, tmp_path))
    assert left == []
    assert sorted(ids_in(folder / "results.jsonl")) == ["r|t1", "r|t2", "r|t3"]
    assert {reply.status for reply in batch.replies(folder / "results.jsonl", three).values()} == {"ok"}


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
def test_a_batch_that_ended_with_nothing_is_left_whole(tmp_path, status):
    folder = tmp_path / "batch"
    with Stub() as stub:
        stub.endings.append(lambda _: Ended(status, None, None))
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        _, left = batch.collect(folder, client(stub, tmp_path))
        assert left == ["r|t1", "r|t2"]
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub) == [["r|t1", "r|t2"]] * 2


FAILURES = [
    (result_line("r|t1", {"error": {"message": "Bad request."}}, status=400), "400"),
    (result_line("r|t1", {"error": {"message": "Bad request."}}, status=400), "Bad request."),
    (result_line("r|t1", GOOD, status=500), "500"),
    (result_line("r|t1", {"error": "Bad request."}, status=404), "404"),
    (result_line("r|t1", {"error": None}, status=429), "429"),
    (result_line("r|t1", {}, status=401), "401"),
    (result_line("r|t1", [], status=401), "401"),
    (result_line("r|t1", error=EXPIRED), "batch_expired"),
    (result_line("r|t1", error="expired"), "expired"),
    (b'{"custom_id": "r|t1", "response": null, "error": null}', ""),
    (b'{"custom_id": "r|t1"}', ""),
    (b'{"custom_id": "r|t1", "response": {"status_code": 200, "body": null}, "error": null}', ""),
    (b'{"custom_id": "r|t1", "response": {"status_code": 200}, "error": null}', ""),
    (b'{"custom_id": "r|t1", "response": {"status_code": 200, "body": "<html>"}, "error": null}', ""),
    (b'{"custom_id": "r|t1", "response": {"status_code": "200", "body": {}}, "error": null}', ""),
]


@pytest.mark.parametrize(("line", "said"), FAILURES)
def test_c40_c_a_line_without_a_good_response_counts_as_failed_whatever_its_error_says(tmp_path, line, said):
    assert batch.line_failure(json.loads(line))
    reply = batch.replies(results(tmp_path, line), requests("t1"))["r|t1"]
    assert (reply.status, reply.value) == ("failed", None)
    assert reply.detail
    assert said in reply.detail


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (GOOD, "ok"),
        (completion('{"answer":[{"text":"Ice', "length"), "truncated"),
        (completion(None, "stop", "I cannot."), "refused"),
        (completion(""), "empty"),
        (completion("Ice melts."), "off-schema"),
        (completion(answer(("Finding.", [99]))), "unknown-evidence"),
    ],
)
def test_c41_a_reply_in_a_batch_is_judged_as_a_live_one(tmp_path, body, status):
    assert batch.replies(results(tmp_path, result_line("r|t1", body)), requests("t1"))["r|t1"].status == status


@pytest.mark.parametrize(
    "line", [b"{", b"\xff\xfe", b"[]", b"null", b'"r|t1"', b"{}", b'{"id": "1"}', b'{"custom_id": "r|t1", "respon']
)
def test_a_malformed_line_of_results_is_reported_with_its_number(tmp_path, line):
    path = results(tmp_path, result_line("r|t1"), b"", line)
    with pytest.raises(WorkbookError) as caught:
        batch.replies(path, requests("t1", "t2"))
    assert f"{path}:3:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_results_may_hold_line_separators_blank_lines_and_windows_line_ends(tmp_path):
    body = completion(answer(("Ice\u2028melts\u0085now.", [0])))
    raw = json.dumps({"custom_id": "r|t1", "response": {"status_code": 200, "body": body}}, ensure_ascii=False).encode()
    path = results(tmp_path, raw + b"\r", b"\r", result_line("r|t2") + b"\r")
    replies = batch.replies(path, requests("t1", "t2"))
    assert [reply.status for reply in replies.values()] == ["ok", "ok"]


# What is paid for stays paid for, and kills cost nothing


def test_a_batch_under_way_is_not_built_again(tmp_path):
    folder = tmp_path / "batch"
    with Stub() as stub:
        stub.finish = False
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(WorkbookError, match="collect"):
            batch.build(folder, service(stub), requests("t1", "t2", "t3"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_batch_that_has_ended_is_not_built_again_before_it_is_collected(tmp_path):
    folder = tmp_path / "batch"
    with Stub() as stub:
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        assert batch.status(folder, client(stub, tmp_path))["parts"][0]["status"] == "completed"
        with pytest.raises(WorkbookError, match="collect"):
            batch.build(folder, service(stub), requests("t1", "t2"))


def test_nothing_is_built_where_every_reply_is_there(tmp_path):
    folder = tmp_path / "batch"
    with Stub() as stub:
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        batch.collect(folder, client(stub, tmp_path))
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        assert len(stub.batches) == 1
        batch.build(folder, service(stub), requests("t1", "t2", "t3"))
        batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub)[1:] == [["r|t3"]]


def test_what_was_built_and_not_sent_is_built_anew(tmp_path):
    folder = tmp_path / "batch"
    with Stub() as stub:
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.build(folder, service(stub), requests("t1", "t3"))
        batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub) == [["r|t1", "r|t3"]]


def test_the_input_of_a_batch_that_was_sent_is_never_overwritten(tmp_path):
    folder, three = tmp_path / "batch", requests("t1", "t2", "t3")
    with Stub() as stub:
        stub.endings.append(lambda _: Ended("expired", [result_line("r|t2", GOOD)], None))
        batch.build(folder, service(stub), three)
        batch.build(folder, service(stub), three)
        batch.submit(folder, client(stub, tmp_path))
        batch.collect(folder, client(stub, tmp_path))
        batch.build(folder, service(stub), three)
        batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub) == built(folder) == [["r|t1", "r|t2", "r|t3"], ["r|t1", "r|t3"]]


def test_resumed_after_a_stop_between_upload_and_start_nothing_is_uploaded_twice(tmp_path):
    folder = tmp_path / "batch"
    with Stub() as stub:
        stub.faults = {f"POST {BATCHES}": deque(["quota"])}
        batch.build(folder, service(stub), requests("t1", "t2"))
        with pytest.raises(StopEverything):
            batch.submit(folder, client(stub, tmp_path))
        assert not stub.batches
        batch.submit(folder, client(stub, tmp_path))
        assert stub.count("POST", FILES) == 1
        assert uploads(stub) == [["r|t1", "r|t2"]]


def test_resumed_after_a_stop_between_parts_only_the_rest_is_sent(tmp_path, small_parts):
    folder = tmp_path / "batch"
    with Stub() as stub:
        stub.faults = {f"POST {FILES}": deque(["good", "401"])}
        batch.build(folder, service(stub), requests("t1", "t2", "t3", "t4", "t5"))
        with pytest.raises(StopEverything):
            batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub) == [["r|t1", "r|t2"]]
        batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub) == [["r|t1", "r|t2"], ["r|t3", "r|t4"], ["r|t5"]]
        assert batch.collect(folder, client(stub, tmp_path))[1] == []


def test_resumed_after_a_stop_while_collecting_everything_is_there(tmp_path, small_parts):
    folder = tmp_path / "batch"
    with Stub() as stub:
        batch.build(folder, service(stub), requests("t1", "t2", "t3"))
        batch.submit(folder, client(stub, tmp_path))
        batch.status(folder, client(stub, tmp_path))
        second = list(stub.batches.values())[1]["output_file_id"]
        stub.faults = {f"GET {FILES}/{second}/content": deque(["403"])}
        with pytest.raises(StopEverything):
            batch.collect(folder, client(stub, tmp_path))
        _, left = batch.collect(folder, client(stub, tmp_path))
    assert left == []
    assert sorted(ids_in(folder / "results.jsonl")) == ["r|t1", "r|t2", "r|t3"]


@pytest.mark.parametrize("waits", [0, 1])
def test_a_batch_whose_start_was_not_heard_of_is_not_started_a_second_time(tmp_path, waits):
    folder = tmp_path / "batch"
    with Stub() as stub:
        stub.faults = {f"POST {BATCHES}": deque(["lose"])}
        batch.build(folder, service(stub), requests("t1", "t2"))
        try:
            batch.submit(folder, client(stub, tmp_path, max_waits=waits))
        except Exception as error:  # the stop is allowed, a second batch is not
            assert waits == 0, error
        batch.submit(folder, client(stub, tmp_path))
        assert uploads(stub) == [["r|t1", "r|t2"]]
        assert batch.collect(folder, client(stub, tmp_path))[1] == []


@pytest.mark.parametrize("step", ["429:0", "500:0", "close"])
def test_c40_d_rate_limits_and_server_faults_are_waited_out_at_every_step(tmp_path, step):
    folder = tmp_path / "batch"
    with Stub() as stub:
        stub.faults = {f"POST {FILES}": deque([step]), f"POST {BATCHES}": deque([step])}
        batch.build(folder, service(stub), requests("t1", "t2"))
        batch.submit(folder, client(stub, tmp_path))
        ((batch_id, _),) = stub.batches.items()
        stub.faults = {f"GET {BATCHES}/{batch_id}": deque([step])}
        assert batch.collect(folder, client(stub, tmp_path))[1] == []


@pytest.mark.parametrize("step", ["quota", "401"])
def test_c40_d_an_exhausted_quota_stops_the_upload_at_once(tmp_path, step):
    folder = tmp_path / "batch"
    with Stub() as stub:
        stub.faults = {f"POST {FILES}": deque([step] * 3)}
        batch.build(folder, service(stub), requests("t1"))
        with pytest.raises(StopEverything) as caught:
            batch.submit(folder, client(stub, tmp_path, max_waits=6))
        assert len(stub.seen) == 1
    assert "\n" not in str(caught.value)


def test_a_step_without_a_batch_names_the_step_before(tmp_path):
    with Stub() as stub:
        for step in (batch.submit, batch.status, batch.collect):
            with pytest.raises(WorkbookError, match="workbook batch build") as caught:
                step(tmp_path / "batch", client(stub, tmp_path))
            assert str(tmp_path / "batch") in str(caught.value)
        assert not stub.seen
    assert not (tmp_path / "batch").exists()


# From a sweep's folder, through the command line


@pytest.fixture(scope="module")
def evidence_ready(tmp_path_factory, embedded) -> Path:
    """A sweep of the sample up to its evidence."""
    out = tmp_path_factory.mktemp("ready") / "sweep"
    preparing.prepare("sample", out / "slice")
    models = Models(Encoder(embedded.encoder), reranker(embedded.sentence_reranker))
    for variant in load_variants(["concat-baseline", "single-query-bm25", "official-naive-baseline"]):
        steps.retrieve(out, slices.Slice(out / "slice"), variant, models)
    return out


@pytest.fixture
def new_sweep(evidence_ready, tmp_path, embedded):
    """Makes a copy of that sweep with an openai-batch profile and these systems beside the naive baseline."""

    def make(stub: Stub, *systems: str, **given) -> Path:
        values = {"generator": "openai-batch", "service": service(stub)} | given
        profile = Profile("batch", embedded.encoder, embedded.sentence_reranker, **values)
        out = tmp_path / "sweep"
        shutil.copytree(evidence_ready, out)
        sweep.prepare_folder(Plan(out, "sample", load_variants([*systems, "official-naive-baseline"]), profile))
        return out

    return make


def generate(out: Path, name: str) -> Path:
    (variant,) = load_variants([name])
    run = out / "runs" / name
    steps.generate(out, slices.Slice(out / "slice"), variant, load_profile(str(out / "profile.yaml")), run)
    return run


def test_a_sweep_is_answered_by_a_batch(new_sweep, capsys):
    with Stub(usage=(1_000_000, 1_000_000)) as stub:
        out = new_sweep(stub, "single-query-bm25", "concat-baseline")
        run = generate(out, "concat-baseline")
        assert [row["status"] for row in lines_of(run / "provenance.jsonl")] == ["failed"] * 8
        assert len(json.loads((run / "pending.json").read_text())) == 8
        assert cli.main(["batch", "build", str(out)]) == 0
        assert not stub.seen
        assert cli.main(["batch", "submit", str(out)]) == 0
        assert cli.main(["batch", "status", str(out)]) == 0
        assert "16 requests, completed" in capsys.readouterr().out
        assert cli.main(["batch", "collect", str(out)]) == 0
        assert "all replies are here" in capsys.readouterr().out
        (ids,) = uploads(stub)
    slice_ = slices.Slice(out / "slice")
    names = ("concat-baseline", "single-query-bm25")
    assert sorted(ids) == sorted(f"{name}|{query.query_id}" for name in names for query in slice_.queries)
    for name in names:
        run = generate(out, name)
        assert [row["status"] for row in lines_of(run / "provenance.jsonl")] == ["ok"] * 8
        assert not (run / "pending.json").exists()
        assert steps.check_run(run, slice_) == []
        found = lines_of(run / "replies.jsonl")
        assert [row["query_id"] for row in found] == [query.query_id for query in slice_.queries]
        # A million tokens each way at 0.15 and 0.60 dollars, half of it in a batch.
        assert {row["dollars"] for row in found} == {0.375}


def test_a_batch_of_a_sharded_sweep_is_one_and_its_replies_go_to_their_shards(new_sweep):
    """Eight queries in shards of three, and a reply that is missing: what is joined is what the slice in one piece has."""
    with Stub() as stub:
        out = new_sweep(stub, "concat-baseline")
        queries = [query.query_id for query in slices.Slice(out / "slice").queries]
        shards.split(str(out), 3)
        for part in shards.existing(out):
            own = {query.query_id for query in slices.Slice(part / "slice").queries}
            evidence = [
                row for row in lines_of(out / "runs" / "concat-baseline" / "evidence.jsonl") if row["query_id"] in own
            ]
            paths.write_jsonl(part / "runs" / "concat-baseline" / "evidence.jsonl", evidence)
        left = f"concat-baseline|{queries[4]}"
        stub.endings.append(
            lambda lines: Ended("expired", [result_line(i) for i in reversed(custom_ids(lines)) if i != left], None)
        )
        for step in ("build", "submit"):
            assert cli.main(["batch", step, str(out)]) == 0
        assert cli.main(["batch", "collect", str(out)]) == 1
        (ids,) = uploads(stub)
    assert ids == [f"concat-baseline|{query_id}" for query_id in queries]
    found = [ids_in(part / "runs" / "concat-baseline" / batch.RESULTS) for part in shards.existing(out)]
    shared = [queries[:3], [queries[3], queries[5]], queries[6:]]
    assert found == [sorted(f"concat-baseline|{query_id}" for query_id in own) for own in shared]
    assert not (out / "runs" / "concat-baseline" / batch.RESULTS).exists()

    profile = load_profile(str(out / "profile.yaml"))
    (variant,) = load_variants(["concat-baseline"])
    for part in shards.existing(out):
        steps.generate(part, slices.Slice(part / "slice"), variant, profile, part / "runs" / variant.name)
    shards.join_answers(str(out), variant.name)
    run = out / "runs" / variant.name
    joined = {path.name: path.read_bytes() for path in run.iterdir()}
    assert [row["status"] for row in lines_of(run / "provenance.jsonl")] == ["ok"] * 4 + ["failed"] + ["ok"] * 3
    assert json.loads(joined["pending.json"]) == [queries[4]]

    shards.remove(out)
    assert cli.main(["batch", "collect", str(out)]) == 1
    generate(out, variant.name)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.name != batch.RESULTS} == joined


def test_what_a_batch_left_is_listed_and_built(new_sweep, capsys):
    with Stub() as stub:
        out = new_sweep(stub, "concat-baseline")
        queries = [query.query_id for query in slices.Slice(out / "slice").queries]
        left = [f"concat-baseline|{queries[n]}" for n in (1, 6)]
        stub.endings.append(
            lambda lines: Ended("expired", [result_line(i) for i in custom_ids(lines) if i not in left], None)
        )
        for step in ("build", "submit"):
            assert cli.main(["batch", step, str(out)]) == 0
        assert cli.main(["batch", "collect", str(out)]) == 1
        said = capsys.readouterr().out
        assert [line.removeprefix("left: ") for line in said.splitlines() if line.startswith("left: ")] == sorted(left)
        run = generate(out, "concat-baseline")
        assert json.loads((run / "pending.json").read_text()) == [queries[1], queries[6]]
        for step in ("build", "submit", "collect"):
            assert cli.main(["batch", step, str(out)]) == 0
        assert uploads(stub)[1:] == [left]
    assert [row["status"] for row in lines_of(generate(out, "concat-baseline") / "provenance.jsonl")] == ["ok"] * 8


def test_prose_around_a_batch_reply_is_accepted_where_the_profile_says_text(new_sweep):
    with Stub() as stub:
        out = new_sweep(stub, "concat-baseline", service=service(stub, structured="text"))
        prose = completion(f"Here it is: {answer(('Finding 0.', [0]))}")
        stub.endings.append(lambda lines: Ended("completed", [result_line(i, prose) for i in custom_ids(lines)], None))
        for step in ("build", "submit", "collect"):
            assert cli.main(["batch", step, str(out)]) == 0
    assert [row["status"] for row in lines_of(generate(out, "concat-baseline") / "provenance.jsonl")] == ["ok"] * 8


def test_a_batch_never_passes_one_reply_off_as_several_draws(new_sweep):
    """Either several draws of a batch are refused, or each has a request and an id of its own."""
    with Stub() as stub:
        try:
            out = new_sweep(stub, "concat-baseline", repeat=2)
            made = applying.sweep_requests(out, load_profile(str(out / "profile.yaml")))
        except (ValueError, WorkbookError) as error:
            assert "repeat" in str(error)
            return
    assert len({request.request_id for request in made}) == 2 * 8


def test_steps_are_refused_for_what_is_no_sweep_of_a_batch_profile(tmp_path, embedded, capsys):
    plain = tmp_path / "plain"
    sweep.prepare_folder(Plan(plain, "sample", load_variants(["concat-baseline"]), embedded))
    (tmp_path / "empty").mkdir()
    for folder, said in (
        (plain, "extractive"),
        (tmp_path / "empty", "workbook sweep"),
        (tmp_path / "no", "workbook sweep"),
    ):
        for step in ("build", "submit", "status", "collect"):
            assert cli.main(["batch", step, str(folder)]) == 2
            out, err = capsys.readouterr()
            assert not out
            assert err.count("\n") == 1
            assert str(folder) in err
            assert said in err
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (plain / "batch").exists()


def test_no_file_of_a_batch_holds_the_key(new_sweep, capsys):
    with Stub(key="another-dummy") as stub:
        out = new_sweep(stub, "concat-baseline")
        capsys.readouterr()
        assert cli.main(["batch", "build", str(out)]) == 0
        assert cli.main(["batch", "submit", str(out)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("workbook: ")
    assert said.err.count("\n") == 1
    assert KEY not in said.out + said.err
    assert not [path for path in out.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize("fault", ["400:This file is invalid.", "500:0", "close"])
@pytest.mark.parametrize("step", ["submit", "status", "collect"])
def test_a_step_that_the_service_does_not_take_ends_with_one_line_and_can_be_run_again(new_sweep, capsys, step, fault):
    with Stub() as stub:
        out = new_sweep(stub, "concat-baseline", service=service(stub, max_waits=0))
        assert cli.main(["batch", "build", str(out)]) == 0
        place = f"POST {BATCHES}"
        if step != "submit":
            assert cli.main(["batch", "submit", str(out)]) == 0
            place = f"GET {BATCHES}/{next(iter(stub.batches))}"
        stub.faults = {place: deque([fault])}
        capsys.readouterr()
        assert cli.main(["batch", step, str(out)]) == 2
        said = capsys.readouterr()
        assert said.err.startswith("workbook: ")
        assert said.err.count("\n") == 1
        for again in ("submit", "collect"):
            assert cli.main(["batch", again, str(out)]) == 0
        assert len(stub.batches) == 1


# Plain files: workbook batch apply

SYSTEMS = (
    "caes-rag-rrf",
    "concat-baseline",
    "default",
    "rrf-no-rerank",
    "rule-minilm",
    "semantic-current",
    "semantic-minilm",
    "single-query-bm25",
    "topic-shift-current",
    "topic-shift-minilm",
)


def apply(evidence: Path, results_: Path, run_id: str, slice_: Path, out: Path) -> int:
    given = {"--evidence": evidence, "--results": results_, "--run-id": run_id, "--slice": slice_, "--out": out}
    return cli.main(["batch", "apply", *(str(part) for pair in given.items() for part in pair)])


def answers(path: Path, repair=lambda text: text) -> dict[str, list]:
    """query_id -> (sentence, cited document ids in order) of a responses file."""
    return {
        row["metadata"]["narrative_id"]: [
            (repair(s["text"]), [str(row["references"][i]) for i in s["citations"]]) for s in row["answer"]
        ]
        for row in paths.read_jsonl(path)
    }


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_published_runs_follow_from_their_evidence_and_replies(tmp_path, real_data, system, capsys):
    """Published texts hold a few sentences whose UTF-8 was read as cp1252, which ftfy undoes."""
    published, out = real_data / "published", tmp_path / "responses.jsonl"
    status = apply(published / "evidence" / f"{system}.jsonl", published / "batch_results.jsonl", system, published, out)
    assert status == 0, capsys.readouterr().err
    ours = answers(out)
    theirs = answers(published / "runs" / system / "responses.jsonl", lambda text: ftfy.fix_text(text, uncurl_quotes=False))
    assert len(ours) == 24
    assert list(ours) == list(theirs)
    for query_id, sentences in theirs.items():
        assert ours[query_id] == sentences, query_id
    assert cli.main(["validate", str(out), "--slice", str(published)]) == 0


QUERIES = [
    {"query_id": "q1", "query": "Why does ice melt?", "doc_ids": [1, 2, 7]},
    {"query_id": "q2", "query": "Why does debris sink?", "doc_ids": [2, 3]},
]
EVIDENCE = [
    {
        "query_id": "q1",
        "references": ["2", "1"],
        "evidence": [
            {"evidence_id": 0, "doc_id": "1", "text": "Ice melts."},
            {"evidence_id": 1, "doc_id": "2", "text": "Salt helps."},
        ],
    },
    {"query_id": "q2", "references": ["3"], "evidence": [{"evidence_id": 0, "doc_id": "3", "text": "Debris sinks."}]},
]
RESULTS = [
    result_line("run|q2", completion(answer(("It sinks.", [0])))),
    result_line("other|q1", completion(answer(("Not this.", [0])))),
    result_line("run|q1", completion(answer(("It melts.", [0, 1, 0]), ("Salt.", [1])))),
]


class Plain:
    """The plain files of one run, which a test may spoil."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.out = folder / "out" / "responses.jsonl"
        self.write("slice/queries.jsonl", QUERIES)
        self.write("evidence.jsonl", EVIDENCE)
        self.write("results.jsonl", RESULTS)

    def write(self, name: str, rows) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows))

    def apply(self, **given) -> int:
        names = {"evidence": "evidence.jsonl", "results": "results.jsonl", "run_id": "run", "slice_": "slice"} | given
        files = {name: self.folder / names[name] for name in ("evidence", "results", "slice_")}
        return apply(files["evidence"], files["results"], names["run_id"], files["slice_"], self.out)

    def refused(self, capsys, *said, **given) -> None:
        """Status 2, one line that says all of `said`, and nothing written."""
        assert self.apply(**given) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("workbook: ")
        assert err.count("\n") == 1, err
        for part in said:
            assert part in err
        assert not self.out.exists()


@pytest.fixture
def plain(tmp_path) -> Plain:
    return Plain(tmp_path)


def test_apply_leads_evidence_ids_to_documents_in_the_order_of_the_references(plain, capsys):
    assert plain.apply() == 0
    assert "2 of 2 queries answered" in capsys.readouterr().out
    first, second = paths.read_jsonl(plain.out)
    assert first["references"] == ["2", "1"]
    assert first["answer"] == [{"text": "It melts.", "citations": [1, 0]}, {"text": "Salt.", "citations": [0]}]
    assert (second["references"], second["answer"]) == (["3"], [{"text": "It sinks.", "citations": [0]}])
    assert first["metadata"]["run_id"] == "run"
    assert (first["metadata"]["narrative_id"], first["metadata"]["narrative"]) == ("q1", "Why does ice melt?")


def test_apply_gives_the_same_bytes_whatever_the_order_of_the_lines(plain):
    plain.apply()
    before = plain.out.read_bytes()
    plain.write("results.jsonl", RESULTS[::-1])
    plain.write("evidence.jsonl", EVIDENCE[::-1])
    plain.apply()
    assert plain.out.read_bytes() == before


def test_c39_apply_lists_what_is_missing_and_answers_the_rest(plain, capsys):
    plain.write("results.jsonl", RESULTS[:2])
    assert plain.apply() == 1
    out, err = capsys.readouterr()
    assert "1 of 2 queries answered" in out
    assert err.startswith("q1: failed: ")
    assert [len(row["answer"]) for row in paths.read_jsonl(plain.out)] == [0, 1]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (result_line("run|q1", completion('{"answer":[{"text":"Ice', "length")), "truncated"),
        (result_line("run|q1", completion(None, "stop", "No.")), "refused"),
        (result_line("run|q1", completion("")), "empty"),
        (result_line("run|q1", completion("Ice melts.")), "off-schema"),
        (result_line("run|q1", completion(answer(*[("It melts.", [0])] * 6))), "off-schema"),
        (result_line("run|q1", completion(answer(("It melts.", [2])))), "unknown-evidence"),
        (result_line("run|q1", {"error": {"message": "Bad."}}, status=400), "failed"),
        (result_line("run|q1", error=EXPIRED), "failed"),
    ],
)
def test_c41_apply_invents_no_answer_for_a_reply_that_cannot_be_used(plain, capsys, line, status):
    plain.write("results.jsonl", [line, RESULTS[0]])
    assert plain.apply() == 1
    assert capsys.readouterr().err.startswith(f"q1: {status}: ")
    assert [len(row["answer"]) for row in paths.read_jsonl(plain.out)] == [0, 1]


def test_apply_takes_ids_that_are_numbers(plain):
    plain.write("slice/queries.jsonl", [{**QUERIES[0], "query_id": 17}])
    items = [{**item, "doc_id": int(item["doc_id"])} for item in EVIDENCE[0]["evidence"]]
    plain.write("evidence.jsonl", [{"query_id": 17, "references": [2, 1], "evidence": items}])
    plain.write("results.jsonl", [result_line("run|17", completion(answer(("It melts.", [0]))))])
    assert plain.apply() == 0
    (row,) = paths.read_jsonl(plain.out)
    assert (row["references"], row["answer"]) == (["2", "1"], [{"text": "It melts.", "citations": [1]}])


@pytest.mark.parametrize("name", ["evidence", "results", "slice_"])
def test_apply_refuses_a_file_that_is_not_there(plain, capsys, name):
    plain.refused(capsys, "nowhere", **{name: "nowhere"})


def test_apply_refuses_an_unknown_run_and_names_those_that_are_there(plain, capsys):
    plain.refused(capsys, "results.jsonl", "'another'", "other", "run", run_id="another")


def test_c39_apply_refuses_an_unknown_query_in_the_results(plain, capsys):
    plain.write("results.jsonl", [*RESULTS, result_line("run|q9")])
    plain.refused(capsys, "results.jsonl", "'run|q9'")


def test_c39_apply_refuses_two_lines_of_one_id(plain, capsys):
    plain.write("results.jsonl", [*RESULTS, RESULTS[0]])
    plain.refused(capsys, "results.jsonl", "'run|q2'", "twice")


def test_apply_does_not_mind_what_another_run_has_twice(plain):
    plain.write("results.jsonl", [*RESULTS, RESULTS[1], result_line("other|q9")])
    assert plain.apply() == 0


@pytest.mark.parametrize("line", [b"{", b"[]", b"{}", b"\xff"])
def test_apply_refuses_malformed_results(plain, capsys, line):
    plain.write("results.jsonl", [*RESULTS, line])
    plain.refused(capsys, "results.jsonl:4")


def evidence_row(**changes) -> dict:
    return {**EVIDENCE[0], **changes}


@pytest.mark.parametrize(
    "row",
    [
        b"{",
        b"\xff",
        b"[]",
        evidence_row(query_id="q9"),
        evidence_row(query_id="q2"),
        evidence_row(references=None),
        evidence_row(evidence=None),
        evidence_row(evidence=[{"doc_id": "1", "text": "Ice melts."}]),
        evidence_row(evidence=[{"evidence_id": 0, "text": "Ice melts."}]),
        evidence_row(evidence=[EVIDENCE[0]["evidence"][0]] * 2),
        evidence_row(references=["2"]),
        evidence_row(references=["2", "1", "3"]),
        evidence_row(references=["99"], evidence=[{"evidence_id": 0, "doc_id": "99", "text": "Ice melts."}]),
    ],
    ids=[
        "not JSON",
        "not UTF-8",
        "a list",
        "unknown query",
        "a query twice",
        "no references",
        "no evidence",
        "no evidence id",
        "no document",
        "an evidence id twice",
        "a document outside the references",
        "a reference outside the candidates",
        "a document outside the candidates",
    ],
)
def test_apply_refuses_evidence_that_cannot_be_what_was_prompted(plain, capsys, row):
    plain.write("evidence.jsonl", [EVIDENCE[1], row])
    plain.refused(capsys, "evidence.jsonl:2")


def test_apply_passes_over_blank_lines(plain):
    plain.write("evidence.jsonl", [EVIDENCE[0], b"", EVIDENCE[1], b" "])
    plain.write("results.jsonl", [b"", *RESULTS, b""])
    assert plain.apply() == 0


def test_apply_leaves_an_earlier_file_alone_when_it_refuses(plain):
    plain.apply()
    before = plain.out.read_bytes()
    plain.write("results.jsonl", [*RESULTS, RESULTS[0]])
    assert plain.apply() == 2
    assert plain.out.read_bytes() == before
    assert [path.name for path in plain.out.parent.iterdir()] == ["responses.jsonl"]


def test_the_results_of_a_sweep_go_to_their_runs(tmp_path):
    folder, runs = tmp_path / "batch", tmp_path / "runs"
    folder.mkdir()
    results(folder, result_line("a|q1"), result_line("b|q1"), result_line("a|q2|x"))
    assert batch.distribute(folder, lambda _: runs) == ["a", "b"]
    assert ids_in(runs / "a" / batch.RESULTS) == ["a|q1", "a|q2|x"]
    assert ids_in(runs / "b" / batch.RESULTS) == ["b|q1"]


def test_the_results_of_one_run_go_to_where_each_query_is_answered(tmp_path):
    """A query's id is all that follows the first bar."""
    folder = tmp_path / "batch"
    folder.mkdir()
    results(folder, *(result_line(i) for i in ("a|q1", "b|q1", "a|q2|x", "a|q3")))
    homes = {"q1": tmp_path / "one", "q2|x": tmp_path / "two", "q3": tmp_path / "one"}
    assert batch.distribute(folder, homes.__getitem__) == ["a", "b"]
    assert ids_in(tmp_path / "one" / "a" / batch.RESULTS) == ["a|q1", "a|q3"]
    assert ids_in(tmp_path / "one" / "b" / batch.RESULTS) == ["b|q1"]
    assert ids_in(tmp_path / "two" / "a" / batch.RESULTS) == ["a|q2|x"]
    assert not (tmp_path / "two" / "b").exists()
