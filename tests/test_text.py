import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.text import content_tokens, jaccard, keywords, one_line, sentences, tokens, words

ABBREVIATIONS = "Fig. Figs. Eq. Eqs. Ref. Refs. Tab. Sec. No. Nos. Vol. pp. ca. approx. cf.".split()
MARKS = ["[12]", "[3,4]", "[3–5]", "[1, 7]", "3", "12", "3,4", "1–3"]


def split(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Vell et al. [2011] cooled it. Fig. 2b agrees, cf. Eq. (4). Growth was 3.5 mm (p < 0.05).",
            ["Vell et al. [2011] cooled it.", "Fig. 2b agrees, cf. Eq. (4).", "Growth was 3.5 mm (p < 0.05)."],
        ),
        (
            "Cells burst.[12] Debris sank. Yield doubled.3 Heat fell.",
            ["Cells burst.[12]", "Debris sank.", "Yield doubled.3", "Heat fell."],
        ),
    ],
)
def test_c08_the_reported_inputs_split_as_asked(text, expected):
    assert split(text) == expected


@pytest.mark.parametrize("abbreviation", ABBREVIATIONS)
@pytest.mark.parametrize("frame", ["The curve bends ({} 3). Heat fell.", "It bends, {} 3 and (4) show. Heat fell."])
def test_c08_an_abbreviation_before_a_number_ends_no_sentence(frame, abbreviation):
    first, second = frame.format(abbreviation).rsplit(" Heat", 1)
    assert split(f"{first} Heat{second}") == [first, "Heat fell."]


@pytest.mark.parametrize(
    "first",
    [
        "Vell et al. (2011) cooled it.",
        "Vell et al. cooled it.",
        "Dr. Vell and Prof. Sand cooled it.",
        "Many ponds, e.g. Moss Pond, froze.",
        "It froze, i.e. Moss Pond was solid.",
        "We compared ice vs. Moss Pond water.",
        "Growth of E. coli was slow.",
    ],
)
def test_c08_an_abbreviation_before_a_word_ends_no_sentence(first):
    assert split(f"{first} Heat fell.") == [first, "Heat fell."]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("before", ["Cells burst", "It rose (twice)", "Cells grew by 5%"])
def test_c08_a_glued_citation_mark_stays_with_its_sentence(before, mark):
    assert split(f"{before}.{mark} Debris sank.") == [f"{before}.{mark}", "Debris sank."]


def test_c08_a_spaced_citation_mark_starts_no_sentence():
    assert not [sentence for sentence in split("Cells died. [3] Heat fell.") if sentence.startswith("[3]")]


@pytest.mark.parametrize("number", ["3.5", "0.05", "1,000.25", "2.1.3", "−4.7"])
def test_c08_a_decimal_number_stays_whole(number):
    assert split(f"Growth was {number} mm. Heat fell.") == [f"Growth was {number} mm.", "Heat fell."]


@pytest.mark.parametrize(
    "first", ["Growth rose to 3.5.", "Growth rose to 35.", "Cells grew at 37 °C.", "The answer was no."]
)
def test_c08_a_sentence_ends_after_a_number_a_unit_or_a_word_that_looks_like_an_abbreviation(first):
    assert split(f"{first} Then heat fell.") == [first, "Then heat fell."]


@pytest.mark.parametrize("space", [" ", "\u00a0"])
def test_c10_repeated_sentences_have_spans_of_their_own(space):
    text = f"It failed. We{space}retried. It failed."
    assert sentences(text) == [(0, 10), (11, 22), (23, 33)]
    assert split(text) == ["It failed.", f"We{space}retried.", "It failed."]


PIECES = st.sampled_from(
    "It failed. We retried! Why? e.g. Fig. (4). [12] 3.5 .3 et al. °C. don't can't re- — … ... ; “Yes.” ﬁlm 𝛼 氷 "
    "\u00ad \u200b \u00a0 \u202f \n \n\n \r\n \t".split(" ")
)


