"""The bench measures what it says: the yardstick gives the workbook's evidence, made slices are sound, rows are true."""

import json
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from bench import __main__ as bench
from bench import processes, scale, show, sweeps, yardstick
from lib import paths, preparing, slices, steps
from lib.errors import WorkbookError
from lib.variants import Profile, load_variants


class Remembering(yardstick.PlainEncoder):
    """The yardstick's encoder, which gives the tests that ask for the same texts the vectors that it made before."""

    def __init__(self, profile: Profile, batch_size: int):
        super().__init__(profile, batch_size)
        self._made = {}

    def vectors(self, texts: list[str]) -> list[list[float]]:
        if tuple(texts) not in self._made:
            self._made[tuple(texts)] = super().vectors(texts)
        return self._made[tuple(texts)]


@pytest.fixture(scope="module")
def encoder(embedded) -> Remembering:
    return Remembering(embedded, 32)


def test_the_yardstick_encodes_whatever_it_is_asked_for_anew(embedded):
    """Unit vectors of 384 floats, in the order of the texts; nothing is kept between two calls."""
    plain = yardstick.PlainEncoder(embedded, 2)
    texts = ["Lakes warm.", "Snails graze on algae, and so do many of the other animals of the shore.", "Ice melts."]
    first, second = plain.vectors(texts), plain.vectors(texts)
    assert first == second and first[0] is not second[0]
    assert all(type(vector) is list and len(vector) == 384 and type(vector[0]) is float for vector in first)
    assert [yardstick.cosine(vector, vector) for vector in first] == pytest.approx([1.0] * 3)
    alone = plain.vectors(texts[2:])[0]
    assert yardstick.cosine(alone, first[2]) == pytest.approx(1.0, abs=1e-6)
    spent = plain.seconds
    plain.vectors(texts)
    assert plain.seconds > spent > 0


@pytest.fixture(scope="module")
def two(embedded, tmp_path_factory) -> slices.Slice:
    """A temporal and another query of the sample, with their documents, and every text encoded."""
    folder = tmp_path_factory.mktemp("two")
    rows = list(paths.read_jsonl(paths.SAMPLE / "queries.jsonl"))
    paths.write_jsonl(folder / "source" / "queries.jsonl", [rows[0], rows[3]])
    shutil.copytree(paths.SAMPLE / "documents", folder / "source" / "documents")
    shutil.copyfile(paths.SAMPLE / "citations.csv", folder / "source" / "citations.csv")
    preparing.prepare(str(folder / "source"), folder / "slice")
    slice_ = slices.Slice(folder / "slice")
    steps.models_of(embedded).encoder.encode(steps.texts_to_encode(slice_, load_variants(["all"])))
    return slice_


@pytest.mark.parametrize("name", yardstick.SYSTEMS)
def test_the_yardstick_gives_the_evidence_of_the_workbook(name, two, embedded, encoder, tmp_path):
    """The same sentences in the same order; scores agree to the noise of other batches, 1e-5."""
    (variant,) = load_variants([name])
    models = steps.models_of(embedded)
    reranker = yardstick.PlainReranker(encoder, embedded.sentence_reranker.label) if variant.sentence_rerank else None
    queries, documents, degrees = yardstick.read(str(two.folder.parent / "source"))
    assert (queries, degrees) == (two.queries, two.citation_degrees)
    for query in queries:
        own = [documents[doc_id] for doc_id in query.doc_ids]
        assert own == two.documents(query)
        found = yardstick.collect(query, own, variant, degrees, encoder, reranker)
        expected = steps.collect_one(tmp_path, two, query, variant, models)
        assert (found.status, found.references, found.reranker) == (expected.status, expected.references, expected.reranker)
        assert [p.passage for p in found.passages] == [p.passage for p in expected.passages]
        assert [e._replace(score=0.0) for e in found.evidence] == [e._replace(score=0.0) for e in expected.evidence]
        assert [e.score for e in found.evidence] == pytest.approx([e.score for e in expected.evidence], abs=1e-5)


