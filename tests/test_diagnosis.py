import json
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from lib import preparing, steps
from lib.diagnosis import (
    STAGES,
    Loss,
    WrongCitation,
    changes,
    counts,
    diagnose,
    diagnose_published,
    losses,
    moved,
    textless,
    wrongly_cited,
)
from lib.errors import WorkbookError
from lib.runs import Response
from lib.slices import Query, Slice
from lib.variants import load_variants
from tests.slice_files import lines, put, source

QUERY = Query("q1", "Does ice creep?", ("d1", "d2", "d3", "d4", "d5", "d6"))
ALL = {"q1": {"d6", "d5", "d4", "d3", "d2", "d1"}}
RUN = "rule"


def evidence(
    query_id="q1", shortlist=("d3", "d4", "d5", "d6"), references=("d4", "d5", "d6"), of=("d5", "d6"), **more
) -> dict:
    items = [{"evidence_id": n, "doc_id": doc_id} for n, doc_id in enumerate(of)]
    recorded = {} if shortlist is None else {"shortlist": list(shortlist)}
    return {"query_id": query_id, "status": "ok", **recorded, "references": list(references), "evidence": items, **more}


def nothing(status: str, **more) -> dict:
    return evidence(**{"shortlist": (), "references": (), "of": (), "status": status, **more})


def cites(*doc_ids: str, query_id="q1") -> dict[str, Response]:
    return {query_id: Response(RUN, query_id, ("Ice creeps.",), (doc_ids,))}


def stages(rows, responses, qrels=ALL, query=QUERY, without_text=("d1",)) -> dict[str, str]:
    return {loss.doc_id: loss.stage for loss in losses([query], qrels, RUN, rows, responses, without_text)}


def test_each_stage_loses_one_of_six_documents():
    """d1 has no text, d2 is on no shortlist, d3 not selected, d4 without a sentence, d5 not used, d6 cited."""
    found = losses([QUERY], ALL, RUN, [evidence()], cites("d6"), {"d1"})
    assert STAGES == ("no-text", "below-shortlist", "not-selected", "no-sentence", "not-used", "cited")
    assert found == [Loss("q1", RUN, f"d{n}", stage) for n, stage in enumerate(STAGES, 1)]


def test_without_a_recorded_shortlist_the_first_three_stages_are_one():
    found = stages([evidence(shortlist=None)], cites("d6"))
    assert list(found.values()) == ["not-selected"] * 3 + ["no-sentence", "not-used", "cited"]


@pytest.mark.parametrize("rows", [None, [nothing("titles", references=["d1", "d2"])], [nothing("titles")]])
def test_a_run_that_reads_no_text_cites_a_document_or_does_not_use_it(rows):
    found = stages(rows, cites("d1", "d6"))
    assert found == {"d1": "cited", **dict.fromkeys(["d2", "d3", "d4", "d5"], "not-used"), "d6": "cited"}


def test_a_query_without_words_or_line_is_not_used_either_where_the_run_reads_no_text():
    """The naive baseline gives such a query the status `no-text` and cites titles all the same."""
    queries = [QUERY._replace(query_id=query_id) for query_id in ("q1", "q2", "q3")]
    rows = [nothing("no-text", references=["d1"]), nothing("titles", query_id="q2")]
    for ordered in (rows, rows[::-1]):
        found = losses(queries, {q.query_id: {"d1"} for q in queries}, RUN, ordered, cites("d2"))
        assert [loss.stage for loss in found] == ["not-used"] * 3


@pytest.mark.parametrize("status", ["no-candidates", "no-text", "no-passages", "no-match"])
def test_where_nothing_was_retrieved_all_is_lost_at_the_first_stage(status):
    assert set(stages([nothing(status)], {}, without_text=ALL["q1"]).values()) == {"no-text"}
    assert set(stages([nothing(status)], {}, without_text=()).values()) == {"below-shortlist"}
    old = nothing(status)
    del old["shortlist"]
    assert set(stages([old], {}).values()) == {"not-selected"}


def test_a_query_without_a_line_of_evidence_is_lost_at_the_first_stage_that_the_run_records():
    assert stages([evidence("q2")], {})["d1"] == "no-text"
    assert stages([evidence("q2")], {})["d2"] == "below-shortlist"
    assert stages([], {})["d2"] == "below-shortlist"
    assert set(stages([evidence("q2", shortlist=None)], {}).values()) == {"not-selected"}


