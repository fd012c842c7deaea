"""Pairs of texts -> BERTScore F1, by bert-score."""

import importlib.util
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lib.encoders import one_core_each
from lib.errors import WorkbookError
from lib.models import check_weights, fingerprint, locate, n_layers, quiet
from lib.variants import ModelSpec
from lib.vector_cache import Row, VectorCache, cache_key_of


class BertScorer:
    """BERTScore F1 by bert-score, raw or rescaled with its English baseline, cached per pair of texts.

    Each text goes through the model by itself, once, so that a value depends on nothing but its pair.
    `label` names the model and says `rescaled` where the values are; `truncated` counts the texts of all
    pairs so far that exceeded the tokenizer's own limit, a text once for each of its pairs.
    """

    def __init__(self, spec: ModelSpec, layer: int | None = None, rescaled: bool = False, cache: VectorCache | None = None):
        self.spec, self.rescaled = spec, rescaled
        self.layer = layer or n_layers(spec)
        self.label = f"{spec.label} rescaled" if rescaled else spec.label
        self.cache = cache or VectorCache()
        self.truncated = 0

    @property
    def fingerprint(self) -> str:
        """What identifies the model's weights."""
        return fingerprint(self.spec)

    def check(self) -> None:
        """Raise WorkbookError if the model, its layer or its baseline is not there; nothing is loaded."""
        locate(self.spec)
        if self.layer > n_layers(self.spec):
            n = n_layers(self.spec)
            raise WorkbookError(f"model {self.spec.name}: no layer {self.layer}; set bertscore_layer to at most {n}")
        if self.rescaled:
            self._rescale(0.0)

    def f1(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float | None]:
        """F1 of each pair (candidate, reference), negatives kept; None where it is not a number.

        A raw value is 0 where one of them is blank, as bert-score has it.
        """
        keys = {pair: cache_key_of("bertscore", fingerprint(self.spec), self.layer, *pair) for pair in pairs}
        pair_of = {key: pair for pair, key in keys.items()}
        rows = self.cache.get_or_compute(
            list(pair_of), lambda missing: self._compute({key: pair_of[key] for key in missing})
        )
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

    def _compute(self, missing: dict[bytes, tuple[str, str]]) -> Iterator[list[Row]]:
        self.check()
        texts = list(dict.fromkeys(text for pair in missing.values() for text in pair if text.strip()))
        inputs = [self._tokenized(text) for text in texts]  # here: a tokenizer serves one thread at a time
        with one_core_each() as pool:
            embedded = dict(zip(texts, pool.map(self._embed, inputs), strict=True))
        yield [(key, *_pair_f1(embedded.get(hyp), embedded.get(ref))) for key, (hyp, ref) in missing.items()]

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
        quiet()
        from bert_score.utils import get_tokenizer
        from transformers import AutoModel

        check_weights(self.spec, folder)
        tokenizer = get_tokenizer(str(folder), use_fast=True)
        weights = defaultdict(lambda: 1.0, {tokenizer.sep_token_id: 0.0, tokenizer.cls_token_id: 0.0})
        return AutoModel.from_pretrained(str(folder), num_hidden_layers=self.layer).eval(), tokenizer, weights


def _pair_f1(candidate: Any, reference: Any) -> tuple[np.ndarray, int]:
    """F1 of two embedded texts in an array of one, and how many of them were cut; raw 0 where one has no token."""
    if candidate is None or reference is None:
        return np.zeros(1), 0
    from bert_score.utils import greedy_cos_idf

    (hyp, hyp_cut), (ref, ref_cut) = candidate, reference
    if min(hyp[1].sum(), ref[1].sum()) <= 2:  # the two special tokens
        return np.zeros(1), 0
    # bert-score normalises in place, and turns NaN into 0.
    p, r, f = greedy_cos_idf(*(part.clone() for part in (*ref, *hyp)))
    return np.where(np.isnan((p + r).numpy()), np.nan, f.numpy()), int(hyp_cut) + int(ref_cut)
