"""The paper's supplementary protocol (METHOD, section 8): a reference answer, a judge, and citation sets.

The judge sees one answer at a time, without the name of its system, and gives two scores on one rubric
from lib.replies import closed, closed
from 1 to 5. Without a model service a `proxy` stands in, with its own scale from 0 to 1.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lib import prompting, trec
from lib.encoders import Encoder
from lib.errors import WorkbookError
from lib.ledger import Ledger
from lib.llm import Client, ask_all
from lib.replies import Reply, Request, closed, whole_number
from lib.runs import Response, Runs, read_run, responses
from lib.score_tables import MISSING, OK, Score
from lib.slices import Document, Query, Slice

LOWEST, HIGHEST = 1, 5  # of the judge's rubric
_SCORE = {"type": ["integer", "string"]}
JUDGE_SCHEMA = closed(correctness=_SCORE, completeness=_SCORE)
REFERENCE_SENTENCES = 8  # at most, as `params/prompts/reference.txt` asks
REFERENCE_WORDS = 400  # so much of each candidate is shown when a reference answer is generated


class Judgement(NamedTuple):
    """What a judge says of one answer; None where there is no usable judgement, and `status` says why."""

    correctness: float | None
    completeness: float | None
    status: str = OK


Judgements = dict[tuple[str, str], Judgement]  # (run, query_id) -> judgement


def citation_recall(cited: frozenset[str], reference: frozenset[str]) -> float | None:
    """|G∩R| / |G| of the reference's (G) and the system's (R) cited documents; None where G is empty."""
    return len(cited & reference) / len(reference) if reference else None


def citation_precision(cited: frozenset[str], reference: frozenset[str]) -> float | None:
    """|G∩R| / |R|; 0 for an answer that cites nothing, None where the reference cites nothing either."""
    return len(cited & reference) / len(cited) if cited else 0.0 if reference else None


def citation_jaccard(cited: frozenset[str], reference: frozenset[str]) -> float | None:
    """|G∩R| / |G∪R|; None where both are empty."""
    return len(cited & reference) / len(cited | reference) if cited | reference else None


def reference_subset(cited: frozenset[str], reference: frozenset[str]) -> float | None:
    """1 if the answer cites something and nothing beyond the reference, else 0; None where the reference cites nothing."""
    return float(bool(cited) and cited <= reference) if reference else None


CITATION_MEASURES = {
    "citation_recall": citation_recall,
    "citation_precision": citation_precision,
    "citation_jaccard": citation_jaccard,
    "reference_subset": reference_subset,
}


def citation_scores(runs: Runs, references: dict[str, Response], queries: Sequence[Query]) -> Iterator[Score]:
    """Overlap of cited documents with the reference answer's; citations of documents that are no candidates.

    Ratios are rounded to four decimals, as the paper's own files hold them.
    """
    candidates = {query.query_id: frozenset(query.doc_ids) for query in queries}
    for response in responses(runs):
        status = OK if response.present else MISSING
        reference = references.get(response.query_id)
        for name, formula in CITATION_MEASURES.items():
            value = formula(response.cited, reference.cited) if reference else None
            value = None if value is None else round(value, 4)
            why = "no-reference" if not reference else "no-citations" if value is None else status
            yield Score(response.query_id, response.run, name, value, why)
        outside = len(response.cited - candidates[response.query_id])
        yield Score(response.query_id, response.run, "unsupported_citations", float(outside), status)


def provenance_scores(runs: Runs, folder: Path) -> Iterator[Score]:
    """The share of an answer's sentences whose recorded sources are exactly the documents that they cite.

    It has no value where the run has no `provenance.jsonl`, or the answer no sentence.
    """
    for run, answers in runs.items():
        sources = recorded_sources(folder / run / "provenance.jsonl")
        for response in answers.values():
            known = None if sources is None else sources.get(response.query_id, [])
            value = consistency(response.citations, known) if known is not None and response.citations else None
            status = OK if value is not None else "no-provenance"
            if sources is not None and not response.present:
                value, status = 0.0, MISSING
            yield Score(response.query_id, run, "provenance_consistency", value, status)


def consistency(citations: Sequence[Sequence[str]], sources: Sequence[frozenset[str]]) -> float:
    """The share of sentences that cite exactly the documents of their sources, of the longer of the two lists."""
    agree = sum(frozenset(cited) == found for cited, found in zip(citations, sources, strict=False))
    return agree / max(len(citations), len(sources))


def recorded_sources(path: Path) -> dict[str, list[frozenset[str]]] | None:
    """query_id -> the documents behind each sentence, from a `provenance.jsonl`; None where there is no such file."""
    if not path.exists():
        return None
    found = {}
    for number, row, fault in trec.lines(path):
        if not fault and not _is_provenance(row):
            fault = "expected the fields query_id and sentences, a list of objects with sources, each of a doc_id"
        if fault:
            raise WorkbookError(f"{path}:{number}: {fault}")
        cited = [frozenset(str(source["doc_id"]) for source in sentence["sources"]) for sentence in row["sentences"]]
        found[str(row["query_id"])] = cited
    return found


def _is_provenance(row: dict[str, Any]) -> bool:
    sentences = row.get("sentences")
    if row.get("query_id") is None or not isinstance(sentences, list):
        return False
    return all(trec.has_sources(line) and all("doc_id" in source for source in line["sources"]) for line in sentences)


def reference_answers(slice_: Slice, writer: "ReferenceWriter | None" = None) -> tuple[dict[str, Response], str]:
    """query_id -> reference answer, and who wrote them: the slice's own, else those of `writer`, else none."""
    own = slice_.folder / "reference_answers.jsonl"
    if own.exists():
        found = read_run(own, slice_.queries)
        return {query_id: response for query_id, response in found.items() if response.present}, own.name
    return (writer.write(slice_), writer.model) if writer else ({}, "none")