@pytest.mark.parametrize("name", ["official-naive-baseline", "rule-minilm"])
def test_the_yardstick_writes_the_answers_of_the_workbook(name, two, embedded, encoder, tmp_path):
    (variant,) = load_variants([name])
    yardstick.system(str(two.folder.parent / "source"), tmp_path / "plain", variant, embedded, encoder)
    run = steps.retrieve(tmp_path / "sweep", two, variant, steps.models_of(embedded))
    steps.generate(tmp_path / "sweep", two, variant, embedded, run)
    assert (tmp_path / "plain" / "responses.jsonl").read_bytes() == (run / "responses.jsonl").read_bytes()
    assert {p.name for p in (tmp_path / "plain").iterdir()} == {p.name for p in run.iterdir()}


def test_the_yardstick_has_the_ten_systems_of_the_paper():
    """METHOD, section 5, with `default` as the second name of caes-rag-rrf."""
    known = {variant.name for variant in load_variants(["all"])}
    assert len(set(yardstick.SYSTEMS)) == 10
    assert known - set(yardstick.SYSTEMS) == {"default", "late-consensus", "late-coverage"}
    assert known - set(sweeps.systems()) == {"late-consensus", "late-coverage"}


def test_chunks_of_the_yardstick_by_hand():
    assert yardstick.rule([60, 50, 40, 200, 10], 140, 1) == [[0, 1], [1, 2], [3], [4]]
    assert yardstick.rule([60, 50, 40], 140, 0) == [[0, 1], [2]]
    assert yardstick.rule([], 140, 1) == []
    # cosines of neighbours: 0.96, 0.8, 0.0; with the mean of the first two, (0.98, 0.14): 0.6 x 0.98 + 0.8 x 0.14 = 0.71
    vectors = [[1.0, 0.0], [0.96, 0.28], [0.6, 0.8], [-0.8, 0.6]]
    assert yardstick.topic_shift([1] * 4, vectors, 140, 0.18) == [[0, 1], [2], [3]]
    assert yardstick.topic_shift([1] * 4, vectors, 140, 0.21) == [[0, 1, 2], [3]]
    assert yardstick.topic_shift([70, 71, 1, 1], vectors, 140, 0.21) == [[0], [1, 2], [3]]
    assert yardstick.semantic([1] * 4, vectors, 140, 0.72) == [[0, 1], [2], [3]]
    assert yardstick.semantic([1] * 4, vectors, 140, 0.70) == [[0, 1, 2], [3]]
    assert yardstick.semantic([70, 71, 1, 1], vectors, 140, 0.70) == [[0], [1, 2], [3]]


def test_cosine_in_plain_floats():
    assert yardstick.cosine([3.0, 4.0], [4.0, 3.0]) == pytest.approx(24 / 25, abs=1e-15)
    assert yardstick.cosine([0.0, 0.0], [1.0, 0.0]) == 0.0


def test_fusion_and_ranking_of_the_yardstick_by_hand():
    assert yardstick.fused([{7: 2.0, 9: 1.0}, {9: 5.0}], 60) == {7: 1 / 61, 9: 1 / 62 + 1 / 61}


def test_a_made_slice_is_sound(tmp_path):
    """Every query has ten documents that no other has, each the copy of a sample's under a new id, two of them relevant."""
    scale.make(tmp_path / "made", 20)
    report = preparing.prepare(str(tmp_path / "made"), tmp_path / "slice", strict=True)
    assert (report.queries, report.documents, report.instances, report.problems) == (20, 200, 200, [])
    made, source = slices.Slice(tmp_path / "slice"), list(paths.read_jsonl(paths.SAMPLE / "queries.jsonl"))
    sample = {d["id"]: d for file in (paths.SAMPLE / "documents").iterdir() for d in paths.read_jsonl(file)}
    names = {preparing.make_document("any", document): str(name) for name, document in sample.items()}
    original = {d.doc_id: names[d._replace(doc_id="any")] for d in made.all_documents()}
    assert not set(original) & set(original.values())
    qrels, judged = made.qrels(), slices.read_qrels(paths.SAMPLE / "qrels.txt")
    gold = slices.read_gold_answers(paths.SAMPLE / "gold_answers.jsonl")
    for number, query in enumerate(made.queries):
        base = source[number % 8]
        assert query.text == base["query"]
        assert len({original[doc_id] for doc_id in query.doc_ids}) == 10
        assert {original[doc_id] for doc_id in qrels[query.query_id]} == judged[base["query_id"]]
        assert made.gold_answers()[query.query_id] == gold[base["query_id"]]
    assert len({tuple(original[d] for d in query.doc_ids) for query in made.queries}) == 20


