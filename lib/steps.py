"""The steps of a run, each from files to files; notebooks call them and look at what they wrote.

A step that needs the one before runs it if its files are not there, so that every notebook works by
itself. A sweep folder holds `slice/`, `chunks/<chunker>/` and `runs/<variant>/`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from tqdm.auto import tqdm

from lib import answering, chunking, paths, splitting, trec
from lib.encoders import Encoder, reranker
from lib.errors import WorkbookError
from lib.evidence import Evidence, EvidenceSet, Models, collect
from lib.preparing import prepare
from lib.retrieval import Pool
from lib.runs import Runs, read_run
from lib.slices import Document, Query, Slice
from lib.text import one_line, sentences
from lib.variants import Profile, Variant, load_variant, load_variants
from lib.vector_cache import VectorCache

Look = Callable[[Pool], None]


def need_slice(sweep: Path, spec: str = "sample") -> Slice:
    """The sweep's slice, prepared from `spec` first if it is not there."""
    if not (sweep / "slice" / "slice.json").exists():
        prepare(spec, sweep / "slice")
    return Slice(sweep / "slice")


def models_of(profile: Profile, cache: VectorCache | None = None) -> Models:
    """The models of a profile behind the on-disk cache; nothing is loaded before it is needed."""
    return Models(Encoder(profile.encoder, cache), reranker(profile.sentence_reranker, cache))


def texts_to_encode(slice_: Slice, variants: Iterable[Variant]) -> list[str]:
    """Every text that some variant needs a vector of: nothing, or all sentences and queries of the slice, each once."""
    if not any(chunking.needs_vectors(v) or v.sentence_rerank or v.allocates_together for v in variants):
        return []
    texts = dict.fromkeys(query.text for query in slice_.queries)
    for document in split_documents(slice_):
        said = [document.text[a:b] for a, b in sentences(document.text)]
        texts |= dict.fromkeys(text for sentence in said for text in (sentence, one_line(sentence)))
    return list(texts)


def split_documents(slice_: Slice, at_once: int = 64) -> Iterator[Document]:
    """Every document of a slice, its sentences at hand for `lib.text.sentences`."""
    documents = slice_.all_documents()
    while part := list(islice(documents, at_once)):
        splitting.recall([document.text for document in part])
        yield from part


def chunk_slice(
    sweep: Path, slice_: Slice, variants: Iterable[Variant], encoder: Encoder, progress: bool = False
) -> dict[str, Path]:
    """Write the chunks of every distinct chunker over the whole slice; returns chunker -> `chunks/<chunker>`.

    Each document is split and its vectors are fetched once. `chunks.json`, written last, says which
    documents and which encoder the chunks were made from, and how long they are.
    """
    chunkers = {chunking.chunker_id(variant): variant for variant in variants}
    folders = {name: sweep / "chunks" / name for name in chunkers}
    lengths: dict[str, list[int]] = {name: [] for name in chunkers}
    with ExitStack() as stack:
        files = {n: stack.enter_context(paths.atomic(folder / "passages.jsonl")) for n, folder in folders.items()}
        documents = tqdm(split_documents(slice_), "chunking", slice_.report.documents, disable=not progress, leave=False)
        for document in documents:
            for name, passages in chunking.chunk(document, chunkers, encoder).items():
                files[name].write(chunking.passages_line(document.doc_id, passages))
                lengths[name] += [len(p.text(document).split()) for p in passages]
    for name, variant in chunkers.items():
        about = chunking.about(slice_, name, _label(variant, encoder), lengths[name])
        paths.write_text(folders[name] / "chunks.json", paths.to_json(about) + "\n")
    return folders


def need_chunks(sweep: Path, slice_: Slice, variant: Variant, encoder: Encoder) -> chunking.PassageFile:
    """A variant's chunks, made first if they are not there or were made from other documents or another encoder."""
    folder = sweep / "chunks" / chunking.chunker_id(variant)
    about = folder / "chunks.json"
    origin = chunking.origin(slice_, _label(variant, encoder))
    if not about.exists() or not origin.items() <= yaml.safe_load(about.read_text(encoding="utf-8")).items():
        chunk_slice(sweep, slice_, [variant], encoder)
    return chunking.PassageFile(folder / "passages.jsonl")


def _label(variant: Variant, encoder: Encoder) -> str | None:
    return encoder.label if chunking.needs_vectors(variant) else None


def pool_of(sweep: Path, slice_: Slice, query: Query, variant: Variant, models: Models, chunks=None) -> Pool:
    """A query's documents and passages under a variant's chunker."""
    documents = slice_.documents(query)
    passages = []
    if variant.reads_text:
        chunks = chunks or need_chunks(sweep, slice_, variant, models.encoder)
        passages = [p for document in documents for p in chunks.passages(document.doc_id)]
    return Pool.of(query, documents, passages)


def _ignore(pool: Pool) -> None:
    pass


def collect_one(
    sweep: Path, slice_: Slice, query: Query, variant: Variant, models: Models, chunks=None, look: Look = _ignore
) -> EvidenceSet:
    """The evidence of one query, from its own documents alone; `look` then sees the pool of them."""
    pool = pool_of(sweep, slice_, query, variant, models, chunks)
    found = collect(pool, slice_.citation_degrees, variant, models)
    look(pool)
    return found


