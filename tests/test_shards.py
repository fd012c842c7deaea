"""A slice in shards: what is joined from them is, byte for byte, what the whole slice gives at once."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from lib import chunking, ledger, paths, preparing, shards, steps, sweep, tasks
from lib.answering import run_requests
from lib.slices import Slice
from lib.variants import Profile, ServiceSpec, Variant, load_variants
from tests.process import workbook
from tests.slice_files import lines, put, source
from tests.stub_service import Stub

SYSTEMS = ["rule-minilm", "semantic-current", "caes-rag-rrf", "official-naive-baseline"]
SIZES = [1, 3, 8, 100]
ASKED = "concat-baseline"  # of which a model is asked; it needs no vectors
BOM = "\ufeff"


def systems(*names: str) -> list[Variant]:
    return load_variants(list(names))


def contents(sweep: Path) -> dict[str, bytes]:
    """Path -> bytes of all that the notebooks up to the answers make, and of the ledger."""
    made = [path for name in ("chunks", "runs") for path in (sweep / name).rglob("*") if path.is_file()]
    return {path.relative_to(sweep).as_posix(): path.read_bytes() for path in made}


def retrieve(sweep: Path, variants: list[Variant], profile: Profile) -> None:
    """What the notebooks 02 and 03 make in the folder of a sweep or of a shard."""
    slice_, models = Slice(sweep / "slice"), steps.models_of(profile)
    steps.chunk_slice(sweep, slice_, [variant for variant in variants if variant.reads_text], models.encoder)
    for variant in variants:
        steps.retrieve(sweep, slice_, variant, models)


def answer(sweep: Path, variants: list[Variant], profile: Profile, **given) -> None:
    """What notebook 04 makes."""
    for variant in variants:
        steps.generate(sweep, Slice(sweep / "slice"), variant, profile, sweep / "runs" / variant.name, **given)


def split(sweep: Path, size: int) -> list[Path]:
    shards.split(str(sweep), size)
    return shards.existing(sweep)


def join(sweep: Path, variants: list[Variant]) -> None:
    for chunker in {chunking.chunker_id(variant) for variant in variants if variant.reads_text}:
        shards.join_chunks(str(sweep), chunker)
    for variant in variants:
        shards.join_evidence(str(sweep), variant.name)
        shards.join_answers(str(sweep), variant.name)


def unmade(whole: Path, folder: Path) -> Path:
    """A sweep's folder with the slice of another, and nothing made of it."""
    shutil.copytree(whole / "slice", folder / "slice")
    return folder


# Whole and joined


def troubled(folder: Path) -> Path:
    """The sample with all that can be odd about a slice.

    Queries of different shards share documents; a candidate is not there, a query has no candidates, and another no
    text. The document of the most citations is no candidate. Gold data begin with a byte order mark, are blank in
    places, and say nothing of some queries.
    """
    shutil.copytree(paths.SAMPLE, folder)
    queries = list(paths.read_jsonl(folder / "queries.jsonl"))
    first, last = queries[0], queries[-1]
    queries[3]["doc_ids"] += [*first["doc_ids"][:3], "absent"]
    last["doc_ids"] = [first["doc_ids"][1], *last["doc_ids"]]
    nobody = {"query_id": "nobody", "query": "Who has answered this?", "doc_ids": []}
    speechless = {"query_id": "speechless", "query": "", "doc_ids": first["doc_ids"][:2]}
    put(folder / "queries.jsonl", lines([*queries[:4], nobody, *queries[4:6], speechless, *queries[6:]]))
    hub = "".join(f"hub,cites-{number}\n" for number in range(50))
    put(folder / "citations.csv", (folder / "citations.csv").read_text(encoding="utf-8") + hub)
    gold = (folder / "gold_answers.jsonl").read_text(encoding="utf-8").splitlines()
    put(folder / "gold_answers.jsonl", BOM + "\n".join([*gold[4:], "", *gold[:2]]))
    qrels = (folder / "qrels.txt").read_text(encoding="utf-8").splitlines()
    put(folder / "qrels.txt", BOM + "\r\n".join([*qrels[:25], "", "   ", *qrels[25:]]))
    return folder


