"""The scores and files of a sweep -> `results/`: every table and figure of the comparison of its systems.

The same functions take the published runs, through `published_scores`.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lib import diagnosis, paths, plots, scoring, stats, steps, tables
from lib.errors import WorkbookError
from lib.measures import primary
from lib.runs import Runs, pool_label, read_run
from lib.score_tables import MAIN, Score, by_run, leaderboard, main_measures, measures, read_scores
from lib.slices import Slice
from lib.variants import Profile, Variant

RESULTS = Path("results")
CSV_FILES = ("leaderboard", "pairwise", "noise_floor", "agreement", "losses", "wrongly_cited", "changes")
FILES = tuple(RESULTS / name for name in (*(f"{name}.csv" for name in CSV_FILES), "main_table.md", "main_table.tex"))
# The measure that the figures show first: the first of these that has a value.
SHOWN = ("rougeL_f1", "nugget_coverage", "cited_precision")
PRIMARY_OFFICIAL = {
    "rougeL_f1": "ROUGE-L",
    "bertscore_f1": "BERTScore",
    "cited_precision": "precision",
    "prefnugget-grounded:NUGGET_COVERAGE": "coverage",
    "prefnugget-grounded:AVG_GRADE": "grade",
    "ir-axioms:GEN-TFC1": "TFC1",
}
SUPPLEMENTARY_PUBLISHED = {
    "correctness": "correct",
    "completeness": "complete",
    "judge_mean": "mean of both",
    "citation_recall": "recall",
    "citation_precision": "precision",
    "citation_jaccard": "Jaccard",
}


class Comparison(NamedTuple):
    """The tables behind `results/`; columns as in the files, `differences` by measure."""

    headings: dict[str, str]  # measure -> short heading, for the main measures
    board: pd.DataFrame
    differences: dict[str, list[stats.Difference]]
    noise: pd.DataFrame
    agreement: pd.DataFrame
    losses: list[diagnosis.Loss]
    wrong: list[diagnosis.WrongCitation]
    changes: pd.DataFrame


def systems(sweep: Path) -> list[Variant]:
    """The systems of a sweep's folder."""
    if not (sweep / "variants").is_dir():
        raise WorkbookError(f"{sweep}: not a sweep's folder (no variants/); run 'workbook sweep' first")
    return steps.variants_in(sweep / "variants")


def staged(variants: Sequence[Variant]) -> list[Variant]:
    """Variants from the plainest to the one with the most parts; equals by name (paper, section 4)."""
    retrievals, chunkers = ("none", "bm25", "multi-query"), ("rule", "semantic", "topic-shift")

    def parts(v: Variant) -> tuple[Any, ...]:
        chunker = chunkers.index(v.chunker)
        late = v.sentence_selection != "best"
        return v.reads_text, retrievals.index(v.retrieval), v.rerank, late, chunker, v.sentence_rerank, v.name

    return sorted(variants, key=parts)


def sweep_scores(sweep: Path) -> list[Score]:
    """All scores of a sweep, of both protocols. Raises WorkbookError unless both tables are there and whole."""
    found: list[Score] = []
    for path in score_files(sweep):
        if not path.exists():
            raise WorkbookError(f"{path}: no scores; run notebooks 05 and 06, or 'workbook sweep' without --no-score")
        scores = read_scores(path)
        rows = Counter(score.measure for score in scores)
        whole = len({score.run for score in scores}) * len(Slice(sweep / "slice").queries)
        if not scores or set(rows.values()) != {whole}:
            raise WorkbookError(f"{path}: not one score for each run, query and measure; delete it and score again")
        found += scores
    return found


def score_files(sweep: Path) -> list[Path]:
    """Where the scores of a sweep lie, those of the organisers' protocol first."""
    return [sweep / "scores" / name for name in (scoring.PRIMARY, scoring.SUPPLEMENTARY)]


def check_scored(sweep: Path, slice_: Slice, scores: Sequence[Score], variants: Sequence[Variant]) -> None:
    """Raise WorkbookError unless the scores are those of the answers that lie in the sweep, of all these systems."""
    scored = dict.fromkeys(score.run for score in scores)
    for variant in variants:
        if variant.name not in scored:
            raise WorkbookError(
                f"{sweep}: the run '{variant.name}' is not scored; run 'workbook sweep' again, with scoring"
            )
    answers = {run: read_run(sweep / "runs" / run / "responses.jsonl", slice_.queries) for run in scored}
    told = json.loads((sweep / "scores" / "primary.json").read_text(encoding="utf-8"))["pool"]
    if told != pool_label(answers):
        raise WorkbookError(f"{sweep}: its scores are of other answers; run 'workbook sweep' again, with scoring")


