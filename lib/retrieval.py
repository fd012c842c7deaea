"""`Query` + passages -> ranked passages, with the score of every stage kept (paper, sections 3.3-3.5)."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np
from rank_bm25 import BM25Okapi

from lib.chunking import Passage
from lib.encoders import Encoder, cosine
from lib.slices import Document, Query
from lib.text import STOPWORDS, content_tokens, jaccard, keywords, tokens
from lib.variants import Variant

# Words whose presence among the query's keywords signals an interest in change over time. Words such
# as "early", "history" or "change" are left out: they qualify things far more often than they ask
# how something developed.
TEMPORAL_TERMS = (
    "trend trends decade decades evolve evolved evolving evolution longitudinal temporal recent recently earlier "
    "later nowadays historically chronological timeline"
).split()
TEMPORAL_EXPANSION = ["trend", "change", "changed", "decade", "recent", "earlier", "later", "years"]
METHOD_TERMS = (
    "method methods methodology approach approaches technique techniques algorithm algorithms procedure procedures "
    "protocol protocols measurement assay instrument design"
).split()
METHOD_EXPANSION = ["method", "approach", "technique", "procedure", "measured", "algorithm", "detection"]


class BM25(BM25Okapi):
    """BM25 whose idf is ln(1 + (N - n + 0.5) / (n + 0.5)): positive for every term, however small the pool.

    The library's own idf is zero or negative for a term in half the passages. Blank passages and
    empty pools are allowed and score 0.
    """

    def __init__(self, corpus: Sequence[list[str]], k1: float = 1.5, b: float = 0.75):
        if isinstance(corpus, str) or any(isinstance(passage, str) for passage in corpus):
            raise TypeError("BM25 takes lists of tokens, not strings")
        self._blank = not any(corpus)
        super().__init__(corpus if corpus else [[]], k1=k1, b=b)
        self.size = len(corpus)
        self._scores: dict[str, np.ndarray] = {}

    def _initialize(self, corpus: Sequence[list[str]]) -> Counter:
        """What the library's own method counts, in a fraction of the time."""
        n_passages: Counter = Counter()
        for passage in corpus:
            frequencies = dict(Counter(passage))
            self.doc_len.append(len(passage))
            self.doc_freqs.append(frequencies)
            n_passages.update(frequencies.keys())
        self.corpus_size = len(corpus)
        self.avgdl = sum(self.doc_len) / self.corpus_size
        return n_passages

    def _calc_idf(self, nd: dict[str, int]) -> None:
        for term, n in nd.items():
            self.idf[term] = math.log(1 + (self.corpus_size - n + 0.5) / (n + 0.5))

    def get_scores(self, query: list[str]) -> np.ndarray:
        """BM25 of each passage for a list of query tokens; shape (number of passages,), >= 0."""
        if isinstance(query, str):
            raise TypeError("BM25 takes a list of query tokens, not a string")
        scores = np.zeros(self.size)
        if not self._blank:
            for term in query:
                scores += self._of_term(term)
        return scores

    def _of_term(self, term: str) -> np.ndarray:
        if term not in self._scores:
            with np.errstate(invalid="ignore"):  # 0 / 0 for a blank passage where k1 = 0 or b = 1
                self._scores[term] = np.nan_to_num(super().get_scores([term]))
        return self._scores[term]


@dataclass
class Ranked:
    """A passage with its rank (from 1), its final score, and the score of every stage that it passed.

    `scores` holds, where the stage ran: `bm25` (original query), `rank:<list>` (its rank in each
    ranked list), `rrf`, `citation_prior` and `temporal` (as added), `rerank` (their sum).
    """

    passage: Passage
    rank: int
    score: float | None
    scores: dict[str, float] = field(default_factory=dict)


@dataclass
class Pool:
    """A query's passages in candidate order, their token lists, and its documents by id."""

    query: Query
    documents: dict[str, Document]
    passages: list[Passage]
    tokens: list[list[str]]
    _bm25: dict[tuple[float, float], BM25] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, query: Query, documents: Sequence[Document], passages: Sequence[Passage]) -> "Pool":
        by_id = {document.doc_id: document for document in documents}
        token_lists = [tokens(p.text(by_id[p.doc_id])) for p in passages]
        return cls(query, by_id, list(passages), token_lists)

    def bm25(self, k1: float, b: float) -> BM25:
        """The ranker over the passages, built once however many stages ask for it."""
        if (k1, b) not in self._bm25:
            self._bm25[k1, b] = BM25(self.tokens, k1, b)
        return self._bm25[k1, b]

    def text(self, passage: Passage) -> str:
        return passage.text(self.documents[passage.doc_id])


def is_temporal(query: str, variant: Variant) -> bool:
    """Whether a query asks for change over time: its keywords overlap `TEMPORAL_TERMS`."""
    return not set(TEMPORAL_TERMS).isdisjoint(keywords(query, variant.max_query_keywords))


