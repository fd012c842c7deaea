"""Sentences -> vectors, pairs -> scores: the only module, beside `bertscore`, that loads a model.

Results are cached per model and text in one SQLite file, which several processes may use at once.
Whoever finds texts missing takes a lock, looks again, computes the rest and stores it, so that each
text is encoded once, whatever runs beside it. torch is imported only when something is missing.

The same text gives the same bytes whatever it is encoded with: every forward pass has the same fixed
shape and runs on one core, as many passes side by side as there are cores. BERT encoders with mean
pooling, as all-MiniLM-L6-v2 is, go through `lib.bert`: texts end to end in a pass, longest first, the
rest of a pass filled with the longest that still fit. Any other model goes through its own modules, and
the backends `onnx` and `openvino` through an exported file: there texts are batched by token length
rounded up to a multiple of 6, and a pass is filled with dummy rows. (Without that, batches of 2 to 5
rows differ from larger ones in the last bits.)
"""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from lib import paths
from lib.errors import WorkbookError
from lib.models import backend_versions, check_weights, fingerprint, is_plain_bert, locate, quiet
from lib.variants import ModelSpec
from lib.vector_cache import Row, VectorCache, cache_key_of

TOKENS_A_PASS = 768  # of one forward pass; larger ones were not faster
PADDED_TOKENS_A_PASS = 384  # rows x padded length; the fewer, the fewer dummy rows
TEXTS_AT_ONCE = 8192  # are tokenised and spread over passes together
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
        spec = self.spec
        made_by = *spec.ways, *backend_versions(spec)
        return cache_key_of("unit vector", fingerprint(spec), spec.max_tokens, text, *made_by)

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


class Engine(NamedTuple):
    """A loaded model: texts -> token ids, token counts -> passes of indices, rows of token ids -> unit vectors."""

    tokenize: Callable[[list[str]], list[list[int]]]
    plan: Callable[[list[int]], list[list[int]]]
    run: Callable[[list[list[int]]], np.ndarray]


@lru_cache(maxsize=4)
def _load(spec: ModelSpec) -> Engine:
    folder = locate(spec)
    check_weights(spec, folder)
    if is_plain_bert(folder):
        return _exported(spec, folder) if spec.backend != "torch" else _packed(spec, folder)
    if spec.ways:
        raise WorkbookError(
            f"model {spec.name}: {' and '.join(spec.ways)} can be had for BERT encoders with mean pooling and unit "
            "vectors only; leave out precision and backend"
        )
    return _as_it_is(spec, folder)


def _packed(spec: ModelSpec, folder: Path) -> Engine:
    from lib.bert import Packed, read_weights

    size = max(TOKENS_A_PASS, spec.max_tokens)
    model = Packed(read_weights(spec, folder), size, spec.precision)
    return Engine(_tokenizer(folder), lambda lengths: packed_passes(lengths, size), model)


def _exported(spec: ModelSpec, folder: Path) -> Engine:
    from lib.bert import exported

    run = exported(spec, folder)
    return Engine(_tokenizer(folder), _padded_passes(spec.max_tokens), _on_padded(run, spec.max_tokens))


def _as_it_is(spec: ModelSpec, folder: Path) -> Engine:
    """The model's own stack of modules."""
    quiet()
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = spec.max_tokens

    def tokenize(texts: list[str]) -> list[list[int]]:
        return model.tokenizer(texts, add_special_tokens=True, verbose=False)["input_ids"]

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            return model(features)["sentence_embedding"].numpy()

    return Engine(tokenize, _padded_passes(spec.max_tokens), _on_padded(run, spec.max_tokens))


def _tokenizer(folder: Path) -> Callable[[list[str]], list[list[int]]]:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # without it the library warns when a process forks
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()  # the file may ask for either
    tokenizer.no_padding()
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def forward_passes(
    spec: ModelSpec, texts: list[str], progress: bool = False
) -> Iterator[list[tuple[int, np.ndarray, int]]]:
    """Encode texts; yields, a thousand texts or so at a time, lists of (index, vector, token count).

    The token count is that of the whole text, before truncation to `spec.max_tokens`.
    """
    engine = _load(spec)
    with _progress_bar(len(texts), progress) as bar, one_core_each() as pool:
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            ids = engine.tokenize([paths.encodable(text) for text in texts[start : start + TEXTS_AT_ONCE]])
            rows = [_cut(row, spec.max_tokens) for row in ids]
            passes = engine.plan([len(row) for row in rows])
            part = []
            for chosen, vectors in zip(
                passes, pool.map(lambda p, rows=rows: engine.run([rows[i] for i in p]), passes), strict=True
            ):
                part += [(start + i, vector, len(ids[i])) for i, vector in zip(chosen, vectors, strict=True)]
                bar.update(len(chosen))
                if len(part) >= 1000:
                    yield part
                    part = []
            if part:
                yield part


def _cut(row: list[int], limit: int) -> list[int]:
    """A row of at most `limit` ids that keeps the closing special token, as the tokenizer's own truncation does."""
    return row if len(row) <= limit else row[: limit - 1] + row[-1:]


def packed_passes(lengths: list[int], size: int) -> list[list[int]]:
    """Indices of texts a pass of at most `size` tokens: the longest first, then the longest that still fit."""
    waiting = defaultdict(list)
    for index in reversed(range(len(lengths))):
        waiting[lengths[index]].append(index)
    descending, passes = sorted(waiting, reverse=True), []
    while any(waiting.values()):
        room, chosen = size, []
        for length in descending:
            while waiting[length] and length <= room:
                chosen.append(waiting[length].pop())
                room -= length
        passes.append(chosen)
    return passes


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


def _padded_passes(limit: int) -> Callable[[list[int]], list[list[int]]]:
    """Passes of texts alike in padded length, the shortest first."""

    def plan(lengths: list[int]) -> list[list[int]]:
        passes = []
        waiting = defaultdict(list)
        for index, length in enumerate(lengths):
            waiting[_padded(length, limit)].append(index)
        for padded, found in sorted(waiting.items()):
            rows = _rows_a_pass(padded)
            passes += [found[i : i + rows] for i in range(0, len(found), rows)]
        return passes

    return plan


def _rows_a_pass(padded: int) -> int:
    return max(1, PADDED_TOKENS_A_PASS // max(padded, 1))


def _on_padded(run: Callable[[np.ndarray, np.ndarray], np.ndarray], limit: int) -> Callable[[list[list[int]]], np.ndarray]:
    """`run` over ids and mask of a fixed shape, filled with dummy rows whose vectors are dropped."""

    def run_rows(rows: list[list[int]]) -> np.ndarray:
        padded = max(_padded(len(row), limit) for row in rows)
        ids, mask = np.zeros((2, _rows_a_pass(padded), padded), np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        mask[len(rows) :, 0] = 1
        return run(ids, mask)[: len(rows)]

    return run_rows


def _progress_bar(total: int, show: bool):
    from tqdm.auto import tqdm

    return tqdm(total=total, unit=" texts", desc="encoding", disable=not show, leave=False)
