"""Where the sentences of texts stand, kept from one run to the next.

Where all vectors are cached, splitting takes longest of what is left of notebook 02: 1.2 s for 60 papers.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from lib import paths, text
from lib.text import Span
from lib.vector_cache import Row, VectorCache, cache_key_of

_LONGEST = 1 << 24  # characters; up to there float32 holds every whole number


def recall(texts: Sequence[str], store: VectorCache | None = None) -> None:
    """Have `lib.text.sentences` know the texts, a few hundred at most, from the cache or by splitting them now."""
    keys = {cache_key_of("sentences", _splitter(), given): given for given in texts if len(given) < _LONGEST}
    store = store or VectorCache(paths.cache_folder() / "sentences.sqlite")  # with a lock of its own: encoding takes long
    rows = store.get_or_compute(list(keys), lambda missing: _split(missing, keys))
    for key, given in keys.items():
        ends = rows[key][0].astype(int).tolist()
        text.remember(given, [Span(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)])


def _split(missing: list[bytes], keys: dict[bytes, str]) -> Iterator[list[Row]]:
    yield [(key, np.array(text.sentences(keys[key]), np.float32).reshape(-1), 0) for key in missing]


@cache
def _splitter() -> str:
    """What decides where sentences end: the rules in `lib.text`, and the version of syntok."""
    rules = Path(text.__file__).read_bytes()
    return f"{hashlib.sha256(rules).hexdigest()} syntok {metadata.version('syntok')}"
