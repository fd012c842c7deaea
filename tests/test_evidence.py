import dataclasses
import json

import pytest

from lib import paths, preparing, slices
from lib.chunking import chunk
from lib.encoders import CosineReranker, Encoder
from lib.evidence import Models, body_length, candidate_sentences, collect, is_citable, overlap_score, sentence_evidence
from lib.retrieval import Pool, rank, select
from lib.slices import Document, Query
from lib.variants import Variant

DEFAULT = Variant("default")
NO_MODELS = Models(None, None)


def pool_of(query: str, texts: dict[str, str], variant: Variant = DEFAULT) -> Pool:
    documents = [Document(doc_id, "", text, "fullText", None) for doc_id, text in texts.items()]
    passages = [p for d in documents for p in chunk(d, {"rule": variant}, None)["rule"]]
    return Pool.of(Query("q1", query, tuple(texts)), documents, passages)


def evidence_of(pool: Pool, variant: Variant = DEFAULT, models: Models = NO_MODELS) -> list:
    return collect(pool, {}, variant, models).evidence


NAMES = "alder birch cedar daisy elm fern gorse hazel iris juniper kelp lily maple nettle oak".split()


def statement(name: str, subject: str = "Ice") -> str:
    return f"{subject} was found below the {name} in the {name} garden."


def test_evidence_is_verbatim_and_says_where_it_stands():
    text = "  Sea ice was\nthinner   in\u00a0every bay we saw.\n\nIt melted “early” (by June) in all of them.  "
    pool = pool_of("sea ice", {"d1": "Rain fell on the city for the whole night.", "d2": text})
    items = evidence_of(pool)
    assert [item.text for item in items] == [
        "Sea ice was\nthinner   in\u00a0every bay we saw.",
        "It melted “early” (by June) in all of them.",
    ]
    for number, item in enumerate(items):
        assert item.text == text[item.start : item.end]
        assert (item.evidence_id, item.doc_id, item.passage_id, item.citations) == (number, "d2", "d2#0", (0,))


def test_only_the_first_five_sentences_of_a_passage_are_candidates():
    pool = pool_of("ice", {"d1": " ".join(statement(name) for name in NAMES[:8])})
    assert len(pool.passages) == 1
    assert [item.text for item in evidence_of(pool)] == [statement(name) for name in NAMES[:5]]
    two = dataclasses.replace(DEFAULT, candidate_sentences_per_passage=2)
    assert [item.text for item in evidence_of(pool, two)] == [statement(name) for name in NAMES[:2]]


def test_a_refused_sentence_still_counts_among_the_first_five():
    text = " ".join(["© 2020 The Authors and the Ice Society of Vell."] + [statement(name) for name in NAMES[:6]])
    assert [item.text for item in evidence_of(pool_of("ice", {"d1": text}))] == [statement(name) for name in NAMES[:4]]


def test_at_most_ten_items_are_kept_and_they_are_numbered_from_zero():
    pool = pool_of("ice", {f"d{i}": statement(name) for i, name in enumerate(NAMES)})
    items = evidence_of(pool)
    assert [item.evidence_id for item in items] == list(range(10))
    three = dataclasses.replace(DEFAULT, max_selected_answer_candidates=3)
    assert [item.evidence_id for item in evidence_of(pool, three)] == [0, 1, 2]


def test_references_are_the_documents_of_the_selected_passages_in_first_occurrence_order():
    texts = {f"d{i}": " ".join(statement(name) for name in NAMES[i : i + 3]) for i in range(0, 9, 3)}
    variant = dataclasses.replace(DEFAULT, passage_max_words=12, passage_stride_sentences=0, top_k_passages=6)
    pool = pool_of("ice", texts, variant)
    collected = collect(pool, {}, variant, NO_MODELS)
    order = [item.passage.doc_id for item in collected.passages]
    assert len(order) == 6
    assert collected.references == sorted(set(order), key=order.index)
    for item in collected.evidence:
        assert [collected.references[index] for index in item.citations] == [item.doc_id]


