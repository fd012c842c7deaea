"""A slice in shards of so many queries: each a sweep folder of its own, so that every notebook runs on it as it is.

`<sweep>/shards/0001/slice` holds the first queries and their documents, and so on. What the notebooks
make of a shard lies beside its slice, and is joined in the order of the shards. A query is answered
from its own documents alone, so the joined files are byte for byte those of the whole slice at once.
"""

import json
import shutil
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from lib import chunking, paths, readers
from lib.errors import WorkbookError
from lib.preparing import TEXT_SOURCES
from lib.slices import Query, Report, Slice, write_documents

FOLDER = "shards"
SLICE_FILES = ("documents.jsonl", "queries.jsonl", "citation_degrees.json")
ANSWER_FILES = ("responses.jsonl", "provenance.jsonl")
GOLD = ("gold_answers.jsonl", "qrels.txt")  # what notebooks 03 and 04 show beside what they make


def folders(sweep: Path, n_queries: int, size: int) -> list[Path]:
    """The folders of the shards of `size` queries, in order; a slice without queries has one shard."""
    return [sweep / FOLDER / f"{number:04d}" for number in range(1, max(1, -(-n_queries // size)) + 1)]


def existing(sweep: Path) -> list[Path]:
    """The shards that a sweep's slice was split into, in order; none where it was not."""
    return [folder for folder in _numbered(sweep) if (folder / "slice" / "slice.json").exists()]


def _numbered(sweep: Path) -> list[Path]:
    """What lies where shards do and is called like one, in the order of the numbers; the rest is none of ours."""
    found = [path for path in (sweep / FOLDER).glob("*") if path.name.isdecimal() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def whole(sweep: Path) -> Path:
    """The folder of the sweep that a shard belongs to; a sweep that is no shard is whole itself."""
    is_shard = sweep.parent.name == FOLDER and sweep.name.isdecimal()
    return sweep.parents[1] if is_shard and (sweep.parents[1] / "slice" / "slice.json").exists() else sweep


def remove(sweep: Path, keep: Iterable[Path] = ()) -> None:
    """Take away the shards of a sweep, other than those to `keep`, and their notebooks; what was joined stays."""
    for folder in set(_numbered(sweep)) - set(keep):
        shutil.rmtree(folder)
        for pattern in (f"*.{folder.name}.ipynb", f".done/*.{folder.name}.json"):
            for path in (sweep / "notebooks").glob(pattern):
                path.unlink()


def split(sweep: str, size: int) -> None:
    """Write `shards/*/slice` from the slice of a sweep's folder, shard by shard, documents as their bytes stand."""
    slice_ = Slice(Path(sweep, "slice"))
    parts = folders(Path(sweep), len(slice_.queries), size)
    remove(Path(sweep), keep=parts)
    part_of = {query.query_id: number // size for number, query in enumerate(slice_.queries)}
    gold = {name: _by_part(slice_.folder / name, part_of) for name in GOLD if (slice_.folder / name).exists()}
    highest = max(slice_.citation_degrees, key=slice_.citation_degrees.__getitem__, default=None)
    for number, part in enumerate(parts):
        _write_slice(part / "slice", slice_, slice_.queries[number * size : (number + 1) * size], highest)
        for name in GOLD:
            (part / "slice" / name).unlink(missing_ok=True)
            if name in gold:
                with paths.atomic(part / "slice" / name, "wb") as out:
                    _copy(slice_.folder / name, gold[name][number], out)


def _by_part(path: Path, part_of: dict[str, int]) -> dict[int, list[tuple[int, int]]]:
    """Number of a shard -> (offset, length) of the lines of gold data on its queries, in order."""
    lines: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for query_id, offset, length in _by_query(path):
        if query_id in part_of:
            lines[part_of[query_id]].append((offset, length))
    return lines


def _by_query(path: Path) -> Iterator[tuple[str | None, int, int]]:
    """(query_id, offset, length) of every line of a file of gold data that is not blank."""
    offset = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    fields = json.loads(text) if path.suffix == ".jsonl" else {"id": text.split()[0]}
                    yield readers.as_id(readers.pick(fields, readers.QUERY_ID), f"{path}:{number}"), offset, len(line)
            except (ValueError, AttributeError) as error:
                raise WorkbookError(f"{path}:{number}: not a line of gold data ({error}); mend it") from None
            offset += len(line)


def _copy(path: Path, lines: Iterable[tuple[int, int]], out: BinaryIO) -> None:
    with open(path, "rb") as file:
        for offset, length in lines:
            file.seek(offset)
            out.write(file.read(length).rstrip(b"\n") + b"\n")


def _write_slice(folder: Path, slice_: Slice, queries: list[Query], highest: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "slice.json").unlink(missing_ok=True)
    rows = ({"query_id": q.query_id, "query": q.text, "doc_ids": list(q.doc_ids)} for q in queries)
    paths.write_jsonl(folder / "queries.jsonl", rows)
    sources = dict.fromkeys(doc_id for query in queries for doc_id in query.doc_ids if slice_.has(doc_id))
    write_documents(folder, _lines(slice_, sources))
    uses = Counter(sources[doc_id] for query in queries for doc_id in query.doc_ids if doc_id in sources)
    # The citation prior relates the degrees of a shard's documents to the network's highest one.
    degrees = {i: slice_.citation_degrees[i] for i in sorted({*sources, highest} & slice_.citation_degrees.keys())}
    paths.write_text(folder / "citation_degrees.json", json.dumps(degrees) + "\n")
    report = Report(
        slice_.report.source,
        queries=len(queries),
        instances=sum(len(query.doc_ids) for query in queries),
        documents=len(sources),
        text_sources={name: uses[name] for name in TEXT_SOURCES},
    )
    paths.write_text(folder / "slice.json", paths.to_json(report.__dict__) + "\n")


def _lines(slice_: Slice, sources: dict[str, str | None]) -> Iterator[tuple[str, bytes]]:
    """(doc_id, line) of some documents; on the way `sources` is told which text of each is used."""
    for doc_id in sources:
        line = slice_.line(doc_id)
        sources[doc_id] = json.loads(line)["text_source"]
        yield doc_id, line


def join_chunks(sweep: str, chunker: str) -> None:
    """Write `chunks/<chunker>` of the whole slice from its shards': each document once, in order of first need."""
    slice_, folder, parts = Slice(Path(sweep, "slice")), Path(sweep, "chunks", chunker), existing(Path(sweep))
    seen: set[str] = set()
    lengths = array("I")
    with paths.atomic(folder / "passages.jsonl") as out:
        for part in parts:
            file = chunking.PassageFile(part / "chunks" / chunker / "passages.jsonl")
            for doc_id in file.doc_ids():
                if doc_id not in seen:
                    seen.add(doc_id)
                    document, passages = slice_.document(doc_id), file.passages(doc_id)
                    out.write(chunking.passages_line(doc_id, passages))
                    lengths.extend(len(p.text(document).split()) for p in passages)
    first = json.loads((parts[0] / "chunks" / chunker / "chunks.json").read_text(encoding="utf-8"))
    about = chunking.about(slice_, chunker, first["encoder"], lengths)
    paths.write_text(folder / "chunks.json", paths.to_json(about) + "\n")


def join_evidence(sweep: str, run: str) -> None:
    """Write the `evidence.jsonl` of a run: the lines of the shards', one shard after the other."""
    file = Path("runs", run, "evidence.jsonl")
    _join([part / file for part in existing(Path(sweep))], Path(sweep) / file)


def join_answers(sweep: str, run: str) -> None:
    """Write all that notebook 04 writes of a run, its further draws too, from the shards'."""
    folder, sources = Path(sweep, "runs", run), [part / "runs" / run for part in existing(Path(sweep))]
    draws = sorted(path.name for path in sources[0].glob("draw-*"))
    for old in folder.glob("draw-*"):
        if old.name not in draws:
            shutil.rmtree(old)
    for name in (str(Path(draw, name)) for draw in ("", *draws) for name in ANSWER_FILES):
        _join([source / name for source in sources], folder / name)
    _join([path for source in sources if (path := source / "replies.jsonl").exists()], folder / "replies.jsonl")
    pending = [path for source in sources if (path := source / "pending.json").exists()]
    if pending:
        waiting = [query_id for path in pending for query_id in json.loads(path.read_text(encoding="utf-8"))]
        paths.write_text(folder / "pending.json", paths.to_json(waiting) + "\n")
    else:
        (folder / "pending.json").unlink(missing_ok=True)
    paths.write_text(folder / "ir-metadata.yml", (sources[0] / "ir-metadata.yml").read_text(encoding="utf-8"))


def _join(sources: list[Path], path: Path) -> None:
    """One file from several; none where there are none."""
    if not sources:
        path.unlink(missing_ok=True)
        return
    with paths.atomic(path, "wb") as out:
        for source in sources:
            with open(source, "rb") as file:
                shutil.copyfileobj(file, out)
