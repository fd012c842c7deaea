import copy
import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lib import paths, preparing, steps
from lib.audit import Place, RunAudit, audit, summary
from lib.errors import WorkbookError
from lib.slices import Slice
from lib.text import one_line
from lib.variants import ServiceSpec, load_variants
from tests.stub_service import Stub, answer

EXTRACTIVE, NAIVE, MODEL = "caes-rag-rrf", "official-naive-baseline", "concat-baseline"
NONSENSE = "Zyxw qwop vutsr."


@pytest.fixture(scope="module")
def made(tmp_path_factory, embedded) -> Path:
    """A sweep over three queries of the sample, the first one temporal, with a run of each generator.

    The model answers the first query with the words of its evidence and with nonsense, the second
    without evidence, the third not at all; in its second draw the first with two words of four in the evidence.
    """
    folder = tmp_path_factory.mktemp("audit")
    source = Path(shutil.copytree(paths.SAMPLE, folder / "source"))
    queries = list(paths.read_jsonl(source / "queries.jsonl"))[:3]
    paths.write_jsonl(source / "queries.jsonl", queries)
    sweep = folder / "sweep"
    preparing.prepare(str(source), sweep / "slice")
    slice_ = Slice(sweep / "slice")
    variants = load_variants([EXTRACTIVE, NAIVE, MODEL])
    runs = [steps.retrieve(sweep, slice_, variant, steps.models_of(embedded)) for variant in variants]
    for variant, run in zip(variants[:2], runs[:2], strict=True):
        steps.generate(sweep, slice_, variant, embedded, run)
    first = next(iter(steps.read_evidence(runs[2]))).evidence[0]
    quoting = answer((first.text, [first.evidence_id]), (NONSENSE, [1, 2]))
    half = f"The {' and '.join(sorted(re.findall('[a-z]{9,}', first.text))[:2])} of zyxw qwop."
    uncited = f"say:{answer(('Nothing is known.', []))}"
    script = {
        queries[0]["query"]: [f"say:{quoting}", f"say:{answer((half, [first.evidence_id]))}"],
        queries[1]["query"]: [uncited, uncited],
        queries[2]["query"]: ["400:no", "400:no"],
    }
    with pytest.MonkeyPatch.context() as patch, Stub(for_prompts=script) as stub:
        patch.setenv("STUB_KEY", "dummy-key-123")
        patch.setenv("WORKBOOK_CACHE", str(folder / "cache"))
        service = ServiceSpec("gpt-4o-mini", base_url=stub.url, key_env="STUB_KEY", max_waits=0, timeout_seconds=20.0)
        profile = dataclasses.replace(embedded, name="stub", generator="openai", service=service, repeat=2)
        steps.generate(sweep, slice_, variants[2], profile, runs[2])
    return sweep


@pytest.fixture
def sweep(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "sweep"))


def rows(path: Path) -> list[dict]:
    return list(paths.read_jsonl(path))


def edit(path: Path, change: Callable[[dict], object], line: int = 1) -> None:
    """Change the object on one line of a file in place."""
    found = rows(path)
    change(found[line - 1])
    paths.write_jsonl(path, found)


def by_run(sweep: Path) -> dict[str, RunAudit]:
    return {found.run: found for found in audit(sweep)}


def query_ids(sweep: Path) -> list[str]:
    return [query.query_id for query in Slice(sweep / "slice").queries]


def one_fault(sweep: Path, run: str, file: str, what: str, sentence: int | None = 0, line: int | None = 1) -> RunAudit:
    """The audit of the one run with a fault, which has exactly this one; no other sentence of the sweep is lost."""
    found = by_run(sweep)
    faults = [fault for of_run in found.values() for fault in of_run.faults]
    assert len(faults) == 1, faults
    place = f"runs/{run}/{file}" + (f":{line}" if line else "")
    of = "" if sentence is None else f"query '{query_ids(sweep)[(line or 1) - 1]}', sentence {sentence}: "
    assert faults[0].startswith(f"{place}: {of}")
    assert what in faults[0], faults[0]
    assert "\n" not in faults[0]
    return found[run.removesuffix("/draw-2") if file == "evidence.jsonl" else run]


