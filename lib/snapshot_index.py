"""The index of a snapshot: where every id stands in its files, so that the next extraction reads only what it needs.

It lies in the workbook's cache, never in the snapshot. A file is known by its name, size and time of change.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib import paths, readers, snapshot_scan
from lib.errors import WorkbookError

DIGEST = hashlib.sha256().digest_size


class Stamp(NamedTuple):
    """What a file is known by, with its name."""

    size: int
    mtime_ns: int


class Entry(NamedTuple):
    """The ids of a file: their keys (uint32), and the offsets of their lines in rising order (uint64)."""

    stamp: Stamp
    keys: np.ndarray
    offsets: np.ndarray


def _rules() -> list[str]:
    """What ids were found by: the names of their field, and the code that looks for it."""
    return [*readers.DOC_ID, paths.sha256(Path(snapshot_scan.__file__))]


def path_of(snapshot: Path) -> Path:
    """Where the index of a snapshot is kept."""
    name = hashlib.sha256(os.fsencode(snapshot.resolve())).hexdigest()[:16]
    return paths.cache_folder() / "snapshots" / f"{name}.index"


def stamp_of(file: Path) -> Stamp:
    status = file.stat()
    return Stamp(status.st_size, status.st_mtime_ns)


def load(path: Path) -> dict[str, Entry]:
    """File name -> its entry; empty without an index, or if ids were found otherwise. Raises WorkbookError for damage."""
    if not path.exists():
        return {}
    stored = path.read_bytes()
    if stored[:DIGEST] != _digest(stored[DIGEST:]):
        raise WorkbookError(f"{path}: the index is damaged; delete the file")
    head, rest = stored[DIGEST:].split(b"\n", 1)
    rules, files = json.loads(head)
    if rules != _rules():
        return {}
    total = sum(count for *_, count in files)
    keys, offsets = np.frombuffer(rest, np.uint32, total), np.frombuffer(rest, np.uint64, total, 4 * total)
    entries, at = {}, 0
    for name, size, mtime_ns, count in files:
        entries[name] = Entry(Stamp(size, mtime_ns), keys[at : at + count], offsets[at : at + count])
        at += count
    return entries


def save(path: Path, entries: dict[str, Entry]) -> None:
    """Write the index, in place of what there was: a digest, a line about the files, all keys, all offsets."""
    files = [[name, *entry.stamp, len(entry.keys)] for name, entry in entries.items()]
    head = json.dumps([_rules(), files]).encode() + b"\n"
    body = b"".join([head, *(e.keys.tobytes() for e in entries.values()), *(e.offsets.tobytes() for e in entries.values())])
    with paths.atomic(path, "wb") as file:
        file.write(_digest(body) + body)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def spans(entry: Entry, keys: frozenset[int]) -> list[tuple[int, int]]:
    """From where to where the lines with one of the keys stand. Each reaches up to the next line that has an id."""
    sought = np.array(sorted(keys), np.uint32)
    starts = np.unique(entry.offsets[np.isin(entry.keys, sought)])
    after = np.searchsorted(entry.offsets, starts, side="right")
    stops = np.append(entry.offsets, np.uint64(entry.stamp.size))[after]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