@pytest.mark.parametrize(
    "responses",
    [{}, {"q1": Response(RUN, "q1", present=False)}, {"q1": Response(RUN, "q1")}],
    ids=["none", "absent", "empty"],
)
def test_without_an_answer_what_has_evidence_is_not_used(responses):
    assert list(stages([evidence()], responses).values()) == [*STAGES[:5], "not-used"]


def test_a_relevant_document_that_is_no_candidate_could_not_be_ranked_and_stands_last():
    found = stages([evidence()], cites("d6"), {"q1": {*"hgfedcba", "d6"}})
    assert list(found.items()) == [("d6", "cited"), *((doc_id, "no-text") for doc_id in "abcdefgh")]


def test_only_judged_queries_count_and_stand_in_the_slices_order():
    queries = [QUERY._replace(query_id=query_id) for query_id in ("q3", "q1", "q2")]
    qrels = {"q1": {"d6"}, "q2": set(), "q3": {"d5"}, "elsewhere": {"d1"}}
    found = losses(queries, qrels, RUN, [evidence(query_id) for query_id in ("q1", "q2", "q3")], cites("d6"))
    assert [(loss.query_id, loss.stage) for loss in found] == [("q3", "not-used"), ("q1", "cited")]


def test_ids_given_as_numbers_are_the_same_ids_as_text():
    query = Query("7", "Does ice creep?", ("1", "2", "3"))
    row = {"query_id": 7, "shortlist": [2, 1], "references": [2], "evidence": [{"doc_id": 2}]}
    assert stages([row], {}, {"7": {"1", "2", "3"}}, query) == {
        "1": "not-selected",
        "2": "not-used",
        "3": "below-shortlist",
    }


def test_a_wrong_citation_is_a_cited_document_that_is_not_relevant_to_a_judged_query():
    queries = [QUERY, QUERY._replace(query_id="q2"), QUERY._replace(query_id="q3")]
    qrels = {"q1": {"d6", "d1"}, "q3": set()}
    responses = cites("d3", "d6", "d2") | cites("d1", query_id="q2") | cites("d1", query_id="q3")
    found = [WrongCitation("q1", RUN, "d2"), WrongCitation("q1", RUN, "d3"), WrongCitation("q3", RUN, "d1")]
    assert wrongly_cited(queries, qrels, RUN, responses) == found
    assert wrongly_cited(queries, qrels, RUN, {"q1": Response(RUN, "q1", present=False)}) == []


def of(run: str, *found: str) -> list[Loss]:
    """A run that loses document n of one query at the nth stage that is given."""
    return [Loss("q1", run, f"d{n}", stage) for n, stage in enumerate(found)]


TWO = of("zeta", "cited", "not-used", "not-used", "no-text", "not-selected", "cited")
TWO += of("alpha", "no-text", "cited", "not-used", "not-selected", "below-shortlist", "cited")


def test_counts_have_a_row_a_run_in_order_of_appearance_and_a_column_a_stage():
    found = counts(TWO)
    assert (list(found.index), list(found.columns)) == (["zeta", "alpha"], list(STAGES))
    assert found.loc["zeta"].tolist() == [1, 0, 1, 0, 2, 2]
    assert found.loc["alpha"].tolist() == [1, 1, 1, 0, 1, 2]
    assert set(found.dtypes) == {pd.Series([1]).dtype}
    assert (found.index.name, found.columns.name) == ("run", "stage")


def test_changes_lead_each_document_from_its_stage_in_one_run_to_that_in_the_other():
    found = changes(reversed(TWO), "zeta", "alpha")
    assert (list(found.index), list(found.columns)) == (list(STAGES), list(STAGES))
    assert (found.index.name, found.columns.name) == ("zeta", "alpha")
    assert {(a, b): n for a, row in found.iterrows() for b, n in row.items() if n} == {
        ("cited", "no-text"): 1,
        ("not-used", "cited"): 1,
        ("not-used", "not-used"): 1,
        ("no-text", "not-selected"): 1,
        ("not-selected", "below-shortlist"): 1,
        ("cited", "cited"): 1,
    }
    assert found.T.rename_axis(None).equals(changes(TWO, "alpha", "zeta").rename_axis(None))