def query_variants(pool: Pool, variant: Variant, bm25: BM25) -> dict[str, list[str]]:
    """Ranked lists to make: name -> query tokens, `original` first, at most `query_variant_limit` of them."""
    lists = {"original": tokens(pool.query.text)}
    terms = keywords(pool.query.text, variant.max_query_keywords)
    if variant.query_expansion and terms:
        lists["keywords"] = terms
        if not set(TEMPORAL_TERMS).isdisjoint(terms):
            lists["temporal"] = list(dict.fromkeys(terms + TEMPORAL_EXPANSION))
        if not set(METHOD_TERMS).isdisjoint(terms):
            lists["method"] = list(dict.fromkeys(terms + METHOD_EXPANSION))
    if variant.prf and (feedback := feedback_terms(pool, variant, bm25)):
        lists["prf"] = terms + feedback
    return dict(list(lists.items())[: variant.query_variant_limit])


def feedback_terms(pool: Pool, variant: Variant, bm25: BM25) -> list[str]:
    """Pseudo-relevance feedback: the most frequent new terms of the top passages under the original query.

    Terms have length >= 4 and are no stopword, no keyword of the query and no bare number; equal
    frequencies keep the order of first occurrence (section 3.3).
    """
    known = set(keywords(pool.query.text, variant.max_query_keywords)) | STOPWORDS
    top = ranked_list(pool, bm25, tokens(pool.query.text))[: variant.prf_top_passages]
    counts = Counter(
        term
        for index, _ in top
        for term in pool.tokens[index]
        if len(term) >= 4 and term not in known and any(c.isalpha() for c in term)
    )
    return [term for term, _ in counts.most_common(variant.prf_terms)]


def ranked_list(pool: Pool, bm25: BM25, query_tokens: list[str]) -> list[tuple[int, float]]:
    """(passage index, BM25) of the passages that share a content term with the query, best first.

    A shared term, not a positive score, makes a match; ties keep candidate order, then position.
    """
    content = {token for token in query_tokens if token not in STOPWORDS}
    scores = bm25.get_scores(query_tokens)
    hits = [i for i, passage in enumerate(pool.tokens) if not content.isdisjoint(passage)]
    return [(i, float(scores[i])) for i in sorted(hits, key=lambda i: (-scores[i], i))]


def dense_list(pool: Pool, encoder: Encoder) -> list[tuple[int, float]]:
    """(passage index, cosine with the query) of every passage, best first; ties keep candidate order."""
    vectors = encoder.encode([pool.query.text, *(pool.text(p) for p in pool.passages)]).vectors
    scores = [cosine(vectors[0], vector) for vector in vectors[1:]]
    return [(i, scores[i]) for i in sorted(range(len(scores)), key=lambda i: (-scores[i], i))]


def reciprocal_rank_fusion(lists: Sequence[Sequence], k: int = 60) -> dict:
    """item -> sum over the lists of 1 / (k + rank), ranks from 1; absent adds 0, a repeat within a list nothing."""
    terms: dict = {}
    for ranked in lists:
        for rank, item in enumerate(dict.fromkeys(ranked), 1):
            terms.setdefault(item, []).append(1 / (k + rank))
    # An exact sum: equal ranks in other lists must tie, whatever the order of the lists.
    return {item: math.fsum(parts) for item, parts in terms.items()}


def citation_prior(doc_ids: Sequence[str], degrees: dict[str, int], normalization: str = "max") -> dict[str, float]:
    """G(d) of each candidate: its degree over the network's maximum degree, or over the candidates' sum.

    0 for all where there are no edges (section 3.5; the digest has the sum).
    """
    own = {doc_id: degrees.get(doc_id, 0) for doc_id in doc_ids}
    whole = max(degrees.values(), default=0) if normalization == "max" else sum(own.values())
    return {doc_id: degree / whole if whole else 0.0 for doc_id, degree in own.items()}


def temporal_closeness(documents: Sequence[Document]) -> dict[str, float]:
    """How close each dated document lies to either end of the candidates' date range: 1 at an end, 0 midway.

    0 for undated documents, and for all where fewer than two different dates are known.
    """
    days = {d.doc_id: day_of(d.date) for d in documents if d.date}
    first, last = min(days.values(), default=0), max(days.values(), default=0)
    if first == last:
        return {d.doc_id: 0.0 for d in documents}
    near = {i: 1 - 2 * min(day - first, last - day) / (last - first) for i, day in days.items()}
    return {d.doc_id: near.get(d.doc_id, 0.0) for d in documents}


def day_of(text: str) -> int:
    """Day number of a date; a year alone stands for its middle, a month alone for its fifteenth."""
    parts = [int(part) for part in text.split("-")]
    year, month, day = (parts + [7, 1] if len(parts) == 1 else parts + [15])[:3]
    try:
        return date(year, month, day).toordinal()
    except ValueError:  # a date that no calendar has, such as 2015-02-30
        return date(year, 7, 1).toordinal()


