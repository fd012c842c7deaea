"""The explorer's pages against the files that they are read from; how it looks is tested with the report."""

import base64
import csv
import gzip
import html
import json
from pathlib import Path

import pytest

from lib import diagnosis, explorer, paths, preparing, score_tables, steps, sweep, variants
from lib.errors import WorkbookError
from lib.explorer import Span, document_text, embed, pack, read_answer
from lib.score_tables import Score, write_scores
from lib.slices import Document, Slice
from lib.tasks import Plan
from tests.process import result
from tests.slice_files import lines, put, source

SYSTEMS = ["single-query-bm25", "rrf-no-rerank", "official-naive-baseline"]
SPAN = {"field": "text", "evidence_id": 0, "passage_id": "d1#0"}


@pytest.fixture(scope="session")
def swept(tmp_path_factory, embedded) -> Path:
    """A sweep of the sample with three systems that need no vectors, without scores."""
    out = tmp_path_factory.mktemp("swept") / "out"
    systems = variants.load_variants(SYSTEMS)
    sweep.prepare_folder(Plan(out, "sample", systems, embedded))
    steps.need_runs(out, steps.need_slice(out), systems, embedded)
    return out


def tiny(folder: Path, queries: list[dict], documents: list[dict], runs: dict[str, list[dict]], **files: str) -> Path:
    """A sweep folder from records: `runs` holds the lines of provenance by run, `files` more files of the slice."""
    preparing.prepare(str(source(folder / "source", queries, documents, **files)), folder / "out" / "slice")
    for run, rows in runs.items():
        put(folder / "out" / "runs" / run / "provenance.jsonl", lines(rows))
    return folder / "out"


def traced(query_id: str, *sentences: tuple[str, list[dict]], **more) -> dict:
    """A line of provenance."""
    rows = [{"sentence": n, "text": text, "sources": sources} for n, (text, sources) in enumerate(sentences)]
    return {"query_id": query_id, "status": "ok", "models": {"generator": "extractive"}, "sentences": rows, **more}


def span(doc_id: str, start: int, end: int) -> dict:
    return {**SPAN, "doc_id": doc_id, "start": start, "end": end}


def small(folder: Path, **runs: list[dict]) -> Path:
    """Two queries over the documents d1 and d2, of which d1 is relevant to q1; q2 is not judged."""
    queries = [{"query_id": f"q{n}", "query": f"Question {n}?", "doc_ids": ["d1", "d2"]} for n in (1, 2)]
    documents = [
        {"id": "d1", "title": "One", "text": "Ice creeps. It flows.", "date": "2001-02-03"},
        {"id": "d2", "title": "Two", "text": "Ice melts."},
    ]
    given = runs or {"a": [traced("q1", ("Ice creeps.", [span("d1", 0, 11)]))]}
    return tiny(folder, queries, documents, given, qrels__txt="q1 0 d1 1\nq1 0 d2 0\n")


