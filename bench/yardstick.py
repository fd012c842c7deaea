"""The yardstick: the paper's ten systems the way its code works, in one process and with nothing kept between systems.

For every system the documents are read, split, chunked and encoded anew, document by document with
`SentenceTransformer.encode` on all cores; cosines are plain Python over lists of floats; BM25 is
rank-bm25, a pool a query. The method is that of METHOD.md, and so are chunks, evidence and answers:
rules on text and the form of the records come from `lib`, but none of its vectors, caches or
arithmetic on them.

    python -m bench.yardstick tune SLICE
    python -m bench.yardstick run SLICE OUT BATCH_SIZE
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from operator import mul
from pathlib import Path

import yaml
from rank_bm25 import BM25Okapi
from sentence_transformers import SentenceTransformer

from lib import generation, paths, preparing, readers, trec
from lib.chunking import Passage
from lib.evidence import Evidence, EvidenceSet, sentence_evidence
from lib.models import locate, quiet
from lib.retrieval import Pool, Ranked, citation_prior, is_temporal, query_variants, select, temporal_closeness
from lib.slices import Document, Query
from lib.text import STOPWORDS, split, tokens
from lib.variants import Profile, Variant, load_profile, load_variants

# The rows of METHOD, section 5; `default` is caes-rag-rrf under another name.
SYSTEMS = (
    "official-naive-baseline concat-baseline single-query-bm25 rrf-no-rerank caes-rag-rrf rule-minilm "
    "semantic-current semantic-minilm topic-shift-current topic-shift-minilm"
).split()
BATCH_SIZES = (16, 32, 64)  # 8 and 128 were slower
Vector = list[float]


class PlainEncoder:
    """Texts to lists of floats, computed whenever asked for. `seconds` is the time spent so far, that of loading aside."""

    def __init__(self, profile: Profile, batch_size: int):
        quiet()
        self.batch_size = batch_size
        self.seconds = 0.0
        self._model = SentenceTransformer(str(locate(profile.encoder)), device="cpu")
        self._model.max_seq_length = profile.encoder.max_tokens

    def vectors(self, texts: list[str]) -> list[Vector]:
        started = time.perf_counter()
        found = self._model.encode(texts, batch_size=self.batch_size, show_progress_bar=False).tolist()
        self.seconds += time.perf_counter() - started
        return found


class PlainReranker:
    """Late sentence reranking by the cosine of query and sentence, as the profile `embedded` has it."""

    def __init__(self, encoder: PlainEncoder, label: str):
        self._encoder = encoder
        self.label = f"cosine:{label}"

    def scores(self, query: str, candidates: Sequence[str]) -> list[float]:
        if not candidates:
            return []
        asked, *vectors = self._encoder.vectors([query, *candidates])
        return [cosine(asked, vector) for vector in vectors]


def cosine(a: Vector, b: Vector) -> float:
    """Cosine of two lists of floats; 0.0 if either is zero."""
    norm = math.sqrt(sum(map(mul, a, a)) * sum(map(mul, b, b)))
    return sum(map(mul, a, b)) / norm if norm else 0.0


def passages_of(document: Document, variant: Variant, encoder: PlainEncoder) -> list[Passage]:
    """The passages of one document under the variant's chunker (METHOD, section 2)."""
    spans = split(document.text)
    texts = [document.text[start:end] for start, end in spans]
    counts = [len(text.split()) for text in texts]
    chunks = chunked(counts, texts, variant, encoder) if spans else []
    made = []
    for number, chunk in enumerate(chunks):
        own = tuple(spans[i] for i in chunk)
        made.append(Passage(f"{document.doc_id}#{number}", document.doc_id, own[0].start, own[-1].end, own))
    return made


def chunked(counts: list[int], texts: list[str], variant: Variant, encoder: PlainEncoder) -> list[list[int]]:
    """Chunks as lists of sentence numbers."""
    if variant.chunker == "rule":
        return rule(counts, variant.passage_max_words, variant.passage_stride_sentences)
    vectors = encoder.vectors(texts)
    if variant.chunker == "semantic":
        return semantic(counts, vectors, variant.passage_max_words, variant.semantic_merge_threshold)
    return topic_shift(counts, vectors, variant.passage_max_words, variant.topic_shift_boundary_threshold)


def rule(counts: list[int], budget: int, stride: int) -> list[list[int]]:
    """Greedy chunks within the budget of words; each begins with the last `stride` sentences before it, if they fit."""
    chunks: list[list[int]] = []
    chunk: list[int] = []
    for i, count in enumerate(counts):
        if chunk and sum(counts[j] for j in chunk) + count > budget:
            chunks.append(chunk)
            chunk = chunk[-stride:] if stride else []
            while chunk and sum(counts[j] for j in chunk) + count > budget:
                chunk = chunk[1:]
        chunk = [*chunk, i]
    return [*chunks, chunk] if chunk else chunks


