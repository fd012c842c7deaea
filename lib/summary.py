"""What a sweep tells its user: a progress bar over notebooks, and a table and a figure at the end."""

import sys
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from lib import paths, sweep
from lib.errors import WorkbookError
from lib.measures.primary import cited_documents, cited_precision
from lib.notebooks import Failure
from lib.slices import Slice
from lib.sweep import Outcome, Task
from lib.text import words
from lib.variants import Variant

SUMMARY, FIGURE = Path("results") / "summary.csv", Path("results") / "summary.png"


def run_with_progress(out: Path, todo: list[Task], jobs: int) -> Outcome:
    """`sweep.run` under a progress bar that names the notebooks at work; failures are printed as they come."""
    working: list[str] = []
    with tqdm(total=len(todo), unit=" notebooks", desc="sweep", file=sys.stderr) as bar:

        def tell(event: str, task: Task, failure: Failure | None) -> None:
            if event == "start":
                working.append(task.name)
            else:
                working[:] = [name for name in working if name != task.name]
                bar.update(1)
            if failure and not (task.name == sweep.PREPARE and failure.error == WorkbookError.__name__):
                bar.write(f"FAILED {task.name}: {failure}", file=sys.stderr)
            bar.set_postfix_str(", ".join(working))

        return sweep.run(out, todo, jobs, tell)


def report(out: Path, systems: list[Variant], outcome: Outcome) -> None:
    """Print what was done and a row a system; write `results/summary.csv` and `.png` where anything changed."""
    rows = [row for row in (_row(out, variant) for variant in systems) if row]
    for row in rows:
        print(_line(row))
    if rows and (outcome.ran or not (out / FIGURE).exists()):
        _write(out, rows)
    done = f"{len(outcome.ran)} notebooks run, {len(outcome.unchanged)} unchanged"
    bad = f", {len(outcome.failed)} failed, {len(outcome.skipped)} not run for want of them" if outcome.failed else ""
    print(f"{done}{bad} in {outcome.seconds:.0f} s")
    for name, failure in outcome.failed.items():
        print(f"  failed: {name}: {failure}")
        print(f"          see {out / 'notebooks' / f'{name}.failed.ipynb'}")
    print(f"results: {out}")


def _row(out: Path, variant: Variant) -> dict | None:
    """One system's figures from its files; None where it has no responses."""
    run = out / "runs" / variant.name
    if not (run / "responses.jsonl").exists():
        return None
    responses = list(paths.read_jsonl(run / "responses.jsonl"))
    statuses = Counter(row["status"] for row in paths.read_jsonl(run / "provenance.jsonl"))
    qrels = Slice(out / "slice").qrels()
    judged = [r for r in responses if r["metadata"]["narrative_id"] in qrels]
    lengths = [sum(words(s["text"]) for s in r["answer"]) for r in responses]
    return {
        "system": variant.name,
        "queries": len(responses),
        "answered": statuses["ok"],
        "words": sum(lengths) / len(lengths),
        "judged": len(judged),
        "precision": [cited_precision(cited_documents(r), qrels[r["metadata"]["narrative_id"]]) for r in judged],
    }


def _line(row: dict) -> str:
    precision = f"{sum(row['precision']) / row['judged']:.3f}" if row["judged"] else "  –  "
    return (
        f"{row['system']:<26} {row['answered']:>4} of {row['queries']} answered  {row['words']:>5.1f} words  "
        f"cited precision {precision} ({row['judged']} judged)"
    )


def _write(out: Path, rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import pandas as pd
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
    plots.interval_dots(ax, shown, "cited precision: mean over the queries, 95 % bootstrap interval")
    with paths.atomic(out / FIGURE, "wb") as file:
        figure.savefig(file, format="png", dpi=120)
    plt.close(figure)