def test_every_sentence_of_a_finished_sweep_is_traced(sweep):
    found = by_run(sweep)
    assert list(found) == [EXTRACTIVE, MODEL, f"{MODEL}/draw-2", NAIVE]
    assert [of_run.faults for of_run in found.values()] == [()] * 4
    for name in (EXTRACTIVE, NAIVE):
        said = [s["text"] for row in rows(sweep / "runs" / name / "responses.jsonl") for s in row["answer"]]
        assert found[name].sentences == sum(found[name].kinds.values()) == len(said)
        assert found[name].kinds["led in"] == sum(bool(re.match(r"(Earlier|Later) work \(", text)) for text in said)
        assert (found[name].unanswered, found[name].overlap) == (0, None)
    assert found[EXTRACTIVE].kinds["led in"] == 2
    assert found[EXTRACTIVE].kinds["verbatim"] > 0
    assert found[NAIVE].kinds == {"verbatim": 0, "led in": 0, "title": 30, "written": 0, "uncited": 0}


def test_the_places_of_a_run_are_those_that_its_provenance_names(sweep):
    sources = [
        source
        for row in rows(sweep / "runs" / EXTRACTIVE / "provenance.jsonl")
        for sentence in row["sentences"]
        for source in sentence["sources"]
    ]
    found = by_run(sweep)
    assert found[EXTRACTIVE].places == {Place(s["doc_id"], s["start"], s["end"]) for s in sources}
    assert found[NAIVE].places == {Place(d) for query in Slice(sweep / "slice").queries for d in query.doc_ids}


def test_of_a_models_words_only_the_spans_are_verified_and_their_share_in_them_is_told(sweep):
    """The first sentence has all of its words in its span, the nonsense none; the third query has no answer."""
    found = by_run(sweep)
    assert found[MODEL].kinds == {"verbatim": 0, "led in": 0, "title": 0, "written": 2, "uncited": 1}
    assert (found[MODEL].sentences, found[MODEL].overlap, found[MODEL].unanswered) == (3, 0.5, 1)
    assert len(found[MODEL].places) == 3
    second = found[f"{MODEL}/draw-2"]
    assert (second.kinds["written"], second.kinds["uncited"], second.overlap, second.unanswered) == (1, 1, 0.5, 1)
    assert (sweep / "runs" / MODEL / "pending.json").exists()


def test_an_answer_that_the_extractive_generator_filled_in_is_held_to_its_span(sweep):
    run = sweep / "runs" / MODEL
    assert by_run(sweep)[MODEL].faults == ()
    edit(run / "provenance.jsonl", lambda row: row.update(fallback="extractive"))
    found = by_run(sweep)[MODEL]
    assert found.kinds["verbatim"] == 1
    assert [fault.split(": ")[1] for fault in found.faults] == [f"query '{query_ids(sweep)[0]}', sentence 1"]


def replaced(text: str, at: int = -3) -> str:
    """The text with one of its characters another letter."""
    position = at % len(text)
    return text[:position] + ("x" if text[position] != "x" else "y") + text[position + 1 :]


def say(row: dict, number: int, text: str) -> None:
    """Set the text of a sentence, in a response or a line of provenance."""
    row.get("answer", row.get("sentences"))[number]["text"] = text


@pytest.mark.parametrize("name", [EXTRACTIVE, NAIVE, MODEL, f"{MODEL}/draw-2"])
def test_a_sentence_of_which_one_character_was_changed_is_found(sweep, name):
    edit(sweep / "runs" / name / "responses.jsonl", lambda row: say(row, 0, replaced(row["answer"][0]["text"])))
    found = one_fault(sweep, name, "responses.jsonl", "its text differs from the one in provenance.jsonl")
    assert sum(found.kinds.values()) == found.sentences - 1


@pytest.mark.parametrize("line", [1, 2, 3])
@pytest.mark.parametrize("file", ["responses.jsonl", "provenance.jsonl"])
def test_a_changed_sentence_of_any_query_is_found(sweep, line, file):
    def change(row: dict) -> None:
        sentences = row.get("answer", row.get("sentences"))
        say(row, len(sentences) - 1, replaced(sentences[-1]["text"], 0))

    edit(sweep / "runs" / EXTRACTIVE / file, change, line)
    last = len(rows(sweep / "runs" / EXTRACTIVE / "responses.jsonl")[line - 1]["answer"]) - 1
    one_fault(sweep, EXTRACTIVE, "responses.jsonl", "its text differs", last, line)


