"""Sentences -> vectors, pairs -> scores: the only module, beside `bertscore`, that loads a model.

Results are cached per model and text in one SQLite file, which several processes may use at once.
Whoever finds texts missing takes a lock, looks again, computes the rest and stores it, so that each
text is encoded once, whatever runs beside it. torch is imported only when something is missing.

The same text gives the same bytes whatever it is encoded with: texts are batched by token length
rounded up to a multiple of 6, and every forward pass of a length has the same fixed shape, filled
with dummy rows. (Without that, batches of 2 to 5 rows differ from larger ones in the last bits.)
Each pass runs on one core, and as many passes side by side as there are cores: nothing depends on
their number, and it is faster than all cores on one pass (53 to 59 % of the fp32
matrix-product rate instead of 45 %, two cores, `make bench`).
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from lib import paths
from lib.models import check_weights, fingerprint, locate, quiet
from lib.variants import ModelSpec
from lib.vector_cache import Row, VectorCache, cache_key_of

TOKENS_A_PASS = 768  # rows x padded length of one forward pass; larger ones were not faster
_LENGTH_STEP = 6
_DIMENSIONS = 384


class Encoded(NamedTuple):
    """Vectors of shape (n, 384), float32, unit length; and how many of the n texts exceeded the token limit."""

    vectors: np.ndarray
    truncated: int


class SentenceReranker(Protocol):
    """What late sentence reranking needs: a label for the outputs, and scores of one query's sentences.

    `truncated` counts the texts so far that exceeded the model's token limit.
    """

    label: str
    truncated: int

    def scores(self, query: str, sentences: Sequence[str]) -> list[float]: ...


class Encoder:
    """A bi-encoder behind the cache."""

    def __init__(self, spec: ModelSpec, cache: VectorCache | None = None):
        self.spec = spec
        self.label = spec.label
        self.cache = cache or VectorCache()

    def encode(self, texts: Sequence[str], progress: bool = False) -> Encoded:
        """Unit vectors of `texts`, from the cache where they are there. Empty in, shape (0, 384) out.

        A text without a token beyond the two special ones still has a vector; a zero vector is
        possible only for other models. Raises WorkbookError if texts are missing and the model is too.
        """
        keys = [self._key(text) for text in texts]
        of = dict(zip(keys, texts, strict=True))
        rows = self.cache.get_or_compute(keys, lambda missing: self._compute(missing, of, progress))
        vectors = np.stack([rows[key][0] for key in keys]) if keys else np.zeros((0, _DIMENSIONS), np.float32)
        return Encoded(vectors, sum(rows[key][1] > self.spec.max_tokens for key in keys))

    def _key(self, text: str) -> bytes:
        return cache_key_of("vector", fingerprint(self.spec), self.spec.max_tokens, text)

    def _compute(self, missing: list[bytes], of: dict[bytes, str], progress: bool) -> Iterator[list[Row]]:
        for part in forward_passes(self.spec, [of[key] for key in missing], progress):
            yield [(missing[i], vector, n_tokens) for i, vector, n_tokens in part]


class CosineReranker:
    """Late sentence reranking by the sentence encoder: a stand-in, and labelled as one."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self.label = f"cosine:{encoder.label}"
        self.truncated = 0

    def scores(self, query: str, sentences: Sequence[str]) -> list[float]:
        """Cosine of the query's vector with each sentence's, in [-1, 1]; empty in, empty out."""
        if not sentences:
            return []
        vectors, truncated = self.encoder.encode([query, *sentences])
        self.truncated += truncated
        return [cosine(vectors[0], vector) for vector in vectors[1:]]


