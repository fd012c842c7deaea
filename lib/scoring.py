"""A folder of runs and a slice's gold data -> `primary.csv` and `supplementary.csv`: both protocols, whole."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd

from lib import notebooks, paths, preparing, stats
from lib.bertscore import BertScorer
from lib.encoders import Encoder
from lib.ledger import Ledger, Prices
from lib.llm import Client
from lib.measures import banks, graders, nuggets, primary, supplementary
from lib.replies import UNANSWERED
from lib.runs import Response, Runs, pool_label, read_run, read_runs
from lib.score_tables import MAIN, Mean, Score, by_run, leaderboard, main_measures, read_scores, write_scores
from lib.slices import Slice
from lib.variants import Profile, load_profile

PRIMARY, SUPPLEMENTARY = "primary.csv", "supplementary.csv"
REFERENCES, GRADES = "reference_answers.jsonl", "nugget_grades.jsonl"
PRIMARY_FILES = (PRIMARY, "primary.json", "nugget_bank.jsonl", GRADES)
SUPPLEMENTARY_FILES = (SUPPLEMENTARY, "supplementary.json", REFERENCES)


def check_inputs(slice_: Slice, runs: Runs, folder: Path, profile: Profile, frozen: Path | None = None) -> None:
    """Read all gold data and provenance and look for the model, so that a fault is met before anything is done or paid."""
    _bert_scorer(profile).check()
    slice_.gold_answers()
    slice_.qrels()
    supplementary.reference_answers(slice_)
    own = slice_.folder / "nuggets.jsonl"
    if frozen or own.exists():
        banks.read_bank(frozen or own)
    for name in runs:
        supplementary.recorded_sources(folder / name / "provenance.jsonl")


def score_primary(
    slice_: Slice, runs: Runs, out: Path, profile: Profile, budget: float = 0.0, frozen: Path | None = None
) -> list[Score]:
    """Write `primary.csv`, `nugget_bank.jsonl` and `primary.json`, which says what was computed by what."""
    scorer = _bert_scorer(profile)
    scorer.check()
    lemmatizer = primary.Lemmatizer()
    grader = _grader(profile, out, budget)
    bank, preferences = graders.bank_of(slice_, runs, grader, frozen)
    grades = grader.grade(runs, slice_.queries, bank)
    own, texts_cut = _own_scores(slice_, runs, out, scorer)
    scores = [
        *own,
        *primary.tfc1_scores(runs, slice_.queries, lemmatizer),
        *nuggets.nugget_scores(runs, bank, grades, grader.name, grader.model),
    ]
    banks.write_bank(out / "nugget_bank.jsonl", bank, slice_.queries)
    given = ((run, query_id, found, status) for (run, query_id), (found, status) in grades.items())
    paths.write_jsonl(out / GRADES, (dict(zip(("run", "query_id", "grades", "status"), row, strict=True)) for row in given))
    about = {
        "pool": pool_label(runs),
        "queries": len(slice_.queries),
        "lemmatizer": lemmatizer.label,
        "bertscore": {"model": scorer.label, "layer": scorer.layer, "texts_cut": texts_cut},
        "nuggets": {
            "source": bank.source,
            "version": bank.version,
            "grader": grader.name,
            "model": grader.model,
            **_comparisons(list(preferences.values())),
        },
    }
    paths.write_text(out / "primary.json", json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    write_scores(out / PRIMARY, scores)
    _write_pending(out / "05_evaluate_primary.pending.json", scores)
    return scores


def score_run(sweep: str, run: str, profile: str) -> None:
    """Write `scores/runs/<run>.csv`: the primary measures of a sweep's run that depend on no other run.

    They are ROUGE-L, BERTScore and the documents cited; `<run>.json` beside it says what they were made from.
    """
    slice_, out = Slice(Path(sweep, "slice")), Path(sweep, "scores")
    scorer = _bert_scorer(load_profile(profile))
    answers = {run: read_run(Path(sweep, "runs", run, "responses.jsonl"), slice_.queries)}
    (out / "runs" / f"{run}.json").unlink(missing_ok=True)
    write_scores(out / "runs" / f"{run}.csv", _measure(slice_, answers, scorer))
    about = {"of": _origin(slice_, answers[run], scorer), "texts_cut": scorer.truncated}
    paths.write_text(out / "runs" / f"{run}.json", json.dumps(about) + "\n")


def _own_scores(slice_: Slice, runs: Runs, out: Path, scorer: BertScorer) -> tuple[list[Score], int]:
    """What `score_run` computes, of all runs, measure by measure; and how many texts were cut.

    What a run's own file holds is read, if it was made from these answers; the rest is computed together.
    """
    found: list[Score] = []
    rest, cut = dict(runs), 0
    for run, answers in runs.items():
        about = out / "runs" / f"{run}.json"
        noted = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
        if noted.get("of") == _origin(slice_, answers, scorer):
            found += read_scores(out / "runs" / f"{run}.csv")
            cut += noted["texts_cut"]
            del rest[run]
    gold = slice_.gold_answers()
    scorer.f1([(a.text, gold[q]) for answers in rest.values() for q, a in answers.items() if q in gold])
    scorer.truncated = 0  # counted by run, as where each was scored by itself
    for run, answers in rest.items():
        found += _measure(slice_, {run: answers}, scorer)
    place = {name: number for number, name in enumerate(runs)}
    families = ("rougeL_f1", "rougeL_f1[unicode words]", f"bertscore_f1[{scorer.label}]")
    # Stable: within a family and a run, queries and measures stay as they are.
    family_of = {name: number for number, name in enumerate(families)}
    found.sort(key=lambda score: (family_of.get(score.measure, len(families)), place[score.run]))
    return found, cut + scorer.truncated


def _measure(slice_: Slice, runs: Runs, scorer: BertScorer) -> list[Score]:
    gold = slice_.gold_answers()
    return [
        *primary.rouge_scores(runs, gold),
        *primary.bert_scores(runs, gold, scorer),
        *primary.citation_scores(runs, slice_.qrels()),
    ]


def _origin(slice_: Slice, answers: dict[str, Response], scorer: BertScorer) -> str:
    """A hash of all that a run's own scores depend on."""
    gold, qrels = slice_.gold_answers(), {query_id: sorted(ids) for query_id, ids in slice_.qrels().items()}
    code = notebooks.module_key("lib.scoring"), paths.sha256(paths.PROJECT / "requirements.lock")
    given = [answers, gold, qrels, scorer.label, scorer.layer, scorer.fingerprint, code]
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