@settings(deadline=None)
@given(
    st.one_of(st.lists(PIECES, max_size=25).map(" ".join), st.lists(PIECES, max_size=25).map("".join), st.text(max_size=60))
)
def test_c10_spans_are_ordered_and_lose_no_letter_or_digit(text):
    spans = sentences(text)
    assert all(a.end <= b.start for a, b in zip(spans, spans[1:], strict=False))
    assert all(any(c.isalnum() for c in sentence) for sentence in split(text))
    assert [c for c in "".join(split(text)) if c.isalnum()] == [c for c in text if c.isalnum()]


@pytest.mark.parametrize("space", [" ", "\n", "\u00a0", " \u2003", "\u2028"])
def test_c10_spans_hold_no_surrounding_white_space(space):
    assert split(f"{space}It failed{space}") == ["It failed"]


@pytest.mark.parametrize("text", ["", "   \n", ".", "...", " . ! ?", "\u00a0\u200b"])
def test_c11_text_without_a_letter_or_digit_has_no_sentence(text):
    assert sentences(text) == []


def test_c10_spans_over_real_documents_lose_no_letter_or_digit(real_data):
    with open(real_data / "slice" / "documents" / "documents_000001.jsonl", encoding="utf-8") as file:
        texts = [record.get("fullText") or record["abstract"] for record in map(json.loads, file)]
    for text in texts[:12]:
        assert [c for c in "".join(split(text)) if c.isalnum()] == [c for c in text if c.isalnum()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The TiO2-coated membrane.", ["the", "tio2", "coated", "membrane"]),
        ("TIO2-coated", ["tio2", "coated"]),
        ("N₂O and N2O", ["n2o", "and", "n2o"]),
        ("ﬁlm FILM", ["film", "film"]),
        ("3.5 mm, 0.05", ["3.5", "mm", "0.05"]),
        ("snake_case", ["snake", "case"]),
        ("Лёд тает", ["лёд", "тает"]),
        ("e\u0301t\u00e9", ["\u00e9t\u00e9"]),
        ("... — !", []),
    ],
)
def test_c04_tokens_fold_case_width_and_composition(text, expected):
    assert tokens(text) == expected


@pytest.mark.parametrize("value", [["membrane"], None, b"membrane", 7])
def test_c04_tokens_refuses_what_is_no_string(value):
    with pytest.raises(TypeError, match=type(value).__name__):
        tokens(value)


def test_words_counts_after_nfkc_as_trec_does():
    assert words("Heat\u00a0flow was 5\u202fkW.") == 5


def test_content_tokens_drop_stopwords_and_keep_repeats():
    assert content_tokens("The ice and the ice of a lake") == ["ice", "ice", "lake"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("How does the Lake ice of the lake melt?", ["lake", "ice", "melt"]),
        ("pH of an ox in UV light", ["light"]),
        ("Is it?", []),
        ("", []),
    ],
)
def test_keywords_are_long_distinct_content_tokens_in_query_order(query, expected):
    assert keywords(query) == expected


def test_keywords_stop_at_twelve():
    query = "zinc iron gold lead silver copper nickel cobalt barium radon xenon argon neon helium"
    assert keywords(query) == query.split()[:12]
    assert keywords(query, limit=3) == ["zinc", "iron", "gold"]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [({1, 2, 3}, {2, 3, 4}, 0.5), ({1}, {1}, 1.0), ({1}, {2}, 0.0), (set(), {1}, 0.0), (set(), set(), 0.0)],
)
def test_jaccard_is_intersection_over_union(a, b, expected):
    assert jaccard(a, b) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\n b\t\tc ", "a b c"), ("a\x00b", "a b"), ("a\u2028b\u00a0c", "a b c"), ("", "")],
)
def test_one_line_joins_white_space_and_drops_controls(text, expected):
    assert one_line(text) == expected