def reference_record(reference: Response) -> dict[str, Any]:
    """A reference answer as a TREC RAG record, as it is kept beside the scores."""
    names = list(dict.fromkeys(doc_id for cited in reference.citations for doc_id in cited))
    pairs = zip(reference.sentences, reference.citations, strict=True)
    answer = [{"text": text, "citations": [names.index(doc_id) for doc_id in cited]} for text, cited in pairs]
    about = {"run_id": "reference", "narrative_id": reference.query_id}
    return {"metadata": about, "references": names, "answer": answer}


class ReferenceWriter:
    """Reference answers by a model service, from the beginning of every candidate's text."""

    def __init__(self, client: Client, ledger: Ledger):
        self.client, self.ledger, self.model = client, ledger, client.service.model

    def write(self, slice_: Slice) -> dict[str, Response]:
        """query_id -> reference answer; a query whose reply cannot be used has none."""
        prompt = prompting.load_prompt("reference", ("query", "documents"))
        documents = {q.query_id: [d for d in slice_.documents(q) if d.text] for q in slice_.queries}
        asked = [query for query in slice_.queries if documents[query.query_id]]
        replies = ask_all(self.client, [_reference_request(q, documents[q.query_id], prompt) for q in asked], self.ledger)
        answers = {}
        for query_id in (query.query_id for query in asked if replies[query.query_id].status == OK):
            names = dict(enumerate(document.doc_id for document in documents[query_id]))
            said = prompting.answer_sentences(replies[query_id].value, names)
            texts, cited = tuple(s.text for s in said), tuple(s.doc_ids for s in said)
            answers[query_id] = Response("reference", query_id, texts, cited)
        return answers


def _reference_request(query: Query, documents: list[Document], prompt: tuple[str, str]) -> Request:
    texts = (" ".join(document.text.split()[:REFERENCE_WORDS]) for document in documents)
    numbered = enumerate(zip((document.title for document in documents), texts, strict=True))
    listed = [{"evidence_id": n, "title": title, "text": text} for n, (title, text) in numbered]
    check = partial(prompting.answer_fault, known=frozenset(range(len(documents))), max_sentences=REFERENCE_SENTENCES)
    about = {"query": query.text, "documents": listed}
    return prompting.request(query.query_id, prompt, about, prompting.ANSWER_SCHEMA, check=check)


