"""`Document` -> `Passage`s: three chunkers over the same sentences (paper, section 3.2)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib import paths
from lib.encoders import Encoder, cosine
from lib.slices import Document, Slice
from lib.text import Span, sentences
from lib.variants import Variant


class Passage(NamedTuple):
    """A chunk as a retrieval unit: characters `start` to `end` of its document, and its sentences' spans."""

    passage_id: str
    doc_id: str
    start: int
    end: int
    sentences: tuple[Span, ...]

    def text(self, document: Document) -> str:
        return document.text[self.start : self.end]


def chunker_id(variant: Variant) -> str:
    """Name of the folder for a variant's chunks: chunker and the parameters it depends on."""
    words = f"{variant.chunker}-w{variant.passage_max_words}"
    if variant.chunker == "rule":
        return f"{words}-o{variant.passage_stride_sentences}"
    name = variant.chunker.replace("-", "_")
    parameter = "merge" if variant.chunker == "semantic" else "boundary"
    if variant.threshold_mode == "percentile":
        return f"{words}-p{getattr(variant, f'{name}_{parameter}_percentile'):g}"
    return f"{words}-t{getattr(variant, f'{name}_{parameter}_threshold'):g}"


def needs_vectors(variant: Variant) -> bool:
    """Whether a variant's chunks depend on the sentence encoder."""
    return variant.chunker != "rule"


def chunk(document: Document, chunkers: dict[str, Variant], encoder: Encoder) -> dict[str, list[Passage]]:
    """The passages of one document under each of the named chunkers, in order.

    No passage comes from a document without a letter or digit. The encoder is asked only where a
    chunker needs it.
    """
    spans = sentences(document.text)
    texts = [document.text[start:end] for start, end in spans]
    counts = [len(text.split()) for text in texts]
    vectors = None
    if spans and any(needs_vectors(variant) for variant in chunkers.values()):
        vectors = encoder.encode(texts).vectors
    return {
        name: [_passage(document.doc_id, n, spans[a:b]) for n, (a, b) in enumerate(chunk_ranges(counts, vectors, variant))]
        for name, variant in chunkers.items()
    }


def chunk_ranges(counts: list[int], vectors: np.ndarray | None, variant: Variant) -> list[tuple[int, int]]:
    """Half-open sentence ranges of the chunks, from word counts and, where needed, sentence vectors (n, d)."""
    budget = variant.passage_max_words
    if not counts:
        return []
    if variant.chunker == "rule":
        return rule_ranges(counts, budget, variant.passage_stride_sentences)
    if variant.chunker == "semantic":
        return semantic_ranges(counts, vectors, budget, _merge_threshold(vectors, variant))
    return topic_shift_ranges(counts, vectors, budget, _boundary_threshold(vectors, variant))


def rule_ranges(counts: list[int], budget: int, overlap: int) -> list[tuple[int, int]]:
    """Greedy windows of at most `budget` words; each starts with the last `overlap` sentences of the one before.

    The overlap is given up where it would leave no room for a new sentence, so that no chunk lies
    inside the one before; a sentence over the budget is a chunk of its own.
    """
    if not 0 <= overlap < budget:
        raise ValueError(f"overlap of {overlap} sentences does not fit a budget of {budget} words")
    ranges, start = [], 0
    for i in range(1, len(counts) + 1):
        if i < len(counts) and sum(counts[start : i + 1]) <= budget:
            continue
        ranges.append((start, i))
        start = max(i - overlap, start + 1)
        while start < i and (i == len(counts) or sum(counts[start : i + 1]) > budget):
            start += 1
    return ranges


def semantic_ranges(counts: list[int], vectors: np.ndarray, budget: int, threshold: float) -> list[tuple[int, int]]:
    """Sentence j joins the chunk iff cos(e(j), mean of the chunk's vectors) >= threshold and the budget holds."""
    ranges, start = [], 0
    for i in range(1, len(counts) + 1):
        if i < len(counts) and sum(counts[start : i + 1]) <= budget:
            centre = vectors[start:i].astype(np.float64).mean(axis=0)
            if cosine(vectors[i], centre) >= threshold:
                continue
        ranges.append((start, i))
        start = i
    return ranges


