"""What is asked of a model, and what came back.

A reply is a result whatever became of it: its status says whether it can be used, and its raw text is
kept. Schemas are closed and checked before anything is sent; replies are read, never mended.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

# jsonschema looks for a checker of IRIs, which takes a second to compile its grammar; no schema of ours has one.
_absent = "rfc3987_syntax" not in sys.modules
if _absent:
    sys.modules["rfc3987_syntax"] = None
import jsonschema  # noqa: E402

if _absent:
    del sys.modules["rfc3987_syntax"]

# No reply came for these; everything else is a reply that the service gave and charged for.
UNANSWERED = ("failed", "over-budget")


class Request(NamedTuple):
    """One prompt: an id that is unique in its batch, chat messages, and the JSON schema of the reply.

    `draw` tells independent replies to the same prompt apart. `check`, where given, looks at a value
    that follows the schema and returns what else is wrong with it as (status, detail), or None.
    """

    request_id: str
    messages: tuple[dict[str, str], ...]
    schema: dict[str, Any]
    draw: int = 0
    check: Callable[[Any], tuple[str, str] | None] | None = None


@dataclass(frozen=True)
class Reply:
    """What became of a request.

    `status` is `ok`; `truncated`, `refused`, `empty`, `off-schema` or what the request's own check says
    of a reply that cannot be used; `failed` (the service gave no reply: `detail` says why) or
    `over-budget` (it was not sent). `value` is the parsed reply of an `ok` one. Token counts are the
    service's own, for all replies that were drawn for the request, of which `attempts` is the number;
    `cached` says that this one came from the store.
    """

    status: str
    text: str = ""
    value: Any = None
    detail: str = ""
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1
    cached: bool = False


def closed(**properties: Any) -> dict[str, Any]:
    """The schema of an object with exactly these fields, each a schema."""
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": items}


def check_strict(schema: dict[str, Any], place: str = "schema") -> None:
    """Raise ValueError unless every object of a JSON schema is closed and requires all of its properties."""
    kinds = schema.get("type")
    if "properties" in schema or "object" in (kinds if isinstance(kinds, list) else [kinds]):
        if schema.get("additionalProperties") is not False:
            raise ValueError(f"{place}: the object is open; set additionalProperties to false")
        if set(schema.get("required", [])) != set(schema.get("properties", {})):
            raise ValueError(f"{place}: every property must be required; make an optional one nullable")
    for name, value in schema.items():
        if name in ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas"):
            parts = value.items()
        elif name in ("anyOf", "allOf", "oneOf", "prefixItems"):
            parts = enumerate(value)
        else:
            parts = [("", value)] if name in ("items", "not", "if", "then", "else", "contains") else []
        for key, part in parts:
            if isinstance(part, dict):
                check_strict(part, f"{place}.{name}{f'.{key}' if key != '' else ''}")


def is_completion(body: Any) -> bool:
    """Whether a reply has the shape of a chat completion, as far as it is read here."""
    if not isinstance(body, dict) or not isinstance(body.get("choices") or [], list):
        return False
    choices = body.get("choices") or [{}]
    first = choices[0]
    return (
        isinstance(first, dict)
        and isinstance(first.get("message") or {}, dict)
        and isinstance(body.get("usage") or {}, dict)
    )


def read_completion(body: dict[str, Any], schema: dict[str, Any], structured: str = "schema") -> Reply:
    """The reply in a chat completion's body; what it says of itself decides before its content is read."""
    choices = body.get("choices") or [{}]
    choice = choices[0]
    message = choice.get("message") or {}
    usage = body.get("usage") or {}
    text = message.get("content") or ""
    text = text if isinstance(text, str) else json.dumps(text)
    about = {
        "text": text or message.get("refusal") or "",
        "model": body.get("model") or "",
        "prompt_tokens": usage.get("prompt_tokens") or 0,
        "completion_tokens": usage.get("completion_tokens") or 0,
    }
    if choice.get("finish_reason") == "length":
        return Reply("truncated", detail="the token limit was reached", **about)
    if message.get("refusal") or choice.get("finish_reason") == "content_filter":
        return Reply("refused", detail="the model or its filter refused", **about)
    if not text.strip():
        return Reply("empty", detail="the reply is empty", **about)
    value, fault = parse(text, schema, structured)
    if fault:
        return Reply("off-schema", detail=fault, **about)
    return Reply("ok", value=value, **about)


def parse(text: str, schema: dict[str, Any], structured: str = "schema") -> tuple[Any, str]:
    """The JSON value in a reply, and why it does not follow the schema ('' if it does).

    Only where the profile says `structured: text` may the one JSON object stand among prose or in a
    code fence.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        value = _only_object(text) if structured == "text" else None
        if value is None:
            return None, f"not JSON: {error}"
    fault = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(value))
    return (None, f"{fault.json_path}: {fault.message}") if fault else (value, "")


def _only_object(text: str) -> Any:
    """The one JSON object in a text, None if there is none or more than one."""
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    found, position = [], 0
    while (position := text.find("{", position)) >= 0:
        try:
            value, position = decoder.raw_decode(text, position)
            found.append(value)
        except (ValueError, RecursionError):
            position += 1
    return found[0] if len(found) == 1 else None


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not JSON")


def checked(reply: Reply, request: Request) -> Reply:
    """The reply as the request's own check sees it."""
    fault = request.check(reply.value) if reply.status == "ok" and request.check else None
    return replace(reply, status=fault[0], detail=fault[1], value=None) if fault else reply


def summed(drawn: Sequence[Reply]) -> Reply:
    """The last of the replies that a request drew, with the tokens of all of them."""
    prompt, completion = sum(r.prompt_tokens for r in drawn), sum(r.completion_tokens for r in drawn)
    return replace(drawn[-1], attempts=len(drawn), prompt_tokens=prompt, completion_tokens=completion)


def whole_number(value: Any, low: int, high: int) -> int | None:
    """A score that a judge gave, also as text; None for anything that is no whole number in the range."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,3}\s*", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None
