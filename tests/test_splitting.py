"""Sentence spans from one run to the next."""

import pytest

from lib import splitting, text
from lib.vector_cache import VectorCache

TEXTS = [
    "Ice melts. It refreezes at night, as Smith et al. found.",
    "",
    "No full stop at all",
    "Füße. Ähren wachsen. 𝒳 is set.",
]


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(text, "_remembered", {})


def test_spans_from_the_store_are_those_of_the_splitter(tmp_path, monkeypatch):
    expected = [text.split(given) for given in TEXTS]
    splitting.recall(TEXTS, VectorCache(tmp_path / "s.sqlite"))
    text._remembered.clear()

    def refuse(_):
        raise AssertionError("split again")

    monkeypatch.setattr(text, "split", refuse)
    splitting.recall(TEXTS, VectorCache(tmp_path / "s.sqlite"))
    assert [text.sentences(given) for given in TEXTS] == expected
    assert all(type(span) is text.Span and type(span.start) is int for spans in expected for span in spans)


def test_other_rules_do_not_read_what_these_have_stored(tmp_path, monkeypatch):
    store = VectorCache(tmp_path / "s.sqlite")
    splitting.recall(TEXTS[:1], store)
    text._remembered.clear()
    monkeypatch.setattr(splitting, "_splitter", lambda: "other rules")
    monkeypatch.setattr(text, "split", lambda given: [text.Span(0, 3)])
    splitting.recall(TEXTS[:1], store)
    assert text.sentences(TEXTS[0]) == [(0, 3)]


def test_a_caller_cannot_change_what_is_remembered():
    text.sentences(TEXTS[0]).clear()
    assert len(text.sentences(TEXTS[0])) == 2


def test_only_so_many_texts_are_remembered():
    for number in range(2 * text._REMEMBERED):
        text.sentences(f"Text {number} stands here.")
    assert len(text._remembered) == text._REMEMBERED
