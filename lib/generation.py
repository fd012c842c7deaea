"""Evidence -> answer sentences, offline: the extractive generator and the two baselines."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from lib.evidence import Evidence
from lib.retrieval import is_temporal
from lib.slices import Document, Query
from lib.text import content_tokens, jaccard, one_line, words
from lib.variants import Variant

LEADS = ("Earlier work ({}): ", "Later work ({}): ")  # what leads in the two ends of a comparison, with their years
_REPEAT = 0.6
_LEADING = re.compile(
    r"^(?:(?:\d+(?:\.\d+)+\.?|\d+\.|\(\d+\)|[•·▪–-])\s+(?=[A-Z])|"
    r"(?:Abstract|Summary|Background|Introduction|Objectives?|Aims?|Purpose|Methods?|Results?|Findings|Conclusions?)"
    r"\s*[:.—]\s*(?=[A-Z]))+"
)


class Sentence(NamedTuple):
    """One answer sentence: its text, the evidence items it rests on, and the documents it cites."""

    text: str
    evidence_ids: tuple[int, ...]
    doc_ids: tuple[str, ...]


def extractive(query: Query, evidence: Sequence[Evidence], documents: dict[str, Document], variant: Variant):
    """Whole evidence sentences, best first, within the sentence and word budgets; a list of `Sentence`.

    Repeats of what is already said are passed over. For a temporal query with evidence of two
    different years, the answer opens with the earliest and the latest, each led in by its year.
    The best sentence is taken even if it alone exceeds the word budget.
    """
    budget = variant.max_answer_words
    compare = is_temporal(query.text, variant) and variant.max_answer_sentences > 1
    answer = _comparison(evidence, documents, budget) if compare else []
    said = [set(content_tokens(sentence.text)) for sentence in answer]
    for item in evidence:
        text = readable(item.text)
        terms = set(content_tokens(text))
        used = sum(words(sentence.text) for sentence in answer)
        if len(answer) == variant.max_answer_sentences or item.evidence_id in {i for s in answer for i in s.evidence_ids}:
            continue
        if answer and used + words(text) > budget or any(jaccard(terms, other) >= _REPEAT for other in said):
            continue
        answer.append(Sentence(text, (item.evidence_id,), (item.doc_id,)))
        said.append(terms)
    return answer


def titles(query: Query, documents: Sequence[Document], variant: Variant) -> list[Sentence]:
    """The organisers' naive baseline: the candidates' titles in order, each citing its document."""
    named = [Sentence(one_line(d.title) or d.doc_id, (), (d.doc_id,)) for d in documents]
    return named[: variant.max_answer_sentences]


def readable(text: str) -> str:
    """An evidence sentence as answer text: on one line, without a leading number or label, closed by a full stop."""
    text = _LEADING.sub("", one_line(text))
    return text if text[-1] in ".!?\"'”’)]" or text[-1].isdigit() else f"{text}."


def _comparison(evidence: Sequence[Evidence], documents: dict[str, Document], budget: int) -> list[Sentence]:
    """Two sentences within the budget whose years lie furthest apart, the better evidence first; nothing if none fit."""
    dated = [(documents[e.doc_id].year, e) for e in evidence if documents[e.doc_id].year]
    pairs = [
        (late_year - early_year, [_led_in(LEADS[0], early, early_year), _led_in(LEADS[1], late, late_year)])
        for early_year, early in dated
        for late_year, late in dated
        if early_year < late_year
    ]
    fitting = [pair for pair in pairs if sum(words(sentence.text) for sentence in pair[1]) <= budget]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else []


def _led_in(lead: str, item: Evidence, year: int) -> Sentence:
    return Sentence(lead.format(year) + readable(item.text), (item.evidence_id,), (item.doc_id,))