def topic_shift_ranges(counts: list[int], vectors: np.ndarray, budget: int, threshold: float) -> list[tuple[int, int]]:
    """A chunk starts before sentence i iff 1 - cos(e(i-1), e(i)) > threshold, or the budget would break."""
    ranges, start = [], 0
    for i in range(1, len(counts) + 1):
        fits = i < len(counts) and sum(counts[start : i + 1]) <= budget
        if fits and 1 - cosine(vectors[i - 1], vectors[i]) <= threshold:
            continue
        ranges.append((start, i))
        start = i
    return ranges


def adjacent_drifts(vectors: np.ndarray) -> np.ndarray:
    """1 - cosine of each sentence with the one before; shape (n - 1,), or (0,) for fewer than two sentences."""
    return np.array([1 - cosine(a, b) for a, b in zip(vectors, vectors[1:], strict=False)])


def _boundary_threshold(vectors: np.ndarray, variant: Variant) -> float:
    """The drift above which a chunk ends: the paper's constant, or a percentile of this document's own drifts."""
    drifts = adjacent_drifts(vectors)
    if variant.threshold_mode == "absolute" or not len(drifts):
        return variant.topic_shift_boundary_threshold
    return float(np.percentile(drifts, variant.topic_shift_boundary_percentile))


def _merge_threshold(vectors: np.ndarray, variant: Variant) -> float:
    if variant.threshold_mode == "absolute" or len(vectors) < 2:
        return variant.semantic_merge_threshold
    near = [cosine(a, b) for a, b in zip(vectors[1:], vectors, strict=False)]
    return float(np.percentile(near, variant.semantic_merge_percentile))


def _passage(doc_id: str, number: int, spans: list[Span]) -> Passage:
    return Passage(f"{doc_id}#{number}", doc_id, spans[0].start, spans[-1].end, tuple(spans))


def passages_line(doc_id: str, passages: list[Passage]) -> str:
    """The line of `passages.jsonl` for one document: `doc_id`, and each passage as its sentences' spans."""
    spans = json.dumps([p.sentences for p in passages])  # whole numbers: nothing to round, which takes its time
    return f'{{"doc_id": {paths.to_json(doc_id)}, "passages": {spans}}}\n'


def about(slice_: Slice, chunker: str, encoder: str | None, lengths: Sequence[int]) -> dict[str, Any]:
    """The content of `chunks.json`: what the chunks were made from and how long they are, in words."""
    return {"chunker": chunker, **origin(slice_, encoder), **length_statistics(lengths)}


def origin(slice_: Slice, encoder: str | None) -> dict[str, Any]:
    """Which documents and which encoder, if any, chunks were made from."""
    return {"documents_sha256": paths.sha256(slice_.folder / "documents.jsonl"), "encoder": encoder}


def length_statistics(lengths: Sequence[int]) -> dict[str, float]:
    """Number of chunks and their length in words: mean, and the 5th, 50th and 95th percentile."""
    low, middle, high = np.percentile(lengths, [5, 50, 95]) if lengths else (0.0, 0.0, 0.0)
    mean = float(np.mean(lengths)) if lengths else 0.0
    return {"chunks": len(lengths), "mean_words": mean, "p5_words": low, "p50_words": middle, "p95_words": high}


class PassageFile:
    """A file of `passages_line`s, read one document at a time."""

    def __init__(self, path: Path):
        self._path = path
        self._offsets: dict[str, int] = {}
        offset = 0
        with open(path, "rb") as file:
            for line in file:
                # Each line starts {"doc_id": "…", and ids may hold escapes, so let JSON end the string.
                head = line[: line.index(b'"passages"')].rstrip(b" ,") + b"}"
                self._offsets[json.loads(head)["doc_id"]] = offset
                offset += len(line)

    def doc_ids(self) -> list[str]:
        return list(self._offsets)

    def passages(self, doc_id: str) -> list[Passage]:
        with open(self._path, "rb") as file:
            file.seek(self._offsets[doc_id])
            spans = json.loads(file.readline())["passages"]
        return [_passage(doc_id, i, [Span._make(span) for span in passage]) for i, passage in enumerate(spans)]