def raw(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def unpacked(block: str):
    """What `pack` packed, by the standard library alone."""
    return json.loads(gzip.decompress(base64.b64decode(block)))


def answer_of(page: dict, run: str) -> dict:
    return next(answer for answer in page["answers"] if answer["run"] == run)


# ---------------------------------------------------------------------- pages


def test_a_page_holds_what_the_files_hold(swept):
    pages = explorer.Pages(swept)
    documents = {row["doc_id"]: row for row in raw(swept / "slice" / "documents.jsonl")}
    gold = {row["query_id"]: row["answer"] for row in raw(swept / "slice" / "gold_answers.jsonl")}
    judged = [line.split() for line in (swept / "slice" / "qrels.txt").read_text().splitlines()]
    relevant = {(query_id, doc_id) for query_id, _, doc_id, grade in judged if grade != "0"}
    assert pages.runs == sorted(SYSTEMS)
    for query in raw(swept / "slice" / "queries.jsonl"):
        page = pages.page(query["query_id"])
        assert (page["text"], page["gold"], page["judged"]) == (query["query"], gold[query["query_id"]], True)
        assert [d["doc_id"] for d in page["documents"]] == query["doc_ids"]
        for shown in page["documents"]:
            document = documents[shown["doc_id"]]
            assert (shown["title"], shown["date"], shown["source"], shown["length"]) == (
                document["title"],
                document["date"],
                document["text_source"],
                len(document["text"]),
            )
            assert shown["candidate"] and shown["relevant"] == ((query["query_id"], shown["doc_id"]) in relevant)
        for run in SYSTEMS:
            rows = raw(swept / "runs" / run / "provenance.jsonl")
            row = next(row for row in rows if row["query_id"] == query["query_id"])
            keep = ("field", "doc_id", "start", "end")
            answer = answer_of(page, run)
            assert answer["sentences"] == [
                {"text": s["text"], "sources": [{k: x[k] for k in keep if k in x} for x in s["sources"]]}
                for s in row["sentences"]
            ]
            assert (answer["status"], answer["fallback"], answer["written"]) == ("ok", "", False)


def test_every_span_of_a_page_is_in_the_text_that_comes_with_it(swept):
    pages = explorer.Pages(swept)
    documents = {row["doc_id"]: row["text"] for row in raw(swept / "slice" / "documents.jsonl")}
    seen = 0
    for query in pages.slice_.queries:
        page = pages.page(query.query_id)
        for doc_id, spans in explorer.spans_of(page).items():
            asked = {"kind": "document", "query_id": query.query_id, "doc_id": doc_id}
            ((start, end, text),) = explorer.answer_to(pages, asked)["parts"]
            assert (start, end, text) == (0, len(documents[doc_id]), documents[doc_id])
            seen += len(spans)
    assert seen > 20


def test_a_page_has_each_runs_scores_of_the_main_measures(tmp_path):
    out = small(tmp_path, a=[traced("q1")], b=[traced("q1")])
    write_scores(
        out / "scores" / "primary.csv",
        [
            Score("q1", "a", "cited_documents", 3.0),
            Score("q1", "a", "rougeL_f1", 0.25),
            Score("q2", "a", "rougeL_f1", 0.0, "missing"),
            Score("q1", "b", "rougeL_f1", 0.125),
            Score("q1", "b", "rougeL_f1[unicode words]", 0.5),
        ],
    )
    write_scores(out / "scores" / "supplementary.csv", [Score("q1", "a", "correctness[proxy]", None, "refused")])
    pages = explorer.Pages(out)
    measures = ["rougeL_f1", "correctness[proxy]"]
    assert [m["name"] for m in pages.index()["measures"]] == measures
    assert [m["heading"] for m in pages.index()["measures"]] == ["ROUGE-L", "correctness [proxy]"]
    assert answer_of(pages.page("q1"), "a")["scores"] == [(0.25, "ok"), (None, "refused")]
    assert answer_of(pages.page("q1"), "b")["scores"] == [(0.125, "ok"), (None, "not scored")]
    assert answer_of(pages.page("q2"), "a")["scores"] == [(0.0, "missing"), (None, "not scored")]
    assert pages.differences("a", "b", "rougeL_f1") == [0.125, None]
    assert pages.differences("b", "a", "rougeL_f1") == [-0.125, None]


def test_a_heading_keeps_what_stands_in_brackets():
    names = (
        "rougeL_f1",
        "rougeL_f1[unicode words]",
        "bertscore_f1[all-MiniLM-L6-v2]",
        "nugget_coverage[proxy]",
        "tfc1_len",
    )
    assert [explorer.heading(name) for name in names] == [
        "ROUGE-L",
        "ROUGE-L [unicode words]",
        "BERTScore [all-MiniLM-L6-v2]",
        "nugget coverage [proxy]",
        "tfc1 len",
    ]


def test_runs_of_earlier_sweeps_are_left_out_and_named(tmp_path):
    out = small(tmp_path, **{run: [traced("q1")] for run in ("a", "b", "old", "older")})
    for run in ("a", "b", "not-run"):
        put(out / "variants" / f"{run}.yaml", f"name: {run}\n")
    put(out / "results" / "leaderboard.csv", "run,measure\na,tfc1\n")
    pages = explorer.Pages(out)
    assert pages.runs == ["a", "b"]
    assert [answer["run"] for answer in pages.page("q1")["answers"]] == ["a", "b"]
    assert pages.index()["notes"][:2] == [
        "Runs of earlier sweeps in this folder, not compared: old, older.",
        "Systems of this sweep that results/leaderboard.csv does not hold, not compared: b, not-run.",
    ]


def test_without_files_of_variants_or_with_the_sweeps_own_alone_no_run_is_left_out(tmp_path):
    out = small(tmp_path, a=[traced("q1")], b=[traced("q1")])
    assert (explorer.Pages(out).runs, explorer.Pages(out).notes) == (["a", "b"], [])
    put(out / "variants" / "c.yaml", "name: c\n")
    with pytest.raises(WorkbookError, match="no run here of a system in variants/"):
        explorer.Pages(out)


def test_a_sweep_without_scores_says_so(tmp_path):
    index = explorer.Pages(small(tmp_path)).index()
    assert index["measures"] == []
    assert "no scores yet" in index["notes"][0]


def test_the_headings_are_those_of_the_main_measures_and_of_all_stages():
    assert list(explorer.HEADINGS) == list(score_tables.MAIN)
    assert list(explorer.STAGES) == list(diagnosis.STAGES)


def test_a_page_says_how_far_each_relevant_document_came(tmp_path):
    out = small(tmp_path, a=[traced("q1")])
    put(out / "results" / "losses.csv", "query_id,run,doc_id,stage\nq1,a,d1,not-used\nq1,b,d1,cited\n")
    pages = explorer.Pages(out)
    assert answer_of(pages.page("q1"), "a")["stages"] == {"d1": "evidence not used"}
    assert answer_of(pages.page("q2"), "a")["stages"] == {}


def test_a_query_without_judgements_or_gold_answer_has_neither(tmp_path):
    pages = explorer.Pages(small(tmp_path))
    assert [d["relevant"] for d in pages.page("q1")["documents"]] == [True, False]
    assert [d["relevant"] for d in pages.page("q2")["documents"]] == [None, None]
    assert pages.page("q2")["gold"] is None


def test_a_document_that_is_cited_and_no_candidate_comes_last_and_is_named_as_such(tmp_path):
    out = small(tmp_path, a=[traced("q1", ("Ice.", [span("elsewhere", 0, 4), span("d2", 0, 4)]))])
    pages = explorer.Pages(out)
    assert [(d["doc_id"], d["candidate"], d["length"]) for d in pages.page("q1")["documents"]] == [
        ("d1", True, 21),
        ("d2", True, 10),
        ("elsewhere", False, 0),
    ]
    assert explorer.answer_to(pages, {"kind": "document", "query_id": "q1", "doc_id": "elsewhere"}) is None


def test_it_begins_with_the_best_run_and_the_next_best_that_answers_otherwise(tmp_path):
    one, other = ("Ice creeps.", [span("d1", 0, 11)]), ("Ice melts.", [span("d2", 0, 10)])
    out = small(tmp_path, **{run: [traced("q1", s)] for run, s in {"a": other, "b": one, "c": one, "d": other}.items()})
    index = explorer.Pages(out).index()
    assert (index["left"], index["right"]) == ("a", "b")
    values = {"a": 0.1, "b": 0.9, "c": 0.8, "d": 0.7}
    write_scores(out / "scores" / "primary.csv", [Score("q1", run, "rougeL_f1", value) for run, value in values.items()])
    index = explorer.Pages(out).index()
    assert (index["left"], index["right"]) == ("b", "d")


def test_a_single_run_stands_on_both_sides(tmp_path):
    index = explorer.Pages(small(tmp_path)).index()
    assert (index["left"], index["right"]) == ("a", "a")


# ---------------------------------------------------------------------- answers


MODEL = {"models": {"generator": "gpt-5.4-mini"}}
SENTENCE = [{"text": "Ice.", "sources": []}]
ANSWERS = {
    "extractive": ({"sentences": SENTENCE, "models": {"generator": "extractive"}}, False, "sentences of the evidence"),
    "titles": ({"sentences": SENTENCE, "models": {"generator": "titles"}}, False, "titles of the candidates"),
    "a model": ({"sentences": SENTENCE, **MODEL}, True, "written by gpt-5.4-mini"),
    "filled in": (
        {"sentences": SENTENCE, "status": "refused", "fallback": "extractive", **MODEL},
        False,
        "gpt-5.4-mini gave no usable answer (refused); extractive filled in",
    ),
    "refused": ({"sentences": [], "status": "refused", **MODEL}, False, "no answer: refused"),
    "empty": ({"sentences": [], **MODEL}, False, "the answer is empty"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_says_who_wrote_it_or_why_there_is_none(name):
    row, written, note = ANSWERS[name]
    answer = read_answer({"status": "ok", **row}, "here")
    assert (answer["written"], answer["note"]) == (written, note)


def test_a_query_that_a_run_does_not_answer_is_missing(tmp_path):
    answer = answer_of(explorer.Pages(small(tmp_path)).page("q2"), "a")
    assert (answer["status"], answer["sentences"]) == ("missing", [])
    assert answer["note"] == "no answer: the run has no record of this query"


def test_a_run_without_provenance_shows_its_responses_and_the_documents_that_they_cite(tmp_path):
    out = small(tmp_path)
    record = {
        "metadata": {"narrative_id": "q1"},
        "references": ["d2", "d1"],
        "answer": [{"text": "Ice.", "citations": [1, 0]}],
    }
    put(out / "runs" / "foreign" / "responses.jsonl", lines([record]))
    pages = explorer.Pages(out)
    assert answer_of(pages.page("q1"), "foreign")["sentences"] == [
        {"text": "Ice.", "sources": [{"doc_id": "d1", "field": "document"}, {"doc_id": "d2", "field": "document"}]}
    ]
    whole = explorer.answer_to(pages, {"kind": "document", "query_id": "q1", "doc_id": "d2"})
    assert whole["parts"] == [(0, 10, "Ice melts.")]


# ---------------------------------------------------------------------- texts


def document(text: str) -> Document:
    return Document("d", "Title", text, "fullText", None)


LONG = "".join(f"{n:07d} " for n in range(40_000))  # 320,000 characters, every place different


def test_a_cited_document_is_whole():
    text = "x" * explorer.WHOLE
    assert document_text(document(text), [Span(3, 9)], False)["parts"] == [(0, len(text), text)]


def test_a_relevant_document_is_whole_even_if_no_answer_rests_on_it():
    text = "x" * 9000
    assert document_text(document(text), [], True)["parts"] == [(0, 9000, text)]
    assert document_text(document(text), [], False)["parts"] == [(0, explorer.OPENING, "x" * explorer.OPENING)]


def test_a_document_without_text_has_no_part():
    assert document_text(document(""), [], True) == {"doc_id": "d", "length": 0, "parts": []}


def test_of_a_very_long_document_there_is_what_lies_around_its_spans():
    spans = [Span(200_000, 200_050), Span(210_000, 210_050), Span(319_990, 320_000)]
    shown = document_text(document(LONG), spans, True)
    assert shown["length"] == len(LONG)
    assert [(start, end) for start, end, _ in shown["parts"]] == [(0, 2_000), (180_000, 230_050), (299_990, 320_000)]
    assert all(LONG[start:end] == text for start, end, text in shown["parts"])


def test_a_span_that_lies_outside_the_document_adds_no_text():
    shown = document_text(document(LONG), [Span(900_000, 900_010)], False)
    assert [(start, end) for start, end, _ in shown["parts"]] == [(0, 2_000)]


# ---------------------------------------------------------------------- one file


def test_what_is_packed_is_read_back_by_gzip_and_json():
    value = {"text": 'é 𝔘 </script> " \u2028 \u0000', "numbers": [1, 0.5, None]}
    assert unpacked(pack(value)) == value
    assert pack(value) == pack(value)
    assert set(pack(value)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")


def test_all_pages_are_embedded_and_each_document_once(swept):
    pages = explorer.Pages(swept)
    embedded = embed(pages)
    ids = [query.query_id for query in pages.slice_.queries]
    assert [row["query_id"] for row in embedded.index["queries"]] == ids
    assert [unpacked(block)["query_id"] for block in embedded.pages] == ids
    texts = {row["doc_id"]: row["text"] for row in raw(swept / "slice" / "documents.jsonl")}
    assert sorted(embedded.index["documents"]) == sorted(texts)
    shown = dict(zip(embedded.index["documents"], map(unpacked, embedded.documents), strict=True))
    for doc_id, text in texts.items():
        assert shown[doc_id]["doc_id"] == doc_id
        assert all(text[start:end] == part for start, end, part in shown[doc_id]["parts"])
    for query_id in ids:
        for doc_id, spans in explorer.spans_of(pages.page(query_id)).items():
            assert all(any(a <= s.start and s.end <= b for a, b, _ in shown[doc_id]["parts"]) for s in spans)


def test_a_document_of_two_queries_has_the_spans_of_both(tmp_path):
    queries = [{"query_id": f"q{n}", "query": "Ice?", "doc_ids": ["d1"]} for n in (1, 2)]
    rows = [traced("q1", ("A", [span("d1", 150_000, 150_010)])), traced("q2", ("B", [span("d1", 250_000, 250_010)]))]
    out = tiny(tmp_path, queries, [{"id": "d1", "text": LONG.strip()}], {"a": rows})
    embedded = embed(explorer.Pages(out))
    assert embedded.index["documents"] == ["d1"]
    parts = [(start, end) for start, end, _ in unpacked(embedded.documents[0])["parts"]]
    assert parts == [(0, 2_000), (130_000, 170_010), (230_000, 270_010)]


def test_what_does_not_fit_is_left_out_by_whole_queries_and_said(swept):
    pages = explorer.Pages(swept)
    everything = embed(pages)
    sizes = sum(map(len, everything.pages)) + sum(map(len, everything.documents))
    some = embed(pages, sizes // 2)
    kept = len(some.index["queries"])
    assert 1 <= kept < 8
    assert some.pages == everything.pages[:kept]
    assert sum(map(len, some.pages)) + sum(map(len, some.documents)) <= sizes // 2
    assert len(unpacked(some.scores)) == kept
    assert f"first {kept} of 8 queries" in some.index["notes"][-1]
    assert not any("first" in note for note in everything.index["notes"])
    assert len(embed(pages, 1).pages) == 1


# ---------------------------------------------------------------------- what cannot be read


def test_a_folder_that_is_no_sweep_is_refused(tmp_path, sample):
    with pytest.raises(WorkbookError, match="workbook sweep"):
        explorer.Pages(tmp_path)
    (tmp_path / "slice").symlink_to(sample.folder)
    with pytest.raises(WorkbookError, match="no run here"):
        explorer.Pages(tmp_path)


FAULTS = {
    "torn line": ('{"query_id": "q1", "sent', ":2: not JSON"),
    "no object": ("[1]", ":2: not an object"),
    "no query": ('{"sentences": []}', ":2: the line names no query"),
    "no sentences": ('{"query_id": "q2"}', ":2: not a line of provenance"),
    "source without document": (
        '{"query_id": "q2", "sentences": [{"text": "x", "sources": [{"field": "title"}]}]}',
        ":2: not a line of provenance",
    ),
    "span without end": (
        '{"query_id": "q2", "sentences": [{"text": "x", "sources": [{"field": "text", "doc_id": "d1", "start": 0}]}]}',
        ":2: not a line of provenance",
    ),
    "citation out of range": (
        '{"metadata": {"narrative_id": "q2"}, "references": [], "answer": [{"text": "x", "citations": [0]}]}',
        ":2: not a TREC RAG record",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_line_that_cannot_be_read_is_named(name, tmp_path):
    line, message = FAULTS[name]
    out = small(tmp_path, a=[traced("q1"), line])
    with pytest.raises(WorkbookError, match=f"provenance.jsonl{message}") as error:
        explorer.Pages(out).page("q2")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [("query_id,run,doc_id\n", "losses.csv:1: no column 'stage'"), ("query_id,run,doc_id,stage\nq1,a\n", "losses.csv:2:")],
)
def test_a_table_of_results_that_cannot_be_read_is_named(table, message, tmp_path):
    out = small(tmp_path)
    put(out / "results" / "losses.csv", table)
    with pytest.raises(WorkbookError, match=message):
        explorer.Pages(out)


# ---------------------------------------------------------------------- in a notebook


def test_the_module_is_imported_without_anywidget_pandas_or_a_model():
    code = "import sys, json\nimport lib.explorer\nprint(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))"
    loaded = result(code)
    assert "lib" in loaded
    assert not {"anywidget", "ipywidgets", "pandas", "numpy", "torch", "jinja2"} & set(loaded)


def test_the_widget_answers_what_its_page_asks(swept):
    widget = explorer.Explorer(swept)
    queries, runs = [row["query_id"] for row in raw(swept / "slice" / "queries.jsonl")], sorted(SYSTEMS)
    assert widget.query_id == queries[0]
    assert widget.left in runs and widget.right in runs and widget.left != widget.right
    reply = widget._reply({"number": 7, "kind": "page", "query_id": queries[3]})
    assert reply == {"number": 7, "value": explorer.Pages(swept).page(queries[3])}
    doc_id = reply["value"]["documents"][0]["doc_id"]
    asked = {"number": 8, "kind": "document", "query_id": queries[3], "doc_id": doc_id}
    assert widget._reply(asked)["value"]["doc_id"] == doc_id
    assert "no query 'elsewhere'" in widget._reply({"number": 9, "kind": "page", "query_id": "elsewhere"})["fault"]


def test_what_the_widget_sends_is_json(swept):
    widget = explorer.Explorer(swept)
    page = widget._reply({"number": 1, "kind": "page", "query_id": widget.query_id})
    assert json.loads(json.dumps(page, allow_nan=False))["value"]["query_id"] == widget.query_id


def test_the_widget_begins_where_it_is_told(swept):
    query_id = Slice(swept / "slice").queries[2].query_id
    widget = explorer.Explorer(str(swept), query_id, "rrf-no-rerank", "single-query-bm25")
    assert (widget.query_id, widget.left, widget.right) == (query_id, "rrf-no-rerank", "single-query-bm25")
    with pytest.raises(WorkbookError, match="no query 'x'"):
        explorer.Explorer(swept, "x")
    with pytest.raises(WorkbookError, match="no run 'x'; there are: official-naive-baseline, rrf"):
        explorer.Explorer(swept, left="x")


def test_the_widget_is_shown_as_text_and_html_where_it_cannot_live(swept):
    widget = explorer.Explorer(swept, left="official-naive-baseline", right="rrf-no-rerank")
    data, _ = widget._repr_mimebundle_()
    assert repr(widget) == data["text/plain"] == "Explorer of sample: 8 queries, 3 systems"
    assert set(data) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    page = data["text/html"]
    row = raw(swept / "runs" / "official-naive-baseline" / "provenance.jsonl")[0]
    assert all(html.escape(sentence["text"]) in page for sentence in row["sentences"])
    assert page.index("official-naive-baseline") < page.index("rrf-no-rerank")
    assert widget.model_id not in page and str(swept) not in page
    assert "<script" not in page


def test_the_static_page_escapes_what_it_shows(tmp_path):
    bad = "<img src=x onerror=alert(1)>"
    out = tiny(
        tmp_path,
        [{"query_id": "q1", "query": bad, "doc_ids": ["d1"]}],
        [{"id": "d1", "title": bad, "text": "Ice."}],
        {"a": [traced("q1", (bad, [span("d1", 0, 4)]))]},
    )
    page = explorer.static(explorer.Pages(out), "q1", "a", "a")
    assert "<img" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") == 3


def test_there_is_no_other_name_behind_the_modules_door():
    with pytest.raises(AttributeError, match="Explore'"):
        explorer.Explore  # noqa: B018


def test_scores_stay_as_they_stand_in_the_file(tmp_path):
    out = small(tmp_path)
    write_scores(out / "scores" / "primary.csv", [Score("q1", "a", "tfc1", -1 / 3)])
    with open(out / "scores" / "primary.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    page = explorer.Pages(out).page("q1")
    assert answer_of(page, "a")["scores"] == [(float(row["value"]), "ok")] == [(-1 / 3, "ok")]
    assert json.loads(paths.to_json(page))["answers"][0]["scores"] == [[-0.333333, "ok"]]
