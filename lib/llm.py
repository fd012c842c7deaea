"""Requests -> replies: the only module that talks to a model service.

Any OpenAI-compatible service will do. Every reply that was paid for is stored under the hash of model,
messages, schema and parameters, so that it is never paid for again; rate limits and server faults are
waited out; an exhausted quota or a refused key stops everything at once.
"""

import hashlib
import json
import math
import os
import random
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import diskcache
import tenacity

from lib import paths
from lib.errors import StopEverything
from lib.ledger import Ledger
from lib.replies import UNANSWERED, Reply, Request, check_strict, checked, is_completion, read_completion, summed
from lib.variants import ServiceSpec

_LONGEST_WAIT = 60.0


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