def semantic(counts: list[int], vectors: list[Vector], budget: int, threshold: float) -> list[list[int]]:
    """A sentence joins the chunk iff its cosine with the chunk's mean vector reaches the threshold and the budget holds."""
    chunks: list[list[int]] = []
    words, total = 0, []  # the sum of the chunk's vectors points where their mean does
    for i, vector in enumerate(vectors):
        if chunks and words + counts[i] <= budget and cosine(vector, total) >= threshold:
            chunks[-1].append(i)
            words, total = words + counts[i], [a + b for a, b in zip(total, vector, strict=True)]
        else:
            chunks.append([i])
            words, total = counts[i], vector
    return chunks


def topic_shift(counts: list[int], vectors: list[Vector], budget: int, threshold: float) -> list[list[int]]:
    """A sentence begins a chunk iff 1 - cosine with the one before exceeds the threshold, or the budget would break."""
    chunks: list[list[int]] = []
    words = 0
    for i, count in enumerate(counts):
        if chunks and words + count <= budget and 1 - cosine(vectors[i - 1], vectors[i]) <= threshold:
            chunks[-1].append(i)
            words += count
        else:
            chunks.append([i])
            words = count
    return chunks


class BM25(BM25Okapi):
    """rank-bm25 under the mended idf, ln(1 + (N - n + 0.5) / (n + 0.5))."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        self.idf = {term: math.log(1 + (self.corpus_size - n + 0.5) / (n + 0.5)) for term, n in nd.items()}


def ranked(pool: Pool, variant: Variant, degrees: dict[str, int]) -> list[Ranked]:
    """The query's passages in final order (METHOD, sections 3 and 4)."""
    if variant.retrieval == "none":
        return [Ranked(passage, n, None) for n, passage in enumerate(pool.passages, 1)]
    bm25 = BM25(pool.tokens, k1=variant.bm25_k1, b=variant.bm25_b)
    if variant.retrieval == "bm25":
        scores = matches(pool, bm25, tokens(pool.query.text))
    else:
        scores = fused(
            [matches(pool, bm25, terms) for terms in query_variants(pool, variant, bm25).values()], variant.rrf_k
        )
    order = sorted(scores, key=lambda i: (-scores[i], i))
    if variant.rerank:
        order = order[: variant.preselect_k]
        scores = reranked(pool, order, scores, variant, degrees)
        order.sort(key=lambda i: -scores[i])
    return [Ranked(pool.passages[i], n, scores[i]) for n, i in enumerate(order, 1)]


def matches(pool: Pool, bm25: BM25, terms: list[str]) -> dict[int, float]:
    """Passage number -> BM25 of the passages that share a content term with the query, best first."""
    content = set(terms) - STOPWORDS
    scores = bm25.get_scores(terms)
    hits = [i for i, passage in enumerate(pool.tokens) if not content.isdisjoint(passage)]
    return {i: float(scores[i]) for i in sorted(hits, key=lambda i: (-scores[i], i))}


def fused(lists: list[dict[int, float]], k: int) -> dict[int, float]:
    """Reciprocal rank fusion; summed exactly, so that equal ranks tie whatever lists they come from."""
    terms: dict[int, list[float]] = {}
    for order in lists:
        for rank, i in enumerate(order, 1):
            terms.setdefault(i, []).append(1 / (k + rank))
    return {i: math.fsum(parts) for i, parts in terms.items()}


def reranked(
    pool: Pool, order: list[int], scores: dict[int, float], variant: Variant, degrees: dict[str, int]
) -> dict[int, float]:
    """S_RRF + boost x G(d) + T(q, p) of the shortlist."""
    prior = citation_prior(pool.query.doc_ids, degrees, variant.citation_prior_normalization)
    near = temporal_closeness(list(pool.documents.values())) if is_temporal(pool.query.text, variant) else {}
    doc_of = {i: pool.passages[i].doc_id for i in order}
    return {
        i: scores[i] + variant.citation_graph_boost * prior[doc] + variant.temporal_boost * near.get(doc, 0.0)
        for i, doc in doc_of.items()
    }


