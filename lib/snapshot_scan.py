"""The bytes of a snapshot -> every id that stands in them, and the lines that may hold a wanted one. No JSON is parsed.

Looked for is every accepted name of an id over a text or a whole number, wherever it stands in a line.
So no id is missed, but for a name that is itself written with escapes; what is found may also come from
a nested record or out of a text, which only the parsed line can tell.
"""

import gzip
import json
import mmap
import re
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from lib import readers
from lib.errors import WorkbookError

BLOCK = 1 << 19  # bytes looked at together; more would not stay in a core's own cache
LONGEST_LINE = 1 << 28

_QUOTE = ord('"')
_ENDING = b"id"  # of every accepted name
# From the quote that closes the name on.
_FIELD = re.compile(
    rb'(?:%b)"[ \t\r]*:[ \t\r]*(?:"([^"\\\n]*(?:\\.[^"\\\n]*)*)"|(-?[0-9]+))'
    % b"|".join(b'(?<="%b)' % name.encode() for name in readers.DOC_ID)
)

# What the index holds of an id: 32 bits. Two ids may share them, so the line decides.
key_of = zlib.crc32


class Piece(NamedTuple):
    """The lines of a file that begin from `start` to before `stop`; all lines of a gzip file, which has no middle to enter.

    `known` if the index led here.
    """

    path: Path
    start: int
    stop: int
    known: bool = False


class Line(NamedTuple):
    """A line that names a wanted id: where it begins in its file, decompressed, and where its bytes were put aside."""

    path: Path
    offset: int
    aside: Path
    start: int
    length: int


class Part(NamedTuple):
    """All ids of a piece: their keys (uint32), and the offsets of their lines in rising order (uint64)."""

    piece: Piece
    keys: np.ndarray
    offsets: np.ndarray


class Block(NamedTuple):
    """Bytes to be searched, from `begin` to `end`, in a buffer of whole lines that reach from `first` to `last`.

    A position in the buffer and `shift` make up the offset in the file, decompressed.
    """

    buffer: bytes | bytearray | mmap.mmap
    first: int
    begin: int
    end: int
    last: int
    shift: int


def scan(
    piece: Piece, wanted: frozenset[bytes], aside: BinaryIO, advance: Callable[[int], None]
) -> tuple[Part, list[Line]]:
    """The ids of a piece, and its lines that name a wanted one, whose bytes are appended to `aside`.

    `advance` is told of the bytes read, as they lie on the disk. Raises WorkbookError.
    """
    keys, offsets, lines = array("I"), array("Q"), []
    for block in _blocks(piece, advance):
        for at, doc_id in ids_in(block):
            begin = _line_begin(block, at)
            keys.append(key_of(doc_id))
            offsets.append(begin + block.shift)
            if doc_id in wanted and not (lines and lines[-1].offset == begin + block.shift):
                line = block.buffer[begin : _line_end(block, at)]
                lines.append(Line(piece.path, begin + block.shift, Path(aside.name), aside.tell(), len(line)))
                aside.write(line)
    return Part(piece, np.array(keys, np.uint32), np.array(offsets, np.uint64)), lines


def ids_in(block: Block) -> Iterator[tuple[int, bytes]]:
    """What may be a document's id in a block: the position of the quote after its name, and the id."""
    characters = np.frombuffer(block.buffer, np.uint8)
    quotes = block.begin + _quotes(characters[block.begin : block.end])
    for back, character in enumerate(reversed(_ENDING), 1):
        quotes = quotes[characters[quotes - back] == character]
    for at in quotes.tolist():
        match = _FIELD.match(block.buffer, at, block.last)
        if match:
            doc_id = match[match.lastindex]
            yield at, _unescaped(doc_id) if b"\\" in doc_id else doc_id