def test_a_step_gains_and_loses_citations_and_moves_what_is_not_cited():
    """zeta -> alpha: d1 gained, d0 lost, d4 earlier, d3 later; d2 and d5 stay. alpha -> last: d1, d5 lost."""
    last = of("last", "not-used", "no-sentence", "not-used", "not-selected", "not-selected", "no-text")
    found = moved(TWO + last, ["zeta", "alpha", "last"])
    assert list(found.columns) == ["first", "second", "gained", "lost", "earlier", "later"]
    assert found.to_numpy().tolist() == [["zeta", "alpha", 1, 1, 1, 1], ["alpha", "last", 0, 2, 0, 2]]
    assert moved(TWO, ["zeta"]).empty
    assert moved(TWO, ["zeta", "zeta"]).to_numpy().tolist() == [["zeta", "zeta", 0, 0, 0, 0]]


def test_a_run_that_was_not_diagnosed_or_over_other_documents_cannot_be_compared():
    with pytest.raises(WorkbookError, match="run 'beta': no losses of it"):
        moved(TWO, ["zeta", "beta"])
    with pytest.raises(WorkbookError, match="'zeta' and 'short'.*same queries"):
        changes(TWO + of("short", "cited"), "zeta", "short")


def test_without_relevant_documents_the_tables_are_empty():
    assert counts([]).shape == (0, 6)
    assert changes([], "zeta", "alpha").to_numpy().sum() == 0
    assert moved([], ["zeta", "alpha"])["gained"].tolist() == [0]


def made(folder: Path, qrels: str) -> Slice:
    """A slice in a sweep's folder; d2 has neither letter nor digit, d3 is absent."""
    queries = [{"query_id": "q1", "query": "Does ice creep?", "doc_ids": ["d1", "d2", "d3", "d4"]}]
    documents = [{"id": "d1", "text": "Ice creeps."}, {"id": "d2", "text": "*** !"}, {"id": "d4", "title": "Ice"}]
    preparing.prepare(str(source(folder / "in", queries, documents, qrels__txt=qrels)), folder / "slice")
    return Slice(folder / "slice")


QRELS = "".join(f"q1 0 d{n} 1\n" for n in (1, 2, 3, 4))


def test_documents_without_text_are_those_that_are_absent_or_have_no_letter_and_no_digit(tmp_path):
    assert textless(made(tmp_path, QRELS)) == {"d2", "d3"}
    assert textless(made(tmp_path / "unjudged", "")) == set()


def run_files(folder: Path, *rows, response: str | None = None) -> Path:
    record = {"metadata": {"narrative_id": "q1"}, "references": ["d1"], "answer": [{"text": "Ice.", "citations": [0]}]}
    put(folder / "evidence.jsonl", lines(rows))
    put(folder / "responses.jsonl", lines([record]) if response is None else response)
    return folder


def test_a_sweep_is_diagnosed_from_its_files_alone(tmp_path):
    made(tmp_path, QRELS)
    run_files(tmp_path / "runs" / "b", evidence(shortlist=["d4"], references=["d4"], of=[]))
    run_files(tmp_path / "runs" / "a", nothing("no-match"), response="")
    lost, wrong = diagnose(tmp_path, ["b", "a"])
    assert [(loss.run, loss.doc_id, loss.stage) for loss in lost] == [
        ("b", "d1", "cited"),
        ("b", "d2", "no-text"),
        ("b", "d3", "no-text"),
        ("b", "d4", "no-sentence"),
        ("a", "d1", "below-shortlist"),
        ("a", "d2", "no-text"),
        ("a", "d3", "no-text"),
        ("a", "d4", "below-shortlist"),
    ]
    assert wrong == []


def test_wrong_citations_of_a_sweep(tmp_path):
    made(tmp_path, "q1 0 d1 0\nq1 0 d2 1\n")
    run_files(tmp_path / "runs" / "b", evidence())
    lost, wrong = diagnose(tmp_path, ["b"])
    assert ([loss.doc_id for loss in lost], wrong) == (["d2"], [WrongCitation("q1", "b", "d1")])


