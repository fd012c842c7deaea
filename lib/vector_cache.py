"""Vectors and scores that were computed once: one SQLite file, which several processes may use at once."""

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock

from lib import paths
from lib.errors import WorkbookError

Row = tuple[bytes, np.ndarray, int]  # key, float32 vector, token count
Found = dict[bytes, tuple[np.ndarray, int]]  # key -> vector, token count


class VectorCache:
    """A table (key -> float32 vector, token count) in an SQLite file, safe for several processes.

    Every row carries a checksum; a row that fails it counts as missing and is computed again.
    """

    def __init__(self, path: Path | None = None):
        self.path = path or paths.cache_folder() / "vectors.sqlite"

    def get(self, keys: Sequence[bytes]) -> Found:
        """The rows that are there, by key."""
        if not self.path.exists():
            return {}
        found = {}
        columns = "SELECT key, vector, n_tokens, crc FROM vectors"
        with self._open() as db:
            for part in _parts(list(dict.fromkeys(keys)), 500):
                marks = ",".join("?" * len(part))
                for key, vector, n_tokens, crc in db.execute(f"{columns} WHERE key IN ({marks})", part):
                    if _checksum(key, vector, n_tokens) == crc:
                        found[key] = np.frombuffer(vector, dtype="<f4"), n_tokens
        return found

    def put(self, rows: Iterable[Row]) -> None:
        """Store rows (key, vector, token count), replacing any of the same key."""
        blobs = [(key, vector.astype("<f4").tobytes(), int(n_tokens)) for key, vector, n_tokens in rows]
        summed = [(*row, _checksum(*row)) for row in blobs]
        with self._open() as db, db:
            db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", summed)

    def get_or_compute(self, keys: Sequence[bytes], compute: Callable[[list[bytes]], Iterable[list[Row]]]) -> Found:
        """The rows of all keys. `compute` gives those of the missing ones in parts, each of which is stored as it comes.

        It is called under the lock and after another look, so that no row is computed twice.
        """
        rows = self.get(keys)
        if all(key in rows for key in keys):
            return rows
        with self.lock():
            rows |= self.get([key for key in keys if key not in rows])
            missing = [key for key in dict.fromkeys(keys) if key not in rows]
            for part in compute(missing) if missing else ():
                self.put(part)
                rows |= {key: (vector, n_tokens) for key, vector, n_tokens in part}
        return rows

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


def cache_key_of(*parts: object) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _parts(items: list, size: int):
    return (items[i : i + size] for i in range(0, len(items), size))
