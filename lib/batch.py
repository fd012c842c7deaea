"""The Batch API, resumable at every step: build, submit, status, collect, apply.

`<sweep>/batch/manifest.json` remembers the parts of a batch and how far each has come; it is written
after every step that changes anything, so a kill costs at most the step at hand. Replies are joined
to requests by `custom_id` alone, in whatever order the lines come.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import WorkbookError
from lib.llm import Client, request_body
from lib.prompting import ANSWER_SCHEMA
from lib.replies import Reply, Request, checked, is_completion, read_completion
from lib.variants import ServiceSpec

RESULTS = "batch_results.jsonl"  # in a run's folder
MAX_REQUESTS = 50_000
MAX_BYTES = 200_000_000
ENDPOINT = "/v1/chat/completions"
_ENDED = ("completed", "expired", "failed", "cancelled")


def request_lines(service: ServiceSpec, requests: Sequence[Request]) -> Iterator[bytes]:
    """The lines of a batch input file. Raises WorkbookError for an id that is blank or stands twice."""
    seen: set[str] = set()
    for request in requests:
        if not request.request_id.strip() or request.request_id in seen:
            what = "stands twice" if request.request_id.strip() else "is blank"
            raise WorkbookError(f"batch: custom_id '{request.request_id}' {what}; nothing was uploaded")
        seen.add(request.request_id)
        body = request_body(service, request)
        line = {"custom_id": request.request_id, "method": "POST", "url": ENDPOINT, "body": body}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def split(lines: Iterator[bytes], max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_BYTES) -> Iterator[list[bytes]]:
    """Parts of a batch that keep to the service's limits of requests and bytes."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        if part and (len(part) == max_requests or size + len(line) > max_bytes):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield part


def build(folder: Path, service: ServiceSpec, requests: Sequence[Request]) -> dict[str, Any]:
    """Write the input files of a batch for what has no usable reply yet; returns the new manifest.

    Refused while parts of an earlier batch are under way.
    """
    manifest = load(folder) if (folder / "manifest.json").exists() else {"parts": []}
    sent = [part for part in manifest["parts"] if part["batch_id"]]
    if any(part["status"] != "collected" for part in sent):
        raise WorkbookError(f"{folder}: a batch is under way; run 'workbook batch collect' first")
    done = {row["custom_id"] for row in _results(folder / "results.jsonl") if not line_failure(row)}
    todo = [request for request in requests if request.request_id not in done]
    parts = list(split(request_lines(service, todo)))
    folder.mkdir(parents=True, exist_ok=True)
    for part in manifest["parts"]:
        if not part["batch_id"]:
            (folder / part["file"]).unlink(missing_ok=True)
    kept = list(sent)
    for number, lines in enumerate(parts, len(sent) + 1):
        name = f"requests-{number:03d}.jsonl"
        with paths.atomic(folder / name, "wb") as file:
            file.writelines(lines)
        kept.append({"file": name, "requests": len(lines), "file_id": None, "batch_id": None, "status": "built"})
    manifest["parts"] = kept
    return save(folder, manifest)


