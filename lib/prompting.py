"""Evidence -> a request to a model, and its reply -> answer sentences (paper, section 3.6)."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from lib import paths
from lib.errors import WorkbookError
from lib.evidence import Evidence
from lib.generation import Sentence
from lib.replies import Request, closed, list_of
from lib.slices import Query
from lib.text import one_line, unbroken
from lib.variants import Variant

# The reply that the paper's generation step asks for; every object is closed and requires all its fields.
_SENTENCE = closed(text={"type": "string"}, evidence_ids=list_of({"type": "integer"}))
ANSWER_SCHEMA = closed(answer=list_of(_SENTENCE))


def load_prompt(name: str, fields: Sequence[str] = ("query", "evidence")) -> tuple[str, str]:
    """The system and the user part of `params/prompts/<name>.txt`, which a line `---` divides.

    Raises WorkbookError unless the user part has a place for each of `fields`.
    """
    path = paths.PARAMS / "prompts" / f"{name}.txt"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.txt")))
        raise WorkbookError(f"{path}: no such prompt; known: {known}")
    parts = path.read_text(encoding="utf-8").split("\n---\n")
    if len(parts) != 2 or any(f"{{{field}}}" not in parts[1] for field in fields):
        places = " and ".join(f"{{{field}}}" for field in fields)
        raise WorkbookError(f"{path}: expected two parts divided by '---', the second with {places}")
    try:
        parts[0].format(max_sentences=5, max_words=60)
        parts[1].format(**dict.fromkeys(fields, ""))
    except (KeyError, ValueError, IndexError) as error:
        raise WorkbookError(f"{path}: cannot be filled in ({error!r}); write {{{{ and }}}} for braces") from None
    return parts[0].strip(), parts[1].strip()


def answer_request(
    query: Query, evidence: Sequence[Evidence], variant: Variant, prompt: tuple[str, str], run_id: str, draw: int = 0
) -> Request:
    """The request for one answer; the model sees ids, documents and sentences, and no dates.

    Its id is `run_id|query_id`, the `custom_id` of a batch. Evidence is data: one JSON list whose
    angle brackets are escaped, so that no quoted text can close the block it stands in.
    """
    system, user = prompt
    items = [{"evidence_id": e.evidence_id, "doc_id": e.doc_id, "text": one_line(e.text)} for e in evidence]
    data = "[\n" + ",\n".join(_quoted(item) for item in items) + "\n]"
    limits = {"max_sentences": variant.max_answer_sentences, "max_words": variant.max_answer_words}
    messages = (
        {"role": "system", "content": system.format(**limits)},
        {"role": "user", "content": user.format(query=_quoted(query.text), evidence=data)},
    )
    known = frozenset(item.evidence_id for item in evidence)

    def check(value: dict[str, Any]) -> tuple[str, str] | None:
        return answer_fault(value, known, variant.max_answer_sentences)

    return Request(f"{run_id}|{query.query_id}", messages, ANSWER_SCHEMA, draw, check)


def request(
    request_id: str,
    prompt: tuple[str, str],
    about: dict[str, Any],
    schema: dict[str, Any],
    check: Callable[[dict[str, Any]], tuple[str, str] | None] | None = None,
) -> Request:
    """The request of a judge: its rubric, and the data to look at, each field as JSON that no quoted text can close."""
    system, user = prompt
    quoted = {name: _quoted(value) for name, value in about.items()}
    messages = ({"role": "system", "content": system.format()}, {"role": "user", "content": user.format(**quoted)})
    return Request(request_id, messages, schema, 0, check)


def _quoted(value: Any) -> str:
    """A value as JSON that cannot close the block it stands in."""
    return paths.encodable(json.dumps(value, ensure_ascii=False)).replace("<", "\\u003c").replace(">", "\\u003e")


def answer_fault(value: dict[str, Any], known: frozenset[int], max_sentences: int) -> tuple[str, str] | None:
    """Why a reply that follows the schema still cannot be used, as (status, detail); None if it can."""
    sentences = value["answer"]
    if not sentences or any(not _says_something(sentence["text"]) for sentence in sentences):
        return "empty", "the answer has no sentence, or one without a letter or digit"
    if len(sentences) > max_sentences:
        return "off-schema", f"{len(sentences)} sentences; at most {max_sentences} are allowed"
    for number, sentence in enumerate(sentences):
        for evidence_id in sentence["evidence_ids"]:
            if evidence_id not in known:
                return "unknown-evidence", f"sentence {number} names evidence {evidence_id}, which it was not given"
    return None


def _says_something(sentence: str) -> bool:
    return any(character.isalnum() for character in sentence)


def answer_sentences(value: dict[str, Any], documents_of: dict[int, str]) -> list[Sentence]:
    """The answer in a usable reply: evidence_id -> document id (`documents_of`), repeats dropped, order kept.

    Sentences that rest on no evidence are left out, as in the published runs; if none rests on any,
    the first stays, uncited. The raw reply keeps them all.
    """
    sentences = []
    for sentence in value["answer"]:
        ids = tuple(dict.fromkeys(sentence["evidence_ids"]))
        doc_ids = tuple(dict.fromkeys(documents_of[i] for i in ids))
        sentences.append(Sentence(unbroken(sentence["text"]), ids, doc_ids))
    return [sentence for sentence in sentences if sentence.doc_ids] or sentences[:1]
