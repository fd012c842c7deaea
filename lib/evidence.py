"""Ranked passages -> sentence evidence that can be cited (paper, section 3.6)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from lib import allocation
from lib.chunking import Passage
from lib.encoders import Encoder, SentenceReranker
from lib.retrieval import Pool, Ranked, rank, select
from lib.text import Span, content_tokens, jaccard, keywords, one_line, words
from lib.variants import Variant

MIN_WORDS, MAX_WORDS = 6, 60
_NEAR_DUPLICATE = 0.8

_BOILERPLATE = re.compile(
    r"copyright|©|\(c\) \d{4}|all rights reserved|creative commons|licen[cs]e|this article is|open access|"
    r"published by|preprint submitted|manuscript|peer review|accepted \d|received \d|doi\b|https?:|www\.|@|"
    r"corresponding author|correspondence (?:to|should)|conflicts? of interest|competing interest|funded by|funding|"
    r"grant\b|supported by (?:the|a)\b|"
    r"acknowledge?ments?|we (?:thank|are grateful|are indebted)|ethics committee|informed consent|"
    r"author contributions|data availability|supplementary (?:material|data)|keywords?\b|ISSN|e-?mail",
    re.IGNORECASE,
)
_BIBLIOGRAPHIC = re.compile(
    r"^\s*\[?\d+[\].]\s+[A-Z][\w’'-]+,? [A-Z]\.|\b\d+(?:\(\d+\))?(?::\s?|,\s|(?<=\)),)\d+[–-]\d+|\b(?:19|20)\d\d;\d|"
    r"(?:[A-Z][\w’'-]+,? (?:[A-Z]\.\s?){1,3}[,;&]\s?(?:and )?){2}|^[A-Z][\w’'-]+, [A-Z]\.|^[A-Z]\.,? [A-Z]|^\s*\[\d+\]"
)
# What a statement has and a title or a heading lacks; asked only of sentences that a title could be.
_VERB = re.compile(
    r"\b(?:is|are|was|were|be|been|being|has|have|had|can|could|may|might|must|will|would|should|do|does|did|"
    r"(?:show|suggest|indicate|remain|depend|lead|find|reveal|provide|predict|improve|increase|decrease|reduce|raise|lower|"
    r"allow|require|affect|support|occur|represent|contribute|warrant|differ|correlate|range|lie|make|give|take|hold|need|"
    r"rise|fall|appear|seem|cause|include|contain|describe|report|explain|limit|follow|measure|detect|use|apply|applie)s?|"
    r"varies|vary|found|gave|made|rose|fell|grew|led|became|took|came|went|kept|held|[a-z]{3,}ed|"
    r"[a-z]{3,}s (?:the|an?|its|their|that|this|these|those|more|less|fewer|no|when|where|because|if|whether|how))\b"
)
_TITLE_WORDS = 22
# A list of cited works runs from its heading to the end of the text; page text often has no line breaks.
_REFERENCE_LIST = re.compile(
    r"(?i:^[ \t]*(?:\d+\.?\s*)?(?:references?|bibliography|literature cited|works cited)[ \t]*:?[ \t]*$)|"
    r"\b(?:References|REFERENCES|Bibliography|Literature Cited)\s*(?:\[1\]|\(1\)|1\.|1\s?[A-Z]|[A-Z][\w’'-]+,? [A-Z])",
    re.MULTILINE,
)
# A caption or a page header that ran into the sentence when line breaks were lost.
_RUN_IN = re.compile(r"[.,)]\s?\d*(?:Table|Figure|Fig\.)\s?\d+\s?[A-Z.]|,[A-Z]\. [A-Z]")
_ENDS = re.compile(r"[.!][\"'”’)\]]*(?:\[[\d,;–\- ]+\]|\d{1,3}(?:[,–-]\d{1,3})*)?$")


class Evidence(NamedTuple):
    """One citable sentence: `text` is characters `start` to `end` of its document's text, verbatim.

    `citations` are indices into the evidence set's `references`.
    """

    evidence_id: int
    doc_id: str
    passage_id: str
    start: int
    end: int
    text: str
    score: float
    citations: tuple[int, ...]


@dataclass
class EvidenceSet:
    """What was retrieved for one query: selected passages, their documents in order, and sentence evidence.

    `shortlist` names the documents with a passage among those that were selected from, best passage first.
    `status` is `ok`, or says why there is nothing: `no-candidates` or `no-text` of the query,
    `no-passages` in its documents, `no-match` among them, or `titles` for a system that reads none.
    """

    query_id: str
    status: str
    references: list[str] = field(default_factory=list)
    passages: list[Ranked] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    reranker: str | None = None
    shortlist: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """The line of `evidence.jsonl`."""
        passages = [
            {
                "passage_id": item.passage.passage_id,
                "doc_id": item.passage.doc_id,
                "rank": item.rank,
                "score": item.score,
                "scores": item.scores,
                "start": item.passage.start,
                "end": item.passage.end,
            }
            for item in self.passages
        ]
        return {
            "query_id": self.query_id,
            "status": self.status,
            "shortlist": self.shortlist,
            "references": self.references,
            "passages": passages,
            "evidence": [item._asdict() for item in self.evidence],
            "sentence_reranker": self.reranker,
        }


class Models(NamedTuple):
    """The models that retrieval may use; a variant that needs neither never loads one."""

    encoder: Encoder
    reranker: SentenceReranker


def collect(pool: Pool, degrees: dict[str, int], variant: Variant, models: Models) -> EvidenceSet:
    """Everything from a query's passages to its sentence evidence."""
    query = pool.query
    if status := _nothing_to_do(pool, variant):
        # The titles of the naive baseline are cited without any text having been read.
        references = [] if variant.reads_text else list(pool.documents)
        return EvidenceSet(query.query_id, status, references)
    ranked = rank(pool, variant, degrees, models.encoder)
    selected = select(pool, ranked, variant)
    if not selected:
        return EvidenceSet(query.query_id, "no-match")
    shortlist = list(dict.fromkeys(item.passage.doc_id for item in ranked[: variant.preselect_k]))
    references = list(dict.fromkeys(item.passage.doc_id for item in selected))
    reranker = models.reranker if variant.sentence_rerank else None
    items = sentence_evidence(pool, selected, references, variant, reranker, models.encoder)
    label = reranker.label if reranker else None
    return EvidenceSet(query.query_id, "ok", references, selected, items, label, shortlist)


