"""Systems as data: a `Variant` is everything that distinguishes two systems (METHOD, sections 1-6).

One YAML file a system lies in `params/variants/`, one a profile (which models and services stand
behind the pipeline) in `params/profiles/`. An ablation is `dataclasses.replace`.
"""

import dataclasses
import difflib
import itertools
import math
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from lib import paths
from lib.errors import WorkbookError


@dataclass(frozen=True)
class Variant:
    """One system. Defaults are the paper's `caes-rag-rrf`; its Table 3 gives the constants.

    Word counts are white-space separated words; thresholds are cosines or 1 - cosine.
    """

    name: str
    description: str = ""
    # passages
    chunker: Literal["rule", "semantic", "topic-shift"] = "rule"
    passage_max_words: int = 140
    passage_stride_sentences: int = 1
    threshold_mode: Literal["absolute", "percentile"] = "absolute"
    semantic_merge_threshold: float = 0.72
    topic_shift_boundary_threshold: float = 0.18
    semantic_merge_percentile: float = 25.0
    topic_shift_boundary_percentile: float = 75.0
    # ranked lists and their fusion
    retrieval: Literal["none", "bm25", "multi-query"] = "multi-query"
    bm25_k1: float = 1.5
    bm25_b: float = 0.75
    query_expansion: bool = True
    max_query_keywords: int = 12
    query_variant_limit: int = 5
    prf: bool = True
    prf_top_passages: int = 4
    prf_terms: int = 6
    dense: bool = False
    rrf_k: int = 60
    # reranking and selection
    rerank: bool = True
    preselect_k: int = 24
    citation_graph_boost: float = 0.05
    citation_prior_normalization: Literal["max", "sum"] = "max"
    temporal_boost: float = 0.10
    top_k_passages: int = 20
    per_doc_limit: int | None = None
    near_duplicate_jaccard: float = 0.9
    temporal_coverage: bool = True
    # sentence evidence
    candidate_sentences_per_passage: int = 5
    max_selected_answer_candidates: int = 10
    evidence_scoring: Literal["overlap", "position"] = "overlap"
    sentence_rerank: bool = False
    sentence_selection: Literal["best", "mmr", "coverage"] = "best"
    selection_pool: int = 15
    consensus_weight: float = 0.0  # of mmr, as the next
    redundancy_weight: float = 0.2
    # answers
    generator: Literal["profile", "titles"] = "profile"
    max_answer_sentences: int = 5
    max_answer_words: int = 60

    def __post_init__(self):
        if self.name.strip() in ("", ".", "..") or not self.name.isprintable() or set(self.name) & set("/\\"):
            raise ValueError(f"name {self.name!r} cannot be the name of a folder; use letters, digits and -")
        for field in _POSITIVE:
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, not {getattr(self, field)}")
        if not 0 <= self.passage_stride_sentences < self.passage_max_words:
            raise ValueError("passage_stride_sentences must be at least 0 and smaller than passage_max_words")
        if self.per_doc_limit is not None and self.per_doc_limit < 1:
            raise ValueError("per_doc_limit must be at least 1, or null for no limit")
        if not 0 <= self.bm25_b <= 1 or self.bm25_k1 < 0:
            raise ValueError("bm25_b must lie in [0, 1] and bm25_k1 must not be negative")
        for field in ("consensus_weight", "redundancy_weight"):
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"{field} must lie in [0, 1]")
        for field in ("semantic_merge_percentile", "topic_shift_boundary_percentile"):
            if not 0 <= getattr(self, field) <= 100:
                raise ValueError(f"{field} must lie in [0, 100]")

    @property
    def reads_text(self) -> bool:
        """Whether the system reads its documents at all; the naive baseline only lists their titles."""
        return self.generator != "titles"

    @property
    def allocates_together(self) -> bool:
        """Whether evidence sentences are chosen with a view to each other, by their vectors (`lib.allocation`)."""
        return self.sentence_selection != "best"


_POSITIVE = (
    "passage_max_words",
    "max_query_keywords",
    "query_variant_limit",
    "prf_top_passages",
    "prf_terms",
    "rrf_k",
    "preselect_k",
    "top_k_passages",
    "candidate_sentences_per_passage",
    "max_selected_answer_candidates",
    "selection_pool",
    "max_answer_sentences",
    "max_answer_words",
)