class ProxyJudge:
    """Closeness to the reference answer, from cosines of sentence vectors; not a judgement of truth.

    Correctness: the mean over the answer's sentences of the largest cosine with a reference sentence.
    Completeness: the mean over the reference's sentences of the largest cosine with an answer sentence.
    A negative cosine counts as 0, so that both lie in [0, 1] and an answer without a sentence scores lowest.
    """

    name = "proxy"

    def __init__(self, encoder: Encoder):
        self.encoder, self.model = encoder, encoder.label

    def judge(self, runs: Runs, queries: Sequence[Query], references: dict[str, Response]) -> Judgements:
        """The judgement of every response whose query has a reference answer."""
        texts = [s for r in (*responses(runs), *references.values()) for s in r.said]
        distinct = list(dict.fromkeys(texts))
        vectors = dict(zip(distinct, self.encoder.encode(distinct).vectors, strict=True))
        return {(r.run, r.query_id): self._judge(r, references.get(r.query_id), vectors) for r in responses(runs)}

    def _judge(self, response: Response, reference: Response | None, vectors: dict[str, Any]) -> Judgement:
        if reference is None or not reference.text.strip():
            return Judgement(None, None, "no-reference")
        if not response.text.strip():
            return Judgement(0.0, 0.0)
        table = [[max(0.0, float(vectors[a] @ vectors[b])) for b in reference.said] for a in response.said]
        rows, columns = [max(row) for row in table], [max(column) for column in zip(*table, strict=True)]
        return Judgement(sum(rows) / len(rows), sum(columns) / len(columns))


class LLMJudge:
    """A model of another provider than the generator's, on the rubric in `params/prompts/judge.txt`."""

    def __init__(self, client: Client, ledger: Ledger):
        self.client, self.ledger = client, ledger
        self.name = self.model = client.service.model
        self.replies: dict[tuple[str, str], Reply] = {}

    def judge(self, runs: Runs, queries: Sequence[Query], references: dict[str, Response]) -> Judgements:
        """The judgement of every response; the raw replies stay in `replies`.

        An answer that is missing or blank is not sent: it gets the rubric's lowest scores.
        """
        prompt = prompting.load_prompt("judge", ("query", "reference", "answer"))
        texts = {query.query_id: query.text for query in queries}
        found: Judgements = {}
        requests: dict[tuple[str, str], Request] = {}
        for response in responses(runs):
            key, reference = (response.run, response.query_id), references.get(response.query_id)
            if reference is None or not reference.text.strip():
                found[key] = Judgement(None, None, "no-reference")
            elif not response.text.strip():
                found[key] = Judgement(float(LOWEST), float(LOWEST))
            else:
                about = {"query": texts[response.query_id], "reference": reference.text, "answer": response.text}
                requests[key] = prompting.request(json.dumps(key), prompt, about, JUDGE_SCHEMA, check=judge_fault)
        replies = ask_all(self.client, list(requests.values()), self.ledger)
        for key, request in requests.items():
            self.replies[key] = replies[request.request_id]
            found[key] = judgement(self.replies[key])
        return found


def judge_fault(value: dict[str, Any]) -> tuple[str, str] | None:
    """Why a judgement that follows the schema cannot be used: a score that is no whole number of the rubric."""
    for name in ("correctness", "completeness"):
        if whole_number(value[name], LOWEST, HIGHEST) is None:
            return "off-schema", f"{name}: {value[name]!r} is no score from {LOWEST} to {HIGHEST}"
    return None


def judgement(reply: Reply) -> Judgement:
    """The judgement in a reply; one that cannot be used is neither clamped nor replaced."""
    if reply.status != OK:
        return Judgement(None, None, reply.status)
    given = [float(whole_number(reply.value[name], LOWEST, HIGHEST)) for name in ("correctness", "completeness")]
    return Judgement(*given)


def judge_scores(runs: Runs, judgements: Judgements, judge: str, model: str) -> Iterator[Score]:
    """Correctness, completeness and their mean."""
    for response in responses(runs):
        found = judgements[response.run, response.query_id]
        status = MISSING if not response.present and found.status == OK else found.status
        both = None if found.correctness is None else (found.correctness + found.completeness) / 2
        values = {"correctness": found.correctness, "completeness": found.completeness, "judge_average": both}
        for name, value in values.items():
            yield Score(response.query_id, response.run, f"{name}[{judge}]", value, status, model=model)
