import dataclasses
import json

import pytest

from lib.llm import cache_key, request_body
from lib.prompting import ANSWER_SCHEMA
from lib.replies import Reply, Request, check_strict, parse, read_completion
from lib.variants import ServiceSpec
from tests.questions import GOOD, ONE_ATTEMPT, REPLY_COST, TABLE, WORD_SCHEMA, highest_cost, ledger, prices_of, question
from tests.stub_service import completion

MESSAGES = ({"role": "system", "content": "Answer."}, {"role": "user", "content": "Why does ice melt?"})
CHAT = ServiceSpec("m", temperature=0.0, seed=1, max_tokens=100)
REASONING = ServiceSpec("m", reasoning=True, reasoning_effort="low", max_tokens=100)


# The cache key, part by part


def changed(messages, place: int, **to) -> tuple:
    return tuple({**message, **to} if n == place else message for n, message in enumerate(messages))


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (CHAT, {"model": "n"}),
        (CHAT, {"temperature": 0.5}),
        (CHAT, {"temperature": None}),
        (CHAT, {"seed": 2}),
        (CHAT, {"seed": None}),
        (CHAT, {"max_tokens": 101}),
        (CHAT, {"structured": "json"}),
        (CHAT, {"structured": "text"}),
        (CHAT, {"reasoning": True}),
        (REASONING, {"model": "n"}),
        (REASONING, {"reasoning_effort": "high"}),
        (REASONING, {"reasoning_effort": None}),
        (REASONING, {"max_tokens": 101}),
        (REASONING, {"structured": "json"}),
    ],
)
def test_the_cache_key_depends_on_model_and_parameters(spec, changes):
    request = Request("r|q", MESSAGES, WORD_SCHEMA)
    assert cache_key(dataclasses.replace(spec, **changes), request) != cache_key(spec, request)


@pytest.mark.parametrize(
    "messages",
    [
        *(changed(MESSAGES, n, content=text) for n in (0, 1) for text in ("Other.", MESSAGES[n]["content"] + " ", "")),
        *(changed(MESSAGES, n, role="assistant") for n in (0, 1)),
        MESSAGES[::-1],
        MESSAGES[:1],
        (*MESSAGES, {"role": "user", "content": "Go on."}),
    ],
)
def test_the_cache_key_depends_on_every_message(messages):
    before, after = (cache_key(CHAT, Request("r|q", m, WORD_SCHEMA)) for m in (MESSAGES, messages))
    assert before != after


def test_the_cache_key_depends_on_schema_draw_and_attempt():
    other = {**WORD_SCHEMA, "properties": {"word": {"type": "integer"}}}
    request = Request("r|q", MESSAGES, WORD_SCHEMA)
    made = [
        cache_key(CHAT, request),
        cache_key(CHAT, request._replace(schema=other)),
        cache_key(CHAT, request._replace(draw=1)),
        cache_key(CHAT, request, attempt=1),
        cache_key(CHAT, request._replace(draw=1), attempt=1),
        cache_key(CHAT, request._replace(draw=2), attempt=1),
    ]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": "http://127.0.0.1:1/v1"},
        {"key_env": "ANOTHER_KEY"},
        {"key_required": False},
        {"concurrency": 1},
        {"timeout_seconds": 1.0},
        {"max_waits": 0},
        {"reply_attempts": 5},
    ],
)
def test_the_cache_key_does_not_depend_on_where_and_how_the_service_is_reached(changes):
    request = Request("r|q", MESSAGES, WORD_SCHEMA)
    assert cache_key(dataclasses.replace(CHAT, **changes), request) == cache_key(CHAT, request)


def test_the_cache_key_does_not_depend_on_the_key_or_on_whose_request_it_is(monkeypatch):
    request = Request("r|q", MESSAGES, WORD_SCHEMA)
    key = cache_key(CHAT, request)
    monkeypatch.setenv(CHAT.key_env, "another-dummy")
    assert cache_key(CHAT, request._replace(request_id="other|q", check=lambda value: None)) == key
    reordered = {name: WORD_SCHEMA[name] for name in reversed(WORD_SCHEMA)}
    assert cache_key(CHAT, request._replace(schema=reordered)) == key


def test_parameters_that_a_kind_of_model_is_not_sent_do_not_count():
    request = Request("r|q", MESSAGES, WORD_SCHEMA)
    assert cache_key(dataclasses.replace(REASONING, temperature=0.5, seed=3), request) == cache_key(REASONING, request)
    assert cache_key(dataclasses.replace(CHAT, reasoning_effort="high"), request) == cache_key(CHAT, request)


# Schemas and request bodies