@dataclass(frozen=True)
class ModelSpec:
    """A model and where it comes from.

    `package` names an installed Python package that carries the weights; without it the model is
    taken by name from the local model cache or hub, or from a folder. `sha256` is the hash that its
    `model.safetensors` must have, where it is known. `kind` is `bi-encoder` (score = cosine of two
    sentence vectors) or `cross-encoder` (score = raw logit of the pair, identity activation).
    `precision` and `backend` say how a bi-encoder computes: what differs from fp32 by torch has vectors
    of its own in the cache, and a label of its own.
    """

    name: str
    kind: Literal["bi-encoder", "cross-encoder"] = "bi-encoder"
    package: str | None = None
    sha256: str | None = None
    max_tokens: int = 256
    precision: Literal["fp32", "bf16"] = "fp32"
    backend: Literal["torch", "onnx", "openvino"] = "torch"

    def __post_init__(self):
        if self.kind == "cross-encoder" and self.ways:
            raise ValueError("precision and backend can be chosen for a bi-encoder only; leave them out")
        if self.backend == "onnx" and self.precision == "bf16":
            raise ValueError("backend onnx computes in fp32 only; for bf16 choose torch or openvino")

    @property
    def ways(self) -> tuple[str, ...]:
        """What differs from fp32 by torch: `("openvino", "bf16")`, or nothing."""
        return tuple(way for way in (self.backend, self.precision) if way not in ("torch", "fp32"))

    @property
    def plain(self) -> "ModelSpec":
        """The same model in fp32 by torch."""
        return dataclasses.replace(self, precision="fp32", backend="torch")

    @property
    def label(self) -> str:
        """The name that stands beside every figure: `all-MiniLM-L6-v2`, or `all-MiniLM-L6-v2 (bf16)`."""
        name = self.name.rstrip("/").rsplit("/", 1)[-1]
        return f"{name} ({', '.join(self.ways)})" if self.ways else name


@dataclass(frozen=True)
class ServiceSpec:
    """An OpenAI-compatible model service and how to use it.

    `key_env` names the environment variable that holds the key; keys stand nowhere else. `structured`
    says what the server can do: `schema` (strict JSON schema), `json` (any JSON object), or `text`
    (nothing; the one JSON object is then sought in the reply). `reasoning` models take no temperature
    and call the token limit `max_completion_tokens`. `reply_attempts` bounds the replies drawn for one
    request, `max_waits` the waits for a rate limit or a server fault.
    """

    model: str
    base_url: str | None = None
    key_env: str = "OPENAI_API_KEY"
    key_required: bool = True
    temperature: float | None = None
    seed: int | None = None
    reasoning: bool = False
    reasoning_effort: str | None = None
    max_tokens: int = 800
    structured: Literal["schema", "json", "text"] = "schema"
    concurrency: int = 8
    timeout_seconds: float = 60.0
    max_waits: int = 6
    reply_attempts: int = 2

    def __post_init__(self):
        for field in ("max_tokens", "concurrency", "reply_attempts"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, not {getattr(self, field)}")
        if self.max_waits < 0 or self.timeout_seconds <= 0:
            raise ValueError("max_waits must not be negative and timeout_seconds must be positive")


@dataclass(frozen=True)
class Profile:
    """Which models and services stand behind the pipeline. The same code runs under every profile.

    `prompt` names a file in `params/prompts/`; `repeat` asks for that many independent answers to each
    query, the first of which is the run and the others its noise. BERTScore takes the vectors of
    `bertscore` (the sentence encoder where there is none) at a layer (the last where none is given).
    `judge` grades nuggets and judges answers: the similarity `proxy`, or the model of `judge_service`.
    """

    name: str
    encoder: ModelSpec
    sentence_reranker: ModelSpec
    generator: Literal["extractive", "openai", "openai-batch"] = "extractive"
    service: ServiceSpec | None = None
    prompt: str = "answer"
    repeat: int = 1
    bertscore: ModelSpec | None = None
    bertscore_layer: int | None = None
    bertscore_rescaled: bool = False
    judge: Literal["proxy", "openai"] = "proxy"
    judge_service: ServiceSpec | None = None

    def __post_init__(self):
        if self.judge != "proxy" and self.judge_service is None:
            raise ValueError(f"judge '{self.judge}' needs a 'judge_service' block with at least a model")
        if self.judge_service and self.service and _same_model(self.judge_service, self.service):
            raise ValueError("judge_service must not be the model that writes the answers; name another")
        if self.bertscore and self.bertscore.ways:
            raise ValueError("bertscore: bert-score computes in fp32 by torch; leave out precision and backend")
        if self.bertscore_layer is not None and self.bertscore_layer < 1:
            raise ValueError(f"bertscore_layer must be at least 1, not {self.bertscore_layer}")
        if self.generator != "extractive" and self.service is None:
            raise ValueError(f"generator '{self.generator}' needs a 'service' block with at least a model")
        if self.repeat < 1 or (self.repeat > 1 and self.generator != "openai"):
            raise ValueError("repeat must be 1, or more with the generator openai")


def _same_model(one: ServiceSpec, other: ServiceSpec) -> bool:
    return (one.model, one.base_url) == (other.model, other.base_url)


def stages(variant: Variant) -> dict[str, Variant]:
    """The staged comparison of the paper's section 4, up to and including `variant`: label -> system.

    From BM25 on the original query, one part of the variant is switched on at a time.
    """
    if variant.retrieval == "none":
        return {variant.name: variant}
    off = {"query_expansion": False, "prf": False, "rerank": False, "sentence_rerank": False, "dense": False}
    current = dataclasses.replace(variant, retrieval="bm25", sentence_selection="best", **off)
    found = {"BM25": current}
    labels = {"query_expansion": "+ query variants", "prf": "+ feedback", "dense": "+ dense list", "rerank": "+ reranking"}
    for part, label in {**labels, "sentence_rerank": "+ sentence reranking"}.items():
        if getattr(variant, part):
            current = dataclasses.replace(current, **{"retrieval": variant.retrieval, part: True})
            found[label] = current
    if variant.allocates_together:
        current = dataclasses.replace(current, retrieval=variant.retrieval, sentence_selection=variant.sentence_selection)
        found["+ late allocation"] = current
    return found if current == variant else {**found, "+ fusion": variant}


def load_variant(path: Path, overrides: dict[str, str] | None = None) -> Variant:
    """The variant in a YAML file, with `key=value` overrides. Raises WorkbookError naming file and parameter."""
    values = read_yaml(path)
    where = dict.fromkeys(values, str(path))
    for key, text in (overrides or {}).items():
        where[key] = f"--set {key}={text}"
        try:
            values[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise WorkbookError(f"{where[key]!r}: the value is not YAML; quote it") from None
    return build(Variant, values, where, str(path))


def load_variants(
    names: list[str], overrides: dict[str, str] | None = None, grid: dict[str, list[str]] | None = None
) -> list[Variant]:
    """Variants by name (`all`, a name in `params/variants/`, or a path to a YAML file), in the given order.

    A grid, parameter -> values, makes a system of every combination of its values, `NAME+parameter=value`.
    """
    folder = paths.PARAMS / "variants"
    known = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    files = []
    for name in names:
        if name == "all":
            files += known.values()
        elif name in known:
            files.append(known[name])
        elif name.endswith((".yaml", ".yml")):
            files.append(Path(name))
        else:
            raise WorkbookError(f"--variants: no system '{name}' in {folder}{_nearest(name, known)}")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())] if grid else [{}]
    variants = [_at(path, overrides or {}, point) for path in dict.fromkeys(files) for point in points]
    twice = [v.name for i, v in enumerate(variants) if v.name in {w.name for w in variants[:i]}]
    if twice:
        remedy = "give each value once" if grid else "give each file its own name"
        raise WorkbookError(f"--variants: two systems are called '{twice[0]}'; {remedy}")
    return variants