def test_a_sentence_that_two_passages_share_is_evidence_once():
    variant = dataclasses.replace(DEFAULT, passage_max_words=22)
    pool = pool_of("ice", {"d1": " ".join(statement(name) for name in NAMES[:4])}, variant)
    assert len(pool.passages) == 3
    assert len(candidate_sentences(pool, select(pool, rank(pool, variant, {}), variant), variant)) == 4
    items = evidence_of(pool, variant)
    assert sorted(item.text for item in items) == sorted(statement(name) for name in NAMES[:4])


def test_a_sentence_that_another_document_repeats_is_evidence_once():
    texts = {"d1": f"{statement('elm')} {statement('oak')}", "d2": f"{statement('oak')} {statement('fern')}"}
    items = evidence_of(pool_of("ice", texts))
    assert sorted(item.text for item in items) == sorted(statement(name) for name in ("elm", "oak", "fern"))


def test_the_overlap_score_rises_with_shared_terms_and_with_a_better_passage():
    terms = ["sea", "ice", "melt", "june"]
    scores = [
        overlap_score(terms, text, 1) for text in ("Rain fell.", "Ice fell.", "Sea ice fell.", "Sea ice will melt in June.")
    ]
    assert scores == sorted(set(scores))
    ranks = [overlap_score(terms, "Sea ice fell.", passage_rank) for passage_rank in (1, 2, 10, 20)]
    assert ranks == sorted(set(ranks), reverse=True)
    assert overlap_score([], "Ice fell.", 1) == overlap_score(terms, "Rain fell.", 1)


def test_the_sentence_with_the_most_query_terms_of_a_passage_comes_first_and_ties_keep_their_order():
    text = (
        f"{statement('elm', 'Rain')} {statement('oak', 'Hail')} {statement('fern', 'Sea ice')} {statement('iris', 'Ice')}"
    )
    items = evidence_of(pool_of("sea ice", {"d1": text}))
    assert [item.text.split(" was")[0] for item in items] == ["Sea ice", "Ice", "Rain", "Hail"]
    assert [item.score for item in items] == sorted((item.score for item in items), reverse=True)


def test_without_retrieval_evidence_stands_in_the_order_of_the_text():
    variant = dataclasses.replace(
        DEFAULT, retrieval="none", rerank=False, evidence_scoring="position", temporal_coverage=False
    )
    texts = {"d1": f"{statement('elm', 'Rain')} {statement('oak', 'Sea ice')}", "d2": statement("fern", "Sea ice")}
    items = evidence_of(pool_of("sea ice", texts), variant)
    assert [item.text for item in items] == [
        statement("elm", "Rain"),
        statement("oak", "Sea ice"),
        statement("fern", "Sea ice"),
    ]


def test_the_sentence_reranker_scores_all_candidates_before_ten_are_kept(embedded):
    """The one sentence that answers the query stands last of 15 candidates and shares no keyword with it."""
    reranker = CosineReranker(Encoder(embedded.encoder))
    query = "At what temperature do alloys melt?"
    texts = {f"d{i}": f"Alloys were stored below the {name} of the {name} garden." for i, name in enumerate(NAMES[:14])}
    answer = "The metal becomes liquid when it is heated to 812 degrees Celsius."
    texts["d13"] = f"{texts['d13']} {answer}"
    pool = pool_of(query, texts)
    selected = select(pool, rank(pool, DEFAULT, {}), DEFAULT)
    references = list(texts)
    plain = sentence_evidence(pool, selected, references, DEFAULT)
    reranked = sentence_evidence(pool, selected, references, DEFAULT, reranker)
    assert len(candidate_sentences(pool, selected, DEFAULT)) == 15
    assert answer not in [item.text for item in plain]
    assert reranked[0].text == answer
    assert [item.score for item in reranked] == pytest.approx(reranker.scores(query, [item.text for item in reranked]))
    assert [item.score for item in reranked] == sorted((item.score for item in reranked), reverse=True)