def say_everywhere(sweep: Path, name: str, number: int, change: Callable[[str], str], line: int = 1) -> None:
    for file in ("responses.jsonl", "provenance.jsonl"):
        path = sweep / "runs" / name / file
        row = rows(path)[line - 1]
        text = row.get("answer", row.get("sentences"))[number]["text"]
        edit(path, lambda row, text=text: say(row, number, change(text)), line)


@pytest.mark.parametrize(("number", "line"), [(0, 1), (1, 1), (0, 2), (0, 3)])
def test_a_sentence_changed_in_response_and_provenance_alike_differs_from_its_span(sweep, number, line):
    say_everywhere(sweep, EXTRACTIVE, number, replaced, line)
    one_fault(sweep, EXTRACTIVE, "responses.jsonl", "its words are not those of characters", number, line)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: re.sub(r"\((\d{4})\)", lambda m: f"({int(m[1]) + 1})", text, count=1),
        lambda text: text.replace("work (", "works (", 1),
        lambda text: f"{text} And more.",
        lambda text: text[:-1],
    ],
    ids=["year", "lead", "addition", "no full stop"],
)
def test_a_sentence_is_led_in_by_the_year_of_its_document_and_by_nothing_else(sweep, change):
    say_everywhere(sweep, EXTRACTIVE, 0, change)
    one_fault(sweep, EXTRACTIVE, "responses.jsonl", "nor these led in by its year")


def test_a_sentence_without_its_lead_is_still_verbatim(sweep):
    say_everywhere(sweep, EXTRACTIVE, 0, lambda text: text.split("): ", 1)[1])
    found = by_run(sweep)[EXTRACTIVE]
    assert (found.faults, found.kinds["led in"]) == ((), 1)


def first_source(row: dict) -> dict:
    return row["sentences"][0]["sources"][0]


def item_of(sweep: Path, name: str) -> tuple[dict, dict]:
    """The first source of a run's first answer, and its evidence item."""
    run = sweep / "runs" / name
    source = first_source(rows(run / "provenance.jsonl")[0])
    items = rows(run / "evidence.jsonl")[0]["evidence"]
    return source, next(item for item in items if item["evidence_id"] == source["evidence_id"])


def shift(span: dict, by: int = 1) -> None:
    span["start"] += by
    span["end"] += by


@pytest.mark.parametrize("name", [EXTRACTIVE, MODEL])
def test_a_span_shifted_by_one_in_the_provenance_is_found(sweep, name):
    edit(sweep / "runs" / name / "provenance.jsonl", lambda row: shift(first_source(row)))
    one_fault(sweep, name, "evidence.jsonl", "has the start")


@pytest.mark.parametrize("name", [EXTRACTIVE, MODEL])
@pytest.mark.parametrize("end", ["start", "end"])
def test_a_span_of_which_one_end_moved_by_one_in_the_provenance_is_found(sweep, name, end):
    edit(
        sweep / "runs" / name / "provenance.jsonl",
        lambda row: first_source(row).update({end: first_source(row)[end] + 1}),
    )
    one_fault(sweep, name, "evidence.jsonl", f"has the {end}")


def of_item(source: dict, change: Callable[[dict], object]) -> Callable[[dict], None]:
    """A change of the evidence item of a source."""

    def edited(row: dict) -> None:
        change(next(item for item in row["evidence"] if item["evidence_id"] == source["evidence_id"]))

    return edited


def test_a_span_shifted_by_one_in_provenance_and_evidence_is_not_the_text_of_the_evidence(sweep):
    source, _ = item_of(sweep, EXTRACTIVE)
    edit(sweep / "runs" / EXTRACTIVE / "provenance.jsonl", lambda row: shift(first_source(row)))
    edit(sweep / "runs" / EXTRACTIVE / "evidence.jsonl", of_item(source, shift))
    where = f"characters {source['start'] + 1}-{source['end'] + 1} of document '{source['doc_id']}'"
    one_fault(sweep, EXTRACTIVE, "evidence.jsonl", f"text differs from {where}")


