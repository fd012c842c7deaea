"""Files in any accepted format -> records (METHOD: JSONL, JSON, CSV, TSV, gzip of each, folders).

Every record comes with its place (`file:line`), so that whatever is wrong with it later can be
reported where it stands.
"""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lib.errors import WorkbookError

QUERY_ID = ("narrative_id", "query_id", "qid", "id")
QUERY_TEXT = ("narrative", "query", "text", "question")
CANDIDATES = ("candidate_doc_ids", "candidate_docs", "candidates", "doc_ids")
DOC_ID = ("doc_id", "docid", "id", "paper_id")
FULL_TEXT = ("fullText", "full_text", "text", "body", "contents")
DATE = ("publishedDate", "publication_date", "published", "timestamp", "date", "createdDate", "year")

FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
ACCEPTED = "JSONL, JSON, CSV or TSV, plain or .gz, or a folder of them"

Problems = Callable[[str], None]


class Record(NamedTuple):
    """One record of a file: its fields, and where it stands (`file:line`)."""

    fields: dict[str, Any]
    place: str


def read_records(path: Path, report: Problems, strict: bool = False) -> Iterator[Record]:
    """The records of a file or of a folder's files, in the order of file names and lines.

    A torn last line of a JSONL file (no line end, not JSON) is left out and told to `report`; with
    `strict` it is an error, as any other malformed line always is. Raises WorkbookError.
    """
    for file in files_of(path):
        reader = {".json": _read_json, ".csv": _read_csv, ".tsv": _read_csv}.get(format_of(file), _read_jsonl)
        try:
            yield from reader(file, report, strict)
        except UnicodeDecodeError as error:
            raise WorkbookError(f"{file}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise WorkbookError(f"{file}: damaged gzip file ({error}); fetch it again") from None


def files_of(path: Path) -> list[Path]:
    """The data files behind `path`, sorted by name. Raises WorkbookError if there are none."""
    if not path.exists():
        raise WorkbookError(f"{path}: no such file or folder; give {ACCEPTED}")
    if path.is_file():
        if format_of(path) is None:
            raise WorkbookError(f"{path}: unknown format; give {ACCEPTED}")
        return [path]
    files = sorted(p for p in path.rglob("*") if p.is_file() and format_of(p) and not p.name.startswith("."))
    if not files:
        raise WorkbookError(f"{path}: no data file in this folder; give {ACCEPTED}")
    return files


def format_of(path: Path) -> str | None:
    """The format's suffix (`.jsonl`, `.csv`, …) of a file name, `.gz` aside; None if it is not accepted."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in FORMATS if name.endswith(suffix)), None)


def find(folder: Path, stem: str) -> Path | None:
    """The file or folder called `stem` in `folder`, in any accepted format; None if there is none."""
    found = sorted(p for p in folder.glob(f"{stem}.*") if p.is_file() and format_of(p))
    if (folder / stem).is_dir():
        found.append(folder / stem)
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise WorkbookError(f"{folder}: more than one file for '{stem}' ({names}); keep one")
    return found[0] if found else None


def pick(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The first field among `names` that is present and not null; None if there is none."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def as_id(value: Any, place: str) -> str | None:
    """An id as text, verbatim: 7 -> "7", "007" -> "007"; None for a missing or blank one.

    Raises WorkbookError for a value that cannot be an id (a float, a list, true).
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        if not value.isascii() and value.encode("utf-8", "replace").decode("utf-8") != value:
            raise WorkbookError(f"{place}: id {value!r} holds a character that UTF-8 cannot write")
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise WorkbookError(f"{place}: id {value!r} is neither text nor a whole number")


def as_ids(value: Any, place: str) -> list[str]:
    """A list of ids from a list, a JSON list in text, or text separated by white space , ; or |."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            try:
                value = json.loads(text)
            except ValueError:
                raise WorkbookError(f"{place}: candidates {text[:40]!r} are not a JSON list") from None
        else:
            value = text.translate(str.maketrans(",;|", "   ")).split()
    if value is None:
        return []
    if not isinstance(value, list):
        raise WorkbookError(f"{place}: candidates must be a list of document ids, not {type(value).__name__}")
    ids = [as_id(item, place) for item in value]
    if None in ids:
        raise WorkbookError(f"{place}: blank document id among the candidates")
    return ids


def _open(path: Path) -> io.BufferedIOBase:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else open(path, "rb")


def _read_jsonl(path: Path, report: Problems, strict: bool) -> Iterator[Record]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            place = f"{path}:{number}"
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not text.strip():
                continue
            try:
                fields = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
            except (ValueError, RecursionError) as error:
                if not strict and not line.endswith(b"\n"):
                    report(f"{place}: torn last line left out ({_reason(error)})")
                    return
                raise WorkbookError(f"{place}: malformed JSON ({_reason(error)})") from None
            yield Record(_as_object(fields, place), place)


def _read_json(path: Path, report: Problems, strict: bool) -> Iterator[Record]:
    with _open(path) as file:
        text = file.read().decode("utf-8-sig")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise WorkbookError(f"{path}:{line}: malformed JSON ({_reason(error)})") from None
    if isinstance(value, dict):
        lists = [v for k, v in value.items() if k in ("queries", "documents", "candidates", "data", "topics")]
        value = lists[0] if len(lists) == 1 and isinstance(lists[0], list) else [value]
    if not isinstance(value, list):
        raise WorkbookError(f"{path}: expected a list of records")
    for number, fields in enumerate(value, 1):
        place = f"{path}:record {number}"
        yield Record(_as_object(fields, place), place)


def _read_csv(path: Path, report: Problems, strict: bool) -> Iterator[Record]:
    csv.field_size_limit(sys.maxsize)
    delimiter = "\t" if format_of(path) == ".tsv" else ","
    with _open(path) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), delimiter=delimiter, strict=True)
        header = None
        try:
            for row in rows:
                place = f"{path}:{rows.line_num}"
                if not row:
                    continue
                if header is None:
                    header = _header(row, place)
                elif len(row) != len(header):
                    raise WorkbookError(f"{place}: {len(row)} cells under {len(header)} columns")
                else:
                    yield Record({k: v for k, v in zip(header, row, strict=True) if v != ""}, place)
        except csv.Error as error:
            raise WorkbookError(f"{path}:{rows.line_num}: malformed table ({error})") from None


def _header(row: list[str], place: str) -> list[str]:
    header = [cell.strip() for cell in row]
    if len(set(header)) != len(header):
        raise WorkbookError(f"{place}: a column name stands twice")
    return header


def _as_object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WorkbookError(f"{place}: expected an object with named fields, found {type(value).__name__}")
    return value


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not JSON")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    return getattr(error, "msg", None) or str(error)