def test_the_reranker_is_named_in_the_record_of_the_variants_that_use_it(embedded):
    encoder = Encoder(embedded.encoder)
    pool = pool_of("ice", {"d1": statement("elm")})
    late = dataclasses.replace(DEFAULT, sentence_rerank=True)
    models = Models(encoder, CosineReranker(encoder))
    assert collect(pool, {}, late, models).record()["sentence_reranker"] == "cosine:all-MiniLM-L6-v2"
    assert collect(pool, {}, DEFAULT, models).record()["sentence_reranker"] is None


@pytest.mark.parametrize(
    ("query", "texts", "status"),
    [
        ("ice", {}, "no-candidates"),
        ("", {"d1": statement("elm")}, "no-text"),
        ("What is it?", {"d1": statement("elm")}, "no-text"),
        ("ice", {"d1": "", "d2": "..."}, "no-passages"),
        ("zebra", {"d1": statement("elm")}, "no-match"),
    ],
)
def test_c02_c03_nothing_to_show_is_an_empty_set_with_a_reason(query, texts, status):
    collected = collect(pool_of(query, texts), {}, DEFAULT, NO_MODELS)
    assert collected.record() == {
        "query_id": "q1",
        "status": status,
        "shortlist": [],
        "references": [],
        "passages": [],
        "evidence": [],
        "sentence_reranker": None,
    }


def test_the_naive_baseline_reads_no_text_and_refers_to_all_candidates():
    titles = dataclasses.replace(DEFAULT, generator="titles", retrieval="none")
    collected = collect(pool_of("zebra", {"d2": statement("elm"), "d1": ""}), {}, titles, NO_MODELS)
    assert (collected.status, collected.references, collected.evidence) == ("titles", ["d2", "d1"], [])


@pytest.mark.parametrize(
    "sentence",
    [
        "Ice covered the whole lake for seven weeks in 2011.",
        "Mean growth was 3.5 mm (p < 0.05) in all of the treated plots.",
        "Growth doubled in the treated plots of both farms.[12]",
        "Growth doubled in the treated plots of both farms.3",
        "Vell et al. [2011] cooled the alloy to 4 K and found no change.",
        "They called this state “dry ice” and never wrote of it again.”",
        "The corresponding enthalpy was rather low in all of the samples.",
        "Regular exercise reduces the risk of stroke in older adults.",
        "Warm sea water melts the sheet of ice from below in summer.",
        "The gene encodes a protein that binds copper in the liver.",
        "Between 1,200–1,400 patients were treated each year in the ward.",
    ],
)
def test_a_whole_statement_is_citable(sentence):
    assert is_citable(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Ice melts in June.",
        "Ice was found " + "in the old garden " * 16 + "today.",
        "Trends in the ice cover of northern lakes and ponds",
        "Trends in the ice cover of northern lakes and ponds.",
    ],
)
def test_what_is_too_short_too_long_or_a_title_is_refused(sentence):
    assert not is_citable(sentence)


def test_the_last_sentence_of_a_text_may_lack_its_full_stop():
    sentence = "Ice was found below the elm in the old garden"
    assert not is_citable(sentence)
    assert is_citable(sentence, at_end=True)
    assert [item.text for item in evidence_of(pool_of("ice", {"d1": sentence}))] == [sentence]


