import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lib import paths
from lib.errors import StopEverything, WorkbookError
from lib.evidence import Evidence
from lib.llm import Client, ReplyStore, ask_all, redact, request_body
from lib.prompting import answer_request, load_prompt
from lib.replies import Request
from lib.slices import Query
from lib.variants import ServiceSpec, Variant
from tests.questions import GOOD, ONE_ATTEMPT, REPLY_COST, TABLE, WORD_SCHEMA, highest_cost, ledger, prices_of, question
from tests.stub_service import Stub, answer

KEY = "dummy-key-123"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("STUB_KEY", KEY)


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """The waits that were asked for, none of which takes its time; `time.sleep` still refuses what it refuses."""
    waited: list[float] = []
    sleep = time.sleep

    def note(seconds: float) -> None:
        waited.append(seconds)
        sleep(min(seconds, 0.0) if seconds <= 0 else seconds * 0)

    monkeypatch.setattr(time, "sleep", note)
    return waited


def service(stub: Stub, **given) -> ServiceSpec:
    values = {"base_url": stub.url, "key_env": "STUB_KEY", "max_waits": 1, "timeout_seconds": 20.0}
    return ServiceSpec("gpt-4o-mini", **(values | given))


def client(stub: Stub, folder: Path, **given) -> Client:
    return Client(service(stub, **given), ReplyStore(folder / "replies"))


def questions(number: int) -> list[Request]:
    return [question(f"q{n}") for n in range(number)]