@pytest.fixture(scope="module", params=["sample", "troubled"])
def whole(request, tmp_path_factory, embedded) -> Path:
    """A sweep's folder with all of four systems, made in one piece."""
    out = tmp_path_factory.mktemp("whole")
    spec = "sample" if request.param == "sample" else str(troubled(out / "source"))
    preparing.prepare(spec, out / "slice")
    retrieve(out, systems(*SYSTEMS), embedded)
    answer(out, systems(*SYSTEMS), embedded)
    return out


@pytest.mark.parametrize("size", SIZES)
def test_what_is_joined_is_byte_for_byte_what_the_whole_slice_gives(whole, tmp_path, embedded, size):
    out = unmade(whole, tmp_path / "out")
    parts = split(out, size)
    assert len(parts) == -(-len(Slice(whole / "slice").queries) // size)
    for part in parts:
        retrieve(part, systems(*SYSTEMS), embedded)
        answer(part, systems(*SYSTEMS), embedded)
    join(out, systems(*SYSTEMS))
    reference = contents(whole)
    assert len(reference) == 2 * 2 + 4 * 4  # two chunkers, and four files a run
    assert contents(out) == reference


@pytest.mark.parametrize("size", SIZES)
def test_gold_data_are_those_of_the_shards_queries(whole, tmp_path, size):
    everything, out = Slice(whole / "slice"), unmade(whole, tmp_path / "out")
    for part in split(out, size):
        shard = Slice(part / "slice")
        ids = {query.query_id for query in shard.queries}
        assert shard.gold_answers() == {i: text for i, text in everything.gold_answers().items() if i in ids}
        assert shard.qrels() == {i: found for i, found in everything.qrels().items() if i in ids}


def test_the_network_has_its_highest_degree_elsewhere(tmp_path):
    """Otherwise the test above would not show that the citation prior of a shard is that of the slice."""
    preparing.prepare(str(troubled(tmp_path / "source")), tmp_path / "slice")
    degrees = Slice(tmp_path / "slice").citation_degrees
    assert degrees["hub"] == 50 == max(degrees.values())
    assert not Slice(tmp_path / "slice").has("hub")
    for part in split(tmp_path, 3):
        shard = Slice(part / "slice").citation_degrees
        assert (shard["hub"], len(shard) < len(degrees)) == (50, True)


# The slice of a shard


def small(folder: Path, queries: Iterable[dict], **files: str | bytes) -> Path:
    """The folder of a sweep with a slice of these queries, over as many small documents as they want."""
    queries = list(queries)
    wanted = dict.fromkeys(doc_id for query in queries for doc_id in query["doc_ids"])
    documents = [{"id": doc_id, "text": f"Ice of {doc_id} creeps."} for doc_id in wanted if doc_id != "absent"]
    preparing.prepare(str(source(folder / "source", queries, documents, **files)), folder / "out" / "slice")
    return folder / "out"


def asks(query_id: str, *doc_ids: str) -> dict:
    return {"query_id": query_id, "query": f"Does {query_id} creep?", "doc_ids": list(doc_ids)}


THREE = [asks("q1", "d1", "d2"), asks("q2", "d2", "absent", "d3"), asks("q3")]


def test_a_shard_is_a_slice_of_its_own(tmp_path):
    out = small(tmp_path, THREE, citations__csv="citing_doc_id,cited_doc_id\nd1,d2\nd3,d2\nd4,d2\nd5,d2\nd4,d3\n")
    everything = Slice(out / "slice")
    one, two = [Slice(part / "slice") for part in split(out, 2)]
    assert [*one.queries, *two.queries] == everything.queries
    assert list(one.all_documents()) == list(everything.all_documents())
    assert list(two.all_documents()) == []
    for name in ("documents.jsonl", "documents.index.json"):
        assert (one.folder / name).read_bytes() == (everything.folder / name).read_bytes()
    assert one.citation_degrees == {"d1": 1, "d2": 4, "d3": 2}
    assert two.citation_degrees == {"d2": 4}
    assert (one.report.queries, one.report.instances, one.report.documents) == (2, 5, 3)
    assert one.report.text_sources == {"fullText": 4, "abstract": 0, "title": 0, "none": 0}
    assert (two.report.queries, two.report.instances, two.report.documents) == (1, 0, 0)


def test_only_a_shards_own_documents_are_in_it(tmp_path):
    out = small(tmp_path, [asks("q1", "d1", "d2"), asks("q2", "d2", "d3"), asks("q3", "d3", "d1")])
    held = [[document.doc_id for document in Slice(part / "slice").all_documents()] for part in split(out, 1)]
    assert held == [["d1", "d2"], ["d2", "d3"], ["d3", "d1"]]


@pytest.mark.parametrize("name", ["query_id", "narrative_id", "qid", "id"])
def test_gold_answers_name_their_query_as_they_may(tmp_path, name):
    """By any of the names that the reader of gold answers takes, and by a whole number."""
    gold = lines([{name: "q2", "answer": "Yes."}, {name: 17, "answer": "No."}])
    out = small(
        tmp_path, [asks("q1", "d1"), asks("q2", "d1"), {**asks("17", "d1"), "query_id": 17}], gold_answers__jsonl=gold
    )
    found = [Slice(part / "slice").gold_answers() for part in split(out, 1)]
    assert found == [{}, {"q2": "Yes."}, {"17": "No."}]


@pytest.mark.parametrize("blank", ["\n", " \t\n", "\u00a0\n", "\r\n", f"{BOM}\n"])
def test_blank_lines_of_gold_data_are_passed_over(tmp_path, blank):
    """What the readers take for blank: a byte order mark only at the head of the file."""
    qrels = f"{blank}q1 0 d1 1\n" + (blank if BOM not in blank else "") + "q2 0 d2 1"
    out = small(tmp_path, THREE, qrels__txt=qrels)
    assert Slice(out / "slice").qrels() == {"q1": {"d1"}, "q2": {"d2"}}
    assert [Slice(part / "slice").qrels() for part in split(out, 1)] == [{"q1": {"d1"}}, {"q2": {"d2"}}, {}]


@pytest.mark.parametrize("name", shards.GOLD)
def test_gold_data_that_are_gone_are_gone_from_the_shards(tmp_path, name):
    gold = {"gold_answers.jsonl": lines([{"query_id": "q1", "answer": "Yes."}]), "qrels.txt": "q1 0 d1 1\n"}
    out = small(tmp_path, THREE, **{key.replace(".", "__"): text for key, text in gold.items()})
    parts = split(out, 2)
    assert [(part / "slice" / name).exists() for part in parts] == [True, True]
    (out / "slice" / name).unlink()
    assert [(part / "slice" / name).exists() for part in split(out, 2)] == [False, False]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gold_answers.jsonl", '{"query_id": "q1", "answer": "Yes."}\n{"query_id": \n', "gold_answers.jsonl:2"),
        ("gold_answers.jsonl", '{"query_id": "q1", "answer": "Yes."}\n["q2"]\n', "gold_answers.jsonl:2"),
        ("qrels.txt", b"q1 0 d1 1\nq\xff 0 d2 1\n", "qrels.txt"),
    ],
    ids=["malformed", "no object", "not UTF-8"],
)
def test_bad_gold_data_fail_the_split_with_a_message_that_names_the_file(tmp_path, name, content, said):
    out = small(tmp_path, THREE, **{name.replace(".", "__"): content})
    task = tasks.Task("split", {"sweep": str(out), "size": 2}, function="lib.shards:split")
    failure = sweep.execute(task, out)
    assert failure is not None
    assert (failure.error, said in failure.message) == ("WorkbookError", True), failure