def rank(pool: Pool, variant: Variant, degrees: dict[str, int], encoder: Encoder | None = None) -> list[Ranked]:
    """The query's passages in final order, every stage's score kept; passages that match nothing are left out.

    Without retrieval, all passages in candidate order, without scores.
    """
    if variant.retrieval == "none":
        return [Ranked(p, i, None) for i, p in enumerate(pool.passages, 1)]
    bm25 = pool.bm25(variant.bm25_k1, variant.bm25_b)
    queries = {"original": tokens(pool.query.text)}
    if variant.retrieval == "multi-query":
        queries = query_variants(pool, variant, bm25)
    lists = {name: ranked_list(pool, bm25, terms) for name, terms in queries.items()}
    original = dict(lists["original"])
    if variant.dense:
        lists["dense"] = dense_list(pool, encoder)
    scores = _stage_scores(lists, original)
    if variant.retrieval == "bm25" and not variant.dense:
        return _ordered(pool, scores, "bm25")
    fused = reciprocal_rank_fusion([[i for i, _ in ranked] for ranked in lists.values()], variant.rrf_k)
    for index, score in fused.items():
        scores[index]["rrf"] = score
    ranked = _ordered(pool, scores, "rrf")
    return _rerank(pool, ranked[: variant.preselect_k], variant, degrees) if variant.rerank else ranked


def _stage_scores(lists: dict[str, list[tuple[int, float]]], original: dict[int, float]) -> dict[int, dict]:
    scores: dict[int, dict[str, float]] = {}
    for name, ranked in lists.items():
        for position, (index, _) in enumerate(ranked, 1):
            scores.setdefault(index, {})[f"rank:{name}"] = position
    for index, stages in scores.items():
        stages["bm25"] = original.get(index, 0.0)
    return scores


def _ordered(pool: Pool, scores: dict[int, dict[str, float]], by: str) -> list[Ranked]:
    order = sorted(scores, key=lambda i: (-scores[i][by], i))
    return [Ranked(pool.passages[i], n, scores[i][by], scores[i]) for n, i in enumerate(order, 1)]


def _rerank(pool: Pool, shortlist: list[Ranked], variant: Variant, degrees: dict[str, int]) -> list[Ranked]:
    """S_RRF + boost x G(d) + T(q, p) over the shortlist; ties keep the order of the shortlist."""
    prior = citation_prior(pool.query.doc_ids, degrees, variant.citation_prior_normalization)
    near = temporal_closeness(list(pool.documents.values())) if is_temporal(pool.query.text, variant) else {}
    for item in shortlist:
        item.scores["citation_prior"] = variant.citation_graph_boost * prior[item.passage.doc_id]
        item.scores["temporal"] = variant.temporal_boost * near.get(item.passage.doc_id, 0.0)
        item.score = sum(item.scores[stage] for stage in ("rrf", "citation_prior", "temporal"))
        item.scores["rerank"] = item.score
    reranked = sorted(shortlist, key=lambda item: (-item.score, item.rank))
    return [Ranked(item.passage, n, item.score, item.scores) for n, item in enumerate(reranked, 1)]


def select(pool: Pool, ranked: list[Ranked], variant: Variant) -> list[Ranked]:
    """The selected passages, at most `top_k_passages` of the first `preselect_k`, ranks from 1.

    For temporal queries the best passage of the earliest and of the latest dated document on the
    shortlist come first; near-duplicates of a passage already taken are dropped (section 3.6).
    """
    shortlist = ranked[: variant.preselect_k]
    ends = _ends(pool, shortlist) if variant.temporal_coverage and is_temporal(pool.query.text, variant) else []
    chosen: list[Ranked] = []
    seen: list[set[str]] = []
    per_doc: Counter = Counter()
    for item in ends + [item for item in shortlist if item not in ends]:
        terms = set(content_tokens(pool.text(item.passage)))
        full = variant.per_doc_limit is not None and per_doc[item.passage.doc_id] >= variant.per_doc_limit
        if full or any(jaccard(terms, other) >= variant.near_duplicate_jaccard for other in seen):
            continue
        chosen.append(Ranked(item.passage, len(chosen) + 1, item.score, item.scores))
        seen.append(terms)
        per_doc[item.passage.doc_id] += 1
        if len(chosen) == variant.top_k_passages:
            break
    return chosen


def _ends(pool: Pool, shortlist: list[Ranked]) -> list[Ranked]:
    best: dict[str, Ranked] = {}
    for item in shortlist:
        if pool.documents[item.passage.doc_id].date:
            best.setdefault(item.passage.doc_id, item)
    if len({pool.documents[doc_id].date for doc_id in best}) < 2:
        return []
    by_date = sorted(best.values(), key=lambda item: day_of(pool.documents[item.passage.doc_id].date))
    return [by_date[0], by_date[-1]]