def test_a_sweep_without_qrels_has_nothing_to_diagnose(tmp_path):
    made(tmp_path, "")
    run_files(tmp_path / "runs" / "b", evidence())
    assert diagnose(tmp_path, ["b"]) == ([], [])


@pytest.mark.parametrize(
    ("rows", "line", "reason"),
    [
        ([evidence("q0"), '{"query_id": "q1", "refer'], 2, "not JSON"),
        ([evidence("q1"), evidence("q1")], 2, "'q1' stands there twice"),
        ([{"references": [], "evidence": []}], 1, "query_id"),
        ([{"query_id": "q1", "evidence": []}], 1, "'references'"),
        ([{"query_id": "q1", "references": [], "evidence": {}}], 1, "'evidence'"),
        ([evidence() | {"shortlist": "d1"}], 1, "'shortlist'"),
        ([{"query_id": "q1", "references": [], "evidence": [{"text": "Ice."}]}], 1, "doc_id"),
        ([["q1"]], 1, "not an object"),
    ],
    ids=["torn", "twice", "no id", "no references", "no evidence", "no list", "no document", "list"],
)
def test_a_line_of_evidence_that_cannot_be_used_is_named(tmp_path, rows, line, reason):
    made(tmp_path, QRELS)
    folder = run_files(tmp_path / "runs" / "b", *rows)
    with pytest.raises(WorkbookError, match=reason) as error:
        diagnose(tmp_path, ["b"])
    assert str(error.value).startswith(f"{folder / 'evidence.jsonl'}:{line}: ")


@pytest.mark.parametrize("name", ["evidence.jsonl", "responses.jsonl"])
def test_a_run_of_a_sweep_without_one_of_its_files_is_an_error(tmp_path, name):
    made(tmp_path, QRELS)
    (run_files(tmp_path / "runs" / "b", evidence()) / name).unlink()
    with pytest.raises(WorkbookError, match=f"{name}: no such file"):
        diagnose(tmp_path, ["b"])


def test_a_sweep_over_the_sample_loses_documents_where_its_passages_say(sample, embedded, tmp_path):
    """The selected passages of the file name the references anew; the shortlist holds them and more."""
    (tmp_path / "slice").symlink_to(sample.folder)
    names = ["single-query-bm25", "caes-rag-rrf", "official-naive-baseline"]
    for variant in load_variants(names):
        run = steps.retrieve(tmp_path, sample, variant, steps.models_of(embedded))
        steps.generate(tmp_path, sample, variant, embedded, run)
    lost, wrong = diagnose(tmp_path, names)
    relevant = {(q, d) for q, doc_ids in sample.qrels().items() for d in doc_ids}
    for name in names:
        rows = [json.loads(line) for line in open(tmp_path / "runs" / name / "evidence.jsonl", encoding="utf-8")]
        answers = [json.loads(line) for line in open(tmp_path / "runs" / name / "responses.jsonl", encoding="utf-8")]
        cited = {
            (r["metadata"]["narrative_id"], r["references"][i])
            for r in answers
            for s in r["answer"]
            for i in s["citations"]
        }
        selected = {(row["query_id"], passage["doc_id"]) for row in rows for passage in row["passages"]}
        shortlisted = {(row["query_id"], doc_id) for row in rows for doc_id in row["shortlist"]}
        by_stage = {s: {(x.query_id, x.doc_id) for x in lost if x.run == name and x.stage == s} for s in STAGES}
        assert set().union(*by_stage.values()) == relevant
        assert by_stage["cited"] == relevant & cited
        assert {(w.query_id, w.doc_id) for w in wrong if w.run == name} == cited - relevant
        if name != "official-naive-baseline":
            assert by_stage["no-sentence"] | by_stage["not-used"] == (relevant & selected) - cited
            assert by_stage["not-selected"] == (relevant & shortlisted) - selected
            assert by_stage["below-shortlist"] == relevant - shortlisted
            assert len(selected) <= len(shortlisted)
    assert counts(lost).loc["official-naive-baseline", "cited"] == 16


PUBLISHED = (
    "official-naive-baseline",
    "concat-baseline",
    "single-query-bm25",
    "rrf-no-rerank",
    "caes-rag-rrf",
    "default",
    "rule-minilm",
    "semantic-current",
    "semantic-minilm",
    "topic-shift-current",
    "topic-shift-minilm",
)