# Which shards there are


@pytest.mark.parametrize(
    ("n_queries", "size", "names"),
    [
        (8, 3, ["0001", "0002", "0003"]),
        (8, 4, ["0001", "0002"]),
        (8, 8, ["0001"]),
        (8, 100, ["0001"]),
        (1, 1, ["0001"]),
        (0, 5, ["0001"]),
    ],
)
def test_shards_are_numbered_from_one(tmp_path, n_queries, size, names):
    assert shards.folders(tmp_path, n_queries, size) == [tmp_path / "shards" / name for name in names]


def test_ten_thousand_shards_keep_their_order(tmp_path):
    """So that a slice of 10,000 queries may be split into shards of one."""
    made = shards.folders(tmp_path, 10_001, 1)
    for part in (made[0], made[999], made[1000], *made[9998:]):
        put(part / "slice" / "slice.json", "{}")
    assert [int(part.name) for part in shards.existing(tmp_path)] == [1, 1000, 1001, 9999, 10_000, 10_001]


def test_a_slice_that_was_not_split_has_no_shards(tmp_path):
    assert shards.existing(tmp_path) == []


def test_a_shard_belongs_to_its_sweep_and_a_sweep_to_itself(tmp_path):
    out = small(tmp_path, THREE)
    assert [shards.whole(part) for part in split(out, 1)] == [out, out, out]
    assert shards.whole(out) == out