def objects(schema, path=()):
    """(path, object schema) of every object in a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield path, schema
        for name, item in schema.items():
            yield from objects(item, (*path, name))
    elif isinstance(schema, list):
        for number, item in enumerate(schema):
            yield from objects(item, (*path, number))


def with_change(schema, path, change) -> dict:
    copy = json.loads(json.dumps(schema))
    place = copy
    for name in path:
        place = place[name]
    change(place)
    return copy


def test_c42_every_object_of_the_answer_schema_is_closed_and_requires_all_its_keys():
    found = list(objects(ANSWER_SCHEMA))
    assert len(found) == 2
    for _, schema in found:
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) == set(schema["properties"])
    check_strict(ANSWER_SCHEMA)


@pytest.mark.parametrize("path", [path for path, _ in objects(ANSWER_SCHEMA)])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda schema: schema.pop("additionalProperties"), "open"),
        (lambda schema: schema.update(additionalProperties=True), "open"),
        (lambda schema: schema.update(additionalProperties={"type": "string"}), "open"),
        (lambda schema: schema.pop("required"), "required"),
        (lambda schema: schema["required"].pop(), "required"),
        (lambda schema: schema["properties"].update(extra={"type": "string"}), "required"),
    ],
)
def test_c42_open_objects_and_optional_keys_are_refused_wherever_they_stand(path, change, said):
    with pytest.raises(ValueError, match=said) as caught:
        check_strict(with_change(ANSWER_SCHEMA, path, change))
    assert all(str(name) in str(caught.value) for name in path)


OPEN = {"type": "object", "required": [], "properties": {}}


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "null"}, OPEN]},
        {"$defs": {"item": OPEN}, "type": "string"},
        {"type": "array", "items": OPEN},
        {"type": "array", "prefixItems": [{"type": "string"}, OPEN]},
        {"properties": {"word": {"type": "string"}}, "required": ["word"]},
        {"type": ["object", "null"], "properties": {"word": {"type": "string"}}, "required": ["word"]},
        {"type": ["object", "null"]},
        {**WORD_SCHEMA, "properties": {"word": {"anyOf": [OPEN]}}},
    ],
)
def test_c42_open_objects_are_found_under_every_keyword(schema):
    with pytest.raises(ValueError, match="open"):
        check_strict(schema)


@pytest.mark.parametrize(
    "schema",
    [
        WORD_SCHEMA,
        {**WORD_SCHEMA, "properties": {"word": {"type": ["string", "null"]}}},
        {**WORD_SCHEMA, "type": ["object", "null"]},
        {"type": "object", "additionalProperties": False, "required": [], "properties": {}},
        {**WORD_SCHEMA, "required": ["properties"], "properties": {"properties": {"type": "string"}}},
        {**WORD_SCHEMA, "required": ["type"], "properties": {"type": {"type": "string"}}},
    ],
)
def test_c42_closed_objects_are_accepted_whatever_their_keys_are_called(schema):
    check_strict(schema)


def test_c42_a_chat_model_is_given_max_tokens_and_temperature():
    body = request_body(CHAT, Request("r|q", MESSAGES, WORD_SCHEMA))
    assert body == {
        "model": "m",
        "messages": list(MESSAGES),
        "max_tokens": 100,
        "temperature": 0.0,
        "seed": 1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": WORD_SCHEMA},
        },
    }


def test_c42_a_reasoning_model_is_given_max_completion_tokens_and_no_temperature():
    spec = dataclasses.replace(REASONING, temperature=0.7, seed=1)
    body = request_body(spec, Request("r|q", MESSAGES, WORD_SCHEMA))
    assert body["max_completion_tokens"] == 100
    assert body["reasoning_effort"] == "low"
    assert not {"temperature", "max_tokens", "seed", "top_p"} & body.keys()


def test_only_parameters_that_the_profile_sets_are_sent():
    assert set(request_body(ServiceSpec("m"), Request("r|q", MESSAGES, WORD_SCHEMA))) == {
        "model",
        "messages",
        "max_tokens",
        "response_format",
    }


# Replies and what becomes of them


@pytest.mark.parametrize(
    ("text", "schema", "json_", "text_"),
    [
        (GOOD, True, True, True),
        (f"  {GOOD}\n", True, True, True),
        (f"Here is the answer:\n{GOOD}\nI hope this helps.", False, False, True),
        (f"```json\n{GOOD}\n```", False, False, True),
        (f"{GOOD}.", False, False, True),
        (f"{GOOD}\n{GOOD}", False, False, False),
        (f"The form is {{}}: {GOOD}", False, False, False),
        (f"Set {{x}} is open. {GOOD}", False, False, True),
        ("Ice melts.", False, False, False),
        ('Sure: {"answer": "Ice melts."}', False, False, False),
        ('{"answer": "Ice melts."}', False, False, False),
        ('{"answer": []}', True, True, True),
        ('{"answer": [], "note": 1}', False, False, False),
        ('{"answer": [{"text": "Ice", "evidence_ids": [0]}', False, False, False),
        ('{"answer": [{"text": "Ice", "evidence_ids": ["0"]}]}', False, False, False),
        ('{"answer": [{"text": "Ice", "evidence_ids": [0.5]}]}', False, False, False),
        ('{"answer": [{"text": "Ice", "evidence_ids": [true]}]}', False, False, False),
        ('{"answer": [{"text": "Ice", "evidence_ids": [NaN]}]}', False, False, False),
        ('{"answer": [{"text": null, "evidence_ids": [0]}]}', False, False, False),
        ('{"answer": [{"text": "Ice"}]}', False, False, False),
        (f"[{GOOD}]", False, False, None),
        ("[" * 100_000, False, False, False),
        ("{" * 2_000, False, False, False),
        ("9" * 10_000, False, False, False),
    ],
)
def test_prose_around_the_json_is_accepted_only_where_the_profile_says_text(text, schema, json_, text_):
    for structured, accepted in (("schema", schema), ("json", json_), ("text", text_)):
        value, fault = parse(text, ANSWER_SCHEMA, structured)
        if accepted is None:
            continue
        assert (value is not None, not fault) == (accepted, accepted), structured


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (completion('{"answer":[{"text":"Ice melts"', "length"), "truncated", '{"answer":[{"text":"Ice melts"'),
        (completion(GOOD, "length"), "truncated", GOOD),
        (completion("", "length"), "truncated", ""),
        (completion(None, "length"), "truncated", ""),
        (completion(None, "stop", "I cannot."), "refused", "I cannot."),
        (completion(GOOD, "stop", "I cannot."), "refused", GOOD),
        (completion("Ice", "content_filter"), "refused", "Ice"),
        (completion(GOOD, "content_filter"), "refused", GOOD),
        (completion(""), "empty", ""),
        (completion(None), "empty", ""),
        (completion(" \n"), "empty", " \n"),
        (completion("Ice melts."), "off-schema", "Ice melts."),
        (completion('{"answer": 1}'), "off-schema", '{"answer": 1}'),
        (completion(GOOD), "ok", GOOD),
    ],
)
def test_c41_finish_reason_and_refusal_decide_before_the_content_is_read(body, status, text):
    for structured in ("schema", "json", "text"):
        reply = read_completion(body, ANSWER_SCHEMA, structured)
        assert (reply.status, reply.text) == (status, text)
        assert (reply.value is None) == (status != "ok")
        assert (reply.detail == "") == (status == "ok")


def test_a_reply_carries_the_model_and_the_tokens_that_the_service_reports():
    reply = read_completion(completion(GOOD, model="gpt-4o-mini-2024-07-18", usage=(70, 9)), ANSWER_SCHEMA)
    assert (reply.model, reply.prompt_tokens, reply.completion_tokens) == ("gpt-4o-mini-2024-07-18", 70, 9)
    assert reply.value == {"answer": [{"text": "Finding 0.", "evidence_ids": [0]}]}


def test_what_is_in_flight_counts_with_its_highest_cost_until_it_is_settled(tmp_path):
    book = ledger(tmp_path, prices_of(tmp_path, **TABLE), highest_cost(question()) + REPLY_COST)
    spec = ServiceSpec("gpt-4o-mini", **ONE_ATTEMPT)
    assert book.admit(spec, question("q0"))
    assert not book.admit(spec, question("q1"))
    book.add(spec, question("q0"), Reply("ok", prompt_tokens=100, completion_tokens=20))
    book.release(question("q0"))
    assert book.admit(spec, question("q1"))
    book.add(spec, question("q1"), Reply("failed"))
    book.release(question("q1"))
    assert book.spent == pytest.approx(REPLY_COST)
    assert book.admit(spec, question("q2"))


def test_a_torn_last_line_of_the_ledger_is_no_obstacle_now_or_later(tmp_path):
    prices = prices_of(tmp_path, **TABLE)
    whole = json.dumps({"request_id": "r|q0", "dollars": 0.25})
    (tmp_path / "ledger.jsonl").write_text(f'{whole}\n{{"request_id": "r|q1", "doll', encoding="utf-8")
    spec = ServiceSpec("gpt-4o-mini")
    book = ledger(tmp_path, prices)
    assert book.spent == pytest.approx(0.25)
    book.add(spec, question("q2"), Reply("ok", prompt_tokens=100, completion_tokens=20))
    book.release(question("q2"))
    again = ledger(tmp_path, prices)
    assert again.spent == book.spent == pytest.approx(0.25 + REPLY_COST)
    again.add(spec, question("q3"), Reply("ok", prompt_tokens=100, completion_tokens=20))
    again.release(question("q3"))
    assert ledger(tmp_path, prices).spent == pytest.approx(0.25 + 2 * REPLY_COST)
