"""The answers of a whole run under a profile's generator: offline, from a live service, or from a batch."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from lib import batch, generation, paths, prompting, shards
from lib.evidence import EvidenceSet
from lib.generation import Sentence
from lib.ledger import Ledger, Prices
from lib.llm import Client, ask_all
from lib.replies import UNANSWERED, Reply, Request
from lib.slices import Query, Slice
from lib.variants import Profile, Variant


class Answer(NamedTuple):
    """The answer to one query: its sentences, a status, and where a model was asked, its reply.

    `status` is `ok` or says what went wrong; `fallback` names the generator that filled in for a
    failed one, `` where none did.
    """

    sentences: list[Sentence]
    status: str
    reply: Reply | None = None
    fallback: str = ""


def answer_run(
    slice_: Slice,
    sets: list[EvidenceSet],
    variant: Variant,
    profile: Profile,
    run: Path,
    budget: float = 0.0,
    fallback: str = "",
) -> list[list[Answer]]:
    """The answers of every draw of a run, each in the slice's order; `budget` in dollars, 0 for none.

    What is in the ledger of the sweep counts towards the budget.
    """
    if profile.generator == "extractive" or not variant.reads_text:
        queries = zip(slice_.queries, sets, strict=True)
        return [[offline(slice_, query, collected, variant) for query, collected in queries]]
    draws = []
    for draw in range(profile.repeat):
        requests = run_requests(slice_, sets, variant, profile, draw)
        replies = _replies(requests, profile, run, budget, draw)
        draws.append([_answer(slice_, q, s, variant, replies, fallback) for q, s in zip(slice_.queries, sets, strict=True)])
    return draws


def offline(slice_: Slice, query: Query, collected: EvidenceSet, variant: Variant) -> Answer:
    """The answer of the extractive generator, or of the naive baseline."""
    documents = slice_.documents(query)
    if not variant.reads_text:
        sentences = generation.titles(query, documents, variant)
    else:
        sentences = generation.extractive(query, collected.evidence, {d.doc_id: d for d in documents}, variant)
    return Answer(sentences, "ok" if sentences else _nothing(collected))


def run_requests(
    slice_: Slice, sets: list[EvidenceSet], variant: Variant, profile: Profile, draw: int = 0
) -> dict[str, Request]:
    """query_id -> request, for the queries that have evidence."""
    prompt = prompting.load_prompt(profile.prompt)
    return {
        query.query_id: prompting.answer_request(query, collected.evidence, variant, prompt, variant.name, draw)
        for query, collected in zip(slice_.queries, sets, strict=True)
        if collected.evidence
    }


def _replies(requests: dict[str, Request], profile: Profile, run: Path, budget: float, draw: int) -> dict[str, Reply]:
    """query_id -> reply, from the service or from the collected batch."""
    if profile.generator == "openai-batch":
        found = batch.replies(run / batch.RESULTS, list(requests.values()), profile.service.structured)
        return {query_id: found[request.request_id] for query_id, request in requests.items()}
    ledger = Ledger(shards.whole(run.parents[1]) / "ledger.jsonl", Prices(), budget or None)
    counts = {"failed": 0}
    with tqdm(total=len(requests), desc="answers", unit=" queries", leave=False) as bar:

        def tell(request: Request, reply: Reply) -> None:
            counts["failed"] += reply.status != "ok"
            bar.update(1)
            bar.set_postfix_str(f"${ledger.spent:.4f}, {counts['failed']} not ok")

        found = ask_all(Client(profile.service), list(requests.values()), ledger, tell)
    return {query_id: found[request.request_id] for query_id, request in requests.items()}


def _answer(
    slice_: Slice, query: Query, collected: EvidenceSet, variant: Variant, replies: dict[str, Reply], fallback: str
) -> Answer:
    reply = replies.get(query.query_id)
    if reply is None:
        return Answer([], _nothing(collected))
    if reply.status == "ok":
        documents_of = {item.evidence_id: item.doc_id for item in collected.evidence}
        return Answer(prompting.answer_sentences(reply.value, documents_of), "ok", reply)
    if fallback == "extractive":
        return Answer(offline(slice_, query, collected, variant).sentences, reply.status, reply, fallback)
    return Answer([], reply.status, reply)


def _nothing(collected: EvidenceSet) -> str:
    return collected.status.replace("ok", "no-evidence")


def reply_rows(queries: list[Query], answers: list[Answer], prices: Prices, profile: Profile) -> Iterator[dict[str, Any]]:
    """The lines of `replies.jsonl`: what the model said to each query, raw, what became of it and what it cost."""
    for query, answer in zip(queries, answers, strict=True):
        if answer.reply:
            reply = answer.reply
            yield {
                "query_id": query.query_id,
                "status": reply.status,
                "detail": reply.detail,
                "text": reply.text,
                "model": reply.model,
                "attempts": reply.attempts,
                "prompt_tokens": reply.prompt_tokens,
                "completion_tokens": reply.completion_tokens,
                "dollars": prices.cost(
                    profile.service.model,
                    reply.prompt_tokens,
                    reply.completion_tokens,
                    profile.generator == "openai-batch",
                ),
            }


def write_replies(run: Path, queries: list[Query], draws: list[list[Answer]], profile: Profile) -> None:
    """Write `replies.jsonl`, and `pending.json` with the queries that must be asked again, if there are any.

    What an earlier profile left of these, and its further draws, is taken away.
    """
    for folder in run.glob("draw-*"):
        if int(folder.name.removeprefix("draw-")) > len(draws):
            shutil.rmtree(folder)
    if any(answer.reply for answer in draws[0]):
        paths.write_jsonl(run / "replies.jsonl", reply_rows(queries, draws[0], Prices(), profile))
    else:
        (run / "replies.jsonl").unlink(missing_ok=True)
    pending = [
        query.query_id
        for query, *answers in zip(queries, *draws, strict=True)
        if any(answer.reply and answer.reply.status in UNANSWERED for answer in answers)
    ]
    if pending:
        paths.write_text(run / "pending.json", paths.to_json(pending) + "\n")
    else:
        (run / "pending.json").unlink(missing_ok=True)
