"""Encoding against the fp32 matrix product, and what each precision and backend gains and changes."""

import dataclasses
import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.show import heading, show
from lib import chunking, steps
from lib.encoders import Encoder, cosine, forward_passes
from lib.errors import WorkbookError
from lib.preparing import prepare
from lib.slices import Slice
from lib.variants import ModelSpec, Profile, load_profile, load_variants
from lib.vector_cache import VectorCache

FLOP_A_TOKEN = 2 * 6 * 12 * 384**2  # of all-MiniLM-L6-v2's matrix products, attention aside
ROUNDS = 7
SIDE = 2048  # of the square matrices that are multiplied
WAYS = (("torch", "bf16"), ("onnx", "fp32"), ("openvino", "fp32"), ("openvino", "bf16"))
CHUNKED = ["semantic-current", "topic-shift-current"]
EVIDENCED = ["rule-minilm", "semantic-current"]


class Made(NamedTuple):
    """What a way of encoding leads to: unit vectors (n, 384), where chunks end, and which characters are evidence."""

    vectors: np.ndarray
    boundaries: set[tuple]
    evidence: set[tuple]


def measure(folder: Path) -> None:
    real = os.environ.get("WORKBOOK_REAL_DATA")
    slices_ = {"sample": "sample"} | ({"slice": str(Path(real) / "slice")} if real else {})
    for name, given in slices_.items():
        prepare(given, folder / name)
    texts = {name: steps.texts_to_encode(Slice(folder / name), load_variants(["all"])) for name in slices_}
    profile = load_profile("embedded")
    largest = texts["slice" if real else "sample"]
    rate = statistics.median(_shares_of_peak(profile.encoder, largest))
    show("encoding / fp32 matrix product", rate, "at least 0.65", f"{len(largest):,} texts, median of {ROUNDS} rounds")
    ways = dict(_available(profile.encoder))
    for label, ratio in _speeds(profile.encoder, ways, largest).items():
        show(f"speed of {label} / fp32 by torch", ratio)
    for name, found in texts.items():
        _show_agreement(folder, name, found, profile, ways)


def _available(encoder: ModelSpec) -> Iterator[tuple[str, ModelSpec]]:
    """The ways whose packages are installed, by label; the others are named in a line."""
    for backend, precision in WAYS:
        spec = dataclasses.replace(encoder, backend=backend, precision=precision)
        try:
            for _ in forward_passes(spec, ["Ice creeps."]):
                yield spec.label, spec
        except WorkbookError as error:
            print(f"not measured: {error}", flush=True)


def _shares_of_peak(encoder: ModelSpec, texts: list[str]) -> Iterator[float]:
    """Rate of encoding a part of the texts over that of a matrix product, measured before and after, a value a round."""
    list(forward_passes(encoder, texts[:64]))
    before = _matrix_rate()
    for part in _parts(texts):
        rate, after = _encoding_rate(encoder, part), _matrix_rate()
        yield 2 * rate / (before + after)
        before = after


def _speeds(plain: ModelSpec, ways: dict[str, ModelSpec], texts: list[str]) -> dict[str, float]:
    """Rate of each way over that of fp32 by torch, the median over rounds in which all encode the same texts in turn."""
    ratios: dict[str, list[float]] = {label: [] for label in ways}
    for part in _parts(texts):
        before = _encoding_rate(plain, part)
        for label, spec in ways.items():
            rate, after = _encoding_rate(spec, part), _encoding_rate(plain, part)
            ratios[label].append(2 * rate / (before + after))
            before = after
    return {label: statistics.median(found) for label, found in ratios.items()}


def _parts(texts: list[str]) -> list[list[str]]:
    """Distinct parts of the texts, alike in length: one a round, of at most a thousand."""
    return [texts[start::ROUNDS][:1000] for start in range(ROUNDS)]


def _encoding_rate(encoder: ModelSpec, texts: list[str]) -> float:
    """FLOP/s of the model's matrix products over real tokens; tokenising, padding and dummy rows earn nothing."""
    started = time.perf_counter()
    lengths = [min(n, encoder.max_tokens) for part in forward_passes(encoder, texts) for _, _, n in part]
    return sum(lengths) * FLOP_A_TOKEN / (time.perf_counter() - started)


def _matrix_rate(seconds: float = 1.0) -> float:
    import torch

    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        a @ b
        count += 1
    return count * 2 * SIDE**3 / (time.perf_counter() - started)


def _show_agreement(folder: Path, name: str, texts: list[str], profile: Profile, ways: dict[str, ModelSpec]) -> None:
    heading(f"agreement with fp32 by torch, {name}: {len(texts):,} texts")
    made = partial(_made, folder, name, texts, profile)
    plain = made(profile.encoder)
    for label, spec in ways.items():
        other = made(spec)
        cosines = np.array([cosine(one, two) for one, two in zip(plain.vectors, other.vectors, strict=True)])
        show(f"{label}: smallest cosine", cosines.min(), note=f"1 - {1 - cosines.min():.1e}")
        show(f"{label}: mean cosine", cosines.mean(), note=f"1 - {1 - cosines.mean():.1e}")
        for what in ("boundaries", "evidence"):
            one, two = getattr(plain, what), getattr(other, what)
            note = f"{len(one & two):,} of {len(one | two):,}"
            show(
                f"{label}: unchanged {'chunk boundaries' if what == 'boundaries' else what}", agreement(one, two), note=note
            )


def agreement(one: set, two: set) -> float:
    """What both have over what either has; 1 where neither has any."""
    return len(one & two) / len(one | two) if one | two else 1.0


def _made(folder: Path, name: str, texts: list[str], profile: Profile, spec: ModelSpec) -> Made:
    slice_ = Slice(folder / name)
    cache = VectorCache(folder / "vectors.sqlite")
    reranked = dataclasses.replace(profile, encoder=spec, sentence_reranker=spec)
    models = steps.models_of(reranked, cache)
    vectors = models.encoder.encode(texts).vectors
    sweep = folder / "made" / name / "-".join(("fp32", *spec.ways))
    found = [(v, query) for v in load_variants(EVIDENCED) for query in slice_.queries]
    items = ((v, query, steps.collect_one(sweep, slice_, query, v, models).evidence) for v, query in found)
    evidence = {(v.name, q.query_id, e.doc_id, e.start, e.end) for v, q, chosen in items for e in chosen}
    return Made(vectors, set(_boundaries(slice_, models.encoder)), evidence)


def _boundaries(slice_: Slice, encoder: Encoder) -> Iterator[tuple]:
    """(chunker, doc_id, first character) of every chunk but the first of a document."""
    chunkers = {chunking.chunker_id(variant): variant for variant in load_variants(CHUNKED)}
    for document in slice_.all_documents():
        for chunker, passages in chunking.chunk(document, chunkers, encoder).items():
            yield from ((chunker, document.doc_id, passage.start) for passage in passages[1:])
