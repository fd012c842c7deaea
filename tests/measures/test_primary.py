import json

import pandas as pd
import pytest
from scipy.stats import kendalltau

from lib import preparing
from lib.errors import WorkbookError
from lib.measures.primary import (
    Lemmatizer,
    UnicodeWords,
    citation_scores,
    cited_documents,
    cited_f1,
    cited_precision,
    cited_recall,
    preference,
    rouge_l,
    rouge_scores,
    term_frequency,
    tfc1,
    tfc1_scores,
)
from lib.runs import Response, read_run, read_runs
from lib.score_tables import Mean, by_run, leaderboard
from lib.slices import Query, read_qrels
from tests.pools import pool
from tests.process import NO_NETWORK, result


def values(scores, measure) -> list[tuple[str, str, float | None, str]]:
    return [(s.run, s.query_id, s.value, s.status) for s in scores if s.measure == measure]


# Cited documents


def record_of(references: list, *citations: list[int]) -> dict:
    return {"references": references, "answer": [{"text": "Ice melts.", "citations": list(c)} for c in citations]}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (record_of(["d1", "d2", "d3"], [2], [0, 2]), ["d3", "d1"]),
        (record_of(["d1", "d2"]), []),
        (record_of(["d1", "d2"], [], []), []),
        (record_of([4, "007", 7], [0, 1], [2]), ["4", "007", "7"]),
        (record_of(["d1", "d1"], [0], [1]), ["d1"]),
    ],
)
def test_cited_documents_are_distinct_as_text_and_in_order_of_first_citation(record, expected):
    assert cited_documents(record) == expected


# ROUGE


@pytest.mark.parametrize(
    ("target", "prediction", "unicode_words", "stock"),
    [
        ("Лёд тает", "Лёд тает", 1.0, 0.0),
        ("α decay", "β decay", 0.5, 1.0),
        # LCS yield, g: P = 2/4, R = 2/3, F = 4/7
        ("yield 3.5 g", "yield 3 5 g", 4 / 7, 1.0),
        ("yield 3,5 g", "yield 3 5 g", 4 / 7, 1.0),
        ("冰 融化", "冰 融化", 1.0, 0.0),
        ("Größe", "GRÖSSE und größe", 0.5, None),
        ("A\u030angstro\u0308m", "\u00c5ngstr\u00f6m", 1.0, None),
        ("पानी", "पाना", 0.0, 0.0),
        ("The melting glaciers.", "the melted glacier", 1.0, 1.0),
    ],
    ids=["a", "b", "c", "decimal comma", "no alphabet", "umlaut", "composed", "vowel signs", "stemmed"],
)
def test_c32_words_of_every_script_and_whole_decimals_beside_the_stock_figure(target, prediction, unicode_words, stock):
    assert rouge_l(target, prediction, UnicodeWords()) == pytest.approx(unicode_words, abs=1e-9)
    if stock is not None:
        assert rouge_l(target, prediction) == pytest.approx(stock, abs=1e-9)


def test_c32_both_figures_are_made_and_name_their_tokenizer_and_stemmer():
    scores = list(rouge_scores(pool(a=["Лёд тает"]), {"q1": "Лёд тает"}))
    assert values(scores, "rougeL_f1") == [("a", "q1", 0.0, "ok")]
    assert values(scores, "rougeL_f1[unicode words]") == [("a", "q1", 1.0, "ok")]
    assert all("rouge-score" in score.model and "stemmed" in score.model for score in scores)


@pytest.mark.parametrize("tokenizer", [None, UnicodeWords()])
@pytest.mark.parametrize(
    ("target", "prediction", "expected"),
    [
        # P = 2/2, R = 2/4
        ("a b c d", "a b", 2 / 3),
        # the longest common subsequence is 2 of 4 words; rougeLsum, line by line, would give 1.0
        ("a b\nc d", "c d\na b", 0.5),
        # a x c d, LCS a c d: P = R = 3/4
        ("a b c d", "a x c d", 0.75),
        ("a b c d", "", 0.0),
        ("", "a b", 0.0),
        ("", "", 0.0),
        ("a b", "...", 0.0),
        ("a b", "A, B!", 1.0),
    ],
)
def test_c33_rouge_l_by_hand(target, prediction, expected, tokenizer):
    assert rouge_l(target, prediction, tokenizer) == pytest.approx(expected, abs=1e-9)


def test_c33_an_empty_answer_and_a_missing_one_stay_in_the_mean():
    gold = {"q1": "ice melts", "q2": "ice creeps", "q3": "ice cracks", "q4": "ice floats"}
    scores = list(rouge_scores(pool(a=["ice melts", "", None, "ice floats"]), gold))
    for name in ("rougeL_f1", "rougeL_f1[unicode words]"):
        assert [row[2:] for row in values(scores, name)] == [(1.0, "ok"), (0.0, "ok"), (0.0, "missing"), (1.0, "ok")]
        assert leaderboard(scores)[name] == {"a": Mean(0.5, 4, 4)}