def _quotes(characters: np.ndarray) -> np.ndarray:
    """The positions of quotes. Most of a text has none, so whole words of eight bytes are passed over first."""
    is_quote = np.empty(-(-len(characters) // 8) * 8, bool)
    is_quote[-8:] = False
    np.equal(characters, _QUOTE, out=is_quote[: len(characters)])
    words = is_quote.view(np.uint64)
    (with_quote,) = (words != 0).nonzero()
    (at,) = words[with_quote].view(bool).nonzero()
    return (with_quote[at >> 3] << 3) + (at & 7)


def _unescaped(text: bytes) -> bytes:
    """The id in UTF-8 that the inside of a JSON string spells; as it stands if that is no JSON, and so no id."""
    try:
        return json.loads(b'"%b"' % text).encode("utf-8", "surrogatepass")
    except ValueError:
        return text


def is_gzip(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _blocks(piece: Piece, advance: Callable[[int], None]) -> Iterator[Block]:
    """The lines of a piece, in blocks."""
    with open(piece.path, "rb") as raw:
        if is_gzip(piece.path):
            yield from _decompressed(raw, piece.path, advance)
            return
        begin, end = (_line_from(raw, offset, piece.path) for offset in (piece.start, piece.stop))
        raw.seek(begin)
        for block in (_whole_lines if piece.known else _mapped)(raw, begin, end, piece.path):
            yield block
            advance(block.end - block.begin)


def _decompressed(raw: BinaryIO, path: Path, advance: Callable[[int], None]) -> Iterator[Block]:
    told = 0
    try:
        for block in _whole_lines(gzip.GzipFile(fileobj=raw), 0, sys.maxsize, path):
            yield block
            advance(raw.tell() - told)
            told = raw.tell()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise WorkbookError(f"{path}: damaged gzip file ({error}); fetch it again") from None
    advance(raw.tell() - told)


def _mapped(file: BinaryIO, begin: int, end: int, path: Path) -> Iterator[Block]:
    """The bytes from `begin` to `end`, mapped into memory, which saves a copy but is not worth it for a line."""
    if begin == end:
        return
    shift = begin - begin % mmap.ALLOCATIONGRANULARITY
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    try:
        buffer = mmap.mmap(file.fileno(), end - shift, flags=flags, prot=mmap.PROT_READ, offset=shift)
    except ValueError:
        raise WorkbookError(f"{path}: became shorter while it was read; extract again") from None
    first, last = begin - shift, end - shift
    for at in range(first, last, BLOCK):
        yield Block(buffer, first, at, min(at + BLOCK, last), last, shift)


def _line_from(file: BinaryIO, offset: int, path: Path) -> int:
    """The offset of the first line that begins at or after an offset."""
    if offset == 0:
        return 0
    file.seek(offset - 1)
    if len(file.readline(LONGEST_LINE)) == LONGEST_LINE:
        raise _too_long(path)
    return file.tell()


def _whole_lines(file: BinaryIO, begin: int, end: int, path: Path) -> Iterator[Block]:
    """The bytes from `begin` to `end` or to the file's end. The buffer is used again for every block."""
    buffer, filled, at = bytearray(BLOCK), 0, begin
    while True:
        if filled == len(buffer):
            if filled >= LONGEST_LINE:
                raise _too_long(path)
            buffer = buffer + bytes(filled)
        room = min(len(buffer) - filled, end - at - filled)
        got = file.readinto(memoryview(buffer)[filled : filled + room])
        filled += got
        size = buffer.rfind(b"\n", 0, filled) + 1 if got else filled
        if size:
            yield Block(buffer, 0, 0, size, size, at)
            buffer[: filled - size] = buffer[size:filled]
            filled, at = filled - size, at + size
        if not got:
            return


def _line_begin(block: Block, position: int) -> int:
    """Where the line of a position begins. Most ids stand near it, and a mapped buffer searches slowly itself."""
    reach = 1 << 4
    while True:
        low = max(position - reach, block.first)
        found = block.buffer[low:position].rfind(b"\n") + 1
        if found or low == block.first:
            return low + found
        reach <<= 6


def _line_end(block: Block, position: int) -> int:
    """Where the line of a position ends, its line feed included."""
    reach = 1 << 16
    while True:
        found = block.buffer[position : min(position + reach, block.last)].find(b"\n") + 1
        if found or position + reach >= block.last:
            return position + found if found else block.last
        reach <<= 3


def _too_long(path: Path) -> WorkbookError:
    return WorkbookError(f"{path}: a line of over {LONGEST_LINE:,} bytes; a snapshot holds a record a line")