def evidence_question(name: str = "q0") -> Request:
    """A request over evidence 0 to 2 of three documents."""
    items = [Evidence(n, f"d{n}", f"d{n}#0", 0, 11, "Ice creeps.", 1.0, (n,)) for n in range(3)]
    query = Query(name, f"Question {name}.", ("d0", "d1", "d2"))
    return answer_request(query, items, Variant("r"), load_prompt("answer"), "r")


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def python(code: str, *arguments) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(paths.PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


ASK = """
import json, sys
from pathlib import Path
from lib.llm import Client, ReplyStore, ask_all
from lib.ledger import Ledger, Prices
from lib.replies import Request
from lib.variants import ServiceSpec

url, folder, requests = sys.argv[1], Path(sys.argv[2]), [Request(*row) for row in json.loads(sys.argv[3])]
client = Client(ServiceSpec("gpt-4o-mini", base_url=url, key_env="STUB_KEY", concurrency=4), ReplyStore(folder / "replies"))
for reply in ask_all(client, requests, Ledger(folder / "ledger.jsonl", Prices())).values():
    print(reply.status, reply.cached, reply.text)
"""


def asking_process(stub: Stub, folder: Path, requests: list[Request]) -> subprocess.Popen:
    """Another process that asks the same requests with the same store and ledger."""
    return python(ASK, stub.url, folder, json.dumps([request[:4] for request in requests]))


# Stored replies


def test_a_stored_reply_is_never_asked_for_again(tmp_path):
    with Stub() as stub:
        first = client(stub, tmp_path).ask(question())[-1]
        same = client(stub, tmp_path, concurrency=1, timeout_seconds=9.0)
        again = same.ask(question())[-1]
        assert len(stub.chats) == 1
    assert (first.status, first.cached, again.cached) == ("ok", False, True)
    assert dataclasses.replace(again, cached=False) == first


def test_another_process_is_given_the_stored_reply(tmp_path):
    with Stub([f"say:{GOOD}"]) as stub:
        client(stub, tmp_path).ask(question())
        process = asking_process(stub, tmp_path, [question()])
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert len(stub.chats) == 1
    assert out.strip() == f"ok True {GOOD}"


def test_processes_that_store_at_the_same_time_lose_nothing(tmp_path):
    code = """
import sys
from pathlib import Path
from lib.replies import Reply
from lib.llm import ReplyStore
store = ReplyStore(Path(sys.argv[1]))
for n in range(40):
    store.put(f"{sys.argv[2]}-{n}", Reply("ok", text=f"text {n}"))
"""
    running = [python(code, tmp_path / "replies", name) for name in "ab"]
    for process in running:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    store = ReplyStore(tmp_path / "replies")
    assert [store.get(f"{name}-{n}").text for name in "ab" for n in range(40)] == [f"text {n}" for n in range(40)] * 2


def test_replies_that_cannot_be_used_are_stored_too(tmp_path):
    with Stub(["truncated", "refused"]) as stub:
        first = client(stub, tmp_path).ask(question())
        again = client(stub, tmp_path).ask(question())
        assert len(stub.chats) == 2
    assert [reply.status for reply in first] == [reply.status for reply in again] == ["truncated", "refused"]
    assert all(reply.cached for reply in again)


def test_more_attempts_draw_only_the_replies_that_are_new(tmp_path):
    with Stub(["empty", "empty"]) as stub:
        client(stub, tmp_path, reply_attempts=2).ask(question())
        more = client(stub, tmp_path, reply_attempts=4)
        assert more.stored(question()) is None
        drawn = more.ask(question())
        assert len(stub.chats) == 3
    assert [(reply.status, reply.cached, reply.attempts) for reply in drawn] == [
        ("empty", True, 1),
        ("empty", True, 2),
        ("ok", False, 3),
    ]


def test_what_is_stored_says_whether_anything_must_still_be_sent(tmp_path):
    with Stub(["empty", "empty"]) as stub:
        asking = client(stub, tmp_path)
        assert asking.stored(question()) is None
        asking.ask(question())
        asking.ask(question("q1"))
        assert asking.stored(question()).status == "empty"
        assert (asking.stored(question("q1")).status, asking.stored(question("q1")).attempts) == ("ok", 1)
        assert asking.stored(question("q2")) is None
        assert len(stub.chats) == 3


def test_stored_files_do_not_hold_the_key(tmp_path):
    with Stub(["400:no", "empty"]) as stub:
        ask_all(client(stub, tmp_path), questions(3), ledger(tmp_path))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_repeated_draws_are_independent_requests_that_are_each_stored(tmp_path):
    said = [answer((f"Finding {n}.", [0])) for n in range(3)]
    with Stub([f"say:{text}" for text in said]) as stub:
        draws = [client(stub, tmp_path).ask(question(draw=n))[-1].text for n in range(3)]
        again = [client(stub, tmp_path).ask(question(draw=n))[-1].text for n in (2, 0, 1)]
        assert len(stub.chats) == 3
        assert len({json.dumps(seen.body, sort_keys=True) for seen in stub.chats}) == 1
    assert draws == said
    assert again == [said[2], said[0], said[1]]


@pytest.mark.parametrize("structured", ["schema", "json", "text"])
def test_c42_a_schema_that_is_not_strict_is_refused_before_anything_is_sent(tmp_path, structured):
    request = question()._replace(schema={**WORD_SCHEMA, "additionalProperties": True})
    with Stub() as stub:
        with pytest.raises(ValueError, match="open"):
            client(stub, tmp_path, structured=structured).ask(request)
        assert not stub.seen


@pytest.mark.parametrize(("structured", "expected"), [("schema", "json_schema"), ("json", "json_object"), ("text", None)])
def test_the_service_is_sent_the_form_of_reply_that_the_profile_names(tmp_path, structured, expected):
    with Stub() as stub:
        reply = client(stub, tmp_path, structured=structured).ask(question())[-1]
        (seen,) = stub.chats
    assert reply.status == "ok"
    assert (seen.body.get("response_format") or {}).get("type") == expected
    assert seen.body == request_body(service(stub, structured=structured), question())
    assert seen.authorization == f"Bearer {KEY}"


UNUSABLE = [
    ("truncated", "truncated", '{"answer":[{"text":"Ice melts"'),
    ("truncated-empty", "truncated", ""),
    ("refused", "refused", "I cannot help with that."),
    ("filtered", "refused", "Ice"),
    ("empty", "empty", ""),
    ("blank", "empty", answer((" ", [0]))),
    ("off-schema", "off-schema", '{"answer": "Ice melts."}'),
    ("not-json", "off-schema", "Ice melts."),
    ("many:6", "off-schema", answer(*((f"Finding {n}.", [0]) for n in range(6)))),
    ("foreign-ids", "unknown-evidence", answer(("Finding.", [0]), ("Another.", [99]))),
]


@pytest.mark.parametrize(("step", "status", "text"), UNUSABLE)
def test_c41_a_reply_that_cannot_be_used_is_drawn_anew_up_to_the_limit_and_its_text_kept(tmp_path, step, status, text):
    with Stub(otherwise=step) as stub:
        drawn = client(stub, tmp_path, reply_attempts=3).ask(evidence_question())
        assert len(stub.chats) == 3
    assert [reply.status for reply in drawn] == [status] * 3
    assert (drawn[-1].text, drawn[-1].value, drawn[-1].attempts) == (text, None, 3)
    assert drawn[-1].detail


@pytest.mark.parametrize("step", [step for step, _, _ in UNUSABLE])
def test_a_good_reply_after_an_unusable_one_is_the_result(tmp_path, step):
    with Stub([step]) as stub:
        drawn = client(stub, tmp_path).ask(evidence_question())
        assert len(stub.chats) == 2
    assert [reply.status for reply in drawn][1:] == ["ok"]
    assert [sentence["evidence_ids"] for sentence in drawn[-1].value["answer"]] == [[0], [1], [2]]


@pytest.mark.parametrize("step", ["duplicate-ids", "many:5", "no-ids"])
def test_odd_replies_that_can_be_used_are_not_drawn_anew(tmp_path, step):
    with Stub(otherwise=step) as stub:
        assert client(stub, tmp_path).ask(evidence_question())[-1].status == "ok"
        assert len(stub.chats) == 1


def test_c41_the_other_queries_go_on_and_all_are_accounted_for(tmp_path):
    steps = {f"Question q{n}.": itertools.repeat(step, 2) for n, (step, _, _) in enumerate(UNUSABLE)}
    requests = [evidence_question(f"q{n}") for n in range(len(UNUSABLE) + 3)]
    with Stub(for_prompts=steps) as stub:
        replies = ask_all(client(stub, tmp_path), requests, ledger(tmp_path))
        assert len(stub.chats) == 2 * len(UNUSABLE) + 3
    assert [replies[request.request_id].status for request in requests] == [s for _, s, _ in UNUSABLE] + ["ok"] * 3


@pytest.mark.parametrize("step", ["html", "list", "no-choices", "parts"])
def test_a_reply_that_is_no_chat_completion_costs_its_own_query_only(tmp_path, step):
    with Stub(for_prompts={"Question q1.": [step] * 9}) as stub:
        replies = ask_all(client(stub, tmp_path, concurrency=1), questions(3), ledger(tmp_path))
    assert [replies[f"r|q{n}"].status for n in (0, 2)] == ["ok", "ok"]
    assert replies["r|q1"].status != "ok" or step == "parts"


# Waits, and what waiting cannot help


@pytest.mark.parametrize("step", ["429:0", "429", "500", "500:0", "408", "close", "cut", "stall:20"])
def test_what_passes_is_waited_out_and_the_request_succeeds(tmp_path, waits, step):
    with Stub([step]) as stub:
        drawn = client(stub, tmp_path, timeout_seconds=0.3 if step.startswith("stall") else 20.0).ask(question())
        assert len(stub.chats) == 2
    assert [reply.status for reply in drawn] == ["ok"]
    assert len(waits) == 1


def test_c40_a_rate_limit_is_waited_out_for_as_long_as_the_service_asks(tmp_path):
    with Stub(["429:0.3"]) as stub:
        assert client(stub, tmp_path).ask(question())[-1].status == "ok"
        first, second = stub.chats
    assert second.at - first.at >= 0.3


@pytest.mark.parametrize(("after", "least", "most"), [("0", 0, 1), ("2", 2, 4), ("20", 20, 30), ("3600", 60, 90)])
def test_retry_after_is_followed_up_to_a_minute(tmp_path, waits, after, least, most):
    """The longest wait is a minute; jitter may add to it, but not in proportion to what was asked beyond that."""
    for n in range(3):
        with Stub([f"429:{after}"]) as stub:
            client(stub, tmp_path).ask(question(f"q{n}"))
    assert len(waits) == 3
    assert all(least <= wait <= most for wait in waits), waits


@pytest.mark.parametrize("after", ["soon", "Wed, 21 Oct 2015 07:28:00 GMT", "-5", "nan", "inf", "1e400"])
def test_a_retry_after_that_is_no_number_of_seconds_does_no_harm(tmp_path, waits, after):
    with Stub([f"429:{after}"]) as stub:
        assert client(stub, tmp_path).ask(question())[-1].status == "ok"
    assert len(waits) == 1
    assert 0 <= waits[0] <= 90


def test_server_faults_back_off_further_each_time_with_jitter(tmp_path, waits):
    for n in range(3):
        with Stub(["500"] * 4) as stub:
            assert client(stub, tmp_path, max_waits=4).ask(question(f"q{n}"))[-1].status == "ok"
    rounds = [waits[n : n + 4] for n in range(0, 12, 4)]
    for first, second, third, fourth in rounds:
        assert 0 < first < second < third < fourth
    assert len({first for first, *_ in rounds}) == 3


@pytest.mark.parametrize(
    ("step", "said"), [("429:0", "429"), ("500:0", "500"), ("close", "onnection"), ("stall:20", "imed out")]
)
def test_exhausted_waits_are_a_failure_that_is_not_stored(tmp_path, waits, step, said):
    with Stub([step] * 3) as stub:
        asking = client(stub, tmp_path, max_waits=2, timeout_seconds=0.3 if step.startswith("stall") else 20.0)
        (failed,) = asking.ask(question())
        assert len(stub.chats) == 3
        assert (failed.status, failed.value, failed.text) == ("failed", None, "")
        assert said in failed.detail
        assert asking.stored(question()) is None
        assert asking.ask(question())[-1].status == "ok"
        assert len(stub.chats) == 4
    assert len(waits) == 2


def test_without_waits_a_passing_fault_fails_at_once(tmp_path, waits):
    with Stub(["429:0"]) as stub:
        assert client(stub, tmp_path, max_waits=0).ask(question())[-1].status == "failed"
        assert len(stub.chats) == 1
    assert not waits


def test_a_request_that_the_service_calls_invalid_fails_alone_and_at_once(tmp_path, waits):
    with Stub(for_prompts={"Question q1.": ["400:The prompt\nis too long."]}) as stub:
        replies = ask_all(client(stub, tmp_path, concurrency=1), questions(3), ledger(tmp_path))
        assert len(stub.chats) == 3
    assert [reply.status for reply in replies.values()] == ["ok", "failed", "ok"]
    assert "400: The prompt is too long." in replies["r|q1"].detail
    assert not waits


FINAL = ["quota", "401", "403", "404"]


@pytest.mark.parametrize("step", FINAL)
def test_c40_quota_key_permission_and_unknown_model_stop_everything_at_once(tmp_path, waits, step):
    with Stub([step]) as stub:
        with pytest.raises(StopEverything) as caught:
            client(stub, tmp_path, max_waits=6).ask(question())
        assert len(stub.chats) == 1
    assert not waits
    assert "\n" not in str(caught.value)
    assert "gpt-4o-mini" in str(caught.value)


@pytest.mark.parametrize("step", FINAL)
def test_c40_nothing_more_is_sent_and_what_came_is_kept(tmp_path, step):
    with Stub(["good", "good", step]) as stub:
        asking = client(stub, tmp_path, concurrency=1)
        with pytest.raises(StopEverything):
            ask_all(asking, questions(6), ledger(tmp_path))
        assert len(stub.chats) == 3
        assert len(rows_of(tmp_path / "ledger.jsonl")) == 2
        replies = ask_all(client(stub, tmp_path), questions(6), ledger(tmp_path))
        assert len(stub.chats) == 3 + 4
    assert {reply.status for reply in replies.values()} == {"ok"}


def test_c40_replies_in_flight_when_everything_stops_are_stored_and_booked(tmp_path):
    with Stub(otherwise="after:0.5", for_prompts={"Question q0.": ["quota"]}) as stub:
        asking = client(stub, tmp_path, concurrency=4)
        with pytest.raises(StopEverything):
            ask_all(asking, questions(8), ledger(tmp_path))
        assert len(stub.chats) == 4
        assert sorted(row["request_id"] for row in rows_of(tmp_path / "ledger.jsonl")) == ["r|q1", "r|q2", "r|q3"]
        assert [asking.stored(question(f"q{n}")) is not None for n in range(5)] == [False, True, True, True, False]


def test_the_message_of_a_refused_key_does_not_hold_the_key(tmp_path):
    with Stub(key="another-dummy") as stub:
        with pytest.raises(StopEverything) as caught:
            client(stub, tmp_path).ask(question())
        assert stub.chats[0].authorization == f"Bearer {KEY}"
    assert KEY not in str(caught.value)
    assert "401" in str(caught.value)


def test_the_traceback_of_a_refused_key_does_not_hold_the_key(tmp_path):
    with Stub(key="another-dummy") as stub:
        process = asking_process(stub, tmp_path, [question()])
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "StopEverything" in err
    assert KEY not in out + err


def test_a_missing_key_stops_before_anything_is_sent_and_names_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("STUB_KEY")
    with Stub() as stub:
        with pytest.raises(StopEverything, match="STUB_KEY"):
            client(stub, tmp_path).ask(question())
        assert not stub.seen


def test_a_server_of_ones_own_needs_no_key_and_its_messages_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.delenv("STUB_KEY")
    with Stub(["400:none of these fits"]) as stub:
        asking = client(stub, tmp_path, key_required=False)
        assert "none of these fits" in asking.ask(question())[-1].detail
        assert asking.ask(question())[-1].status == "ok"


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        (f"Incorrect API key provided: {KEY}.", KEY, "Incorrect API key provided: [key]."),
        (f"{KEY} and {KEY}", KEY, "[key] and [key]"),
        ("key sk-proj-abc_DEF-123456 refused", None, "key [key] refused"),
        ("key sk-abc***********xyz refused", KEY, "key [key] refused"),
        ("a risk-adjusted task-specific model", KEY, "a risk-adjusted task-specific model"),
        ("no key at all", None, "no key at all"),
        ("no key at all", "", "no key at all"),
    ],
)
def test_keys_are_taken_out_of_messages(text, key, expected):
    assert redact(text, key) == expected