def test_a_query_without_a_gold_answer_has_no_value_and_is_counted():
    scores = list(rouge_scores(pool(a=["ice melts", "ice creeps"], b=["ice melts", None]), {"q1": "ice melts"}))
    rows = values(scores, "rougeL_f1")
    assert rows == [
        ("a", "q1", 1.0, "ok"),
        ("a", "q2", None, "no-gold"),
        ("b", "q1", 1.0, "ok"),
        ("b", "q2", None, "no-gold"),
    ]
    assert leaderboard(scores)["rougeL_f1"] == {"a": Mean(1.0, 1, 2), "b": Mean(1.0, 1, 2)}


# Citations


@pytest.mark.parametrize(
    ("cited", "relevant", "precision", "recall", "f1"),
    [
        # one of {d1, d2} is relevant, one of three is cited, F = 2 * 1 / (2 + 3)
        (["d1", "d2", "d2"], {"d2", "d3", "d4"}, 0.5, 1 / 3, 0.4),
        ([], {"d2"}, 0.0, 0.0, 0.0),
        ([], set(), 0.0, None, None),
        (["d1"], set(), 0.0, None, None),
        (["4"], {"4"}, 1.0, 1.0, 1.0),
        (["d1"], {"d1", "d2"}, 1.0, 0.5, 2 / 3),
        (["d3"], {"d1", "d2"}, 0.0, 0.0, 0.0),
        (["007"], {"7"}, 0.0, 0.0, 0.0),
    ],
)
def test_c34_cited_precision_recall_and_f1_by_hand(cited, relevant, precision, recall, f1):
    """Source: cases.md; a query that cites nothing has precision 0, as METHOD section 7 has it."""
    for given in (cited, frozenset(cited)):
        assert cited_precision(given, relevant) == precision
        assert cited_recall(given, relevant) == recall
        assert cited_f1(given, relevant) == (None if f1 is None else pytest.approx(f1, abs=1e-12))


def test_c34_a_numeric_reference_and_its_id_in_the_qrels_are_one_document(tmp_path):
    row = {"metadata": {"narrative_id": "q1"}, "references": [4], "answer": [{"text": "Ice.", "citations": [0]}]}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "responses.jsonl").write_text(json.dumps(row))
    (tmp_path / "qrels.txt").write_text("q1 0 4 1\nq1 0 5 0\n")
    run = read_run(tmp_path / "a" / "responses.jsonl", [Query("q1", "Ice?", ("4", "5"))])
    scores = list(citation_scores({"a": run}, read_qrels(tmp_path / "qrels.txt")))
    assert {s.measure: s.value for s in scores} == {
        "cited_precision": 1.0,
        "cited_recall": 1.0,
        "cited_f1": 1.0,
        "cited_documents": 1.0,
    }


def test_c34_means_of_cited_measures_say_how_many_queries_they_cover():
    qrels = {"q1": {"d1", "d2"}, "q2": {"d1", "d2"}, "q3": set()}
    cited = {"q1": (("d1",), ("d1", "d3")), "q3": (("d1",),), "q4": (("d1",),)}
    run = {q: Response("a", q, ("x",) * len(c), c) for q, c in cited.items()}
    run = {"q1": run["q1"], "q2": Response("a", "q2", present=False), "q3": run["q3"], "q4": run["q4"]}
    scores = list(citation_scores({"a": run}, qrels))
    found = {name: [row[2:] for row in values(scores, name)] for name in ("cited_precision", "cited_recall", "cited_f1")}
    assert found == {
        "cited_precision": [(0.5, "ok"), (0.0, "missing"), (0.0, "ok"), (None, "not-judged")],
        "cited_recall": [(0.5, "ok"), (0.0, "missing"), (None, "no-relevant"), (None, "not-judged")],
        "cited_f1": [(0.5, "ok"), (0.0, "missing"), (None, "no-relevant"), (None, "not-judged")],
    }
    assert [row[2:] for row in values(scores, "cited_documents")] == [(2, "ok"), (0, "missing"), (1, "ok"), (1, "ok")]
    board = leaderboard(scores)
    assert board["cited_precision"]["a"] == Mean(pytest.approx(1 / 6), 3, 4)
    assert board["cited_recall"]["a"] == board["cited_f1"]["a"] == Mean(0.25, 2, 4)
    assert board["cited_documents"]["a"] == Mean(1.0, 4, 4)


# TFC1