def retrieve(sweep: Path, slice_: Slice, variant: Variant, models: Models, look: Look = _ignore) -> Path:
    """Write `runs/<variant>/evidence.jsonl`, one line a query in the slice's order; returns the run's folder.

    `look` sees the pool of every query, of which one is held at a time.
    """
    run = sweep / "runs" / variant.name
    chunks = need_chunks(sweep, slice_, variant, models.encoder) if variant.reads_text else None
    queries = tqdm(slice_.queries, desc="retrieval", unit=" queries", leave=False)
    lines = (collect_one(sweep, slice_, query, variant, models, chunks, look).record() for query in queries)
    paths.write_jsonl(run / "evidence.jsonl", lines)
    return run


def need_evidence(sweep: Path, slice_: Slice, variant: Variant, models: Models) -> Path:
    """The run folder of a variant with its evidence, collected first if it is not there."""
    run = sweep / "runs" / variant.name
    return run if (run / "evidence.jsonl").exists() else retrieve(sweep, slice_, variant, models)


def read_evidence(run: Path) -> Iterator[EvidenceSet]:
    """The evidence sets of a run, one query at a time; the selected passages are left out."""
    for row in paths.read_jsonl(run / "evidence.jsonl"):
        items = [Evidence(**{**item, "citations": tuple(item["citations"])}) for item in row["evidence"]]
        yield EvidenceSet(row["query_id"], row["status"], row["references"], [], items, row["sentence_reranker"])


def generate(
    sweep: Path,
    slice_: Slice,
    variant: Variant,
    profile: Profile,
    run: Path,
    budget: float = 0.0,
    fallback: str = "",
) -> list[dict[str, Any]]:
    """Write a run's `responses.jsonl`, `provenance.jsonl` and `ir-metadata.yml`; returns the responses.

    Where a model answers, also `replies.jsonl`, and the further draws of `repeat` under `draw-2/`, ….
    """
    submission = trec.load_submission()
    models = model_names(variant, profile)
    sets = list(read_evidence(run))
    draws = answering.answer_run(slice_, sets, variant, profile, run, budget, fallback)
    responses = []
    for number, answers in enumerate(draws, 1):
        folder = run if number == 1 else run / f"draw-{number}"
        rows = list(zip(slice_.queries, sets, answers, strict=True))
        records = [trec.record(q, s.references, a.sentences, submission["team"], variant.name) for q, s, a in rows]
        paths.write_jsonl(folder / "responses.jsonl", records)
        sources = (trec.provenance(s, a.sentences, a.status, models, a.fallback) for _, s, a in rows)
        paths.write_jsonl(folder / "provenance.jsonl", sources)
        responses = responses or records
    answering.write_replies(run, slice_.queries, draws, profile)
    about = trec.ir_metadata(variant, profile, models, submission)
    paths.write_text(run / "ir-metadata.yml", yaml.safe_dump(about, sort_keys=False, allow_unicode=True))
    return responses


def read_replies(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's `replies.jsonl`; none where no model was asked."""
    path = run / "replies.jsonl"
    return list(paths.read_jsonl(path)) if path.exists() else []


def model_names(variant: Variant, profile: Profile) -> dict[str, str]:
    """The names of the models behind a run, `none` where it uses none."""
    chunker = profile.encoder.label if chunking.needs_vectors(variant) else "none"
    late = reranker(profile.sentence_reranker).label if variant.sentence_rerank else "none"
    together = f"{variant.sentence_selection}:{profile.encoder.label}" if variant.allocates_together else "none"
    generator = profile.service.model if profile.service and profile.generator != "extractive" else "extractive"
    generator = generator if variant.reads_text else "titles"
    return {
        "chunking_encoder": chunker,
        "sentence_reranker": late,
        "sentence_selection": together,
        "generator": generator,
    }


def systems_of(spec: str) -> list[Variant]:
    """Systems by a folder of YAML files, or by names separated by commas."""
    folder = paths.resolve(spec)
    return variants_in(folder) if folder.is_dir() else load_variants(spec.split(","))


def need_runs(sweep: Path, slice_: Slice, systems: Iterable[Variant], profile: Profile) -> Runs:
    """The runs of some systems, each made first if its responses are not there."""
    found = {}
    for variant in systems:
        file = sweep / "runs" / variant.name / "responses.jsonl"
        if not file.exists():
            run = need_evidence(sweep, slice_, variant, models_of(profile))
            generate(sweep, slice_, variant, profile, run)
        found[variant.name] = read_run(file, slice_.queries)
    return found


def check_run(run: Path, slice_: Slice) -> list[str]:
    """The faults of a run against the slice, none if it is valid (see `lib.trec.validate`)."""
    documents = {document.doc_id: document for document in slice_.all_documents()}
    return list(trec.validate(run / "responses.jsonl", slice_.queries, documents))


def in_context(document: Document, start: int, end: int, around: int = 60) -> str:
    """Characters `start` to `end` of a document between brackets, with the characters around them, on one line."""
    before, after = document.text[max(0, start - around) : start], document.text[end : end + around]
    return one_line(f"…{before}⟦{document.text[start:end]}⟧{after}…")


def variants_in(folder: Path) -> list[Variant]:
    """The variants whose YAML files lie in `folder`, by file name."""
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise WorkbookError(f"{folder}: no variant (*.yaml) in this folder")
    return [load_variant(path) for path in files]
