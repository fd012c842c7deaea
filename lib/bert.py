"""Token ids -> unit vectors by a BERT encoder with mean pooling, straight from its weights.

`Packed` computes by torch: a pass holds texts end to end, without padding, so that all matrix products
but those of attention run over one table of fixed shape, in buffers that are kept. Attention sees one
text at a time; texts of the same length share a call. `exported` computes padded batches by ONNX Runtime
or OpenVINO, from a file that is made once from the same weights.

A vector depends on its text alone: each row of a matrix product of fixed shape is the same sum in the
same order, wherever the row lies, and each pass runs on one core.
"""

import hashlib
import json
import logging
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from filelock import FileLock

from lib import paths
from lib.errors import WorkbookError
from lib.models import backend_versions, fingerprint
from lib.variants import ModelSpec

Padded = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids and mask, both (rows, length) -> vectors


class Layer(NamedTuple):
    """Weights of a layer; those of products as (inputs, outputs), query, key and value in one."""

    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor
    out_norm: tuple[torch.Tensor, torch.Tensor]
    up: torch.Tensor
    up_bias: torch.Tensor
    down: torch.Tensor
    down_bias: torch.Tensor
    down_norm: tuple[torch.Tensor, torch.Tensor]


class Weights(NamedTuple):
    """All that an encoder is; `positions` hold the first token type too, since no text has another."""

    words: torch.Tensor
    positions: torch.Tensor
    norm: tuple[torch.Tensor, torch.Tensor]
    layers: list[Layer]
    n_heads: int
    epsilon: float