@pytest.fixture(scope="module")
def lemmatizer() -> Lemmatizer:
    return Lemmatizer()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The glaciers were melting, and the ice moved.", ["glacier", "melt", "ice", "move"]),
        ("ice ice", ["ice", "ice"]),
        ("Лёд, лёд!", ["лёд", "лёд"]),
        ("of the and", []),
        ("... !", []),
        (" \n\u00a0", []),
        ("", []),
    ],
)
def test_terms_are_lower_cased_lemmas_without_stopwords_punctuation_and_space(lemmatizer, text, expected):
    assert lemmatizer.terms([text]) == [expected]


@pytest.mark.parametrize("word", ["studies", "glaciers", "vaccines", "particles"])
def test_a_capital_letter_does_not_make_another_term(lemmatizer, word):
    lower, capital, upper = lemmatizer.terms([f"{word} show heat", f"{word.capitalize()} show heat", "HEAT"])
    assert lower == capital
    assert upper == ["heat"]


def test_terms_of_many_texts_are_those_of_each_alone(lemmatizer):
    texts = ["The glaciers melt.", "", "Heat fell.", "The glaciers melt."]
    assert lemmatizer.terms(texts) == [lemmatizer.terms([text])[0] for text in texts]


def test_the_label_names_the_lemmatizer_and_its_version(lemmatizer):
    import spacy

    named = "en_core_web_sm" if spacy.util.is_package("en_core_web_sm") else "lookup lemmatizer"
    assert named in lemmatizer.label
    assert any(character.isdigit() for character in lemmatizer.label)


@pytest.mark.parametrize(
    ("query", "answer", "expected"),
    [
        (["ice", "melt"], ["ice", "melt", "snow", "ice"], 3 / 4),
        (["ice", "melt", "ice"], ["ice", "melt", "snow", "ice"], 5 / 4),
        (["ice"], ["snow"], 0.0),
        (["ice"], [], 0.0),
        ([], ["ice"], 0.0),
        ([], [], 0.0),
    ],
)
def test_term_frequency_by_hand_is_relative_and_counts_repeated_query_terms(query, answer, expected):
    assert term_frequency(query, answer) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    # within 10 % of the larger of the two
    [(1.0, 0.95, 0), (0.95, 1.0, 0), (1.0, 0.92, 0), (1.0, 0.89, 1), (0.89, 1.0, -1), (0.0, 0.0, 0), (0.001, 0.0, 1)],
)
def test_frequencies_within_ten_percent_are_equal(first, second, expected):
    assert preference(first, second) == expected


@pytest.mark.parametrize(
    ("frequencies", "lengths", "expected"),
    [
        # .25 and .24 are equal; both beat .2, which beats 0
        ([0.25, 0.2, 0.24, 0.0], None, [2 / 4, -1 / 4, 2 / 4, -3 / 4]),
        # the third answer, of 80 terms, compares with none of 100, 95 and 100
        ([0.25, 0.2, 0.24, 0.0], [100, 95, 80, 100], [2 / 4, 0, 0, -2 / 4]),
        ([0.25, 0.2, 0.24, 0.0], [50, 50, 50, 50], [2 / 4, -1 / 4, 2 / 4, -3 / 4]),
        ([0.0, 0.0, 0.0], None, [0, 0, 0]),
        ([0.5, 0.0], [4, 0], [0, 0]),
        ([0.5, 0.0], None, [1 / 2, -1 / 2]),
        ([0.5], None, [0]),
        ([], None, []),
    ],
)
def test_tfc1_by_hand_with_and_without_the_length_precondition(frequencies, lengths, expected):
    assert tfc1(frequencies, lengths) == expected


def test_a_missing_answer_has_the_lowest_tfc1_and_an_empty_one_its_own(lemmatizer):
    """By hand: frequencies 2/2, 1/2, 0, 0 and lengths 2, 2, 0, 0 in a pool of four."""
    runs = pool(a=["glaciers melt"], b=["ice melts"], c=[""], d=[None])
    scores = list(tfc1_scores(runs, [Query("q1", "Does a glacier melt?", ())], lemmatizer))
    assert values(scores, "tfc1") == [
        ("a", "q1", 3 / 4, "ok"),
        ("b", "q1", 1 / 4, "ok"),
        ("c", "q1", -2 / 4, "ok"),
        ("d", "q1", -3 / 4, "missing"),
    ]
    assert [row[2:] for row in values(scores, "tfc1_len")] == [
        (1 / 4, "ok"),
        (-1 / 4, "ok"),
        (0.0, "ok"),
        (-3 / 4, "missing"),
    ]
    assert {score.model for score in scores} == {lemmatizer.label}