@pytest.fixture(scope="module")
def published(real_data):
    return diagnose_published(real_data / "published", PUBLISHED)


def pairs_of(folder: Path, run: str) -> tuple[set, set, set, set]:
    """(query, document) pairs of a published run: relevant, selected, with evidence, cited."""
    judged = [line.split() for line in (folder / "qrels.txt").read_text().splitlines()]
    relevant = {(q, d) for q, _, d, relevance in judged if relevance == "1"}
    answers = [json.loads(line) for line in open(folder / "runs" / run / "responses.jsonl", encoding="utf-8")]
    cited = {
        (r["metadata"]["narrative_id"], str(r["references"][i]))
        for r in answers
        for s in r["answer"]
        for i in s["citations"]
    }
    file = folder / "evidence" / f"{run}.jsonl"
    if not file.exists():
        return relevant, relevant, relevant, cited
    rows = [json.loads(line) for line in open(file, encoding="utf-8")]
    selected = {(row["query_id"], doc_id) for row in rows for doc_id in row["references"]}
    return relevant, selected, {(row["query_id"], e["doc_id"]) for row in rows for e in row["evidence"]}, cited


@pytest.mark.parametrize("run", PUBLISHED)
def test_the_losses_of_the_published_runs_are_differences_of_sets(published, real_data, run):
    relevant, selected, evidenced, cited = pairs_of(real_data / "published", run)
    lost, wrong = published
    by_stage = {s: {(x.query_id, x.doc_id) for x in lost if x.run == run and x.stage == s} for s in STAGES}
    assert by_stage["cited"] == relevant & cited
    assert by_stage["not-used"] == (relevant & evidenced) - cited
    assert by_stage["no-sentence"] == (relevant & selected) - evidenced - cited
    assert by_stage["not-selected"] == relevant - selected - evidenced - cited
    assert not by_stage["no-text"] | by_stage["below-shortlist"]
    judged = {query_id for query_id, _ in relevant}
    assert {(w.query_id, w.doc_id) for w in wrong if w.run == run} == {p for p in cited if p[0] in judged} - relevant


def test_the_published_runs_have_two_relevant_documents_of_each_of_the_19_judged_queries(published):
    lost, wrong = published
    table = counts(lost)
    assert list(table.index) == list(PUBLISHED)
    assert table.sum(axis=1).tolist() == [2 * 19] * len(PUBLISHED)
    assert len(set(lost)) == len(lost)
    assert sum(w.run == "official-naive-baseline" for w in wrong) == 19 * (10 - 2)
    assert table.loc["official-naive-baseline", "cited"] == 38


def test_cited_precision_follows_from_the_losses_of_the_published_runs(published, real_data):
    """Official: relevant cited / cited, a query; the published figures have four decimals."""
    official = pd.read_csv(real_data / "published" / "official_scores.csv", dtype={"query_id": str})
    official = official[official["measure"] == "cited_precision"]
    lost, wrong = published
    compared = 0
    for run in set(official["run"]) & set(PUBLISHED):
        expected = official[official["run"] == run].set_index("query_id")["value"]
        for query_id in {loss.query_id for loss in lost}:
            right = sum(x.run == run and x.query_id == query_id and x.stage == "cited" for x in lost)
            false = sum(x.run == run and x.query_id == query_id for x in wrong)
            assert right / max(1, right + false) == pytest.approx(expected[query_id], abs=5e-5), (run, query_id)
            compared += 1
    assert compared == 19 * 10


def test_the_changes_between_published_runs_add_up_to_their_counts(published):
    lost, _ = published
    table, steps_ = counts(lost), moved(lost, PUBLISHED[2:])
    for first, second in pairwise(PUBLISHED[2:]):
        found = changes(lost, first, second)
        assert found.sum(axis=1).tolist() == table.loc[first].tolist()
        assert found.sum(axis=0).tolist() == table.loc[second].tolist()
    for row in steps_.itertuples():
        assert row.gained - row.lost == table.loc[row.second, "cited"] - table.loc[row.first, "cited"]


def test_a_published_run_that_is_not_there_is_an_error(real_data):
    with pytest.raises(WorkbookError, match=r"runs/nobody/responses.jsonl: no such file"):
        diagnose_published(real_data / "published", ["nobody"])