def test_citations_of_a_made_slice_are_those_of_the_sample(tmp_path):
    """Edges join documents of one query, as their originals are joined in the sample."""
    known = {tuple(line.split(",")) for line in (paths.SAMPLE / "citations.csv").read_text().split("\n")[1:] if line}
    titles = {d["title"]: str(d["id"]) for f in (paths.SAMPLE / "documents").iterdir() for d in paths.read_jsonl(f)}
    edges = 0
    for made in scale.recombined(paths.SAMPLE, 40):
        original = {d["id"]: titles[d["title"]] for d in made.documents}
        found = {(original[a], original[b]) for a, b in made.citations}
        inside = {(a, b) for a, b in known if {a, b} <= set(original.values())}
        assert found == inside
        edges += len(found)
    assert edges > 0


def test_a_longer_made_slice_begins_with_a_shorter_one_whatever_the_hash_seed(tmp_path):
    code = "import sys; from pathlib import Path; from bench.scale import make; make(Path(sys.argv[1]), int(sys.argv[2]))"
    for seed, count in (("1", "12"), ("2", "30")):
        command = [sys.executable, "-c", code, str(tmp_path / count), count]
        subprocess.run(command, cwd=paths.PROJECT, check=True, env={**processes.os.environ, "PYTHONHASHSEED": seed})
    for name in ("queries.jsonl", "gold_answers.jsonl", "qrels.txt", "citations.csv", "documents/documents_000001.jsonl"):
        short, long = ((tmp_path / count / name).read_bytes() for count in ("12", "30"))
        assert long.startswith(short) and len(long) > len(short)


def test_documents_of_a_made_slice_are_spread_over_files(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "QUERIES_A_FILE", 4)
    scale.make(tmp_path, 10)
    lines = {file.name: len(file.read_text().splitlines()) for file in (tmp_path / "documents").iterdir()}
    assert lines == {"documents_000001.jsonl": 40, "documents_000002.jsonl": 40, "documents_000003.jsonl": 20}


@pytest.mark.parametrize(
    ("value", "bar", "expected"),
    [
        (4.0, "at least 4", True),
        (3.999, "at least 4", False),
        (0.1, "at most 0.10", True),
        (0.101, "at most 0.10", False),
        (0.85, "from 0.85 to 1.15", True),
        (1.151, "from 0.85 to 1.15", False),
        (0.849, "from 0.85 to 1.15", False),
        (float("nan"), "at most 1", False),
    ],
)
def test_a_bar_holds_or_does_not(value, bar, expected):
    assert show.holds(value, bar) is expected


def test_a_bar_that_cannot_be_read_is_an_error():
    with pytest.raises(ValueError, match='"about 4" is no bar'):
        show.holds(4.0, "about 4")


@pytest.fixture
def section(monkeypatch):
    """A bench of one section, which shows the given rows."""
    monkeypatch.setattr(show, "fallen_short", [])

    def made(*rows):
        class Section:
            """A section of the test's own."""

            @staticmethod
            def measure(folder):
                assert folder.is_dir()
                for row in rows:
                    show.show(*row)

        monkeypatch.setattr(bench.importlib, "import_module", lambda name: Section)
        return bench.main(["workers"])

    return made