def test_a_sweep_in_a_folder_that_is_called_shards_is_whole(tmp_path):
    out = small(tmp_path, THREE).rename(put(tmp_path / "shards" / "x", "").parent / "mine")
    assert shards.whole(out) == out


def plan(out: Path, size: int, profile: Profile, n_queries: int = 3) -> tasks.Plan:
    return tasks.Plan(out, "sample", systems(ASKED), profile, shard_size=size, n_queries=n_queries)


@pytest.mark.parametrize(("size", "left"), [(0, []), (3, ["0001"]), (2, ["0001", "0002"]), (1, ["0001", "0002", "0003"])])
def test_stale_shards_are_removed(tmp_path, embedded, size, left):
    """When the size changes, and when the slice is no more split; what was joined stays."""
    out = small(tmp_path, THREE)
    split(out, 1)
    kept = put(out / "runs" / ASKED / "responses.jsonl", "")
    notebooks = [put(out / "notebooks" / f"02_study_chunking.000{n}.ipynb", "") for n in (1, 2, 3)]
    shards.remove(out, keep=plan(out, size, embedded).parts.values())
    assert [part.name for part in shards.existing(out)] == left
    assert [path.exists() for path in notebooks] == [f"000{n}" in left for n in (1, 2, 3)]
    assert kept.exists()


def test_the_split_removes_what_an_earlier_one_left(tmp_path):
    out = small(tmp_path, THREE)
    assert len(split(out, 1)) == 3
    assert [len(Slice(part / "slice").queries) for part in split(out, 2)] == [2, 1]


def test_nothing_but_shards_is_removed(tmp_path, embedded):
    """A folder called `shards` may hold something else, such as the files that file managers leave."""
    out = small(tmp_path, THREE)
    split(out, 1)
    others = [put(out / "shards" / name, "mine") for name in (".DS_Store", "another-sweep/profile.yaml")]
    shards.remove(out, keep=plan(out, 0, embedded).parts.values())
    assert shards.existing(out) == []
    assert all(path.read_text() == "mine" for path in others)


def test_a_shard_whose_slice_was_lost_is_split_again(tmp_path, embedded):
    """Its queries must not be missing from what is joined."""
    out = small(tmp_path, THREE)
    todo = {task.name: task for task in tasks.tasks(plan(out, 1, embedded))}
    assert sweep.execute(todo["split"], out) is None
    assert sweep.is_done(todo["split"], out)
    for name in ("slice.json", "documents.index.json"):
        (out / "shards" / "0002" / "slice" / name).unlink()
        assert not sweep.is_done(todo["split"], out), name
        assert sweep.execute(todo["split"], out) is None


def test_the_highest_degree_is_looked_for_once(tmp_path, monkeypatch):
    """A citation network may be large: the time must not grow with its square."""
    looks = []

    class Degrees(dict):
        def values(self):
            looks.append(len(self))
            return super().values()

    out = small(tmp_path, THREE)
    put(out / "slice" / "citation_degrees.json", json.dumps({f"d{number}": number for number in range(500)}))
    monkeypatch.setattr(Slice, "citation_degrees", property(lambda self: Degrees(json.loads(_text(self)))))
    assert len(split(out, 1)) == 3
    assert len(looks) <= 3


