"""Text -> sentences with exact offsets, tokens, keywords.

Sentence splitting is syntok on a masked copy of the text. No splitter passes the cases by itself;
measured on the 60 real documents of the development slice (1.4 MB, two cores):

| splitter                     | cases passed (C08a, C08b, C10) | sentences per second | starts in lower case |
|------------------------------|--------------------------------|----------------------|----------------------|
| pysbd 0.3.4                  | no, yes, yes                   | 540                  | 2,627 of 13,797      |
| spaCy 3.8 sentencizer        | no, no, yes                    | 5,700                | 487 of 12,013        |
| syntok 1.4.4                 | no, no, yes                    | 7,800                | 11 of 10,231         |
| spaCy sentencizer, masked    | yes, yes, yes                  | 7,900                | 481 of 11,218        |
| syntok, masked (used here)   | yes, yes, yes                  | 6,900                | 11 of 10,097         |

A start in lower case is nearly always a wrong cut; four spans of pysbd also overlap.

The mask has the length of the text, so offsets stay true: the full stop of an abbreviation and the
point of a decimal number become letters and digits, and a citation mark changes places with the full
stop before it.
"""

import hashlib
import re
import textwrap
import unicodedata
from typing import NamedTuple

import syntok.segmenter

_ABBREVIATION = re.compile(
    r"\b(?:et\s+al|[Ff]igs?|[Ee]qs?|[Ee]qns?|[Rr]efs?|[Tt]abs?|[Ss]ecs?|[Cc]h|[Aa]pp|[Ss]uppl|[Vv]ol|pp?|[Nn]os?(?=\.\s*\d)|"
    r"cf|vs|viz|e\.\s?g|i\.\s?e|ca|approx|resp|spp?|subsp|var|[Dd]rs?|[Pp]rof|[Mm]rs?|[Mm]s|St)\.(?=\s*[\[(]?\w)"
)
_GLUED_MARK = re.compile(
    r"(?<=[^\W\d_]|[)\]%])([.!?])(\[\d[\d,;–\-\s]*\]|\d{1,3}(?:[,–-]\d{1,3})*)(?=\s+[^\W\d_a-zß-öø-ÿ])"
)
_SPACED_MARK = re.compile(r"([.!?])(\s+)(\[\d[\d,;–\-\s]*\])(?=\s+[^\W\d_a-z])")
_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_DEGREES = re.compile(r"°[A-Z](?=\.)")
# A decimal number is one token; everything else is a run of letters and digits, so "TiO2-coated" is two.
_TOKEN = re.compile(r"\d+(?:\.\d+)+|[^\W_]+")

_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

STOPWORDS = frozenset(
    """a about above after again against all also although am among an and another any are as at be because been before
    being below between both but by can cannot could did do does doing done down during each either else ever every few
    for from further had has have having he hence her here hers herself him himself his how however i if in into is it
    its itself just least less like may me might more most much must my myself neither no nor not of off often on once
    one only onto or other others our ours ourselves out over own per perhaps rather same shall she should since so some
    such than that the their theirs them themselves then there therefore these they this those though through thus to
    too toward towards under until up upon us use used using very via was we were what whatever when where whereas
    whether which while who whom whose why will with within without would yet you your yours yourself""".split()
)


_REMEMBERED = 512  # texts, 10 MB of spans where they are whole papers


class Span(NamedTuple):
    """Characters `start` to `end` of a document's text."""

    start: int
    end: int


_remembered: dict[bytes, list[Span]] = {}


def sentences(text: str) -> list[Span]:
    """Sentence spans in order: `text[start:end]` is the sentence, without surrounding white space.

    Spans never overlap, and each holds a letter or a digit; text between them is white space or
    ornament. The spans of the last few hundred texts are remembered: a notebook asks several times.
    """
    spans = _remembered.get(_key(text))
    if spans is None:
        spans = split(text)
        remember(text, spans)
    return list(spans)


def remember(text: str, spans: list[Span]) -> None:
    """Have `sentences` give these spans for a text."""
    _remembered[_key(text)] = spans
    if len(_remembered) > _REMEMBERED:
        _remembered.pop(next(iter(_remembered)), None)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def split(text: str) -> list[Span]:
    """`sentences`, computed anew."""
    spans = []
    for paragraph in syntok.segmenter.analyze(_masked(text)):
        for tokens_ in paragraph:
            start, stop = tokens_[0].offset, tokens_[-1].offset + len(tokens_[-1].value)
            end = start + len(text[start:stop].rstrip())
            if any(c.isalnum() for c in text[start:end]):
                spans.append(Span(start, end))
    return spans


def _masked(text: str) -> str:
    """A text of the same length whose full stops are those that end sentences."""
    masked = _ABBREVIATION.sub(lambda m: m[0].replace(".", "x"), text)
    masked = _DECIMAL_POINT.sub("0", masked)
    masked = _DEGREES.sub("xx", masked)
    masked = _SPACED_MARK.sub(r"\2\3\1", masked)
    return _GLUED_MARK.sub(lambda m: re.sub(r"\W", "x", m[2]) + m[1], masked)


def tokens(text: str) -> list[str]:
    """Lower-case tokens after NFKC (so "N₂O" is "n2o"); the one tokeniser for documents and queries."""
    if not isinstance(text, str):
        raise TypeError(f"tokens() takes a string, not {type(text).__name__}")
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())


def words(text: str) -> int:
    """Number of white-space separated words after NFKC, as TREC RAG counts answer length."""
    return len(unicodedata.normalize("NFKC", text).split())


def content_tokens(text: str) -> list[str]:
    """The tokens that are no stopwords, in order, repeats kept."""
    return [token for token in tokens(text) if token not in STOPWORDS]


def keywords(query: str, limit: int = 12) -> list[str]:
    """The query-keyword set: content tokens of length >= 3, first occurrence order, at most `limit` (section 3.3)."""
    return list(dict.fromkeys(t for t in content_tokens(query) if len(t) >= 3))[:limit]


def jaccard(a: set[str], b: set[str]) -> float:
    """|a & b| / |a | b|, and 0 for two empty sets."""
    return len(a & b) / len(a | b) if a or b else 0.0


def one_line(text: str) -> str:
    """`text` with every run of white space as one space and control characters gone."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else " " for c in text).split())


def folded(text: str, width: int = 96) -> str:
    """`text` broken between words into lines of at most `width` characters, to be printed; its own lines stay lines."""
    return "\n".join(textwrap.fill(line, width) for line in text.split("\n"))


def unbroken(text: str) -> str:
    """`text` stripped, with each run of line breaks and control characters as one space and all else as it was."""
    return _BREAKS.sub(" ", text).strip()