def load(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.exists():
        raise WorkbookError(f"{path}: no batch here; run 'workbook batch build' first")
    return json.loads(path.read_text(encoding="utf-8"))


def save(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    paths.write_text(folder / "manifest.json", json.dumps(manifest, indent=1) + "\n")
    return manifest


def submit(folder: Path, client: Client) -> dict[str, Any]:
    """Upload what is built and start its batches; a part that has an id already is not sent again."""
    manifest = load(folder)
    for part in manifest["parts"]:
        if part["batch_id"]:
            continue
        if not part["file_id"]:
            with open(folder / part["file"], "rb") as file:
                content = (part["file"], file.read())
            part["file_id"] = _call(client, lambda api, c=content: api.files.create(file=c, purpose="batch")).id
            save(folder, manifest)
        started = _call(client, lambda api, p=part: _start(api, p["file_id"]))
        part["batch_id"], part["status"] = started.id, started.status
        save(folder, manifest)
    return manifest


def _start(api: Any, file_id: str) -> Any:
    """The batch of an uploaded file: the one that was started already, though nobody heard of it, or a new one."""
    for known in api.batches.list(limit=100):
        if known.input_file_id == file_id:
            return known
    return api.batches.create(input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h")


def _call(client: Client, call: Callable[[Any], Any]) -> Any:
    """What a call of the service gives; whatever it refuses for good is one line."""
    import openai

    try:
        return client.patiently(call)
    except openai.APIError as error:
        raise WorkbookError(f"service {client.service.model}: {client.explain(error)}") from None


def status(folder: Path, client: Client) -> dict[str, Any]:
    """Ask how far each batch has come; returns the manifest with the answers."""
    manifest = load(folder)
    for part in manifest["parts"]:
        if part["batch_id"] and part["status"] != "collected":
            now = _call(client, lambda api, p=part: api.batches.retrieve(p["batch_id"]))
            part["status"] = now.status
            part["output_file_id"], part["error_file_id"] = now.output_file_id or None, now.error_file_id or None
            counts = now.request_counts
            part["completed"], part["failed"] = (counts.completed, counts.failed) if counts else (0, 0)
    return save(folder, manifest)


def collect(folder: Path, client: Client) -> tuple[dict[str, Any], list[str]]:
    """Fetch the output and error files of ended batches into `results.jsonl`; returns manifest and what is left.

    What is left are the ids of requests without a usable line: failed, expired or missing; `build`
    makes a batch of exactly these. Unknown ids are refused.
    """
    manifest = status(folder, client)
    known = {row["custom_id"] for part in manifest["parts"] for row in _results(folder / part["file"])}
    rows = {row["custom_id"]: row for row in _results(folder / "results.jsonl")}
    for part in manifest["parts"]:
        if part["status"] not in _ENDED:
            continue
        for key in ("error_file_id", "output_file_id"):  # an output line outweighs an error line of the same request
            if part.get(key):
                content = _call(client, lambda api, i=part[key]: api.files.content(i)).read()
                fetched = dict(result_lines(content.split(b"\n"), part[key]))
                if unknown := fetched.keys() - known:
                    raise WorkbookError(
                        f"batch: {part[key]} holds the unknown custom_id '{min(unknown)}'; nothing was taken"
                    )
                rows |= fetched
        part["status"] = "collected"
    paths.write_jsonl(folder / "results.jsonl", (rows[name] for name in sorted(rows)))
    save(folder, manifest)
    return manifest, sorted(name for name in known if name not in rows or line_failure(rows[name]))


def result_lines(lines: Sequence[bytes], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(custom_id, row) of each line of a results file. Raises WorkbookError for a malformed line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"))
            custom_id = row["custom_id"]
        except (ValueError, KeyError, TypeError) as error:
            raise WorkbookError(f"{place}:{number}: not a line of batch results ({error})") from None
        yield str(custom_id), row


def line_failure(row: dict[str, Any]) -> str:
    """Why a line of batch results holds no reply, '' if it holds one: an error, or a status other than 200."""
    error, response = row.get("error"), row.get("response")
    if error:
        return f"{error.get('code')}: {error.get('message')}" if isinstance(error, dict) else str(error)
    if not isinstance(response, dict):
        return "no response"
    body, code = response.get("body"), response.get("status_code")
    if code == 200:
        return "" if is_completion(body) else "no chat completion"
    said = body.get("error") if isinstance(body, dict) else ""
    said = said.get("message") if isinstance(said, dict) else said
    return f"status {code} {said or ''}".strip()


def _results(path: Path) -> list[dict[str, Any]]:
    return list(paths.read_jsonl(path)) if path.exists() else []


def replies(path: Path, requests: Sequence[Request], structured: str = "schema") -> dict[str, Reply]:
    """custom_id -> reply of each request from a file of batch results; one without a line has `failed`."""
    rows = {}
    if path.exists():
        with open(path, "rb") as file:
            rows = dict(result_lines(list(file), str(path)))
    return {r.request_id: _reply(rows.get(r.request_id), r, structured) for r in requests}


def _reply(row: dict[str, Any] | None, request: Request, structured: str) -> Reply:
    if row is None:
        return Reply("failed", detail="no line in the batch results")
    if failure := line_failure(row):
        return Reply("failed", detail=failure)
    return checked(read_completion(row["response"]["body"], ANSWER_SCHEMA, structured), request)


def distribute(folder: Path, home: Callable[[str], Path]) -> list[str]:
    """Give each run its lines of `results.jsonl`, as `<home>/<run>/batch_results.jsonl`; returns the runs.

    `home(query_id)` is the folder with the runs that answer a query.
    """
    by_run: dict[Path, list[dict[str, Any]]] = {}
    for row in _results(folder / "results.jsonl"):
        run, _, query_id = row["custom_id"].partition("|")
        by_run.setdefault(home(query_id) / run, []).append(row)
    for run_folder, rows in by_run.items():
        paths.write_jsonl(run_folder / RESULTS, rows)
    return sorted({run_folder.name for run_folder in by_run})