def test_a_span_shifted_everywhere_and_cut_anew_is_not_what_the_answer_says(sweep):
    source, _ = item_of(sweep, EXTRACTIVE)
    text = Slice(sweep / "slice").document(source["doc_id"]).text

    def cut(item: dict) -> None:
        shift(item)
        item["text"] = text[item["start"] : item["end"]]

    edit(sweep / "runs" / EXTRACTIVE / "provenance.jsonl", lambda row: shift(first_source(row)))
    edit(sweep / "runs" / EXTRACTIVE / "evidence.jsonl", of_item(source, cut))
    one_fault(sweep, EXTRACTIVE, "responses.jsonl", "its words are not those of")


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 5), (9, 5), (0, 10**6), (None, 5), ("0", 5), (0.0, 5)], ids=repr)
def test_a_span_that_does_not_lie_in_the_document_is_found(sweep, start, end):
    edit(sweep / "runs" / EXTRACTIVE / "provenance.jsonl", lambda row: first_source(row).update(start=start, end=end))
    one_fault(sweep, EXTRACTIVE, "provenance.jsonl", f"span {start}-{end} does not lie in document")


def test_a_blank_span_is_no_sentence(sweep):
    source, _ = item_of(sweep, EXTRACTIVE)
    space = Slice(sweep / "slice").document(source["doc_id"]).text.index(" ")
    blank = {"start": space, "end": space + 1}
    edit(sweep / "runs" / EXTRACTIVE / "provenance.jsonl", lambda row: first_source(row).update(blank))
    edit(sweep / "runs" / EXTRACTIVE / "evidence.jsonl", of_item(source, lambda item: item.update(blank, text=" ")))
    one_fault(sweep, EXTRACTIVE, "responses.jsonl", "its words are not those of")


def edit_document(sweep: Path, doc_id: str, change: Callable[[dict], object]) -> None:
    path = sweep / "slice" / "documents.jsonl"
    found = rows(path)
    change(next(row for row in found if row["doc_id"] == doc_id))
    paths.write_jsonl(path, found)


def resting_on(sweep: Path, doc_id: str) -> int:
    """Number of sentences that rest on the text of a document, over all runs and draws."""
    files = sorted((sweep / "runs").rglob("provenance.jsonl"))
    sentences = [s for file in files for row in rows(file) for s in row["sentences"]]
    return sum(any(x["doc_id"] == doc_id and x["field"] == "text" for x in s["sources"]) for s in sentences)


def test_one_changed_character_of_a_document_is_found_wherever_a_sentence_rests_on_it(sweep):
    source, _ = item_of(sweep, EXTRACTIVE)

    def change(row: dict) -> None:
        row["text"] = row["text"][: source["start"]] + replaced(row["text"][source["start"] :], 5)

    edit_document(sweep, source["doc_id"], change)
    faults = by_run(sweep)[EXTRACTIVE].faults
    assert len(faults) == 1
    assert faults[0].startswith(f"runs/{EXTRACTIVE}/evidence.jsonl:1: query '{query_ids(sweep)[0]}', sentence 0: evidence")
    assert f"text differs from characters {source['start']}-{source['end']}" in faults[0]


@pytest.mark.parametrize("added", ["x", "Лёд ", "\n"])
def test_characters_before_the_span_are_found_though_the_index_of_the_slice_is_now_wrong(sweep, added):
    source, _ = item_of(sweep, EXTRACTIVE)
    edit_document(sweep, source["doc_id"], lambda row: row.update(text=added + row["text"]))
    found = audit(sweep)
    faults = [fault for of_run in found for fault in of_run.faults]
    assert len(faults) == resting_on(sweep, source["doc_id"]) > 0
    assert all("text differs from characters" in fault and f"'{source['doc_id']}'" in fault for fault in faults)
    assert sum(sum(of_run.kinds.values()) for of_run in found) == sum(of_run.sentences for of_run in found) - len(faults)


def test_a_document_that_is_gone_is_found(sweep):
    source, _ = item_of(sweep, EXTRACTIVE)
    path = sweep / "slice" / "documents.jsonl"
    paths.write_jsonl(path, [row for row in rows(path) if row["doc_id"] != source["doc_id"]])
    found = by_run(sweep)
    gone = f"document '{source['doc_id']}' is not in the slice"
    assert gone in found[EXTRACTIVE].faults[0]
    assert [gone in fault for fault in found[NAIVE].faults] == [True]


