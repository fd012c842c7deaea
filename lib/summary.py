"""What a sweep tells its user: a progress bar over notebooks, and a table and a figure at the end."""

import importlib
import sys
import threading
from collections import Counter
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from lib import comparing, paths, scoring, steps, sweep
from lib.answering import run_requests
from lib.errors import WorkbookError
from lib.ledger import Ledger, Prices, estimate_tokens
from lib.llm import Client
from lib.measures.primary import cited_documents, cited_precision
from lib.notebooks import Failure
from lib.slices import Slice
from lib.sweep import Outcome, Workers
from lib.tasks import COMPARE, PREPARE, Task
from lib.text import words
from lib.variants import Profile, Variant

SUMMARY, FIGURE = (comparing.RESULTS / name for name in ("summary.csv", "summary.png"))


def run_with_progress(out: Path, todo: list[Task], workers: Workers, engine: str) -> Outcome:
    """`sweep.run` under a progress bar that names the tasks at work; failures are printed as they come."""
    working: list[str] = []
    # What the summary's figure takes: a second, which is spent while the first notebooks leave a core free.
    threading.Thread(target=importlib.import_module, args=("scipy.stats",), daemon=True).start()
    with tqdm(total=len(todo), unit=" tasks", desc="sweep", file=sys.stderr) as bar:

        def tell(event: str, task: Task, failure: Failure | None) -> None:
            if event == "start":
                working.append(task.name)
            else:
                working[:] = [name for name in working if name != task.name]
                bar.update(1)
            if failure and not (task.name == PREPARE and failure.error == WorkbookError.__name__):
                bar.write(f"FAILED {task.name}: {failure}", file=sys.stderr)
            bar.set_postfix_str(", ".join(working))

        return sweep.run(out, todo, workers, tell, engine)


def estimate(out: Path, systems: list[Variant], profile: Profile) -> None:
    """Print requests, tokens and dollars of what a sweep would send; what is stored is not sent again."""
    if profile.generator == "extractive":
        print(f"profile {profile.name}: no model service; nothing would be sent")
        return
    slice_, client, prices = Slice(out / "slice"), Client(profile.service), Prices()
    in_batch = profile.generator == "openai-batch"
    attempts = 1 if in_batch else profile.service.reply_attempts
    total = [0, 0, 0.0]
    for variant in (v for v in systems if v.reads_text):
        sets = list(steps.read_evidence(out / "runs" / variant.name))
        requests = [r for n in range(profile.repeat) for r in run_requests(slice_, sets, variant, profile, n).values()]
        todo = [request for request in requests if client.stored(request) is None]
        tokens = sum(estimate_tokens(request) for request in todo)
        written = len(todo) * profile.service.max_tokens
        dollars = prices.cost(profile.service.model, tokens * attempts, written * attempts, in_batch)
        price = "no price" if dollars is None else f"at most ${dollars:.4f}"
        print(f"{variant.name:<26} {len(todo):>5} of {len(requests)} requests  about {tokens:>9,} prompt tokens  {price}")
        total = [total[0] + len(todo), total[1] + tokens, total[2] + (dollars or 0.0)]
    price = "no price" if prices.cost(profile.service.model, 0, 0) is None else f"at most ${total[2]:.4f}"
    print(f"{profile.service.model}: {total[0]} requests, about {total[1]:,} prompt tokens, {price}")
    print("nothing was sent")