def _text(slice_: Slice) -> str:
    return (slice_.folder / "citation_degrees.json").read_text()


# Answers of a model


@pytest.fixture(scope="module")
def ready(tmp_path_factory, embedded) -> Callable[[Path, int], Path]:
    """Makes a sweep of the sample up to its evidence, split into shards of some size, 0 for none."""
    made = tmp_path_factory.mktemp("ready")
    preparing.prepare("sample", made / "slice")
    retrieve(made, systems(ASKED), embedded)

    def make(folder: Path, size: int) -> Path:
        out = Path(shutil.copytree(made, folder))
        for part in split(out, size) if size else ():
            retrieve(part, systems(ASKED), embedded)
        return out

    return make


@pytest.fixture
def asking(embedded, tmp_path, monkeypatch) -> Callable[..., Profile]:
    """Makes a profile whose answers come from a stub, with a reply store that no other profile shares."""
    monkeypatch.setenv("STUB_KEY", "dummy-key-123")

    def make(stub: Stub, repeat: int = 1, **given) -> Profile:
        monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / f"cache-{stub.port}"))
        service = ServiceSpec("gpt-4o-mini", base_url=stub.url, key_env="STUB_KEY", max_waits=0, **given)
        return dataclasses.replace(embedded, name="stub", generator="openai", service=service, repeat=repeat)

    return make


def quoted(text: str) -> str:
    """A query's text as it stands in its prompt."""
    return json.dumps(text, ensure_ascii=False)


def replies_to(out: Path, *steps_of: list[str]) -> dict[str, list[str]]:
    """What the stub says to the first queries of a slice, draw by draw; to the others it says what is good."""
    queries = Slice(out / "slice").queries
    return {quoted(query.text): list(said) for query, said in zip(queries, steps_of, strict=False)}


def parts_of(out: Path) -> list[Path]:
    return shards.existing(out) or [out]


def answered(out: Path, profile: Profile, **given) -> dict[str, bytes]:
    """The files of a run whose model was asked, joined from shards where there are any."""
    for part in parts_of(out):
        answer(part, systems(ASKED), profile, **given)
    if shards.existing(out):
        shards.join_answers(str(out), ASKED)
    return {name: data for name, data in contents(out).items() if name.startswith("runs/")}


# Of the first five queries: an answer in one draw only, two refusals, no reply at all, and a truncated one.
SAID = (
    ["good", "400:no"],
    ["refused", "refused"],
    ["good", "good"],
    ["400:no", "good"],
    ["truncated", "truncated", "good"],
)


@pytest.mark.parametrize("size", [1, 3])
def test_replies_draws_and_what_is_pending_are_those_of_the_whole_slice(ready, asking, tmp_path, size):
    found = []
    for name, of_size in (("whole", 0), ("joined", size)):
        out = ready(tmp_path / name, of_size)
        with Stub(for_prompts=replies_to(out, *SAID)) as stub:
            found.append(answered(out, asking(stub, repeat=2, concurrency=1), fallback="extractive"))
    whole_files, joined = found
    names = {"evidence.jsonl", "responses.jsonl", "provenance.jsonl", "ir-metadata.yml", "replies.jsonl", "pending.json"}
    names |= {"draw-2/responses.jsonl", "draw-2/provenance.jsonl"}
    assert whole_files.keys() == joined.keys() == {f"runs/{ASKED}/{name}" for name in names}
    assert joined == whole_files
    queries = Slice(out / "slice").queries
    waiting = json.loads(joined[f"runs/{ASKED}/pending.json"])
    assert sorted(waiting) == sorted([queries[0].query_id, queries[3].query_id])


def test_what_is_pending_no_more_and_draws_of_an_earlier_profile_are_gone(ready, asking, tmp_path, embedded):
    out = ready(tmp_path / "out", 3)
    run = out / "runs" / ASKED
    with Stub(for_prompts=replies_to(out, ["400:no", "good"])) as stub:
        answered(out, asking(stub, repeat=3))
        assert json.loads((run / "pending.json").read_text()) == [Slice(out / "slice").queries[0].query_id]
        answered(out, asking(stub, repeat=2))
        assert not (run / "pending.json").exists()
        assert [path.name for path in sorted(run.glob("draw-*"))] == ["draw-2"]
    answered(out, embedded)
    assert not [name for name in ("replies.jsonl", "pending.json", "draw-2") if (run / name).exists()]


