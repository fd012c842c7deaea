"""100, 1,000 and 10,000 queries: seconds a query and peak memory, with the vectors cached.

The slices are made of the sample: every query is one of its queries under a new id, with that
query's relevant documents and others drawn from the whole sample, each under an id of its own.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.processes import Ran, workbook
from bench.show import show
from bench.sweeps import executed_notebooks
from lib import paths, readers
from lib.slices import read_gold_answers, read_qrels

SIZES = (100, 1_000, 10_000)
CANDIDATES = 10
QUERIES_A_FILE = 500
_FIRST_DOC_ID = 700_000_001


def measure(folder: Path, sizes: Sequence[int] = SIZES, variants: str = "rule-minilm", shard_size: int = 50) -> None:
    """Show seconds and memory for every size.

    A sweep takes some seconds before its first query, which a hundred queries share among fewer than ten
    thousand do; so the bar is for what each further query takes, from one size to the next.
    """
    cache = folder / "cache"
    workbook("sweep", "--variants", variants, "--no-score", "--out", folder / "sample", cache=cache)
    found = [_sweep(folder, size, variants, shard_size, cache) for size in sizes]
    for size, ran, start in found:
        note = f"{ran.seconds:.0f} s, {start:.1f} s of them before the first notebook"
        show(f"{size:,} queries, seconds a query", ran.seconds / size, note=note)
        show(f"{size:,} queries, peak memory, GB", ran.peak / 1e9)
    further = [(b.seconds - a.seconds) / (m - n) for (n, a, _), (m, b, _) in pairwise(found)]
    for (small, _, _), (size, _, _), seconds in zip(found, found[1:], further, strict=False):
        show(f"seconds a further query, from {small:,} to {size:,}", seconds)
    name = f"the same, from {sizes[-2]:,} / from {sizes[0]:,}"
    show(name, further[-1] / further[0], "from 0.85 to 1.15")
    show(f"peak memory, {sizes[-1]:,} queries / {sizes[0]:,}", found[-1][1].peak / found[0][1].peak, "at most 1.3")


def _sweep(folder: Path, size: int, variants: str, shard_size: int, cache: Path) -> tuple[int, Ran, float]:
    """The size, what the sweep took, and the seconds before its first notebook."""
    spec, out = folder / f"slice-{size}", folder / f"out-{size}"
    make(spec, size)
    shards = ("--shard-size", shard_size)
    ran = workbook(
        "sweep", "--slice", spec, "--variants", variants, "--out", out, "--no-score", *map(str, shards), cache=cache
    )
    return size, ran, executed_notebooks(out)[0].start - ran.started


class Recombined(NamedTuple):
    """One query of a made slice: its record, documents, citations, gold answer, and relevant documents' ids."""

    query: dict[str, Any]
    documents: list[dict[str, Any]]
    citations: list[tuple[int, int]]
    answer: str
    relevant: set[int]


def make(folder: Path, n_queries: int, source: Path = paths.SAMPLE) -> None:
    """Write a slice of `n_queries`, one query after the other, so that nothing is held but the sample itself.

    The same number gives the same bytes, and a longer slice begins with a shorter one.
    """
    with ExitStack() as stack:

        def opened(name: str):
            return stack.enter_context(paths.atomic(folder / name))

        queries, gold, qrels = opened("queries.jsonl"), opened("gold_answers.jsonl"), opened("qrels.txt")
        citations = opened("citations.csv")
        citations.write("citing_doc_id,cited_doc_id\n")
        for number, made in enumerate(recombined(source, n_queries)):
            if number % QUERIES_A_FILE == 0:
                documents = opened(f"documents/documents_{number // QUERIES_A_FILE + 1:06d}.jsonl")
            query_id = made.query["query_id"]
            queries.write(paths.to_json(made.query) + "\n")
            gold.write(paths.to_json({"query_id": query_id, "answer": made.answer}) + "\n")
            documents.writelines(paths.to_json(document) + "\n" for document in made.documents)
            qrels.writelines(f"{query_id} 0 {d['id']} {int(d['id'] in made.relevant)}\n" for d in made.documents)
            citations.writelines(f"{citing},{cited}\n" for citing, cited in made.citations)


def recombined(source: Path, n_queries: int) -> Iterator[Recombined]:
    """Query after query, made of those of the source."""
    queries = list(paths.read_jsonl(source / "queries.jsonl"))
    documents = {str(d["id"]): d for file in readers.files_of(source / "documents") for d in paths.read_jsonl(file)}
    lines = (source / "citations.csv").read_text(encoding="utf-8").split("\n")
    edges = [tuple(line.split(",")) for line in lines[1:] if line]
    gold, qrels = read_gold_answers(source / "gold_answers.jsonl"), read_qrels(source / "qrels.txt")
    for number in range(n_queries):
        base = queries[number % len(queries)]
        relevant = qrels[base["query_id"]]
        chosen = candidates(list(documents), sorted(relevant), random.Random(f"query {number}"))
        ids = {old: _FIRST_DOC_ID + number * CANDIDATES + i for i, old in enumerate(chosen)}
        yield Recombined(
            {"query_id": f"q{number:08d}", "query": base["query"], "doc_ids": list(ids.values())},
            [{**documents[old], "id": new} for old, new in ids.items()],
            [(ids[citing], ids[cited]) for citing, cited in edges if citing in ids and cited in ids],
            gold[base["query_id"]],
            {ids[old] for old in relevant},
        )


def candidates(doc_ids: list[str], relevant: list[str], rng: random.Random) -> list[str]:
    """The relevant documents and as many others as make ten, in an order by chance."""
    others = [doc_id for doc_id in doc_ids if doc_id not in relevant]
    chosen = [*relevant, *rng.sample(others, CANDIDATES - len(relevant))]
    rng.shuffle(chosen)
    return chosen
