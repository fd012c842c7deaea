"""A snapshot of any size -> a slice folder: the candidate documents of some queries, found in one pass over the bytes.

A snapshot is a file or a folder of JSON Lines, plain or gzip. Only lines that name a wanted id are parsed,
and the parsed record decides; whatever is wrong with other lines goes unseen. Where each id stands is kept
in an index, so that the next extraction reads only the lines that it needs, and gzip files only if they
hold a wanted id.
"""

import csv
import gzip
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from lib import paths, preparing, readers, snapshot_index, snapshot_scan
from lib.errors import WorkbookError
from lib.slices import Query
from lib.snapshot_index import Entry, Stamp
from lib.snapshot_scan import Line, Part, Piece

CORES = os.cpu_count() or 1
PIECE = 1 << 24  # bytes that one task goes through
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Report:
    """What an extraction found. Nothing is left out without being named in `missing` or `problems`.

    `repeated` counts records that say the same as an earlier one; `known` the files of the snapshot that the index
    knew; `n_bytes` were read in `seconds`; `copied` names what was taken along from beside the queries.
    """

    folder: Path
    index: Path
    queries: int
    wanted: int
    documents: int
    missing: tuple[str, ...]
    repeated: int
    files: int
    known: int
    n_bytes: int
    seconds: float
    copied: tuple[str, ...]
    problems: tuple[str, ...]


def extract(snapshot: Path, queries: Path, out: Path, jobs: int = CORES, progress: bool = True) -> Report:
    """Write the slice folder `out`: the queries, and the candidate documents that `snapshot` holds.

    `queries` is a file, or a folder with one called so. What lies beside it is taken as that of a slice folder:
    candidates in a file of their own are joined, gold data and the citation network are copied. Documents come
    in the order in which the queries first need them, each record as its bytes stand in the snapshot,
    whatever the number of `jobs`. `out` appears when all is done, or not at all; the index is kept in
    either case. Raises WorkbookError.
    """
    _check(snapshot, out, jobs)
    try:
        return _extract(snapshot, queries, out, jobs, progress)
    except OSError as error:
        reason = error.strerror or str(error)
        raise WorkbookError(
            f"{error.filename or out}: cannot be read or written ({reason}); mend that, extract again"
        ) from None


def summary(report: Report) -> str:
    """The report in words, for a terminal: what is there, what is missing, how fast it was."""
    rate = report.n_bytes / 1e6 / report.seconds
    lines = [
        f"{report.queries} queries, {report.documents} of {report.wanted} candidate documents: {report.folder}",
        f"{report.n_bytes / 1e6:,.1f} MB read in {report.seconds:.2f} s ({rate:,.0f} MB/s); "
        f"{report.known} of {report.files} files known from the index {report.index}",
    ]
    if report.copied:
        lines.append(f"copied from beside the queries: {', '.join(report.copied)}")
    if report.repeated:
        lines.append(f"{report.repeated} records repeat an earlier one; each was kept once")
    if report.missing:
        named = ", ".join(report.missing[:10]) + (", ..." if len(report.missing) > 10 else "")
        lines.append(f"{len(report.missing)} missing: {named}; with their queries in {report.folder / 'missing.csv'}")
    return "\n".join([*lines, *report.problems])