def test_a_citation_pointed_at_another_candidate_is_found(sweep):
    def change(row: dict) -> None:
        (index,) = row["answer"][0]["citations"]
        row["answer"][0]["citations"] = [(index + 1) % len(row["references"])]

    edit(sweep / "runs" / EXTRACTIVE / "responses.jsonl", change)
    source, _ = item_of(sweep, EXTRACTIVE)
    one_fault(sweep, EXTRACTIVE, "responses.jsonl", f"but its sources are of '{source['doc_id']}'")


def test_a_reference_made_another_candidate_is_found_in_each_sentence_that_cites_it(sweep):
    other = Slice(sweep / "slice").queries[0].doc_ids

    def change(row: dict) -> None:
        (index,) = row["answer"][0]["citations"]
        row["references"][index] = next(doc_id for doc_id in other if doc_id not in row["references"])

    before = rows(sweep / "runs" / EXTRACTIVE / "responses.jsonl")[0]
    citing = sum(s["citations"] == before["answer"][0]["citations"] for s in before["answer"])
    edit(sweep / "runs" / EXTRACTIVE / "responses.jsonl", change)
    faults = by_run(sweep)[EXTRACTIVE].faults
    assert len(faults) == citing
    assert all("it cites" in fault for fault in faults)


@pytest.mark.parametrize(
    ("citations", "what"),
    [
        ([], "it cites no document, but its sources are of"),
        ([99], "out of range"),
        (["0"], "not a whole number"),
        ("0", "'citations' must be a list"),
    ],
    ids=repr,
)
def test_citations_that_are_taken_away_or_are_none_are_found(sweep, citations, what):
    edit(sweep / "runs" / EXTRACTIVE / "responses.jsonl", lambda row: row["answer"][0].update(citations=citations))
    one_fault(sweep, EXTRACTIVE, "responses.jsonl", what)


def test_a_citation_added_to_a_sentence_of_a_model_is_found(sweep):
    edit(sweep / "runs" / MODEL / "responses.jsonl", lambda row: row["answer"][0].update(citations=[0]), 2)
    one_fault(sweep, MODEL, "responses.jsonl", "but its sources are of no document", 0, 2)


def test_a_source_of_another_querys_document_is_found(sweep):
    foreign = Slice(sweep / "slice").queries[1].doc_ids[0]
    edit(
        sweep / "runs" / EXTRACTIVE / "provenance.jsonl",
        lambda row: first_source(row).update(doc_id=foreign, start=0, end=9),
    )
    one_fault(sweep, EXTRACTIVE, "provenance.jsonl", f"document '{foreign}' is not a candidate of query")


def test_a_title_of_another_querys_document_is_found(sweep):
    foreign = Slice(sweep / "slice").queries[1].doc_ids[0]
    edit(sweep / "runs" / NAIVE / "provenance.jsonl", lambda row: first_source(row).update(doc_id=foreign))
    one_fault(sweep, NAIVE, "provenance.jsonl", f"document '{foreign}' is not a candidate of query")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda item: item.update(evidence_id=77), "0 evidence items"),
        (lambda item: item.update(passage_id="elsewhere#0"), "has the passage_id 'elsewhere#0'"),
        (lambda item: item.update(doc_id="elsewhere"), "has the doc_id 'elsewhere'"),
        (lambda item: item.update(text=replaced(item["text"])), "text differs from characters"),
        (lambda item: item.pop("text"), "text differs from characters"),
    ],
    ids=["id", "passage", "document", "text", "no text"],
)
def test_evidence_that_is_not_that_of_its_source_is_found(sweep, change, what):
    source, _ = item_of(sweep, EXTRACTIVE)
    edit(sweep / "runs" / EXTRACTIVE / "evidence.jsonl", of_item(source, change))
    one_fault(sweep, EXTRACTIVE, "evidence.jsonl", what)


