"""A model service on loopback that says what it is told to, and remembers what it was asked.

In a test: `with Stub(script=["500", "good"]) as stub`, then `stub.url`, `stub.chats`, `stub.most_in_flight`.
From a shell or a subprocess: `python tests/stub_service.py --script 500,good --delay 0.2`; the first line
that it prints is its port, and `GET /log` gives its counts and the requests.

Each chat request takes the next step of `script`, and `otherwise` when the script is used up; a request
whose prompt contains a key of `for_prompts` takes its steps from there. A step is a name and, after a
colon, its argument:

    good            an answer that cites the first three evidence ids of the prompt
    after:SECONDS   the same, so much later
    say:TEXT        a reply of exactly TEXT
    429:SECONDS     a rate limit with that Retry-After, without one if no argument is given
    quota  401  403  404  400:MESSAGE  408  500:SECONDS (with that Retry-After)
    stall:SECONDS   accepts the request and says nothing
    close  cut      closes the connection before the reply, or in the middle of it
    truncated  truncated-empty  refused  filtered  empty  blank
    prose  fence  two-objects  off-schema  not-json  duplicate-ids  foreign-ids  no-ids  many:N
    html  list  no-choices  parts     replies of status 200 that are no chat completion, or an odd one

Other requests take their steps from `faults["POST /v1/files"]`, where there are any: an error, `good`,
or `lose`, which does what was asked and closes the connection without saying so.
"""

import argparse
import itertools
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
FOREIGN_ID = 99


class Seen(NamedTuple):
    """One request: when it came, and what it held; `body` is parsed JSON, or the raw bytes of an upload."""

    at: float
    method: str
    path: str
    body: Any
    authorization: str | None


class Answer(NamedTuple):
    """What to send back; `kept` of the body's bytes are sent, all of them if it is None."""

    status: int
    body: bytes
    headers: dict[str, str] = {}
    kept: int | None = None


class Ended(NamedTuple):
    """How a batch ends: its status, and its output and error lines, None where there is no such file.

    `no_file` stands for the id of an absent file.
    """

    status: str
    output: list[bytes] | None
    errors: list[bytes] | None
    no_file: str | None = None


def evidence_ids(prompt: str) -> list[int]:
    """The ids in the prompt's evidence block."""
    block = re.search(r"<evidence>\n(.*)\n</evidence>", prompt, re.DOTALL)
    return [item["evidence_id"] for item in json.loads(block[1])] if block else []


def answer(*sentences: tuple[str, Iterable[int]]) -> str:
    return json.dumps({"answer": [{"text": text, "evidence_ids": list(ids)} for text, ids in sentences]})


def good_answer(prompt: str) -> str:
    return answer(*((f"Finding {number}.", [number]) for number in evidence_ids(prompt)[:3] or [0]))