def read_weights(spec: ModelSpec, folder: Path) -> Weights:
    """The weights of the model in `folder`, of which `lib.models.is_plain_bert` holds."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if spec.max_tokens > config["max_position_embeddings"]:
        limit = config["max_position_embeddings"]
        raise WorkbookError(f"model {spec.name}: max_tokens is {spec.max_tokens}, but it has {limit} positions; lower it")
    found = {k.removeprefix("bert."): v.float() for k, v in load_file(folder / "model.safetensors").items()}
    try:
        layers = [_layer(found, f"encoder.layer.{i}.") for i in range(config["num_hidden_layers"])]
        positions = found["embeddings.position_embeddings.weight"] + found["embeddings.token_type_embeddings.weight"][0]
        words, norm = found["embeddings.word_embeddings.weight"], _norm(found, "embeddings.LayerNorm")
    except KeyError as error:
        raise WorkbookError(f"{folder / 'model.safetensors'}: no weight {error}; reinstall the model") from None
    return Weights(words, positions, norm, layers, config["num_attention_heads"], config["layer_norm_eps"])


def _layer(found: dict[str, torch.Tensor], at: str) -> Layer:
    def product(*names: str) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.cat([found[f"{at}{name}.weight"] for name in names])
        return weight.t().contiguous(), torch.cat([found[f"{at}{name}.bias"] for name in names])

    return Layer(
        *product("attention.self.query", "attention.self.key", "attention.self.value"),
        *product("attention.output.dense"),
        _norm(found, f"{at}attention.output.LayerNorm"),
        *product("intermediate.dense"),
        *product("output.dense"),
        _norm(found, f"{at}output.LayerNorm"),
    )


def _norm(found: dict[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return found[f"{name}.weight"], found[f"{name}.bias"]


class Run(NamedTuple):
    """Texts of one length that lie end to end in a pass."""

    start: int
    texts: int
    length: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.texts * self.length)


class Packed:
    """Passes of exactly `size` tokens. Under `bf16` products and attention are so; sums of layers and norms stay fp32."""

    def __init__(self, weights: Weights, size: int, precision: str):
        self.weights, self.size, self.bf16 = weights, size, precision == "bf16"
        if self.bf16:
            self.weights = weights._replace(layers=[_in_bf16(layer) for layer in weights.layers])
        self._local = threading.local()

    def __call__(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Unit vectors (n, d) of n rows of token ids, at most `size` in all; rows of equal length stand together."""
        runs = _runs([len(row) for row in rows])
        with torch.inference_mode():
            hidden = self._embedded(rows)
            for layer in self.weights.layers:
                hidden = (self._layer_bf16 if self.bf16 else self._layer_fp32)(layer, hidden, runs)
            means = [hidden[run.rows].view(run.texts, run.length, -1).sum(1) / max(run.length, 1) for run in runs]
            return F.normalize(torch.cat(means), dim=1).numpy()

    def _embedded(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        w = self.weights
        ids, places = torch.zeros(2, self.size, dtype=torch.long)
        filled = sum(map(len, rows))
        ids[:filled] = torch.tensor(list(chain.from_iterable(rows)), dtype=torch.long)
        places[:filled] = torch.tensor([i for row in rows for i in range(len(row))], dtype=torch.long)
        return self._normed(w.words[ids].add_(w.positions[places]), w.norm)

    def _layer_fp32(self, layer: Layer, hidden: torch.Tensor, runs: list[Run]) -> torch.Tensor:
        qkv, heads, added, wide = self._buffers()
        torch.addmm(layer.qkv_bias, hidden, layer.qkv, out=qkv)
        self._attend(qkv, runs, heads)
        torch.add(hidden, layer.out_bias, out=added).addmm_(heads, layer.out)
        hidden = self._normed(added, layer.out_norm)
        torch.ops.aten.gelu_(torch.addmm(layer.up_bias, hidden, layer.up, out=wide))
        torch.add(hidden, layer.down_bias, out=added).addmm_(wide, layer.down)
        return self._normed(added, layer.down_norm)

    def _layer_bf16(self, layer: Layer, hidden: torch.Tensor, runs: list[Run]) -> torch.Tensor:
        heads = torch.zeros(hidden.shape, dtype=torch.bfloat16)
        self._attend(F.linear(hidden.bfloat16(), layer.qkv, layer.qkv_bias), runs, heads)
        hidden = self._normed(F.linear(heads, layer.out, layer.out_bias) + hidden, layer.out_norm)
        wide = torch.ops.aten.gelu_(F.linear(hidden.bfloat16(), layer.up, layer.up_bias))
        return self._normed(F.linear(wide, layer.down, layer.down_bias) + hidden, layer.down_norm)

    def _attend(self, qkv: torch.Tensor, runs: list[Run], heads: torch.Tensor) -> None:
        """Write the attention of every text to itself into `heads`; rows of no text are left as they are."""
        n_heads, width = self.weights.n_heads, heads.shape[1]
        for run in runs:
            if run.length:
                parts = qkv[run.rows].view(run.texts, run.length, 3, n_heads, width // n_heads).permute(2, 0, 3, 1, 4)
                seen = F.scaled_dot_product_attention(*parts)
                heads[run.rows] = seen.transpose(1, 2).reshape(-1, width)

    def _normed(self, table: torch.Tensor, norm: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.layer_norm(table, table.shape[1:], *norm, self.weights.epsilon)

    def _buffers(self) -> tuple[torch.Tensor, ...]:
        """One set a thread: memory that is asked for anew costs page faults in every pass."""
        if not hasattr(self._local, "buffers"):
            narrow, wide = self.weights.layers[0].up.shape
            self._local.buffers = [torch.zeros(self.size, n) for n in (3 * narrow, narrow, narrow, wide)]
        return self._local.buffers


def _in_bf16(layer: Layer) -> Layer:
    """Products in bf16 and as (outputs, inputs), as the library's kernels for them take it; norms as they are."""
    made = {name: part.bfloat16() for name, part in layer._asdict().items() if not isinstance(part, tuple)}
    return layer._replace(**{name: part.t().contiguous() if part.ndim == 2 else part for name, part in made.items()})


def _runs(lengths: list[int]) -> list[Run]:
    runs, start = [], 0
    for length, group in groupby(lengths):
        runs.append(Run(start, len(list(group)), length))
        start += runs[-1].texts * length
    return runs


class _PaddedBert(torch.nn.Module):
    """The same encoder over a padded batch, in a form that converters can trace."""

    def __init__(self, weights: Weights):
        super().__init__()
        self.weights = weights

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        w = self.weights
        hidden = F.layer_norm(w.words[ids] + w.positions[: ids.shape[1]], (w.words.shape[1],), *w.norm, w.epsilon)
        weight = mask.float()
        unseen = (weight - 1)[:, None, None, :] * 1e9
        for layer in w.layers:
            qkv = (hidden @ layer.qkv + layer.qkv_bias).unflatten(2, (3, w.n_heads, -1)).permute(2, 0, 3, 1, 4)
            heads = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=unseen).transpose(1, 2).flatten(2)
            hidden = self._normed(heads @ layer.out + layer.out_bias + hidden, layer.out_norm)
            wide = F.gelu(hidden @ layer.up + layer.up_bias)
            hidden = self._normed(wide @ layer.down + layer.down_bias + hidden, layer.down_norm)
        total = (hidden * weight[:, :, None]).sum(1)
        return F.normalize(total / weight.sum(1, keepdim=True), dim=1)

    def _normed(self, table: torch.Tensor, norm: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.layer_norm(table, (self.weights.words.shape[1],), *norm, self.weights.epsilon)


def exported(spec: ModelSpec, folder: Path) -> Padded:
    """A function from padded ids and mask to unit vectors, by the spec's backend, on one core a call."""
    made_by = [*backend_versions(spec), torch.__version__, paths.sha256(Path(__file__))]
    name = f"{fingerprint(spec)[:16]}-{hashlib.sha256(repr(made_by).encode()).hexdigest()[:16]}"
    file = paths.cache_folder() / "exported" / f"{name}.{'onnx' if spec.backend == 'onnx' else 'xml'}"
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):
        if not file.exists():
            model = _PaddedBert(read_weights(spec, folder)).eval()
            (_export_onnx if spec.backend == "onnx" else _export_openvino)(model, file)
    return (_onnx if spec.backend == "onnx" else _openvino)(file, spec.precision)


def _example() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(3, 7, dtype=torch.long), torch.ones(3, 7, dtype=torch.long)


def _export_onnx(model: _PaddedBert, file: Path) -> None:
    from torch.export import Dim

    sizes = {0: Dim("rows"), 1: Dim("length", max=model.weights.positions.shape[0])}
    named = {"input_names": ["ids", "mask"], "output_names": ["vectors"]}
    with _without_advice():
        program = torch.onnx.export(model, _example(), dynamo=True, verbose=False, dynamic_shapes=(sizes, sizes), **named)
    with paths.atomic(file, "wb") as out:
        out.write(program.model_proto.SerializeToString())


@contextmanager
def _without_advice():
    """The exporter tells of packages that it could use, and of deprecations within its own libraries."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def _export_openvino(model: _PaddedBert, file: Path) -> None:
    # Not by openvino.convert_model, which reports its use over the network.
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    frontend = FrontEndManager().load_by_framework("pytorch")
    with torch.inference_mode(), _without_advice():
        decoder = TorchScriptPythonDecoder(model, example_input=_example())  # has to outlive the conversion
        made = frontend.convert(frontend.load(decoder))
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        openvino.save_model(made, Path(folder) / file.name, compress_to_fp16=False)
        for part in (file.with_suffix(".bin").name, file.name):  # the file that is looked for comes last
            (Path(folder) / part).replace(file.parent / part)


def _onnx(file: Path, precision: str) -> Padded:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0]


def _openvino(file: Path, precision: str) -> Padded:
    import openvino

    cores = torch.get_num_threads()
    # Without a hint it computes in bf16 wherever the processor can.
    hints = {"INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision]}
    hints |= {"NUM_STREAMS": str(cores), "INFERENCE_NUM_THREADS": str(cores)}
    compiled = openvino.Core().compile_model(str(file), "CPU", hints)
    local = threading.local()

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        if not hasattr(local, "request"):
            local.request = compiled.create_infer_request()
        return local.request.infer([ids, mask])[0].copy()

    return run
