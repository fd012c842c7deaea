"""The steps of `workbook batch`, from a sweep's folder or from plain files."""

import sys
from pathlib import Path
from typing import Any

from lib import batch, paths, preparing, prompting, readers, shards, steps, trec
from lib.answering import run_requests
from lib.errors import WorkbookError
from lib.llm import Client
from lib.replies import Request
from lib.slices import Query, Slice
from lib.variants import Profile, Variant, load_profile


def step(sweep: Path, name: str) -> int:
    """Run `build`, `submit`, `status` or `collect` on a sweep; returns the exit status (1 if something is left)."""
    if not (sweep / "profile.yaml").exists():
        raise WorkbookError(f"{sweep}: not a sweep's folder (no profile.yaml); run 'workbook sweep' first")
    profile = load_profile(str(sweep / "profile.yaml"))
    if profile.generator != "openai-batch":
        raise WorkbookError(
            f"{sweep}: its profile '{profile.name}' has the generator '{profile.generator}', not openai-batch"
        )
    folder, left = sweep / "batch", []
    if name == "build":
        manifest = batch.build(folder, profile.service, sweep_requests(sweep, profile))
    elif name == "collect":
        manifest, left = batch.collect(folder, Client(profile.service))
        shard_of = {q.query_id: part / "runs" for part in shards.existing(sweep) for q in Slice(part / "slice").queries}
        batch.distribute(folder, lambda query_id: shard_of.get(query_id, sweep / "runs"))
    else:
        manifest = {"submit": batch.submit, "status": batch.status}[name](folder, Client(profile.service))
    for part in manifest["parts"]:
        print(f"{part['file']}: {part['requests']} requests, {part['status']}")
    if name == "collect" and all(part["status"] == "collected" for part in manifest["parts"]):
        for custom_id in left:
            print(f"left: {custom_id}")
        what = (
            f"{len(left)} left; 'workbook batch build' makes a batch of exactly these" if left else "all replies are here"
        )
        print(f"{what}; then run the same sweep again")
    return 1 if left else 0


def sweep_requests(sweep: Path, profile: Profile) -> list[Request]:
    """The requests of every system of a sweep that prompts a model, in the order of systems and queries."""
    slice_ = Slice(sweep / "slice")
    requests: list[Request] = []
    for variant in steps.variants_in(sweep / "variants"):
        run = sweep / "runs" / variant.name
        if variant.reads_text and (run / "evidence.jsonl").exists():
            requests += run_requests(slice_, list(steps.read_evidence(run)), variant, profile).values()
    return requests


def apply(evidence: Path, results: Path, run_id: str, spec: str, out: Path) -> int:
    """Write a run's responses from the evidence that was prompted and the batch's results.

    Returns 0, or 1 if some query has no usable reply; each is listed, and its record has an empty
    answer. Unknown ids of the run are refused.
    """
    for path in (evidence, results):
        if not path.is_file():
            raise WorkbookError(f"{path}: no such file")
    team = trec.load_submission()["team"]
    with preparing.opened(spec) as slice_:
        rows = _evidence_rows(evidence, {query.query_id: query for query in slice_.queries})
        known = {f"{run_id}|{query.query_id}" for query in slice_.queries}
        with open(results, "rb") as file:
            ids = [custom_id for custom_id, _ in batch.result_lines(list(file), str(results))]
        own = [custom_id for custom_id in ids if custom_id.split("|", 1)[0] == run_id]
        if not own:
            raise WorkbookError(
                f"{results}: no line of the run '{run_id}'; runs there: {', '.join(sorted({i.split('|')[0] for i in ids}))}"
            )
        if unknown := sorted(set(own) - known):
            raise WorkbookError(f"{results}: unknown custom_id '{unknown[0]}'; its query is not in the slice")
        if len(set(own)) < len(own):
            twice = next(custom_id for custom_id in own if own.count(custom_id) > 1)
            raise WorkbookError(f"{results}: custom_id '{twice}' stands twice")
        records, faults = [], []
        requests = {q.query_id: _request(f"{run_id}|{q.query_id}", rows.get(q.query_id)) for q in slice_.queries}
        replies = batch.replies(results, list(requests.values()))
        for query in slice_.queries:
            reply, row = replies[f"{run_id}|{query.query_id}"], rows.get(query.query_id)
            answer = prompting.answer_sentences(reply.value, row["documents_of"]) if reply.status == "ok" else []
            references = row["references"] if row else []
            records.append(trec.record(query, references, answer, team, run_id))
            if reply.status != "ok":
                faults.append(f"{query.query_id}: {reply.status}: {reply.detail}")
    paths.write_jsonl(out, records)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{out}: {len(records) - len(faults)} of {len(records)} queries answered")
    return 1 if faults else 0


def _evidence_rows(path: Path, queries: dict[str, Query]) -> dict[str, dict[str, Any]]:
    """query_id -> references and evidence as they were prompted; ids as text. Raises WorkbookError naming the line."""
    rows: dict[str, dict[str, Any]] = {}
    for fields, place in readers.read_records(path, report=_refuse, strict=True):
        query_id = readers.as_id(fields.get("query_id"), place)
        if query_id not in queries:
            raise WorkbookError(f"{place}: query '{query_id}' is not in the slice")
        if query_id in rows:
            raise WorkbookError(f"{place}: query '{query_id}' stands twice; keep one line")
        references, items = fields.get("references"), fields.get("evidence")
        if not isinstance(references, list) or not isinstance(items, list):
            raise WorkbookError(f"{place}: expected the lists 'references' and 'evidence'")
        references = [str(doc_id) for doc_id in references]
        if strange := set(references) - set(queries[query_id].doc_ids):
            raise WorkbookError(f"{place}: reference '{min(strange)}' is not a candidate of query '{query_id}'")
        rows[query_id] = {"references": references, "documents_of": _documents_of(items, references, place)}
    return rows


def _documents_of(items: list[Any], references: list[str], place: str) -> dict[int, str]:
    """evidence_id -> doc_id of the items that were prompted for one query."""
    documents: dict[int, str] = {}
    for item in items:
        evidence_id = item.get("evidence_id") if isinstance(item, dict) else None
        if not isinstance(evidence_id, int) or isinstance(evidence_id, bool) or evidence_id in documents:
            raise WorkbookError(f"{place}: every evidence item needs an 'evidence_id' of its own, a whole number")
        if str(item.get("doc_id")) not in references:
            raise WorkbookError(f"{place}: evidence {evidence_id} comes from no document among the references")
        documents[evidence_id] = str(item["doc_id"])
    return documents


def _refuse(problem: str) -> None:
    raise WorkbookError(problem)


def _request(custom_id: str, row: dict[str, Any] | None) -> Request:
    known = frozenset(row["documents_of"]) if row else frozenset()
    limit = Variant.max_answer_sentences
    return Request(custom_id, (), prompting.ANSWER_SCHEMA, 0, lambda value: prompting.answer_fault(value, known, limit))