def completion(
    content: Any, finish_reason: str = "stop", refusal: str | None = None, model: str = "stub", usage=(100, 20)
) -> dict[str, Any]:
    """The body of a chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, "refusal": refusal},
                "finish_reason": finish_reason,
            }
        ],
        "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)},
    }


def result_line(custom_id: str, body: Any = None, status: int = 200, error: Any = None) -> bytes:
    """A line of batch results; without a body and without an error it holds a good completion."""
    body = completion(answer(("Finding 0.", [0]))) if body is None and error is None else body
    response = None if error else {"status_code": status, "request_id": "r", "body": body}
    row = {"id": "batch_req", "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(row, ensure_ascii=False).encode()


def custom_ids(lines: Iterable[bytes]) -> list[str]:
    return [json.loads(line)["custom_id"] for line in lines]


def _fault(status: int, message: str, code: str | None = None, **headers: str) -> Answer:
    error = {"message": message, "type": code or "error", "param": None, "code": code}
    return Answer(status, json.dumps({"error": error}).encode(), headers)


class Stub:
    """The service; used as a context manager, it listens from the first line of the block to the last."""

    def __init__(
        self,
        script: Iterable[str] = (),
        otherwise: str = "good",
        for_prompts: dict[str, Iterable[str]] | None = None,
        key: str | None = None,
        delay: float = 0.0,
        usage: tuple[int, int] = (100, 20),
        model: str | None = None,
        port: int = 0,
    ):
        self.script, self.otherwise, self.key, self.delay, self.usage = deque(script), otherwise, key, delay, usage
        self.model = model  # what it calls its model; None for the name in the request
        self.for_prompts = {text: deque(steps) for text, steps in (for_prompts or {}).items()}
        self.seen: list[Seen] = []
        self.in_flight = self.most_in_flight = 0
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.endings: deque[Callable[[list[bytes]], Ended]] = deque()
        self.batch_status = "in_progress"  # of a batch that `finish` has not ended
        self.faults: dict[str, deque[str]] = {}
        self.finish = True  # whether a batch has ended when it is next asked for
        self.broken: list[str] = []  # what the stub itself could not do
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.stub = self
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> "Stub":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        assert not self.broken, self.broken

    @property
    def chats(self) -> list[Seen]:
        """The chat requests, in the order in which they came."""
        return [seen for seen in list(self.seen) if seen.path == CHAT]

    def prompts(self) -> list[str]:
        return [seen.body["messages"][-1]["content"] for seen in self.chats]

    def count(self, method: str, path: str) -> int:
        return sum(seen.method == method and seen.path == path for seen in list(self.seen))

    def log(self) -> dict[str, Any]:
        requests = [
            {**seen._asdict(), "body": seen.body if not isinstance(seen.body, bytes) else len(seen.body)}
            for seen in list(self.seen)
        ]
        return {"chats": len(self.chats), "most_in_flight": self.most_in_flight, "requests": requests}

    def answer_to(self, seen: Seen) -> Answer | None:
        """The answer to a request; None closes the connection."""
        with self._lock:
            self.seen.append(seen)
        if seen.path == "/log":
            return _json(self.log())
        if self.key and seen.authorization != f"Bearer {self.key}":
            return _fault(401, f"Incorrect API key provided: {seen.authorization}.", "invalid_api_key")
        if (seen.method, seen.path) == ("POST", CHAT):
            return self._chat(seen.body)
        steps = self.faults.get(f"{seen.method} {seen.path}")
        step = steps.popleft() if steps else "good"
        if step not in ("good", "lose"):
            return self._play(*step.partition(":")[::2], "", "")
        done = self._serve(seen)
        return done if step == "good" else None

    def _serve(self, seen: Seen) -> Answer:
        if (seen.method, seen.path) == ("POST", "/v1/files"):
            return self._add_file(_uploaded(seen.body))
        if (seen.method, seen.path) == ("POST", "/v1/batches"):
            return self._start_batch(seen.body)
        if (seen.method, seen.path) == ("GET", "/v1/batches"):
            rows = list(self.batches.values())
            ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {"first_id": None, "last_id": None}
            return _json({"object": "list", "data": rows[::-1], "has_more": False, **ends})
        if found := re.fullmatch(r"/v1/batches/([\w-]+)", seen.path):
            return self._batch(found[1])
        if (found := re.fullmatch(r"/v1/files/([\w-]+)/content", seen.path)) and found[1] in self.files:
            return Answer(200, self.files[found[1]], {"Content-Type": "application/octet-stream"})
        return _fault(404, f"no such path: {seen.path}")

    def _chat(self, body: dict[str, Any]) -> Answer | None:
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            prompt = body["messages"][-1]["content"]
            steps = next((steps for text, steps in self.for_prompts.items() if text in prompt), self.script)
            step = steps.popleft() if steps else self.otherwise
        try:
            if self.delay:
                self._stopping.wait(self.delay)
            return self._play(*step.partition(":")[::2], prompt, body["model"])
        finally:
            with self._lock:
                self.in_flight -= 1

    def _play(self, name: str, argument: str, prompt: str, model: str) -> Answer | None:
        if name in ("stall", "after"):
            self._stopping.wait(float(argument))
        if name in ("stall", "close"):
            return None
        after = {"Retry-After": argument} if argument else {}
        faults = {
            "429": lambda: _fault(429, "Rate limit reached.", "rate_limit_exceeded", **after),
            "500": lambda: _fault(500, "The server had an error.", "server_error", **after),
            "quota": lambda: _fault(429, "You exceeded your current quota.", "insufficient_quota"),
            "400": lambda: _fault(400, argument or "This request is invalid.", "invalid_request_error"),
            "401": lambda: _fault(401, "Incorrect API key provided.", "invalid_api_key"),
            "403": lambda: _fault(403, "Your account has no access to this.", "permission_denied"),
            "404": lambda: _fault(404, f"The model `{model}` does not exist.", "model_not_found"),
            "408": lambda: _fault(408, "Request timed out.", "timeout", **after),
            "html": lambda: Answer(200, b"<html>It works!</html>", {"Content-Type": "text/html"}),
            "list": lambda: _json([]),
            "no-choices": lambda: _json({"id": "1", "object": "chat.completion", "model": model, "choices": None}),
        }
        if name in faults:
            return faults[name]()
        content, finish_reason, refusal = self._content(name, argument, prompt)
        reply = _json(completion(content, finish_reason, refusal, self.model or model, self.usage))
        return reply._replace(kept=len(reply.body) // 2) if name == "cut" else reply

    def _content(self, name: str, argument: str, prompt: str) -> tuple[Any, str, str | None]:
        given = evidence_ids(prompt) or [0]
        good = good_answer(prompt)
        contents = {
            "good": good,
            "after": good,
            "cut": good,
            "say": argument,
            "empty": "",
            "blank": answer((" ", given[:1])),
            "prose": f"Here is the answer:\n{good}\nI hope this helps.",
            "fence": f"```json\n{good}\n```",
            "two-objects": f"{good}\n{good}",
            "off-schema": json.dumps({"answer": "Ice melts."}),
            "not-json": "Ice melts.",
            "duplicate-ids": answer(("Finding.", [given[0], given[-1], given[0]])),
            "foreign-ids": answer(("Finding.", given[:1]), ("Another.", [FOREIGN_ID])),
            "no-ids": answer(("Finding.", [])),
            "many": answer(*((f"Finding {n}.", given[:1]) for n in range(int(argument or 6 if name == "many" else 0)))),
            "parts": [{"type": "text", "text": good}],
        }
        if name == "truncated":
            return '{"answer":[{"text":"Ice melts"', "length", None
        if name == "truncated-empty":
            return "", "length", None
        if name == "refused":
            return None, "stop", "I cannot help with that."
        if name == "filtered":
            return "Ice", "content_filter", None
        return contents[name], "stop", None

    def _add_file(self, content: bytes) -> Answer:
        file_id = f"file-{next(self._ids)}"
        self.files[file_id] = content
        about = {"object": "file", "bytes": len(content), "created_at": 0, "filename": "f.jsonl", "purpose": "batch"}
        return _json({"id": file_id, "status": "processed", **about})

    def _start_batch(self, body: dict[str, Any]) -> Answer:
        batch_id = f"batch-{next(self._ids)}"
        size = len(self.files[body["input_file_id"]].splitlines())
        self.batches[batch_id] = {
            "id": batch_id,
            "object": "batch",
            "created_at": 0,
            **{name: body.get(name) for name in ("input_file_id", "endpoint", "completion_window", "metadata")},
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "request_counts": {"total": size, "completed": 0, "failed": 0},
        }
        return _json(self.batches[batch_id])

    def _batch(self, batch_id: str) -> Answer:
        row = self.batches.get(batch_id)
        if row is None:
            return _fault(404, f"No batch found with id '{batch_id}'.")
        if not self.finish:
            row["status"] = self.batch_status
        elif row["status"] in ("validating", "in_progress", "finalizing"):
            lines = self.files[row["input_file_id"]].splitlines()
            ended = self.endings.popleft()(lines) if self.endings else self._all_done(lines)
            row["status"] = ended.status
            for name, rows in (("output_file_id", ended.output), ("error_file_id", ended.errors)):
                row[name] = ended.no_file
                if rows is not None:
                    row[name] = f"file-{next(self._ids)}"
                    self.files[row[name]] = b"".join(line + b"\n" for line in rows)
            row["request_counts"] |= {"completed": len(ended.output or ()), "failed": len(ended.errors or ())}
        return _json(row)

    def _all_done(self, lines: list[bytes]) -> Ended:
        """Every request answered, the last one first."""
        rows = [json.loads(line) for line in lines]
        done = []
        for row in reversed(rows):
            body = row["body"]
            text = good_answer(body["messages"][-1]["content"])
            reply = completion(text, model=self.model or body["model"], usage=self.usage)
            done.append(result_line(row["custom_id"], reply))
        return Ended("completed", done, None)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True
    stub: Stub

    def handle_error(self, *_) -> None:
        """A client that is gone is no news; what the stub could not do stands in `broken`."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def do_GET(self) -> None:
        self._handle(None)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        self._handle(raw if b"form-data" in (self.headers["Content-Type"] or "").encode() else json.loads(raw))

    def _handle(self, body: Any) -> None:
        path = self.path.split("?")[0]
        seen = Seen(time.monotonic(), self.command, path, body, self.headers["Authorization"])
        try:
            reply = self.server.stub.answer_to(seen)
        except Exception as error:
            self.server.stub.broken.append(f"{seen.method} {path}: {error!r}")
            raise
        if reply is None:
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in ({"Content-Type": "application/json"} | reply.headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body[: reply.kept])
        self.close_connection = self.close_connection or reply.kept is not None

    def log_message(self, *_) -> None:
        pass


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode())


def _uploaded(body: bytes) -> bytes:
    """The content of the file in a multipart form."""
    boundary = body.split(b"\r\n", 1)[0]
    parts = [part.partition(b"\r\n\r\n") for part in body.split(boundary)]
    return next(content.removesuffix(b"\r\n") for head, _, content in parts if b"filename=" in head)


def main() -> None:
    parser = argparse.ArgumentParser(description="A model service on loopback; prints its port.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", default="", help="steps of the first requests, separated by commas")
    parser.add_argument("--otherwise", default="good", help="the step of every further request")
    parser.add_argument("--key", help="refuse requests with any other key")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each reply")
    args = parser.parse_args()
    script = [step for step in args.script.split(",") if step]
    stub = Stub(script, args.otherwise, key=args.key, delay=args.delay, port=args.port)
    with stub:
        print(stub.port, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