def test_a_request_is_admitted_only_while_its_highest_cost_fits(tmp_path):
    prices = prices_of(tmp_path, **TABLE)
    highest = highest_cost(question())
    spec = ServiceSpec("gpt-4o-mini", **ONE_ATTEMPT)
    assert ledger(tmp_path, prices, highest * 1.0001).admit(spec, question())
    assert not ledger(tmp_path, prices, highest * 0.9999).admit(spec, question())
    twice = dataclasses.replace(spec, reply_attempts=2)
    assert not ledger(tmp_path, prices, highest * 1.9999).admit(twice, question())
    assert ledger(tmp_path, prices, highest * 2.0001).admit(twice, question())


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_budget_admits_as_many_queries_as_fit_it_and_keeps_what_came(tmp_path, concurrency):
    """Three replies: before the third, two are spent and its highest cost fits; before the fourth it does not."""
    prices = prices_of(tmp_path, **TABLE)
    highest = highest_cost(question())
    assert highest > REPLY_COST
    budget = 2 * REPLY_COST + highest + 1e-9
    told = []
    with Stub() as stub:
        asking = client(stub, tmp_path, concurrency=concurrency, **ONE_ATTEMPT)
        book = ledger(tmp_path, prices, budget)
        replies = ask_all(asking, questions(8), book, lambda request, reply: told.append(reply.status))
        assert len(stub.chats) == 3
        statuses = sorted(reply.status for reply in replies.values())
        assert statuses == sorted(told) == ["ok"] * 3 + ["over-budget"] * 5
        assert book.spent == pytest.approx(3 * REPLY_COST)
        assert book.spent <= budget
        again = ask_all(asking, questions(8), ledger(tmp_path, prices, budget))
        assert len(stub.chats) == 3
        assert sorted(reply.status for reply in again.values()) == statuses
        ask_all(asking, questions(8), ledger(tmp_path, prices, 1.0))
        assert len(stub.chats) == 8