def test_two_evidence_items_of_one_id_are_found(sweep):
    _, item = item_of(sweep, EXTRACTIVE)
    edit(sweep / "runs" / EXTRACTIVE / "evidence.jsonl", lambda row: row["evidence"].append(item))
    one_fault(sweep, EXTRACTIVE, "evidence.jsonl", "2 evidence items")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda row: row["sentences"][0].update(sentence=9), "0 sentences of this number"),
        (lambda row: row["sentences"].append(copy.deepcopy(row["sentences"][0])), "2 sentences of this number"),
        (lambda row: first_source(row).update(field="abstract"), "a source of the field 'abstract'"),
        (lambda row: first_source(row).update(field="title"), "rests on one span"),
    ],
    ids=["number", "twice", "field", "title"],
)
def test_a_line_of_provenance_that_does_not_lead_to_a_span_is_found(sweep, change, what):
    edit(sweep / "runs" / EXTRACTIVE / "provenance.jsonl", change)
    faults = by_run(sweep)[EXTRACTIVE].faults
    assert any(f"provenance.jsonl:1: query '{query_ids(sweep)[0]}', sentence 0: " in f and what in f for f in faults), (
        faults
    )


def test_a_model_is_shown_no_titles_and_the_naive_baseline_says_nothing_else(sweep):
    edit(sweep / "runs" / NAIVE / "provenance.jsonl", lambda row: row["models"].update(generator="gpt-4o-mini"))
    found = by_run(sweep)[NAIVE]
    assert len(found.faults) == 10
    assert all("it rests on a title, which 'gpt-4o-mini' is not shown" in fault for fault in found.faults)


def test_an_extractive_sentence_that_rests_on_nothing_is_a_fault(sweep):
    edit(sweep / "runs" / EXTRACTIVE / "responses.jsonl", lambda row: row["answer"][0].update(citations=[]))
    edit(sweep / "runs" / EXTRACTIVE / "provenance.jsonl", lambda row: row["sentences"][0].update(sources=[]))
    one_fault(sweep, EXTRACTIVE, "provenance.jsonl", "0 sources; a sentence of 'extractive' rests on one span")


def test_a_title_changed_in_response_and_provenance_alike_is_not_the_documents(sweep):
    say_everywhere(sweep, NAIVE, 4, replaced)
    one_fault(sweep, NAIVE, "responses.jsonl", "its words are not the title of document", 4)


def test_a_document_without_a_title_is_named_by_its_id(sweep):
    doc_id = Slice(sweep / "slice").queries[0].doc_ids[0]
    edit_document(sweep, doc_id, lambda row: row.update(title=" \n"))
    one_fault(sweep, NAIVE, "responses.jsonl", f"its words are not the title of document '{doc_id}'")
    say_everywhere(sweep, NAIVE, 0, lambda _: doc_id)
    assert by_run(sweep)[NAIVE].faults == ()


def test_a_sentence_that_was_taken_out_of_the_answer_is_found(sweep):
    edit(sweep / "runs" / EXTRACTIVE / "responses.jsonl", lambda row: row["answer"].pop())
    left = len(rows(sweep / "runs" / EXTRACTIVE / "responses.jsonl")[0]["answer"])
    place = f"runs/{EXTRACTIVE}/responses.jsonl:1: query '{query_ids(sweep)[0]}': "
    assert by_run(sweep)[EXTRACTIVE].faults == (f"{place}{left} sentences, but provenance.jsonl has {left + 1}",)


@pytest.mark.parametrize(("length", "faults"), [(400, 0), (3, 1)])
def test_a_sentence_that_the_word_limit_cut_off_is_no_fault(sweep, length, faults):
    def add(row: dict) -> None:
        row["sentences"].append({"sentence": len(row["sentences"]), "text": " ".join(["word"] * length), "sources": []})

    edit(sweep / "runs" / EXTRACTIVE / "provenance.jsonl", add)
    assert len(by_run(sweep)[EXTRACTIVE].faults) == faults


def test_a_sentence_that_was_added_to_the_answer_is_found(sweep):
    edit(
        sweep / "runs" / MODEL / "responses.jsonl", lambda row: row["answer"].append({"text": "More.", "citations": []}), 3
    )
    one_fault(sweep, MODEL, "provenance.jsonl", "0 sentences of this number", 0, 3)


@pytest.mark.parametrize("file", ["responses.jsonl", "provenance.jsonl", "evidence.jsonl"])
@pytest.mark.parametrize("name", [EXTRACTIVE, NAIVE])
def test_a_run_without_one_of_its_files_is_found(sweep, name, file):
    (sweep / "runs" / name / file).unlink()
    found = one_fault(sweep, name, file, "no such file", None, None)
    assert sum(found.kinds.values()) == 0
    assert (found.sentences > 0) == (file != "responses.jsonl")