def need_scores(sweep: Path, slice_: Slice, runs: Runs, profile: Profile, budget: float = 0.0) -> list[Score]:
    """The scores of a sweep for exactly these runs, computed first if its tables hold others or are not there.

    Raises WorkbookError rather than replace the scores of a sweep that has other systems.
    """
    own = {path.stem for path in (sweep / "variants").glob("*.yaml")}
    if own and own != set(runs):
        raise WorkbookError(f"{sweep}: the sweep has other systems than these; set variants to '{sweep / 'variants'}'")
    files = score_files(sweep)
    if not all(path.exists() and {score.run for score in read_scores(path)} == set(runs) for path in files):
        scoring.score_primary(slice_, runs, sweep / "scores", profile, budget)
        scoring.score_supplementary(slice_, runs, sweep / "runs", sweep / "scores", profile, budget)
    return sweep_scores(sweep)


def published_scores(folder: Path) -> list[Score]:
    """The scores in the files of the paper; `judge_mean` is the mean of the judge's correctness and completeness."""
    judged = pd.read_csv(folder / "judge_scores.csv", dtype={"query_id": str, "run": str})
    judged["judge_mean"] = (judged["correctness"] + judged["completeness"]) / 2
    names = [name for name in SUPPLEMENTARY_PUBLISHED if name in judged]
    rows = judged.melt(["query_id", "run"], names, "measure", "value").itertuples(index=False)
    return [
        *read_scores(folder / "official_scores.csv"),
        *(Score(r.query_id, r.run, r.measure, float(r.value)) for r in rows),
    ]


def table_of(scores: Sequence[Score], measure: str, runs: Sequence[str]) -> stats.Table:
    """run -> query_id -> value of one measure, for some runs and in their order."""
    found = by_run(scores, measure)
    return {run: found[run] for run in runs if run in found}


def board(scores: Sequence[Score], runs: Sequence[str]) -> pd.DataFrame:
    """Means with 95 % bootstrap intervals: columns `run`, `measure`, `mean`, `low`, `high`, `n_scored`, `n`."""
    rows = []
    for measure, means in leaderboard(scores).items():
        spread = stats.intervals(table_of(scores, measure, runs))
        for run in (run for run in runs if run in means):
            low, high = spread.loc[run, ["low", "high"]] if run in spread.index else (None, None)
            mean = means[run]
            rows.append((run, measure, mean.value, low, high, mean.n_scored, mean.n))
    return pd.DataFrame(rows, columns=list(tables.COLUMNS))


def differences(scores: Sequence[Score], names: Sequence[str], runs: Sequence[str]) -> dict[str, list[stats.Difference]]:
    """measure -> the comparison of every pair of runs; the pairs of one measure are one family for Holm."""
    return {measure: stats.pairwise(table_of(scores, measure, runs), measure) for measure in names}


def control_pairs(variants: Sequence[Variant]) -> list[tuple[str, str]]:
    """The pairs of systems that differ in name and description only: what separates their scores is noise."""
    bare = {v.name: dataclasses.replace(v, name="x", description="") for v in variants}
    return [(one, other) for one, other in combinations(bare, 2) if bare[one] == bare[other]]