def test_requests_over_budget_say_so_and_are_not_stored(tmp_path):
    with Stub() as stub:
        asking = client(stub, tmp_path)
        replies = ask_all(asking, questions(2), ledger(tmp_path, prices_of(tmp_path, **TABLE), 1e-9))
        assert not stub.seen
        assert asking.stored(question()) is None
    assert {(reply.status, bool(reply.detail), reply.text) for reply in replies.values()} == {("over-budget", True, "")}


def test_a_budget_for_a_model_without_a_price_is_refused_before_anything_is_sent(tmp_path):
    prices = prices_of(tmp_path, other={"input": 1, "output": 1})
    with Stub() as stub:
        with pytest.raises(WorkbookError, match="gpt-4o-mini") as caught:
            ask_all(client(stub, tmp_path), questions(2), ledger(tmp_path, prices, 5.0))
        assert not stub.seen
    assert "prices.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_budget_a_model_without_a_price_is_booked_with_its_tokens(tmp_path):
    book = ledger(tmp_path, prices_of(tmp_path, other={"input": 1, "output": 1}))
    with Stub(usage=(7, 3)) as stub:
        ask_all(client(stub, tmp_path), questions(1), book)
    (row,) = rows_of(book.path)
    assert (row["prompt_tokens"], row["completion_tokens"], row["dollars"]) == (7, 3, None)
    assert book.spent == ledger(tmp_path).spent == 0.0