@pytest.mark.parametrize(
    "sentence",
    [
        "© 2020 The Authors and the Ice Society, who hold the rights.",
        "Copyright for this paper is held by its two authors.",
        "All rights reserved, and no part of it may be copied.",
        "This work is licensed under a Creative Commons Attribution License.",
        "This is an open access article that was distributed under its terms.",
        "We thank the crew of the ship for their help with the ice.",
        "Acknowledgements are due to the crew who drilled the ice.",
        "This study was funded by the Ice Society of the far north.",
        "The authors have declared that there is no conflict of interest.",
        "Correspondence should be addressed to the first author of the study.",
        "The data are described at https://example.org/ice for all years.",
        "It was registered under doi 10.1000/182 by the first author.",
        "Keywords are ice, lake, melt, snow and the climate of the north.",
        "The study was approved by the ethics committee of the hospital.",
        "Questions can be sent to vell@example.org by anyone who likes.",
        "The manuscript was received 3 May 2011 and accepted 4 June 2011.",
    ],
)
def test_boilerplate_is_refused(sentence):
    assert not is_citable(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Group A was 0.12 0.34 12.5 33.1 44.2 0.11 12.4 and 7.",
        "T h e i c e w a s f o u n d b e l o w.",
        "The ice was f\ufffdund below the elm in the garden.",
        "The ice was \ue001\ue002 found below the elm in the garden.",
        "The ice was found\x07 below the elm in the old garden.",
        "The ice was foundbelowthebigelmintheoldgardenofthequeen by a man.",
        "= + ( ) { x } was < > [ y ] | / * ^ % $ # z.",
    ],
)
def test_garbled_text_is_refused(sentence):
    assert not is_citable(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "[12] A. Vell and B. Sand, ice cover was measured in northern lakes.",
        "12. Vell, A. and Sand, B. Ice cover was measured in northern lakes.",
        "Vell, A. B., Sand, C. & Moss, D. Ice cover was measured in lakes.",
        "Ice cover was measured in northern lakes, Journal of Lakes 12(3): 191–244.",
        "Ice cover was measured in northern lakes, J Lakes 2011;12:191.",
    ],
)
def test_entries_of_a_reference_list_are_refused(sentence):
    assert not is_citable(sentence)


BODY = " ".join(statement(name) for name in NAMES[:4])
LISTED = "Ice was measured below the oldest elm of the garden."


@pytest.mark.parametrize(
    "heading", ["\nReferences\n", "\n7. REFERENCES\n", "\nBibliography\n", " References 1. Vell A. ", " REFERENCES [1] "]
)
def test_sentences_of_the_reference_list_are_no_evidence(heading):
    text = f"{BODY}{heading}{LISTED}"
    assert len(BODY) <= body_length(text) < len(BODY) + len(heading)
    assert [item.text for item in evidence_of(pool_of("ice", {"d1": text}))] == [statement(name) for name in NAMES[:4]]


@pytest.mark.parametrize(
    "prose",
    [
        "The report references earlier surveys of the same garden.",
        "Readers will find the references given there most useful.",
        "A short bibliography was added to the report by the queen.",
    ],
)
def test_the_word_references_in_prose_starts_no_reference_list(prose):
    text = f"{BODY} {prose} {LISTED}"
    assert body_length(text) == len(text)


def test_references_named_in_the_first_half_cut_nothing():
    text = f"Contents\nReferences\n{BODY}"
    assert body_length(text) == len(text)


def test_evidence_of_real_queries_is_verbatim_from_their_candidates(real_data, tmp_path):
    preparing.prepare(str(real_data / "slice"), tmp_path / "slice")
    slice_ = slices.Slice(tmp_path / "slice")
    for query in slice_.queries:
        documents = slice_.documents(query)
        by_id = {document.doc_id: document for document in documents}
        passages = [p for d in documents for p in chunk(d, {"rule": DEFAULT}, None)["rule"]]
        collected = collect(Pool.of(query, documents, passages), {}, DEFAULT, NO_MODELS)
        assert collected.status == "ok"
        assert set(collected.references) <= set(query.doc_ids)
        assert 1 <= len(collected.evidence) <= 10
        spans = {p.passage_id: p.sentences for p in passages}
        for item in collected.evidence:
            assert item.text == by_id[item.doc_id].text[item.start : item.end]
            assert (item.start, item.end) in spans[item.passage_id][:5]
            assert [collected.references[index] for index in item.citations] == [item.doc_id]
        assert json.loads(paths.to_json(collected.record()))["query_id"] == query.query_id