def test_the_bench_fails_by_name_if_a_bar_does_not_hold(section, capsys):
    assert section(("fast enough", 5.0, "at least 4"), ("small enough", 3.0, "at most 2.5"), ("seconds", 12.0)) == 1
    lines = capsys.readouterr().out.splitlines()
    verdicts = Counter(word for line in lines for word in ("holds", "FALLS SHORT") if line.rstrip().endswith(word))
    assert verdicts == {"holds": 1, "FALLS SHORT": 1}
    assert lines[-1] == "1 rows fall short: small enough"
    assert lines[0].startswith("machine: ") and "torch" in lines[0]


def test_the_bench_succeeds_if_every_bar_holds(section, capsys):
    assert section(("fast enough", 5.0, "at least 4"), ("seconds", 12.0)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "every bar holds"


def test_an_unknown_section_is_named(capsys):
    assert bench.main(["sweep"]) == 2
    assert "no section 'sweep'; there are: encoding, sweeps" in capsys.readouterr().err


def test_peak_memory_is_that_of_a_process_and_its_children(tmp_path):
    """A parent that holds 100 MB starts a child that holds 200 MB; both stay for two seconds."""
    held = "import time; held = bytearray(b'1') * {} * 2**20; time.sleep(2)"
    (tmp_path / "held.py").write_text(
        f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {held.format(200)!r}])\n"
        f"{held.format(100)}; child.wait(); print('done')\n"
    )
    code = "import json, sys; from pathlib import Path; from bench import processes\n"
    code += "ran = processes.python('held', cache=Path('none')); print(json.dumps([ran.peak, ran.output, ran.seconds]))"
    environment = {**processes.os.environ, "PYTHONPATH": f"{tmp_path}:{paths.PROJECT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    peak, output, seconds = json.loads(done.stdout)
    assert 300 * 2**20 < peak < 400 * 2**20
    assert output == "done\n" and seconds >= 2


def test_a_command_that_fails_ends_the_measurement_with_its_last_words(tmp_path):
    with pytest.raises(WorkbookError, match="no system 'nothing'"):
        processes.workbook("sweep", "--variants", "nothing", "--out", tmp_path / "out", cache=tmp_path)


def test_a_notebook_is_taken_apart_into_its_cells_and_the_rest(tmp_path):
    """Two cells of 1.5 and 0.25 s, the first of them encoding, in a notebook of 4 s; blank cells and prose have no time."""

    def code(source: str, begin: str, end: str) -> dict:
        moments = {"iopub.execute_input": f"2026-01-01T00:00:0{begin}Z", "shell.execute_reply": f"2026-01-01T00:00:0{end}Z"}
        return {"cell_type": "code", "source": [source], "metadata": {"execution": moments}}

    notebook = {
        "metadata": {
            "papermill": {"start_time": "2026-01-01T00:00:00+00:00", "end_time": "2026-01-01T00:00:04+00:00"},
        },
        "cells": [
            {"cell_type": "markdown", "source": ["# T"], "metadata": {}},
            code("encoded = models.encoder.encode(texts, progress=True)", "1.0", "2.5"),
            {"cell_type": "code", "source": [], "metadata": {}},
            code("x = 1", "2.75", "3.0"),
        ],
    }
    file = tmp_path / "02_study_chunking.ipynb"
    file.write_text(json.dumps(notebook))
    found = sweeps.executed(file)
    assert (found.name, found.end - found.start, found.cells, found.encoding) == ("02_study_chunking", 4.0, 1.75, 1.5)


def test_the_cell_that_encodes_is_known():
    """The bench finds it by its text."""
    source = (paths.NOTEBOOKS / "02_study_chunking.ipynb").read_text(encoding="utf-8")
    assert source.count("encoder.encode(texts, progress=True)") == 1


def test_variants_of_the_paper_use_absolute_thresholds_only():
    """The yardstick knows no percentile, no dense list and no late allocation."""
    for variant in load_variants(yardstick.SYSTEMS):
        assert (variant.threshold_mode, variant.dense, variant.sentence_selection) == ("absolute", False, "best")