def test_every_reply_from_the_service_is_booked_once(tmp_path):
    """q0 draws two replies, q1 one, q2 none: three lines of 0.003 dollars."""
    prices = prices_of(tmp_path, **TABLE)
    with Stub(for_prompts={"q0.": ["truncated"], "q2.": ["400:no"] * 2}) as stub:
        for _ in range(2):
            ask_all(client(stub, tmp_path), questions(3), ledger(tmp_path, prices))
    rows = rows_of(tmp_path / "ledger.jsonl")
    assert sorted((row["request_id"], row["status"]) for row in rows) == [
        ("r|q0", "ok"),
        ("r|q0", "truncated"),
        ("r|q1", "ok"),
    ]
    assert {row["dollars"] for row in rows} == {REPLY_COST}
    assert ledger(tmp_path, prices).spent == pytest.approx(3 * REPLY_COST)


def test_a_reply_that_came_before_everything_stopped_is_booked(tmp_path):
    """The first query draws a truncated reply, which costs, before its second attempt meets the quota."""
    prices = prices_of(tmp_path, **TABLE)
    with Stub(["truncated", "quota"]) as stub, pytest.raises(StopEverything):
        ask_all(client(stub, tmp_path, concurrency=1), questions(2), ledger(tmp_path, prices))
    assert ledger(tmp_path, prices).spent == pytest.approx(REPLY_COST)