def report(out: Path, systems: list[Variant], outcome: Outcome, profile: Profile) -> None:
    """Print what was done and a row a system; write `results/summary.csv` and `.png` where anything changed."""
    qrels = Slice(out / "slice").qrels() if (out / "slice" / "slice.json").exists() else {}
    rows = [row for row in (_row(out, variant, qrels) for variant in systems) if row]
    for row in rows:
        print(_line(row))
    if rows and (outcome.ran or not (out / FIGURE).exists()):
        _write(out, rows)
    compared = COMPARE in {*outcome.ran, *outcome.unchanged}
    if compared:
        print(f"\n{scoring.summary(comparing.sweep_scores(out))}\n")
    else:
        _remove_comparison(out)
    done = f"{len(outcome.ran)} tasks run, {len(outcome.unchanged)} unchanged"
    bad = f", {len(outcome.failed)} failed, {len(outcome.skipped)} not run for want of them" if outcome.failed else ""
    if outcome.skipped and not outcome.failed:
        print(f"answers are not complete, so not scored yet: {', '.join(outcome.skipped)}")
    print(f"{done}{bad} in {outcome.seconds:.0f} s")
    for name, failure in outcome.failed.items():
        print(f"  failed: {name}: {failure}")
        if (copy := out / "notebooks" / f"{name}.failed.ipynb").exists():
            print(f"          see {copy}")
    if profile.generator == "openai" and (out / "ledger.jsonl").exists():
        print(f"{profile.service.model}: ${Ledger(out / 'ledger.jsonl', Prices()).spent:.4f} spent so far in this sweep")
    if profile.generator == "openai-batch" and any((out / "runs" / v.name / "pending.json").exists() for v in systems):
        print(f"answers are pending; next: workbook batch build {out}")
    print(f"results: {out}")
    if compared:
        from lib import report as html  # its templates are not needed before

        print(f"report: {html.write(out)}")


def _remove_comparison(out: Path) -> None:
    """Take away the tables, figures and report of a comparison that is not of these runs any more."""
    from lib import report as html

    figures = sorted((out / comparing.RESULTS / "figures").glob("*.svg"))
    for path in (*(out / file for file in comparing.FILES), *figures, out / html.REPORT):
        path.unlink(missing_ok=True)


def _row(out: Path, variant: Variant, qrels: dict[str, set[str]]) -> dict | None:
    """One system's figures from its files, read line by line; None where it has no responses."""
    run = out / "runs" / variant.name
    if not (run / "responses.jsonl").exists():
        return None
    statuses, filled = Counter(), 0
    for row in paths.read_jsonl(run / "provenance.jsonl"):
        statuses[row["status"]] += 1
        filled += "fallback" in row
    lengths, precision = [], []
    for row in paths.read_jsonl(run / "responses.jsonl"):
        lengths.append(sum(words(s["text"]) for s in row["answer"]))
        query_id = row["metadata"]["narrative_id"]
        if query_id in qrels:
            precision.append(cited_precision(cited_documents(row), qrels[query_id]))
    return {
        "system": variant.name,
        "queries": len(lengths),
        "answered": statuses.pop("ok", 0),
        "not answered": dict(sorted(statuses.items())),
        "filled in": filled,
        "words": sum(lengths) / len(lengths),
        "judged": len(precision),
        "precision": precision,
    }


def _line(row: dict) -> str:
    precision = f"{sum(row['precision']) / row['judged']:.3f}" if row["judged"] else "  –  "
    rest = ", ".join(f"{count} {status}" for status, count in row["not answered"].items())
    filled = f", {row['filled in']} filled in" if row["filled in"] else ""
    return (
        f"{row['system']:<26} {row['answered']:>4} of {row['queries']} answered  {row['words']:>5.1f} words  "
        f"cited precision {precision} ({row['judged']} judged){f'  [{rest}{filled}]' if rest else ''}"
    )


def _write(out: Path, rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from lib import plots
    from lib.stats import bootstrap_interval

    table = pd.DataFrame([{**row, "precision": pd.Series(row["precision"]).mean()} for row in rows])
    paths.write_text(out / SUMMARY, table.to_csv(index=False, float_format="%.6f"))
    judged = [row for row in rows if row["judged"]]
    if not judged:
        return
    shown = pd.DataFrame(
        [[sum(r["precision"]) / r["judged"], *bootstrap_interval(r["precision"])] for r in judged],
        index=[row["system"] for row in judged],
        columns=["mean", "low", "high"],
    )
    figure, ax = plt.subplots(figsize=(7, 0.36 * len(shown) + 1), layout="constrained")
    plots.leaderboard(ax, shown, "cited precision: mean over the queries, 95 % bootstrap interval")
    with paths.atomic(out / FIGURE, "wb") as file:
        figure.savefig(file, format="png", dpi=120)
    plt.close(figure)