def _comparisons(found: list[graders.Preferences]) -> dict[str, Any]:
    """How many pairs of answers were compared to mine a bank, and in what share of them the order decided."""
    compared = sum(preferences.compared for preferences in found)
    return {
        "pairs_compared": compared,
        "pairs_failed": sum(preferences.failed for preferences in found),
        "order_swap_rate": sum(preferences.swapped for preferences in found) / compared if compared else None,
    }


def score_supplementary(
    slice_: Slice, runs: Runs, folder: Path, out: Path, profile: Profile, budget: float = 0.0
) -> list[Score]:
    """Write `supplementary.csv`, `supplementary.json`, and `judge_replies.jsonl` where a model judges."""
    ledger = _ledger(out, budget)
    writes = profile.service is not None and profile.generator != "extractive"
    writer = supplementary.ReferenceWriter(Client(profile.service), ledger) if writes else None
    references, source = supplementary.reference_answers(slice_, writer)
    paths.write_jsonl(out / REFERENCES, (supplementary.reference_record(r) for r in references.values()))
    judge = supplementary.ProxyJudge(Encoder(profile.encoder))
    if profile.judge == "openai":
        judge = supplementary.LLMJudge(Client(profile.judge_service), ledger)
    judgements = judge.judge(runs, slice_.queries, references)
    scores = [
        *supplementary.citation_scores(runs, references, slice_.queries),
        *supplementary.provenance_scores(runs, folder),
        *supplementary.judge_scores(runs, judgements, judge.name, judge.model),
    ]
    replies = getattr(judge, "replies", {})
    (out / "judge_replies.jsonl").unlink(missing_ok=True)
    if replies:
        kept = ((run, query_id, reply.status, reply.detail, reply.text) for (run, query_id), reply in replies.items())
        names = ("run", "query_id", "status", "detail", "text")
        paths.write_jsonl(out / "judge_replies.jsonl", (dict(zip(names, row, strict=True)) for row in kept))
    about = {"references": source, "with_reference": len(references), "judge": judge.name, "model": judge.model}
    paths.write_text(out / "supplementary.json", json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    write_scores(out / SUPPLEMENTARY, scores)
    _write_pending(out / "06_evaluate_supplementary.pending.json", scores)
    return scores


def _write_pending(path: Path, scores: list[Score]) -> None:
    """Leave a note where some judgement never came, so that a sweep asks for it again."""
    waiting = sorted({(score.run, score.query_id) for score in scores if score.status in UNANSWERED})
    if waiting:
        paths.write_text(path, json.dumps(waiting) + "\n")
    else:
        path.unlink(missing_ok=True)


def read_references(out: Path, slice_: Slice) -> dict[str, Response]:
    """query_id -> the reference answer that the scores in a folder were made with."""
    return {q: r for q, r in read_run(out / REFERENCES, slice_.queries).items() if r.present}


def _bert_scorer(profile: Profile) -> BertScorer:
    return BertScorer(profile.bertscore or profile.encoder.plain, profile.bertscore_layer, profile.bertscore_rescaled)


def _ledger(out: Path, budget: float) -> Ledger:
    """The ledger of a folder of scores; the scores of a sweep are booked in the sweep's own."""
    sweep = out.parent if (out.parent / "runs").is_dir() and (out.parent / "profile.yaml").exists() else out
    return Ledger(sweep / "ledger.jsonl", Prices(), budget or None)


def _grader(profile: Profile, out: Path, budget: float) -> graders.ProxyGrader | graders.LLMGrader:
    if profile.judge == "openai":
        return graders.LLMGrader(Client(profile.judge_service), _ledger(out, budget))
    return graders.ProxyGrader(Encoder(profile.encoder))


def table(scores: list[Score], names: list[str]) -> pd.DataFrame:
    """A leaderboard to look at: a row a run, a column a measure, `mean` or `mean (n of N)` where some have no value."""
    board = leaderboard(scores)
    runs = list(dict.fromkeys(score.run for score in scores))
    cells = {name: [_cell(board[name].get(run)) for run in runs] for name in names}
    return pd.DataFrame(cells, index=runs)


def summary(scores: list[Score]) -> str:
    """The main measures under short headings, and a line that gives those their full names, models included."""
    names = main_measures(scores)
    short = {name: MAIN[name.partition("[")[0]] for name in names}
    legend = ", ".join(f"{short[name]} = {name}" for name in names if "[" in name)
    return f"{table(scores, names).rename(columns=short).to_string()}\n{legend}"


def _cell(mean: Mean | None) -> str:
    if mean is None or mean.value is None:
        return "–"
    return f"{mean.value:.3f}" if mean.n_scored == mean.n else f"{mean.value:.3f} ({mean.n_scored} of {mean.n})"


# Which of our measures stands in for which of the organisers', and of the paper's judge.
OFFICIAL = {
    "tfc1": "ir-axioms:GEN-TFC1",
    "bertscore_f1": "bertscore_f1",
    "nugget_coverage": "prefnugget-grounded:NUGGET_COVERAGE",
    "average_grade": "prefnugget-grounded:AVG_GRADE",
}
JUDGED = {"correctness": "correctness", "completeness": "completeness"}


def agreement_with_official(folder: Path, profile: Profile, out: Path) -> pd.DataFrame:
    """Agreement of our measures with `official_scores.csv`, over the runs in it; rows and fields as `stats.Agreement`.

    `folder` holds a slice, `runs/` and the official scores; what is computed goes to `out`.
    """
    theirs = read_scores(folder / "official_scores.csv")
    with preparing.opened(str(folder)) as slice_:
        runs = read_runs(folder / "runs", slice_.queries)
        named = {score.run for score in theirs}
        ours = score_primary(slice_, {name: run for name, run in runs.items() if name in named}, out, profile)
    return _agreements(ours, {stem: by_run(theirs, name) for stem, name in OFFICIAL.items()})


def agreement_with_judge(folder: Path, profile: Profile, out: Path) -> pd.DataFrame:
    """Agreement of our judge with the paper's in `judge_scores.csv`, as above."""
    table = pd.read_csv(folder / "judge_scores.csv", dtype={"query_id": str, "run": str}).groupby("run")
    with preparing.opened(str(folder)) as slice_:
        ours = score_supplementary(slice_, read_runs(folder / "runs", slice_.queries), folder / "runs", out, profile)
    theirs = {name: {run: dict(zip(t["query_id"], t[name], strict=True)) for run, t in table} for name in JUDGED}
    return _agreements(ours, theirs)


def _agreements(ours: list[Score], theirs: dict[str, stats.Table]) -> pd.DataFrame:
    names = [name for name in main_measures(ours) if name.partition("[")[0] in theirs]
    rows = {name: stats.agreement(by_run(ours, name), theirs[name.partition("[")[0]]) for name in names}
    return pd.DataFrame(rows, index=stats.Agreement._fields).T