def test_blank_lines_shift_no_line_number_and_hide_no_line(sweep):
    for path in sorted((sweep / "runs" / EXTRACTIVE).glob("*.jsonl")):
        path.write_bytes(b"\n  \n" + path.read_bytes())
    found = by_run(sweep)[EXTRACTIVE]
    assert (found.faults, sum(found.kinds.values())) == ((), found.sentences)
    path = sweep / "runs" / EXTRACTIVE / "responses.jsonl"
    path.write_bytes(path.read_bytes().replace(b"Earlier", b"earlier"))
    (fault,) = by_run(sweep)[EXTRACTIVE].faults
    assert fault.startswith(
        f"runs/{EXTRACTIVE}/responses.jsonl:3: query '{query_ids(sweep)[0]}', sentence 0: its text differs"
    )


def test_a_draw_without_provenance_is_found_and_the_run_is_traced(sweep):
    (sweep / "runs" / MODEL / "draw-2" / "provenance.jsonl").unlink()
    one_fault(sweep, f"{MODEL}/draw-2", "provenance.jsonl", "no such file", None, None)


def test_an_empty_folder_among_the_runs_is_found(sweep):
    (sweep / "runs" / "new").mkdir()
    faults = by_run(sweep)["new"].faults
    assert [fault.split(":")[0] for fault in faults] == [
        f"runs/new/{name}.jsonl" for name in ("responses", "provenance", "evidence")
    ]


@pytest.mark.parametrize("file", ["responses.jsonl", "provenance.jsonl", "evidence.jsonl"])
def test_a_torn_line_is_found_and_so_is_the_query_that_it_was_of(sweep, file):
    path = sweep / "runs" / EXTRACTIVE / file
    path.write_bytes(path.read_bytes()[:-20])
    found = by_run(sweep)[EXTRACTIVE]
    assert len(found.faults) == 2
    assert found.faults[0].startswith(f"runs/{EXTRACTIVE}/{file}:3: not JSON")
    assert found.faults[1] == f"runs/{EXTRACTIVE}/{file}: query '{query_ids(sweep)[2]}' is missing"
    assert sum(found.kinds.values()) > 0


@pytest.mark.parametrize("file", ["responses.jsonl", "provenance.jsonl", "evidence.jsonl"])
@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_missing_query_is_found_whatever_the_order_of_the_others(sweep, file, line):
    path = sweep / "runs" / EXTRACTIVE / file
    found = rows(path)
    del found[line - 1]
    paths.write_jsonl(path, reversed(found))
    faults = by_run(sweep)[EXTRACTIVE].faults
    assert faults == (f"runs/{EXTRACTIVE}/{file}: query '{query_ids(sweep)[line - 1]}' is missing",)


@pytest.mark.parametrize("file", ["responses.jsonl", "provenance.jsonl", "evidence.jsonl"])
def test_a_doubled_query_is_found(sweep, file):
    path = sweep / "runs" / EXTRACTIVE / file
    found = rows(path)
    paths.write_jsonl(path, [*found, found[1]])
    what = f"query '{query_ids(sweep)[1]}' stands on line 2 already"
    one_fault(sweep, EXTRACTIVE, file, what, None, 4)


@pytest.mark.parametrize("file", ["provenance.jsonl", "evidence.jsonl"])
def test_a_query_that_is_not_in_the_slice_is_found(sweep, file):
    path = sweep / "runs" / EXTRACTIVE / file
    found = rows(path)
    paths.write_jsonl(path, [*found, found[1] | {"query_id": "q9"}])
    one_fault(sweep, EXTRACTIVE, file, "query 'q9' is not in the slice", None, 4)