def _nothing_to_do(pool: Pool, variant: Variant) -> str | None:
    if not pool.query.doc_ids:
        return "no-candidates"
    if not keywords(pool.query.text) and not content_tokens(pool.query.text):
        return "no-text"
    if not variant.reads_text:
        return "titles"
    return None if pool.passages else "no-passages"


class _Candidate(NamedTuple):
    passage: Passage
    span: Span
    text: str
    rank: int


def sentence_evidence(
    pool: Pool,
    selected: Sequence[Ranked],
    references: list[str],
    variant: Variant,
    reranker: SentenceReranker | None = None,
    encoder: Encoder | None = None,
) -> list[Evidence]:
    """At most `max_selected_answer_candidates` sentences of the selected passages, best first.

    Scores are those of the reranker if there is one, else `overlap_score`; equal scores keep
    passage order. Without retrieval (`evidence_scoring: position`) the order is that of the text.
    Under a `sentence_selection` other than `best` the `selection_pool` best are chosen from together
    (`lib.allocation`), and stand in the order chosen; that needs the `encoder`.
    """
    candidates = candidate_sentences(pool, selected, variant)
    if reranker:
        scores = reranker.scores(pool.query.text, [one_line(c.text) for c in candidates])
    elif variant.evidence_scoring == "position":
        scores = [1 / n for n in range(1, len(candidates) + 1)]
    else:
        terms = keywords(pool.query.text, variant.max_query_keywords)
        scores = [overlap_score(terms, c.text, c.rank) for c in candidates]
    order = sorted(range(len(candidates)), key=lambda i: (-round(scores[i], 6), i))
    limit = variant.selection_pool if variant.allocates_together else variant.max_selected_answer_candidates
    kept = _distinct([candidates[i] for i in order], [scores[i] for i in order], limit)
    if variant.allocates_together and kept:
        texts = [one_line(candidate.text) for candidate, _ in kept]
        vectors = encoder.encode(texts).vectors
        worth = [score for _, score in kept]
        kept = [kept[i] for i in allocation.choose(worth, vectors, [words(text) for text in texts], variant)]
    return [
        Evidence(n, c.passage.doc_id, c.passage.passage_id, *c.span, c.text, score, (references.index(c.passage.doc_id),))
        for n, (c, score) in enumerate(kept)
    ]