def test_tfc1_of_two_pools_refuses_to_be_compared(lemmatizer):
    queries = [Query("q1", "Does a glacier melt?", ())]
    first = list(tfc1_scores(pool(a=["glaciers melt"], b=["ice melts"]), queries, lemmatizer))
    second = list(tfc1_scores(pool(c=["glaciers melt"], d=["ice melts"], e=["heat fell"]), queries, lemmatizer))
    for name in ("tfc1", "tfc1_len"):
        with pytest.raises(WorkbookError) as error:
            by_run([*first, *second], name)
        assert f"{name}: " in str(error.value)
        assert first[0].pool.startswith("2 runs ")
        assert first[0].pool in str(error.value)
        assert second[0].pool.startswith("3 runs ")
        assert second[0].pool in str(error.value)
        assert set(by_run(first, name)) == {"a", "b"}


OFFLINE = (
    NO_NETWORK
    + """
from lib.bertscore import BertScorer
from lib.errors import WorkbookError
from lib.variants import load_profile
layer = int(sys.argv[1]) or None
try:
    message = str(BertScorer(load_profile("paper").bertscore, layer, True).f1([("ice", "heat"), ("", "")]))
except WorkbookError as error:
    message = f"WorkbookError {error}"
print(json.dumps([message, tried]))
"""
)


@pytest.mark.parametrize("layer", ["17", "0"], ids=["layer given", "last layer"])
def test_c31_bertscore_without_its_model_offline_is_one_error_naming_it_and_the_place(tmp_path, layer):
    hub = tmp_path / "hub-home" / "hub"
    environment = dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"), str(hub))
    environment |= {"HF_HOME": str(tmp_path / "hub-home"), "WORKBOOK_CACHE": str(tmp_path / "cache")}
    message, tried = result(OFFLINE, layer, **environment)
    assert tried == []
    assert message.startswith("WorkbookError model roberta-large: ")
    for part in (str(hub), "HF_HUB_OFFLINE", "hf download roberta-large", "--profile embedded"):
        assert part in message
    assert "\n" not in message
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]


# The organisers' figures


@pytest.fixture(scope="module")
def official(real_data) -> pd.DataFrame:
    table = pd.read_csv(real_data / "published" / "official_scores.csv", dtype={"query_id": str})
    return table.pivot(index=["run", "query_id"], columns="measure", values="value")


@pytest.fixture(scope="module")
def published(real_data, official):
    """The published slice and the ten runs of the official table."""
    with preparing.opened(str(real_data / "published")) as slice_:
        queries, gold, qrels = slice_.queries, slice_.gold_answers(), slice_.qrels()
    runs = read_runs(real_data / "published" / "runs", queries)
    assert set(runs) - set(official.index.get_level_values("run")) == {"concat-baseline"}
    del runs["concat-baseline"]
    return runs, queries, gold, qrels


def by_pair(scores, measure) -> dict[tuple[str, str], float]:
    return {(s.run, s.query_id): s.value for s in scores if s.measure == measure}


def test_rouge_l_reproduces_every_official_value(published, official):
    """Source: 10 runs and 24 queries in `published/official_scores.csv`."""
    runs, _, gold, _ = published
    found = by_pair(rouge_scores(runs, gold), "rougeL_f1")
    assert len(found) == 240
    assert found == pytest.approx(official["rougeL_f1"].to_dict(), abs=1e-9)


def test_cited_precision_reproduces_every_official_value_of_a_judged_query(published, official):
    """Source: `published/official_scores.csv`, four decimals; `qrels.txt` judges 19 of the 24 queries."""
    runs, _, _, qrels = published
    found = by_pair(citation_scores(runs, qrels), "cited_precision")
    judged = {pair: value for pair, value in official["cited_precision"].to_dict().items() if pair[1] in qrels}
    assert len(judged) == 190
    assert {pair: found[pair] for pair in judged} == pytest.approx(judged, abs=1e-4)
    assert [pair for pair, value in found.items() if value is None] == [pair for pair in found if pair[1] not in qrels]


def test_tfc1_fits_the_official_values_of_the_larger_pool(published, official, lemmatizer):
    """The official pool had 11 answers more, each of which adds -1, 0 or 1 to 21 times the official value."""
    runs, queries, _, _ = published
    found = by_pair(tfc1_scores(runs, queries, lemmatizer), "tfc1")
    expected = official["ir-axioms:GEN-TFC1"].to_dict()
    assert found.keys() == expected.keys()
    fits = [abs(21 * expected[pair] - 10 * value) <= 11 + 1e-6 for pair, value in found.items()]
    assert sum(fits) >= len(fits) * (1.0 if "en_core_web_sm" in lemmatizer.label else 0.98)


def test_runs_rank_by_tfc1_as_the_official_means_do(published, official, lemmatizer):
    runs, queries, _, _ = published
    board = leaderboard(list(tfc1_scores(runs, queries, lemmatizer)))["tfc1"]
    expected = official["ir-axioms:GEN-TFC1"].groupby("run").mean()
    assert kendalltau([board[run].value for run in expected.index], expected).statistic >= 0.9