@pytest.mark.parametrize(
    ("file", "change", "what"),
    [
        ("responses.jsonl", lambda row: row.pop("metadata"), "without an id"),
        ("responses.jsonl", lambda row: row.update(answer="Ice."), "expected the lists references and answer"),
        ("provenance.jsonl", lambda row: row.update(query_id=True), "without an id"),
        ("provenance.jsonl", lambda row: row.pop("sentences"), "expected the field sentences"),
        ("provenance.jsonl", lambda row: row["sentences"].append("Ice."), "expected the field sentences"),
        ("provenance.jsonl", lambda row: row.pop("models"), "name no generator"),
        ("provenance.jsonl", lambda row: row["models"].pop("generator"), "name no generator"),
        ("evidence.jsonl", lambda row: row.update(evidence=[1]), "expected the field evidence"),
    ],
)
def test_a_line_of_another_shape_is_found(sweep, file, change, what):
    edit(sweep / "runs" / EXTRACTIVE / file, change, 2)
    faults = by_run(sweep)[EXTRACTIVE].faults
    assert faults[0].startswith(f"runs/{EXTRACTIVE}/{file}:2: ")
    assert what in faults[0]
    assert len(faults) == (2 if what == "without an id" else 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(path.read_bytes() + path.read_bytes().split(b"\n")[0] + b"\n"),
        lambda path: edit(path, lambda row: row.pop("text")),
        lambda path: edit(path, lambda row: row.update(date="in May")),
        lambda path: path.unlink(),
    ],
    ids=["torn", "doubled", "no text", "date", "absent"],
)
def test_a_slice_whose_documents_cannot_be_read_is_an_error(sweep, change):
    change(sweep / "slice" / "documents.jsonl")
    with pytest.raises(WorkbookError, match="slice/documents.jsonl.*nothing can be audited"):
        audit(sweep)


def test_a_folder_that_is_no_sweep_or_has_no_run_is_an_error(sweep, tmp_path):
    with pytest.raises(WorkbookError, match="not a prepared slice"):
        audit(tmp_path)
    shutil.rmtree(sweep / "runs")
    with pytest.raises(WorkbookError, match="no run here; run 'workbook sweep' first"):
        audit(sweep)


def test_further_draws_stand_in_the_order_of_their_numbers(sweep):
    for number in (10, 3):
        shutil.copytree(sweep / "runs" / MODEL / "draw-2", sweep / "runs" / MODEL / f"draw-{number}")
    assert [name for name in by_run(sweep) if "/" in name] == [f"{MODEL}/draw-{number}" for number in (2, 3, 10)]


def test_the_summary_has_a_line_a_run_then_the_faults_then_the_totals():
    none = dict.fromkeys(("verbatim", "led in", "title", "written", "uncited"), 0)
    spans = frozenset({Place("d1", 0, 9), Place("d1", 9, 12), Place("d2", 0, 9)})
    shared = "runs/b/evidence.jsonl:2: not JSON"
    audits = [
        RunAudit("a", 5, none | {"verbatim": 3, "led in": 1}, spans, None, 0, ("runs/a/responses.jsonl:1: bad",)),
        RunAudit("b", 1200, none | {"written": 1199, "uncited": 1}, frozenset({Place("d2", 0, 9)}), 0.625, 3, (shared,)),
        RunAudit("b/draw-2", 0, none, frozenset(), None, 0, (shared,)),
        RunAudit("c", 1, none | {"title": 1}, frozenset({Place("d3")}), None, 0, ()),
    ]
    assert [one_line(line) for line in summary(audits).split("\n")] == [
        "a 5 sentences: 3 verbatim, 1 led in, 1 fault",
        "b 1,200 sentences: 1,199 written (62% of their content words in the spans), 1 uncited, 3 unanswered, 1 fault",
        "b/draw-2 0 sentences: none traced, 1 fault",
        "c 1 sentences: 1 title, 0 faults",
        "runs/a/responses.jsonl:1: bad",
        "runs/b/evidence.jsonl:2: not JSON",
        "1,204 of 1,206 sentences traced to 3 spans and 1 title in 3 documents, 2 faults",
    ]


def test_the_audit_of_the_real_slice_traces_every_sentence(real_data, tmp_path, embedded):
    preparing.prepare(str(real_data / "slice"), tmp_path / "slice")
    slice_ = Slice(tmp_path / "slice")
    (variant,) = load_variants(["single-query-bm25"])
    run = steps.retrieve(tmp_path, slice_, variant, steps.models_of(embedded))
    steps.generate(tmp_path, slice_, variant, embedded, run)
    (found,) = audit(tmp_path)
    said = sum(len(json.loads(line)["answer"]) for line in open(run / "responses.jsonl", encoding="utf-8"))
    assert found.faults == ()
    assert found.sentences == sum(found.kinds.values()) == said > 0