def noise_floor(scores: Sequence[Score], names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """What separates runs of one and the same system: columns `measure`, `source`, `difference`, `low`, `high`, `n`."""
    rows = []
    for measure in names:
        values = by_run(scores, measure)
        sources = {f"{a} - {b}": (values[a], values[b]) for a, b in pairs if a in values and b in values}
        rows += [(measure, *noise) for noise in stats.noise_floor(sources)]
    return pd.DataFrame(rows, columns=["measure", "source", "difference", "low", "high", "n"])


def draw_scores(sweep: Path, run: str) -> Iterator[tuple[str, list[Score]]]:
    """(`draw-2`, scores), … of the further draws of a run, under the measures that need no model and no pool."""
    slice_ = Slice(sweep / "slice")
    gold, qrels = slice_.gold_answers(), slice_.qrels()
    folders = (sweep / "runs" / run).glob("draw-[0-9]*")
    for folder in sorted(folders, key=lambda folder: int(folder.name.removeprefix("draw-"))):
        answers = {folder.name: read_run(folder / "responses.jsonl", slice_.queries)}
        yield folder.name, [*primary.rouge_scores(answers, gold), *primary.citation_scores(answers, qrels)]


def draw_noise(sweep: Path, scores: Sequence[Score], names: Sequence[str], runs: Sequence[str]) -> pd.DataFrame:
    """`noise_floor` of the repeated draws of a model: the first draw, which is the run, against each other one."""
    rows = []
    for run in runs:
        for draw, drawn in draw_scores(sweep, run):
            for measure in (name for name in names if name in measures(drawn)):
                pair = by_run(scores, measure)[run], by_run(drawn, measure)[draw]
                rows += [(measure, *noise) for noise in stats.noise_floor({f"{run}: {draw.replace('-', ' ')}": pair})]
    return pd.DataFrame(rows, columns=["measure", "source", "difference", "low", "high", "n"])


def compare(sweep: Path, variants: Sequence[Variant]) -> Comparison:
    """Everything about some systems of a sweep, in the paper's order of stages, from its scores, evidence and responses.

    Raises WorkbookError for a system that has no answers or is not scored, and for scores of other answers.
    """
    variants, scores = staged(variants), sweep_scores(sweep)
    check_scored(sweep, Slice(sweep / "slice"), scores, variants)
    runs = [variant.name for variant in variants]
    known = {score.measure for score in scores if score.value is not None}
    names = [name for name in main_measures(scores) if name in known]
    headings = {name: MAIN[name.partition("[")[0]] for name in names}
    noise = [noise_floor(scores, names, control_pairs(variants)), draw_noise(sweep, scores, names, runs)]
    found, wrong = diagnosis.diagnose(sweep, runs)
    return Comparison(
        headings,
        board(scores, runs),
        differences(scores, names, runs),
        pd.concat([part for part in noise if len(part)] or noise[:1], ignore_index=True),
        stats.agreements({name: table_of(scores, name, runs) for name in names}),
        found,
        wrong,
        changes_in_stages(found, variants),
    )


def indistinguishable(comparison: Comparison) -> dict[str, set[str]]:
    """measure -> the runs that no test tells apart from the one with the highest mean.

    A measure on which no pair could be told apart, however large the difference, is left out.
    """
    return {
        measure: set(stats.indistinguishable_from_best(rows, means_of(comparison.board, measure)))
        for measure, rows in comparison.differences.items()
        if could_differ(rows)
    }


def could_differ(rows: Sequence[stats.Difference]) -> int:
    """How many pairs of a family some difference would tell apart."""
    return sum(not math.isnan(row.detectable) for row in rows)


def means_of(table: pd.DataFrame, measure: str) -> dict[str, float]:
    """run -> mean of one measure, of the runs that have one."""
    rows = table[(table["measure"] == measure) & table["mean"].notna()]
    return dict(zip(rows["run"], rows["mean"].astype(float), strict=True))


def spread_of(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Columns `mean`, `low`, `high` of one measure, indexed by run."""
    rows = table[(table["measure"] == measure) & table["mean"].notna()].set_index("run")
    return rows[["mean", "low", "high"]].astype(float)


def shown_measure(table: pd.DataFrame) -> str:
    """The measure that single-measure figures show: the first of `SHOWN` that has a value."""
    there = list(table.loc[table["mean"].notna(), "measure"])
    wanted = [name for stem in SHOWN for name in dict.fromkeys(there) if name.partition("[")[0] == stem]
    if not (wanted or there):
        raise WorkbookError("no measure has a value: the slice has neither gold answers nor relevance judgements")
    return (wanted or there)[0]


def noise_of(table: pd.DataFrame, measure: str) -> float | None:
    """How far two runs of one system may lie apart under a measure: the far end of the widest interval; None without."""
    found = table.loc[table["measure"] == measure, ["low", "high"]].astype(float).abs().max(axis=None)
    return None if pd.isna(found) else float(found)


def square(agreement: pd.DataFrame, headings: dict[str, str]) -> pd.DataFrame:
    """Kendall's tau over runs as a square table under the measures' headings, 1 on the diagonal."""
    names = list(headings.values())
    table = pd.DataFrame(float("nan"), index=names, columns=names)
    for row in agreement.itertuples(index=False):
        one, other = headings[row.first], headings[row.second]
        table.loc[one, other] = table.loc[other, one] = row.over_runs
    for name in names:
        table.loc[name, name] = 1.0
    return table


def changes_in_stages(losses: Sequence[diagnosis.Loss], variants: Sequence[Variant]) -> pd.DataFrame:
    """What changes for the relevant documents from one system to the next, in the paper's order of stages."""
    judged = {loss.run for loss in losses}
    return diagnosis.moved(losses, [variant.name for variant in staged(variants) if variant.name in judged])


def swept(variants: Sequence[Variant]) -> pd.DataFrame:
    """The runs of a grid: columns `system`, `parameter`, `value`, `run`, one row a run whose name tells a grid point.

    Only grids of a single parameter, which have an axis to be drawn along.
    """
    rows = []
    for variant in variants:
        system, *points = variant.name.split("+")
        parameter = points[0].split("=", 1)[0] if len(points) == 1 else ""
        if parameter in Variant.__dataclass_fields__:
            rows.append((system, parameter, getattr(variant, parameter), variant.name))
    return pd.DataFrame(rows, columns=["system", "parameter", "value", "run"])


def write(sweep: Path, comparison: Comparison) -> list[Path]:
    """Write the tables and figures of a comparison to `results/` of its sweep; returns the paths.

    A figure that has nothing to show is left out.
    """
    out = sweep / RESULTS
    frames = {
        "leaderboard": comparison.board,
        "pairwise": pd.DataFrame(
            [row for rows in comparison.differences.values() for row in rows], columns=stats.Difference._fields
        ),
        "noise_floor": comparison.noise,
        "agreement": comparison.agreement,
        "losses": pd.DataFrame(comparison.losses, columns=diagnosis.Loss._fields),
        "wrongly_cited": pd.DataFrame(comparison.wrong, columns=diagnosis.WrongCitation._fields),
        "changes": comparison.changes,
    }
    for name, frame in frames.items():
        paths.write_text(out / f"{name}.csv", frame.to_csv(index=False, float_format="%.6f", lineterminator="\n"))
    alike = indistinguishable(comparison)
    alone = [heading for name, heading in comparison.headings.items() if name not in alike]
    main = tables.main_table(comparison.board, comparison.headings, alike)
    told = tables.caption(comparison.board, {heading: name for name, heading in comparison.headings.items()}, alone)
    paths.write_text(out / "main_table.md", tables.to_markdown(main, told))
    paths.write_text(out / "main_table.tex", tables.to_latex(main, told))
    made = [plots.save_svg(figure, out / "figures" / f"{name}.svg") for name, figure in figures(sweep, comparison)]
    for old in set((out / "figures").glob("*.svg")) - set(made):
        old.unlink()
    return [*(sweep / file for file in FILES), *made]


def figures(sweep: Path, comparison: Comparison) -> Iterator[tuple[str, Any]]:
    """The figures of a comparison by name, one at a time; each is closed when the next is asked for."""
    from matplotlib import pyplot as plt

    measure = shown_measure(comparison.board)
    rows = drawn_pairs(comparison, measure)
    runs = list(dict.fromkeys(comparison.board["run"]))
    wide = 0.34 * len(runs) + 1.2
    drawn = {
        "leaderboard": (True, wide, lambda ax: draw_leaderboard(ax, comparison, measure)),
        "differences": (
            len(rows),
            plots.differences_height(len(rows)),
            lambda ax: plots.differences(
                ax,
                rows,
                noise_of(comparison.noise, measure),
                f"difference in {measure}, first − second, with 95 % interval",
            ),
        ),
        "agreement": (
            len(comparison.agreement),
            5.0,
            lambda ax: plots.agreement_map(ax, square(comparison.agreement, comparison.headings)),
        ),
        "losses": (len(comparison.losses), wide, lambda ax: plots.loss_bars(ax, diagnosis.counts(comparison.losses))),
        "queries": (True, wide, lambda ax: plots.query_grid(ax, grid_of(sweep_scores(sweep), measure, runs), measure)),
    }
    for name, (_, height, draw) in ((name, parts) for name, parts in drawn.items() if parts[0]):
        figure, ax = plt.subplots(figsize=(7, height), layout="constrained")
        draw(ax)
        yield name, figure
        plt.close(figure)


def drawn_pairs(comparison: Comparison, measure: str, most: int = 100) -> list[stats.Difference]:
    """The pairs of a measure that a figure has room for: all, or if there are too many those with its best run."""
    rows, means = comparison.differences.get(measure, []), means_of(comparison.board, measure)
    best = max(means, key=means.__getitem__, default="")
    return rows if len(rows) <= most else [row for row in rows if best in (row.first, row.second)]


def draw_leaderboard(ax, comparison: Comparison, measure: str):
    """The leaderboard of one measure on an Axes, with what cannot be told from its best run."""
    spread, alike = spread_of(comparison.board, measure), indistinguishable(comparison).get(measure)
    return plots.leaderboard(ax, spread, f"{measure}: mean, 95 % bootstrap interval", alike)


def grid_of(scores: Sequence[Score], measure: str, runs: Sequence[str]) -> pd.DataFrame:
    """One measure as a table, a row a run and a column a query; NaN where there is no value."""
    return pd.DataFrame.from_dict(table_of(scores, measure, runs), orient="index").astype(float)


def distinguishable(rows: Sequence[stats.Difference], level: float = 0.05) -> int:
    """How many pairs of a family differ after Holm's correction."""
    return sum(row.p_holm <= level for row in rows)


def largest(rows: Sequence[stats.Difference]) -> float:
    """The largest difference of a family without its sign; NaN where no pair has one."""
    return float(pd.Series([row.difference for row in rows], dtype=float).abs().max())


def detectable(rows: Sequence[stats.Difference]) -> float:
    """The median of the smallest true differences that are found with 80 % power, over the pairs that have one."""
    return float(pd.Series([row.detectable for row in rows], dtype=float).median())


def tested(families: dict[str, list[stats.Difference]]) -> pd.DataFrame:
    """A row a measure: `pairs`, how many of them could be told apart by any difference, and how many are; and more.

    `largest difference` and `detectable` are those of `largest` and `detectable`, `queries` the most that a pair has.
    """
    return pd.DataFrame(
        {
            "pairs": {name: len(rows) for name, rows in families.items()},
            "could differ": {name: could_differ(rows) for name, rows in families.items()},
            "distinguishable": {name: distinguishable(rows) for name, rows in families.items()},
            "largest difference": {name: largest(rows) for name, rows in families.items()},
            "detectable": {name: detectable(rows) for name, rows in families.items()},
            "queries": {name: max((row.n for row in rows), default=0) for name, rows in families.items()},
        }
    )


class Published(NamedTuple):
    """The paper's Tables 5 and 6 with intervals and stars, the tests behind them, and what the files tell beside them."""

    primary: pd.DataFrame
    supplementary: pd.DataFrame
    tests: pd.DataFrame
    agreement: pd.DataFrame
    losses: pd.DataFrame


def published(folder: Path, baselines: Sequence[str] = ("official-naive-baseline", "concat-baseline")) -> Published:
    """The published runs, compared as those of a sweep are: means of all runs, tests over those that are no baseline."""
    scores = published_scores(folder)
    named = [variant.name for variant in staged(steps.systems_of("all"))]
    runs = [run for run in named if any(score.run == run for score in scores)]
    team = [run for run in runs if run not in baselines]
    found = board(scores, runs)
    parts, families = [], {}
    for headings in (PRIMARY_OFFICIAL, SUPPLEMENTARY_PUBLISHED):
        own = differences(scores, list(headings), team)
        able = [name for name in headings if could_differ(own[name])]
        alike = {m: set(stats.indistinguishable_from_best(own[m], _of(means_of(found, m), team))) for m in able}
        parts.append(tables.main_table(found[found["measure"].isin(headings)], headings, alike))
        families |= own
    headings = {**PRIMARY_OFFICIAL, **{name: f"{words}, judge" for name, words in SUPPLEMENTARY_PUBLISHED.items()}}
    agreement = stats.agreements({headings[name]: table_of(scores, name, team) for name in headings})
    noise = noise_floor(scores, list(headings), [("caes-rag-rrf", "default")])
    control = {name: noise_of(noise, name) for name in headings}
    tests = tested(families).assign(**{"control pair": control}).rename(index=headings)
    losses, _ = diagnosis.diagnose_published(folder, runs)
    return Published(*parts, tests, agreement, diagnosis.counts(losses))


def _of(means: dict[str, float], runs: Sequence[str]) -> dict[str, float]:
    return {run: means[run] for run in runs if run in means}