class CrossEncoderReranker:
    """Late sentence reranking by a cross-encoder: raw logits (identity activation), cached per pair."""

    def __init__(self, spec: ModelSpec, cache: VectorCache | None = None):
        self.spec = spec
        self.label = f"{spec.label}, raw logits"
        self.truncated = 0
        self.cache = cache or VectorCache()

    def scores(self, query: str, sentences: Sequence[str]) -> list[float]:
        """One logit a sentence, unbounded; empty in, empty out."""
        keys = [cache_key_of("pair", fingerprint(self.spec), self.spec.max_tokens, query, text) for text in sentences]
        of = dict(zip(keys, sentences, strict=True))
        rows = self.cache.get_or_compute(keys, lambda missing: self._compute(query, missing, [of[key] for key in missing]))
        self.truncated += sum(rows[key][1] > self.spec.max_tokens for key in keys)
        return [float(rows[key][0][0]) for key in keys]

    def _compute(self, query: str, keys: list[bytes], sentences: list[str]) -> Iterator[list[Row]]:
        # One pair a pass: the score depends on nothing but the pair.
        pairs = [(query, text) for text in sentences]
        logits = self._model.predict(pairs, batch_size=1, show_progress_bar=False)
        lengths = [len(ids) for ids in self._model.tokenizer(pairs, verbose=False)["input_ids"]]
        yield [(key, np.array([logit]), n) for key, logit, n in zip(keys, logits, lengths, strict=True)]

    @cached_property
    def _model(self):
        folder = locate(self.spec)
        quiet()
        import torch
        from sentence_transformers import CrossEncoder

        check_weights(self.spec, folder)
        return CrossEncoder(str(folder), max_length=self.spec.max_tokens, activation_fn=torch.nn.Identity())


def reranker(spec: ModelSpec, cache: VectorCache | None = None) -> SentenceReranker:
    """The sentence reranker that a profile names."""
    if spec.kind == "cross-encoder":
        return CrossEncoderReranker(spec, cache)
    return CosineReranker(Encoder(spec, cache))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of two vectors in double precision; 0.0 if either is zero."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / norm if norm else 0.0


@lru_cache(maxsize=2)
def _load(spec: ModelSpec):
    folder = locate(spec)
    quiet()
    from sentence_transformers import SentenceTransformer

    check_weights(spec, folder)
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = spec.max_tokens
    return model


def forward_passes(spec: ModelSpec, texts: list[str], progress: bool = False):
    """Encode texts sorted by length; yields, a thousand texts or so at a time, lists of (index, vector, token count).

    The token count is that of the whole text, before truncation to `spec.max_tokens`.
    """
    model = _load(spec)
    ids = model.tokenizer([paths.encodable(text) for text in texts], add_special_tokens=True, verbose=False)["input_ids"]
    lengths = [len(row) for row in ids]
    order = sorted(range(len(texts)), key=lambda i: (_padded(lengths[i], spec.max_tokens), i))
    batches = list(_batches(order, lengths, spec.max_tokens))

    def run(batch: list[int]) -> np.ndarray:
        return _forward(model, [ids[i] for i in batch], _padded(lengths[batch[0]], spec.max_tokens), spec)

    part = []
    with _progress_bar(sum(min(n, spec.max_tokens) for n in lengths), progress) as bar, one_core_each() as pool:
        for batch, vectors in zip(batches, pool.map(run, batches), strict=True):
            part += [(i, vector, lengths[i]) for i, vector in zip(batch, vectors, strict=True)]
            bar.update(sum(min(lengths[i], spec.max_tokens) for i in batch))
            if len(part) >= 1000:
                yield part
                part = []
    if part:
        yield part


@contextmanager
def one_core_each():
    """A pool of one thread a core, each of which computes on its own core only."""
    import torch

    cores = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(cores)


def _padded(length: int, limit: int) -> int:
    return min(limit, -(-length // _LENGTH_STEP) * _LENGTH_STEP)


def _batches(order: list[int], lengths: list[int], limit: int):
    batch: list[int] = []
    for i in order:
        padded = _padded(lengths[i], limit)
        if batch and (padded != _padded(lengths[batch[0]], limit) or len(batch) == max(1, TOKENS_A_PASS // padded)):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _forward(model, rows: list[list[int]], padded: int, spec: ModelSpec) -> np.ndarray:
    import torch

    shape = max(1, TOKENS_A_PASS // padded), padded
    inputs, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    for number, row in enumerate(rows):
        # Truncation keeps the closing special token, as the tokenizer's own does.
        row = row if len(row) <= spec.max_tokens else row[: spec.max_tokens - 1] + row[-1:]
        inputs[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = 1
    mask[len(rows) :, 0] = 1
    with torch.inference_mode():
        out = model({"input_ids": inputs, "attention_mask": mask})["sentence_embedding"]
    return out[: len(rows)].numpy()


def _progress_bar(total: int, show: bool):
    from tqdm.auto import tqdm

    return tqdm(total=total, unit=" tokens", unit_scale=True, desc="encoding", disable=not show, leave=False)
