"""Where things lie, and how they are written: every write is atomic."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.errors import WorkbookError

PROJECT = Path(__file__).resolve().parents[1]
NOTEBOOKS = PROJECT / "notebooks"
PARAMS = PROJECT / "params"
SAMPLE = PROJECT / "lib" / "sample"

# Characters that are legal inside a JSON string but that many tools take for line ends.
_LINE_LIKE = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\u0085": "\\u0085"}


def cache_folder() -> Path:
    """Folder of what is computed once for all sweeps: `$WORKBOOK_CACHE` or `outputs/cache`."""
    return Path(os.environ.get("WORKBOOK_CACHE") or PROJECT / "outputs" / "cache")


def resolve(path: str | Path) -> Path:
    """An absolute path; a relative one is taken from the project's folder.

    Notebooks use it for their parameters, since nbval and papermill start kernels in different
    working directories.
    """
    return (PROJECT / Path(path).expanduser()).resolve()


@contextmanager
def atomic(path: Path, mode: str = "w"):
    """An open file that becomes `path` when the block ends without an error, and nothing otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding = None if "b" in mode else "utf-8"
    newline = None if "b" in mode else "\n"
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, mode, encoding=encoding, newline=newline) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path` atomically; returns the path."""
    with atomic(path) as file:
        file.write(text)
    return path


def append_line(path: Path, line: str) -> None:
    """Add a line to a log of whole lines; a torn line that a kill left at its end is taken off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        size = file.tell()
        file.seek(max(size - 1, 0))
        if size and file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")


def to_json(value: Any) -> str:
    """`value` as one line of strict JSON: UTF-8 kept, floats rounded to 6 decimals, NaN refused.

    A lone surrogate, which UTF-8 cannot hold, becomes a question mark.
    """
    line = json.dumps(_rounded(value), ensure_ascii=False, allow_nan=False)
    line = encodable(line)
    for char, escape in _LINE_LIKE.items():
        line = line.replace(char, escape)
    return line


def encodable(text: str) -> str:
    """`text` with a question mark for every lone surrogate, which JSON can spell and UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def write_jsonl(path: Path, records: Iterable[Any]) -> int:
    """Write `records` one a line, streaming and atomically; returns how many were written."""
    count = 0
    with atomic(path) as file:
        for record in records:
            file.write(to_json(record) + "\n")
            count += 1
    return count


def read_jsonl(path: Path) -> Iterable[Any]:
    """The records of a JSON Lines file of the workbook's own, one at a time. Raises WorkbookError for a damaged line."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise WorkbookError(f"{path}:{number}: damaged ({error}); delete the file and make it anew") from None


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def code_state() -> tuple[tuple[str, int, int], ...]:
    """Path, time of change and size of every file of `lib`: as long as it is the same, so is the code."""
    files = sorted(path for path in (PROJECT / "lib").rglob("*") if path.suffix in (".py", ".js", ".css", ".html"))
    return tuple((str(path), stat.st_mtime_ns, stat.st_size) for path in files for stat in [path.stat()])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) + 0.0  # + 0.0 turns -0.0 into 0.0
    return value