def test_the_lines_of_the_ledger_sum_to_what_was_spent_however_little_a_reply_costs(tmp_path):
    """7 prompt tokens at 0.15 and 1 completion token at 0.60 dollars per million are 1.65e-6 dollars."""
    prices = prices_of(tmp_path, **{"gpt-4o-mini": {"input": 0.15, "output": 0.60}})
    book = ledger(tmp_path, prices)
    with Stub(usage=(7, 1)) as stub:
        ask_all(client(stub, tmp_path), questions(20), book)
    assert book.spent == pytest.approx(20 * 1.65e-6, rel=1e-9)
    assert sum(row["dollars"] for row in rows_of(book.path)) == pytest.approx(20 * 1.65e-6, rel=1e-9)
    assert ledger(tmp_path, prices).spent == pytest.approx(20 * 1.65e-6, rel=1e-9)


# Many requests


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_as_many_requests_are_in_flight_as_the_profile_says_and_never_more(tmp_path, concurrency):
    with Stub(delay=0.1) as stub:
        replies = ask_all(client(stub, tmp_path, concurrency=concurrency), questions(3 * concurrency), ledger(tmp_path))
        assert stub.most_in_flight == concurrency
        assert len(stub.chats) == 3 * concurrency
    assert list(replies) and {reply.status for reply in replies.values()} == {"ok"}


def test_two_hundred_requests_are_sent_once_each_eight_at_a_time(tmp_path):
    with Stub(delay=0.02) as stub:
        replies = ask_all(client(stub, tmp_path), questions(200), ledger(tmp_path))
        assert stub.most_in_flight == 8
        assert sorted(stub.prompts()) == sorted(f"Question q{n}." for n in range(200))
    assert sorted(replies) == sorted(f"r|q{n}" for n in range(200))


def test_every_request_is_told_of_once_and_stored_ones_are_not_sent(tmp_path):
    with Stub() as stub:
        ask_all(client(stub, tmp_path), questions(3), ledger(tmp_path))
        told = []
        ask_all(
            client(stub, tmp_path), questions(5), ledger(tmp_path), lambda request, reply: told.append(request.request_id)
        )
        assert len(stub.chats) == 5
    assert sorted(told) == [f"r|q{n}" for n in range(5)]


def test_nothing_to_ask_sends_nothing_and_needs_no_key(tmp_path, monkeypatch):
    with Stub() as stub:
        ask_all(client(stub, tmp_path), questions(2), ledger(tmp_path))
        monkeypatch.delenv("STUB_KEY")
        assert ask_all(client(stub, tmp_path), [], ledger(tmp_path)) == {}
        assert len(ask_all(client(stub, tmp_path), questions(2), ledger(tmp_path))) == 2
        assert len(stub.chats) == 2


def test_after_a_kill_only_what_has_no_stored_reply_is_sent(tmp_path):
    with Stub(delay=0.05) as stub:
        process = asking_process(stub, tmp_path, questions(40))
        deadline = time.monotonic() + 60
        while len(stub.chats) < 14 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        before = len(stub.chats)
        asking = client(stub, tmp_path, concurrency=4)
        stored = [n for n in range(40) if asking.stored(question(f"q{n}"))]
        assert 0 < len(stored) < 40
        replies = ask_all(asking, questions(40), ledger(tmp_path))
        sent_again = stub.prompts()[before:]
    assert sorted(sent_again) == sorted(f"Question q{n}." for n in range(40) if n not in stored)
    assert {reply.status for reply in replies.values()} == {"ok"}