def test_the_budget_holds_over_all_shards_together(ready, asking, tmp_path):
    """Each reply costs 100 * 0.15e-6 + 20 * 0.60e-6 = 0.000027 dollars; what one may cost at most is far more."""
    sent, spent = [], []
    for name, size in (("whole", 0), ("joined", 2)):
        out = ready(tmp_path / name, size)
        with Stub() as stub:
            profile = asking(stub, concurrency=1, reply_attempts=1)
            requests = run_requests(
                Slice(out / "slice"), list(steps.read_evidence(out / "runs" / ASKED)), systems(ASKED)[0], profile
            )
            highest = max((ledger.estimate_tokens(r) * 0.15 + 800 * 0.60) / 1e6 for r in requests.values())
            budget = 4 * 0.000027 + highest
            made = answered(out, profile, budget=budget)
            sent.append(len(stub.chats))
        assert not list(out.glob("shards/*/ledger.jsonl"))
        spent.append(sum(row["dollars"] for row in paths.read_jsonl(out / "ledger.jsonl")))
        assert spent[-1] <= budget
        waiting = json.loads(made[f"runs/{ASKED}/pending.json"])
        assert len(waiting) == 8 - sent[-1]
    assert sent[0] == sent[1]
    assert 5 <= sent[0] < 8  # five fit for certain, and so are not all of one shard
    assert spent[0] == pytest.approx(spent[1]) == pytest.approx(sent[0] * 0.000027)


# Through the command line


def markers(out: Path) -> dict[str, int]:
    """Task -> when its marker was written."""
    return {path.stem: path.stat().st_mtime_ns for path in (out / "notebooks" / ".done").glob("*.json")}


def test_a_sharded_sweep_runs_only_what_it_must(tmp_path):
    """Four queries in shards of two: made, unchanged, with another question in the second shard, and in one piece.

    The documents of the second shard are an abstract and a title: its notebooks have little to show.
    """
    name = "single-query-bm25"
    given = tmp_path / "source"
    shutil.copytree(paths.SAMPLE, given)
    short = [
        {
            "id": "s1",
            "title": "Ice",
            "abstract": "The ice of the lake creeps under its own load. It was thin in all winters.",
        },
        {"id": "s2", "title": "Ice of lakes"},
    ]
    put(given / "documents" / "short.jsonl", lines(short))
    queries = [*paths.read_jsonl(given / "queries.jsonl")][:2] + [asks("ice", "s1", "s2"), asks("nobody")]
    put(given / "queries.jsonl", lines(queries))
    out = tmp_path / "out"
    command = ("sweep", "--slice", given, "--out", out, "--no-score", "--variants", name)
    done = workbook(*command, "--shard-size", 2)
    # 01 and the split; 02, 03 and 04 of each shard; the chunks, the evidence and the answers joined.
    assert "11 tasks run, 0 unchanged" in done.stdout, done.stdout + done.stderr[-2000:]
    assert "0 tasks run, 11 unchanged" in workbook(*command, "--shard-size", 2).stdout

    before = markers(out)
    queries[2]["query"] = "How thin was the ice of the lake?"
    put(given / "queries.jsonl", lines(queries))
    assert "7 tasks run, 4 unchanged" in workbook(*command, "--shard-size", 2).stdout
    after = markers(out)
    second = ("02_study_chunking.0002", *(f"{step}.{name}.0002" for step in (tasks.RETRIEVE, tasks.GENERATE)))
    joins = [f"{join_}.{name}" for join_ in ("join_evidence", "join_answers")]
    assert {task for task in after if after[task] != before[task]} == {tasks.PREPARE, "split", *second, *joins}

    joined = contents(out)
    done = workbook(*command)
    assert "3 tasks run, 1 unchanged" in done.stdout, done.stdout + done.stderr[-2000:]
    assert {path: data for path, data in contents(out).items() if path in joined} == joined
    assert not list((out / "shards").glob("*/*"))