def candidate_sentences(pool: Pool, selected: Sequence[Ranked], variant: Variant) -> list[_Candidate]:
    """Up to the first sentences of each selected passage that can stand alone, each span once, in passage order."""
    found: dict[tuple[str, Span], _Candidate] = {}
    for item in selected:
        document = pool.documents[item.passage.doc_id]
        body_end = body_length(document.text)
        for span in item.passage.sentences[: variant.candidate_sentences_per_passage]:
            text = document.text[span.start : span.end]
            if span.start < body_end and is_citable(text, at_end=span.end >= len(document.text.rstrip())):
                found.setdefault((document.doc_id, span), _Candidate(item.passage, span, text, item.rank))
    return list(found.values())


def overlap_score(terms: Sequence[str], sentence: str, passage_rank: int) -> float:
    """Share of the query's keywords in the sentence, plus 1 / (1 + passage rank): in (0, 1.5]."""
    shared = len(set(terms) & set(content_tokens(sentence))) / len(terms) if terms else 0.0
    return shared + 1 / (1 + passage_rank)


@lru_cache(maxsize=1 << 13)
def is_citable(sentence: str, at_end: bool = False) -> bool:
    """Whether a sentence can be shown as evidence: a whole statement of readable length, no boilerplate, not garbled.

    `at_end` allows for the last sentence of a text to lack its full stop, as abstracts often do.
    """
    text = one_line(sentence)
    if not MIN_WORDS <= words(text) <= MAX_WORDS or not (at_end or _ENDS.search(text)):
        return False
    if words(text) <= _TITLE_WORDS and not _VERB.search(text) or text.count(";") > 2:
        return False
    return not (_BOILERPLATE.search(text) or _BIBLIOGRAPHIC.search(text) or _RUN_IN.search(text) or is_garbled(sentence))


@lru_cache(maxsize=64)
def body_length(text: str) -> int:
    """Number of characters before the list of references, if one begins in the second half; else all of them."""
    heading = _REFERENCE_LIST.search(text, len(text) // 2 + 1)
    return heading.start() if heading else len(text)


def is_garbled(sentence: str) -> bool:
    """Whether a sentence looks like the remains of a table, a formula or a broken text layer."""
    parts = sentence.split()
    letters = sum(c.isalpha() for c in sentence) / max(1, sum(not c.isspace() for c in sentence))
    numbers = sum(any(c.isdigit() for c in part) for part in parts) / len(parts)
    singles = sum(len(part) == 1 and part not in "aAI&–-" for part in parts) / len(parts)
    broken = any(c == "\ufffd" or (ord(c) < 32 and not c.isspace()) or "\ue000" <= c <= "\uf8ff" for c in sentence)
    glued = max(len(part) for part in parts) > 40
    lower = sum(part[0].islower() for part in parts) / len(parts)
    return letters < 0.7 or numbers > 0.4 or singles > 0.25 or broken or glued or lower < 0.35


def _distinct(candidates: list[_Candidate], scores: list[float], limit: int) -> list[tuple[_Candidate, float]]:
    kept: list[tuple[_Candidate, float]] = []
    seen: list[set[str]] = []
    for candidate, score in zip(candidates, scores, strict=True):
        terms = set(content_tokens(candidate.text))
        if all(jaccard(terms, other) < _NEAR_DUPLICATE for other in seen):
            kept.append((candidate, score))
            seen.append(terms)
        if len(kept) == limit:
            break
    return kept
