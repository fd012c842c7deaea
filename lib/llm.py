"""Messages + schema -> replies: the only module that talks to a model service.

Any OpenAI-compatible service will do. A reply is a result whatever became of it: its status says
whether it can be used, and its raw text is kept. Every reply that was paid for is stored under the
hash of model, messages, schema and parameters, so that it is never paid for again; rate limits and
server faults are waited out; an exhausted quota or a refused key stops everything at once.
"""

import hashlib
import json
import math
import os
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import diskcache
import jsonschema
import tenacity

from lib import paths
from lib.errors import StopEverything, WorkbookError
from lib.variants import ServiceSpec, read_yaml

# No reply came for these; everything else is a reply that the service gave and charged for.
UNANSWERED = ("failed", "over-budget")
CHARACTERS_A_TOKEN = 4  # for estimates only; what is charged is what the service reports
_LONGEST_WAIT = 60.0


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


class Prices:
    """Dollars per million tokens of each model, from `params/prices.yaml`."""

    def __init__(self, path: Path | None = None):
        self.path = path or paths.PARAMS / "prices.yaml"
        self.table = read_yaml(self.path)
        for model, price in self.table.items():
            if not isinstance(price, dict) or not all(_is_price(price.get(part)) for part in ("input", "output")):
                raise WorkbookError(f"{self.path}: the price of '{model}' needs 'input' and 'output' in dollars")

    def cost(self, model: str, prompt_tokens: int, completion_tokens: int, batch: bool = False) -> float | None:
        """Dollars of a request, half of that in a batch where the table says so; None for a model without a price."""
        dated = (price for name, price in self.table.items() if model.startswith(f"{name}-20"))
        price = self.table.get(model) or next(dated, None)
        if price is None:
            return None
        dollars = (prompt_tokens * price["input"] + completion_tokens * price["output"]) / 1e6
        return dollars * price.get("batch_factor", 1.0) if batch else dollars