def _at(path: Path, overrides: dict[str, str], point: dict[str, str]) -> Variant:
    """The variant in a file at one point of a grid, which its name tells."""
    try:
        variant = load_variant(path, {**overrides, **point})
        told = [f"{key}={getattr(variant, key)}" for key in point]  # as understood: 060 is the number 48
        return dataclasses.replace(variant, name="+".join([variant.name, *told]))
    except (WorkbookError, ValueError) as error:
        raise WorkbookError(str(error).replace("--set ", "--grid ") if point else str(error)) from None


def load_profile(name: str) -> Profile:
    """The profile called `name` in `params/profiles/`, or in the YAML file `name`."""
    folder = paths.PARAMS / "profiles"
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.exists():
        known = [p.stem for p in sorted(folder.glob("*.yaml"))]
        raise WorkbookError(f"--profile: no profile '{name}' in {folder}{_nearest(name, known)}")
    values = read_yaml(path)
    models = dict.fromkeys(("encoder", "sentence_reranker", "bertscore"), ModelSpec)
    for key, cls in {**models, "service": ServiceSpec, "judge_service": ServiceSpec}.items():
        if isinstance(values.get(key), dict):
            where = dict.fromkeys(values[key], f"{path}: {key}")
            values[key] = build(cls, values[key], where, f"{path}: {key}")
    return build(Profile, values, dict.fromkeys(values, str(path)), str(path))


def build(cls: type, values: dict[str, Any], where: dict[str, str], source: str):
    """An instance of a frozen dataclass from parsed YAML; every name and type is checked first."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for key, value in values.items():
        if key not in fields:
            raise WorkbookError(f"{where[key]}: unknown parameter '{key}'{_nearest(str(key), fields)}")
        if not _fits(value, hints[key]):
            raise WorkbookError(f"{where[key]}: parameter '{key}' must be {_spell(hints[key])}, not {value!r}")
    missing = [n for n, f in fields.items() if n not in values and f.default is dataclasses.MISSING]
    if missing:
        raise WorkbookError(f"{source}: parameter '{missing[0]}' is missing")
    # A whole number is a fine way to write a float parameter in YAML.
    values = {k: float(v) if _is_float(hints[k]) and v is not None else v for k, v in values.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise WorkbookError(f"{source}: {error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The `parameter: value` lines of a YAML file. Raises WorkbookError naming file and line."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkbookError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise WorkbookError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise WorkbookError(f"{path}:{line}: malformed YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(values, dict):
        raise WorkbookError(f"{path}: expected 'parameter: value' lines")
    return values


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value in typing.get_args(hint) and not isinstance(value, bool)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, hint)


def _is_float(hint: Any) -> bool:
    return hint is float or float in typing.get_args(hint)


def _spell(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_spell(part) for part in typing.get_args(hint))
    names = {bool: "true or false", int: "a whole number", float: "a number (write 0.001, not 1e-3)", str: "text"}
    return names.get(hint, "null" if hint is type(None) else f"a block of {hint.__name__} fields")


def _nearest(name: str, known) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"