def _check(snapshot: Path, out: Path, jobs: int) -> None:
    if jobs < 1:
        raise WorkbookError(f"--jobs must be at least 1, not {jobs}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WorkbookError(f"{out}: is there already; give a new or empty folder")
    if snapshot.is_dir() and out.resolve().is_relative_to(snapshot.resolve()):
        raise WorkbookError(f"{out}: lies in the snapshot, which would then hold its documents twice; give another folder")


def _extract(snapshot: Path, queries: Path, out: Path, jobs: int, progress: bool) -> Report:
    started = time.perf_counter()
    problems: list[str] = []
    file, beside = _queries_and_beside(queries)
    files = _files(snapshot, [file, *beside.values()], problems.append)
    asked = _read_queries(file, beside.pop("candidates", None), problems.append)
    wanted = dict.fromkeys(doc_id for query in asked for doc_id in query.doc_ids)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as name:
        lines, known, n_bytes = _find(snapshot, files, wanted, Path(name), jobs, progress)
        kept, repeated = _first_of_each(lines, wanted, problems.append)
        _check_found(asked, kept, snapshot)
        missing = tuple(doc_id for doc_id in wanted if doc_id not in kept)
        made = Path(name) / "slice"
        _write(made, asked, [kept[doc_id] for doc_id in wanted if doc_id in kept], frozenset(missing))
        for source in beside.values():
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, made / source.name)
        made.replace(out)
    return Report(
        out,
        snapshot_index.path_of(snapshot),
        queries=len(asked),
        wanted=len(wanted),
        documents=len(kept),
        missing=missing,
        repeated=repeated,
        files=len(files),
        known=known,
        n_bytes=n_bytes,
        seconds=time.perf_counter() - started,
        copied=tuple(source.name for source in beside.values()),
        problems=tuple(problems),
    )


# What is asked for, and where it may be


def _queries_and_beside(queries: Path) -> tuple[Path, dict[str, Path]]:
    """The file of the queries; and what a slice folder holds besides them and its documents, by name."""
    file = readers.find(queries, "queries") if queries.is_dir() else None
    folder, file = (queries, file) if file else (queries.parent, queries)
    beside = {stem: found for stem in ("candidates", "citations") if (found := readers.find(folder, stem))}
    beside |= {name: folder / name for name in preparing.EXTRAS if (folder / name).exists()}
    return file, {name: path for name, path in beside.items() if path != file}


def _read_queries(file: Path, candidates: Path | None, report: readers.Problems) -> list[Query]:
    listed = readers.read_records(candidates, report) if candidates else None
    source = preparing.Source(str(file), readers.read_records(file, report), None, listed, None)
    asked = preparing.read_queries(source, report)
    if not any(query.doc_ids for query in asked):
        raise WorkbookError(
            f"{file}: no query lists a candidate; name the list with one of {', '.join(readers.CANDIDATES)}"
        )
    return asked


def _files(snapshot: Path, others: list[Path], report: readers.Problems) -> list[Path]:
    """The JSON Lines files of the snapshot, sorted; the queries and what belongs to them may lie among them."""
    own = {path.resolve() for other in others for path in (readers.files_of(other) if other.is_dir() else [other])}
    files = [path for path in readers.files_of(snapshot) if path.resolve() not in own]
    lines = [path for path in files if readers.format_of(path) in (".jsonl", ".ndjson")]
    if not lines:
        raise WorkbookError(f"{snapshot}: no JSON Lines file; give a folder of .jsonl files, plain or .gz, a record a line")
    left = [path for path in files if path not in set(lines)]
    if left:
        report(f"{left[0]}: not JSON Lines and not searched" + (f", nor {len(left) - 1} more files" if left[1:] else ""))
    return lines


# The pass over the bytes


def _find(
    snapshot: Path, files: list[Path], wanted: dict[str, None], folder: Path, jobs: int, progress: bool
) -> tuple[list[Line], int, int]:
    """The lines that name a wanted id, the number of files that the index knew, and of bytes that were read."""
    index = snapshot_index.path_of(snapshot)
    stamps = {file: snapshot_index.stamp_of(file) for file in files}
    stored = {snapshot / name: entry for name, entry in snapshot_index.load(index).items()}
    known = {file: stored[file] for file in files if file in stored and stored[file].stamp == stamps[file]}
    ids = frozenset(doc_id.encode() for doc_id in wanted)
    keys = frozenset(map(snapshot_scan.key_of, ids))
    pieces = [piece for file in files for piece in _pieces(file, stamps[file].size, known.get(file), keys)]
    n_bytes = sum(piece.stop - piece.start for piece in pieces)
    lines, parts = [], []
    try:
        with tqdm(total=n_bytes, desc="snapshot", unit="B", unit_scale=True, file=sys.stderr, disable=not progress) as bar:
            for part, named in _run(_Search(ids, folder), _tasks(pieces), jobs, bar):
                lines += named
                if not part.piece.known:
                    parts.append(part)
                elif keys.isdisjoint(part.keys.tolist()):
                    raise WorkbookError(f"{part.piece.path}: changed, though its size and time did not; delete {index}")
    finally:  # the files that were finished need not be gone through again, whatever happened
        entries = known | _entries(stamps, pieces, parts)
        if len(entries) > len(known):
            snapshot_index.save(index, {str(f.relative_to(snapshot)): entries[f] for f in files if f in entries})
    for file in files:
        if snapshot_index.stamp_of(file) != stamps[file]:
            raise WorkbookError(f"{file}: changed while it was read; extract again")
    return lines, len(known), n_bytes