def _is_price(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


class ReplyStore:
    """Stored replies, shared by all sweeps and safe for several processes; plain JSON in a `diskcache` folder."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or paths.cache_folder() / "replies"

    @cached_property
    def _cache(self) -> diskcache.Cache:
        return diskcache.Cache(str(self.folder), disk=diskcache.JSONDisk, eviction_policy="none")

    def get(self, key: str) -> Reply | None:
        row = self._cache.get(key)
        return replace(Reply(**row), cached=True) if row else None

    def put(self, key: str, reply: Reply) -> None:
        self._cache.set(key, asdict(reply))


def cache_key(service: ServiceSpec, request: Request, attempt: int = 0) -> str:
    """The hash under which a reply is stored: model, messages, schema, parameters, and which draw it is.

    Neither the address nor the key of the service counts, nor anything that cannot change a reply.
    """
    parts = {
        "model": service.model,
        "messages": list(request.messages),
        "schema": request.schema,
        "parameters": body_parameters(service),
        "structured": service.structured,
        "draw": request.draw,
        "attempt": attempt,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def body_parameters(service: ServiceSpec) -> dict[str, Any]:
    """The sampling parameters of a request: what the kind of model accepts, and only what the profile sets.

    Reasoning models take no temperature and call the token limit `max_completion_tokens`.
    """
    if service.reasoning:
        given = {"max_completion_tokens": service.max_tokens, "reasoning_effort": service.reasoning_effort}
    else:
        given = {"max_tokens": service.max_tokens, "temperature": service.temperature, "seed": service.seed}
    return {name: value for name, value in given.items() if value is not None}


def request_body(service: ServiceSpec, request: Request) -> dict[str, Any]:
    """The body of a chat completion request. Raises ValueError for a schema that is not strict."""
    check_strict(request.schema)
    body: dict[str, Any] = {"model": service.model, "messages": list(request.messages), **body_parameters(service)}
    if service.structured == "schema":
        form = {"name": "answer", "strict": True, "schema": request.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    elif service.structured == "json":
        body["response_format"] = {"type": "json_object"}
    return body


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


def estimate_tokens(request: Request) -> int:
    """Prompt tokens of a request, about: a quarter of its characters, the schema's included."""
    length = sum(len(message["content"]) for message in request.messages) + len(json.dumps(request.schema))
    return -(-length // CHARACTERS_A_TOKEN)


def redact(text: str, key: str | None) -> str:
    """`text` without the key, and without anything else that has the look of one."""
    if key:
        text = text.replace(key, "[key]")
    return re.sub(r"\b(?:sk|key)-[\w*-]{6,}", "[key]", text)


class Client:
    """A model service: one request at a time, with waits, bounded retries, and the store in front."""

    def __init__(self, service: ServiceSpec, store: ReplyStore | None = None):
        self.service = service
        self.store = store or ReplyStore()

    @cached_property
    def key(self) -> str:
        """The service's key, from the environment variable that the profile names."""
        key = os.environ.get(self.service.key_env, "")
        if not key and self.service.key_required:
            raise StopEverything(
                f"service {self.service.model}: set the environment variable {self.service.key_env} to your key"
            )
        return key or "none"

    @cached_property
    def api(self):
        """The `openai` client; its own retries are off, since it would retry an exhausted quota too."""
        import openai

        return openai.OpenAI(
            api_key=self.key, base_url=self.service.base_url, timeout=self.service.timeout_seconds, max_retries=0
        )

    def stored(self, request: Request) -> Reply | None:
        """The reply that a request ends with as far as the store knows; None if something must still be sent."""
        drawn = []
        for attempt in range(self.service.reply_attempts):
            reply = self.store.get(cache_key(self.service, request, attempt))
            if reply is None:
                return None
            drawn.append(checked(reply, request))
            if drawn[-1].status == "ok":
                break
        return summed(drawn)

    def ask(self, request: Request) -> list[Reply]:
        """The replies that a request draws; the last is the result (see `draws`)."""
        return list(self.draws(request))

    def draws(self, request: Request) -> Iterator[Reply]:
        """Draw replies until one can be used, none comes, or the attempts are used up.

        A stored reply is drawn from the store, and says so.
        """
        for attempt in range(self.service.reply_attempts):
            key = cache_key(self.service, request, attempt)
            reply = self.store.get(key)
            if reply is None:
                reply = self._send(request)
                if reply.status not in UNANSWERED:
                    self.store.put(key, reply)
            reply = replace(checked(reply, request), attempts=attempt + 1)
            yield reply
            if reply.status in ("ok", *UNANSWERED):
                break

    def _send(self, request: Request) -> Reply:
        import openai

        body = request_body(self.service, request)
        try:
            completion = self.patiently(lambda api: api.post("/chat/completions", cast_to=object, body=body))
        except Exception as error:
            if not isinstance(error, openai.OpenAIError) and not is_passing(error):
                raise
            return Reply("failed", detail=self.explain(error))
        if not is_completion(completion):
            return Reply("failed", detail="what the service sent is no chat completion")
        return read_completion(completion, request.schema, self.service.structured)

    def patiently(self, call: Callable[[Any], Any]) -> Any:
        """What a call of the `openai` client gives; rate limits and server faults back off with jitter.

        Up to `max_waits` times; then the last error is raised. Raises StopEverything where waiting is no use.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_passing),
            stop=tenacity.stop_after_attempt(self.service.max_waits + 1),
            wait=_backoff,
            reraise=True,
        )
        try:
            return retrying(call, self.api)
        except Exception as error:
            if is_final(error):
                raise StopEverything(f"service {self.service.model}: {self.explain(error)}") from None
            raise

    def explain(self, error: Exception) -> str:
        """One line about an error of the service, without the key."""
        body = getattr(error, "body", None)
        said = body.get("message") if isinstance(body, dict) else None
        status = getattr(error, "status_code", None)
        text = f"{type(error).__name__}{f' {status}' if status else ''}: {said or error}"
        return redact(" ".join(text.split()), os.environ.get(self.service.key_env))[:300]


def is_final(error: Exception) -> bool:
    """Whether an error says that no request can succeed: bad key, no permission, unknown model, no quota."""
    import openai

    kinds = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)
    return isinstance(error, kinds) or _out_of_quota(error)


def is_passing(error: BaseException) -> bool:
    """Whether an error may be gone in a while: a rate limit, a server fault, a lost or stalled connection."""
    import openai

    if isinstance(error, openai.RateLimitError):
        return not _out_of_quota(error)
    if isinstance(error, openai.APIStatusError):
        return error.status_code in (408, 409) or error.status_code >= 500
    # A connection lost in the middle of a reply is an error of the HTTP library, whichever that is.
    return isinstance(error, openai.APIConnectionError) or _is_called(error, "TransportError")


def _is_called(error: BaseException, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(error).__mro__)


def _out_of_quota(error: BaseException) -> bool:
    body = getattr(error, "body", None)
    fields = body if isinstance(body, dict) else {}
    return "insufficient_quota" in (getattr(error, "code", None), fields.get("code"), fields.get("type"))


def _backoff(state: tenacity.RetryCallState) -> float:
    """Seconds to wait: what the service asked for in Retry-After, else doubling from half a second, with jitter."""
    error = state.outcome.exception()
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        asked = float(headers.get("retry-after", ""))
    except ValueError:
        asked = -1.0
    seconds = asked if math.isfinite(asked) and asked >= 0 else 0.5 * 2 ** (state.attempt_number - 1)
    seconds = min(seconds, _LONGEST_WAIT)
    return seconds + random.uniform(0, 0.1 + seconds / 4)


class Ledger:
    """What a sweep has spent: one line a reply that was drawn, appended as it comes."""

    def __init__(self, path: Path, prices: Prices, budget: float | None = None):
        self.path, self.prices, self.budget = path, prices, budget
        self.spent = sum(row["dollars"] or 0.0 for row in _whole_lines(path))
        self._promised: dict[str, float] = {}
        self._lock = threading.Lock()

    def admit(self, service: ServiceSpec, request: Request) -> bool:
        """Whether a request may be sent: all that is spent and in flight, and its own highest cost, fit the budget."""
        if self.budget is None:
            return True
        highest = self.prices.cost(service.model, estimate_tokens(request), service.max_tokens)
        if highest is None:
            raise StopEverything(f"{self.prices.path}: no price for '{service.model}'; a budget needs one")
        highest *= service.reply_attempts
        if self.spent + sum(self._promised.values()) + highest > self.budget:
            return False
        self._promised[request.request_id] = highest
        return True

    def add(self, service: ServiceSpec, request: Request, reply: Reply) -> None:
        """Book a reply, unless it came from the store or never came."""
        if not reply.cached and reply.status not in UNANSWERED:
            with self._lock:
                self._book(service, request, reply)

    def release(self, request: Request) -> None:
        """A request is no longer in flight: what it cost is booked, and nothing more will come of it."""
        self._promised.pop(request.request_id, None)

    def _book(self, service: ServiceSpec, request: Request, reply: Reply) -> None:
        dollars = self.prices.cost(service.model, reply.prompt_tokens, reply.completion_tokens)
        self.spent += dollars or 0.0
        row = {
            "request_id": request.request_id,
            "model": reply.model or service.model,
            "status": reply.status,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "dollars": dollars,
        }
        paths.append_line(self.path, json.dumps(row))  # unrounded: single replies cost millionths of a dollar


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with open(path, "rb") as file:
            yield from (json.loads(line) for line in file if line.endswith(b"\n"))


def ask_all(
    client: Client, requests: Sequence[Request], ledger: Ledger, tell: Callable[[Request, Reply], None] = lambda *_: None
) -> dict[str, Reply]:
    """The reply of every request by id, up to `concurrency` in flight; `tell` hears of each as it comes.

    What is stored is not sent. Requests that the budget no longer admits come back as `over-budget`.
    A refused key or an exhausted quota raises StopEverything, after the replies in flight are stored.
    """
    replies: dict[str, Reply] = {}
    waiting: deque[Request] = deque()

    def settle(request: Request, reply: Reply) -> None:
        replies[request.request_id] = reply
        tell(request, reply)

    for request in requests:
        stored = client.stored(request)
        if stored is None:
            waiting.append(request)
        else:
            settle(request, stored)
    with ThreadPoolExecutor(max(1, client.service.concurrency)) as pool:
        flying: dict = {}
        while waiting or flying:
            while waiting and len(flying) < client.service.concurrency and ledger.admit(client.service, waiting[0]):
                request = waiting.popleft()
                flying[pool.submit(_ask, client, request, ledger)] = request
            if not flying:  # not even one more fits the budget
                settle(waiting.popleft(), Reply("over-budget", detail="the budget is used up"))
                continue
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                settle(flying.pop(future), future.result())
    return replies


def _ask(client: Client, request: Request, ledger: Ledger) -> Reply:
    """The result of a request; every reply on the way to it is booked as it comes."""
    drawn: list[Reply] = []
    try:
        for reply in client.draws(request):
            ledger.add(client.service, request, reply)
            drawn.append(reply)
    finally:
        ledger.release(request)
    return summed(drawn)