def collect(
    query: Query,
    documents: list[Document],
    variant: Variant,
    degrees: dict[str, int],
    encoder: PlainEncoder,
    reranker: PlainReranker | None,
) -> EvidenceSet:
    """The evidence of one query, from its documents to its sentences."""
    if not variant.reads_text:
        return EvidenceSet(query.query_id, "titles", [document.doc_id for document in documents])
    passages = [passage for document in documents for passage in passages_of(document, variant, encoder)]
    if not passages:
        return EvidenceSet(query.query_id, "no-passages")
    pool = Pool.of(query, documents, passages)
    order = ranked(pool, variant, degrees)
    selected = select(pool, order, variant)
    if not selected:
        return EvidenceSet(query.query_id, "no-match")
    references = list(dict.fromkeys(item.passage.doc_id for item in selected))
    items: list[Evidence] = sentence_evidence(pool, selected, references, variant, reranker)
    shortlist = list(dict.fromkeys(item.passage.doc_id for item in order[: variant.preselect_k]))
    label = reranker.label if reranker else None
    return EvidenceSet(query.query_id, "ok", references, selected, items, label, shortlist)


def read(spec: str) -> tuple[list[Query], dict[str, Document], dict[str, int]]:
    """Queries, the documents that they want by id, and the citation degrees of a slice's source."""
    source, problems = preparing.open_source(spec)
    queries = preparing.read_queries(source, problems.append)
    wanted = {doc_id for query in queries for doc_id in query.doc_ids}
    documents = {}
    for fields, place in source.documents:
        doc_id = readers.as_id(readers.pick(fields, readers.DOC_ID), place)
        if doc_id in wanted:
            documents[doc_id] = preparing.make_document(doc_id, fields)
    network = readers.find(source.folder, "citations")
    return queries, documents, preparing.citation_degrees(network, problems.append) if network else {}


def system(spec: str, run: Path, variant: Variant, profile: Profile, encoder: PlainEncoder) -> None:
    """One system from the source to its files, as if no other had run."""
    queries, documents, degrees = read(spec)
    reranker = PlainReranker(encoder, profile.sentence_reranker.label) if variant.sentence_rerank else None
    submission = trec.load_submission()
    models = {"encoder": profile.encoder.label, "generator": "extractive" if variant.reads_text else "titles"}
    evidence, responses, provenance = [], [], []
    for query in queries:
        own = [documents[doc_id] for doc_id in query.doc_ids if doc_id in documents]
        found = collect(query, own, variant, degrees, encoder, reranker)
        answer = answered(query, own, found, variant)
        evidence.append(found.record())
        responses.append(trec.record(query, found.references, answer, submission["team"], variant.name))
        provenance.append(trec.provenance(found, answer, found.status, models))
    for name, rows in {"evidence": evidence, "responses": responses, "provenance": provenance}.items():
        paths.write_jsonl(run / f"{name}.jsonl", rows)
    about = trec.ir_metadata(variant, profile, models, submission)
    paths.write_text(run / "ir-metadata.yml", yaml.safe_dump(about, sort_keys=False, allow_unicode=True))


def answered(query: Query, documents: list[Document], found: EvidenceSet, variant: Variant) -> list[generation.Sentence]:
    """The extractive answer, or the titles of the naive baseline."""
    if not variant.reads_text:
        return generation.titles(query, documents, variant)
    return generation.extractive(query, found.evidence, {d.doc_id: d for d in documents}, variant)


def run(spec: str, out: Path, batch_size: int) -> float:
    """All ten systems, one after the other; returns the seconds of encoding."""
    profile = load_profile("embedded")
    encoder = PlainEncoder(profile, batch_size)
    for variant in load_variants(SYSTEMS):
        system(spec, out / variant.name, variant, profile, encoder)
    return encoder.seconds


def tuned(spec: str, texts: int = 250) -> int:
    """The batch size that encodes the first documents of the slice fastest, document by document as `run` does."""
    _, documents, _ = read(spec)
    parts = list(_first(documents.values(), texts))
    encoder = PlainEncoder(load_profile("embedded"), BATCH_SIZES[0])
    encoder.vectors(parts[0])

    def seconds(batch_size: int) -> float:
        encoder.batch_size, encoder.seconds = batch_size, 0.0
        for part in parts:
            encoder.vectors(part)
        return encoder.seconds

    return min(BATCH_SIZES, key=seconds)


def _first(documents, texts: int) -> Iterator[list[str]]:
    """The sentences of document after document, until there are so many."""
    count = 0
    for document in documents:
        said = [document.text[a:b] for a, b in split(document.text)]
        if count >= texts:
            return
        if said:
            yield said
        count += len(said)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["tune", spec]:
            print(tuned(spec))
        case ["run", spec, out, batch_size]:
            print(json.dumps({"encoding": run(spec, Path(out), int(batch_size))}))
        case _:
            sys.exit("usage: python -m bench.yardstick tune SLICE | run SLICE OUT BATCH_SIZE")


if __name__ == "__main__":
    main(sys.argv[1:])