def _entries(stamps: dict[Path, Stamp], pieces: list[Piece], parts: list[Part]) -> dict[Path, Entry]:
    """What the index is to hold of the files all of whose pieces were gone through."""
    left = Counter(piece.path for piece in pieces)
    by_file: dict[Path, list[Part]] = {}
    for part in sorted(parts, key=lambda part: part.piece):
        by_file.setdefault(part.piece.path, []).append(part)
    return {
        file: Entry(stamps[file], np.concatenate([p.keys for p in found]), np.concatenate([p.offsets for p in found]))
        for file, found in by_file.items()
        if len(found) == left[file]
    }


def _pieces(file: Path, size: int, entry: Entry | None, keys: frozenset[int]) -> list[Piece]:
    """What is to be read of a file: all of it, in pieces if they can be entered, or only the lines that the index names."""
    if entry is None:
        n_cuts = 1 if snapshot_scan.is_gzip(file) else max(-(-size // PIECE), 1)
        cuts = [size * n // n_cuts for n in range(n_cuts + 1)]
        return [Piece(file, start, stop) for start, stop in itertools.pairwise(cuts)]
    spans = snapshot_index.spans(entry, keys)
    if snapshot_scan.is_gzip(file):
        return [Piece(file, 0, size, known=True)] if spans else []
    return [Piece(file, start, stop, known=True) for start, stop in spans]


def _tasks(pieces: list[Piece]) -> list[list[Piece]]:
    """Pieces in their order, as many together as keep to some MB; the largest first, so that all cores end together."""
    tasks: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        size = piece.stop - piece.start
        if not tasks or size > room:
            tasks.append([])
            room = PIECE
        tasks[-1].append(piece)
        room -= size
    return sorted(tasks, key=lambda task: min(PIECE - sum(piece.stop - piece.start for piece in task), 0))


class _Search(NamedTuple):
    """What is looked for, and the folder to which lines are put aside: the same for all tasks."""

    wanted: frozenset[bytes]
    folder: Path

    def run(self, task: list[Piece], advance: Callable[[int], None]) -> list[tuple[Part, list[Line]]]:
        with open(self.folder / f"{os.getpid()}.aside", "ab") as aside:
            return [snapshot_scan.scan(piece, self.wanted, aside, advance) for piece in task]


def _run(search: _Search, tasks: list[list[Piece]], jobs: int, bar: tqdm) -> Iterator[tuple[Part, list[Line]]]:
    """What the pieces hold, as the tasks end, by as many processes as there are `jobs`.

    A file that is cut while it is mapped kills the process that reads it, so all but a few lines is left to others.
    """
    if min(jobs, len(tasks)) <= 1 and all(piece.known for task in tasks for piece in task):
        for task in tasks:
            yield from search.run(task, bar.update)
        return
    context = multiprocessing.get_context()
    done, stop = context.Value("q", 0), context.Event()
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, _begin, (search, done, stop))
    try:
        waiting = {pool.submit(_work, task) for task in tasks}
        while waiting:
            ended, waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            bar.update(done.value - bar.n)
            for future in ended:
                yield from future.result()
    except BrokenProcessPool:
        raise WorkbookError(
            "a process was killed: memory ran out, or a file was cut while it was read; extract again, with fewer --jobs"
        ) from None
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


_of_this_process: tuple[_Search, Callable[[int], None]] | None = None


def _begin(search: _Search, done, stop) -> None:
    """Make a process ready for tasks. It leaves Ctrl-C to the one that started it."""
    global _of_this_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def advance(n_bytes: int) -> None:
        with done.get_lock():
            done.value += n_bytes
        if stop.is_set():
            raise InterruptedError("the extraction was stopped")

    _of_this_process = search, advance


def _work(task: list[Piece]) -> list[tuple[Part, list[Line]]]:
    search, advance = _of_this_process
    return search.run(task, advance)


# What comes of the lines


def _first_of_each(lines: list[Line], wanted: dict[str, None], report: readers.Problems) -> tuple[dict[str, Line], int]:
    """doc_id -> its first line, and how many lines repeat one. Raises WorkbookError if one says something else."""
    kept: dict[str, Line] = {}
    repeated = 0
    for line in sorted(lines):
        doc_id = _document_id(line, report)
        first = kept.setdefault(doc_id, line) if doc_id in wanted else line
        if first is not line:
            repeated += 1
            if not _same(_record(first), _record(line)):
                raise WorkbookError(
                    f"{_place(line)}: document '{doc_id}' differs from the one at {_place(first)}; keep one"
                )
    return kept, repeated


def _document_id(line: Line, report: readers.Problems) -> str | None:
    """The id of the document that a line holds; None if it holds none, or is a torn last line."""
    try:
        fields = json.loads(_record(line).decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error)
        if _bytes(line).endswith(b"\n"):
            raise WorkbookError(f"{_place(line)}: malformed JSON ({reason}); a snapshot holds a record a line") from None
        report(f"{_place(line)}: torn last line left out ({reason})")
        return None
    if not isinstance(fields, dict):
        raise WorkbookError(f"{_place(line)}: expected an object with named fields, found {type(fields).__name__}")
    try:
        return readers.as_id(readers.pick(fields, readers.DOC_ID), "")
    except WorkbookError as error:
        raise WorkbookError(f"{_place(line)}{error}") from None


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not JSON")


def _record(line: Line) -> bytes:
    """A record as its bytes stand in the snapshot, without white space around it."""
    text = _bytes(line)
    return (text.removeprefix(_BOM) if line.offset == 0 else text).strip()


def _bytes(line: Line) -> bytes:
    with open(line.aside, "rb") as file:
        file.seek(line.start)
        return file.read(line.length)


def _same(a: bytes, b: bytes) -> bool:
    """Whether two records say the same; spaces, escapes and the order of fields do not matter, but 1 is not true."""
    return a == b or len({json.dumps(json.loads(record), sort_keys=True) for record in (a, b)}) == 1


def _place(line: Line) -> str:
    """`file:line`. Lines are only counted where one is to be named."""
    number = 1
    with gzip.open(line.path) if snapshot_scan.is_gzip(line.path) else open(line.path, "rb") as file:
        while file.tell() < line.offset:
            file.readline()
            number += 1
    return f"{line.path}:{number}"


def _check_found(asked: list[Query], kept: dict[str, Line], snapshot: Path) -> None:
    """Raises WorkbookError if a query would be left with no document, as no slice may have one."""
    without = [query for query in asked if query.doc_ids and not any(doc_id in kept for doc_id in query.doc_ids)]
    if without:
        query, more = without[0], f" (and {len(without) - 1} more queries)" if without[1:] else ""
        raise WorkbookError(
            f"{snapshot}: holds none of the {len(query.doc_ids)} candidates of query '{query.query_id}'{more}; "
            "correct its ids or leave it out"
        )


def _write(folder: Path, asked: list[Query], lines: list[Line], missing: frozenset[str]) -> None:
    """The slice: queries, documents a record a line, and the ids that are missing with the queries that list them."""
    rows = ({"query_id": q.query_id, "query": q.text, "doc_ids": list(q.doc_ids)} for q in asked)
    paths.write_jsonl(folder / "queries.jsonl", rows)
    with paths.atomic(folder / "documents" / "documents.jsonl", "wb") as file:
        file.writelines(_record(line) + b"\n" for line in lines)
    if missing:
        with paths.atomic(folder / "missing.csv") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["doc_id", "query_id"])
            table.writerows((doc_id, q.query_id) for q in asked for doc_id in q.doc_ids if doc_id in missing)
