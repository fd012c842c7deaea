"""A sweep's results -> `results/report.html`: one file that holds everything and asks no other computer for anything.

What a sweep does not have, scores, judgements or figures, is said in words where it would stand. The same
files give the same page: nothing in it comes from the clock or from where the folder lies.
"""

import base64
import hashlib
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd

from lib import __version__, comparing, diagnosis, explorer, paths, stats
from lib.errors import WorkbookError
from lib.explorer import HEADINGS, heading, read_table
from lib.score_tables import MAIN, OK, Score, main_measures, measures, read_scores
from lib.slices import Slice
from lib.variants import ModelSpec, Profile, Variant, load_profile, load_variant, read_yaml

REPORT = Path("results") / "report.html"
SECTIONS = {
    "findings": "Findings",
    "means": "Means",
    "figures": "Figures",
    "pairwise": "Pairs",
    "noise": "Noise floor",
    "agreement": "Agreement",
    "losses": "Losses",
    "explore": "Explorer",
    "systems": "Systems",
    "models": "Models and measures",
    "again": "Cite and reproduce",
}
# What stands in place of a part that a sweep does not have.
MISSING = {
    "leaderboard": "There are no means yet: notebook 07 writes results/leaderboard.csv once the runs are scored.",
    "pairwise": "The systems have not been compared: notebook 07 writes results/pairwise.csv once the runs are scored.",
    "single": "There is only one system, so nothing to compare.",
    "noise_floor": "No noise floor is known: it takes the control pair (caes-rag-rrf and default) or further draws, and "
    "notebook 07, which writes results/noise_floor.csv.",
    "agreement": "The measures have not been compared: notebook 07 writes results/agreement.csv once the runs are scored.",
    "losses": "No losses are known: they take relevance judgements (qrels.txt) and notebook 07, which writes "
    "results/losses.csv.",
    "changes": "What changes from system to system is not known: notebook 07 writes results/changes.csv for two judged "
    "systems or more.",
    "variants": "The parameters are not here: variants/*.yaml is missing from this sweep.",
    "profile": "The profile is not here: profile.yaml is missing from this sweep.",
    "run_models": "No run of this sweep records its models (runs/*/ir-metadata.yml).",
    "scores": "This sweep has no scores yet: notebooks 05 and 06 compute them.",
}
SAYS = {
    "rougeL_f1": "longest common subsequence with the gold answer, F1 over stemmed words, 0 to 1",
    "bertscore_f1": "likeness of the words' vectors to the gold answer's, F1 under the encoder named",
    "cited_precision": "share of the distinct cited documents that are relevant, 0 to 1",
    "cited_recall": "share of the relevant documents that are cited, 0 to 1",
    "tfc1": "whether the answer uses the query's terms more often than the other answers do, −1 to 1",
    "nugget_coverage": "share of the nugget questions that the answer covers (grade 4 or 5), 0 to 1",
    "average_grade": "mean grade of the answer on the nugget questions, 0 to 5",
    "citation_jaccard": "overlap of the cited documents with those of a reference answer, 0 to 1",
    "correctness": "whether what the answer says is right, judged against a reference answer",
    "completeness": "whether the answer says all of it, judged against a reference answer",
}
# Measures whose highest mean is not the best, and what it is instead.
NOT_HIGHER = {"unsupported_citations": "lower is better", "cited_documents": "a count, neither better nor worse"}
TESTED, TOO_FEW, UNTESTED = "tested", "too few queries", "untested"  # why the cells of a measure are marked as they are
ALONE = {
    TOO_FEW: "is marked alone: with so few queries no test could tell the others from it",
    UNTESTED: "is marked alone: no pair of systems was tested on it",
}
OF_ONE_MEASURE = ("leaderboard", "differences", "queries")  # figures


class Figure(NamedTuple):
    """A figure of notebook 07: its title, how to read it, and what it shows for a reader who cannot see it."""

    name: str
    title: str
    caption: str
    alt: str


FIGURES = (
    Figure(
        "leaderboard",
        "Leaderboard",
        "A dot is a system's mean, the line its 95 % bootstrap interval over queries. "
        "A filled dot is the highest mean or one that no test tells from it.",
        "Dot plot of each system's mean with its 95 % interval. The figures stand in the table Main measures.",
    ),
    Figure(
        "differences",
        "Differences between pairs",
        "A dot is the difference of two systems' means, the line its 95 % interval. Filled: the pair is distinguishable "
        "after Holm's correction. The interval is of this pair alone, not corrected, so it may exclude zero where the "
        "verdict is not distinguishable. What lies within the noise floor is no larger than between two runs of one "
        "system.",
        "Forest plot of the differences between pairs of systems. The figures stand in the table Every pair of systems.",
    ),
    Figure(
        "agreement",
        "Agreement of measures",
        "Kendall's τ over runs between every two measures: blue where they rank the systems alike, red where they rank "
        "them in opposite orders, white where they are unrelated.",
        "Heat map of Kendall's tau between measures. The figures stand in the table Do the measures agree.",
    ),
    Figure(
        "losses",
        "Where relevant documents are lost",
        "A bar is a system, its parts the stages at which relevant documents were lost, from left to right in the order of "
        "the pipeline; what was cited was not lost.",
        "Stacked bars of relevant documents by stage, one bar a system. The counts stand in the table of losses by stage.",
    ),
    Figure(
        "queries",
        "Query by query",
        "A row is a system, a column a query, the colour its score. A column that is dark throughout is a query that is "
        "hard for every system.",
        "Grid of scores by system and query. The explorer shows the scores of each query in a table.",
    ),
)
COLUMNS = {
    "leaderboard": ("run", "measure", "mean", "low", "high", "n_scored", "n"),
    "pairwise": stats.Difference._fields,
    "noise_floor": ("measure", "source", "difference", "low", "high", "n"),
    "agreement": tuple("first second over_runs runs_low runs_high per_query query_low query_high n_runs n_queries".split()),
    "losses": ("query_id", "run", "doc_id", "stage"),
    "wrongly_cited": ("query_id", "run", "doc_id"),
    "changes": ("first", "second", "gained", "lost", "earlier", "later"),
}
WORDS = {"run", "measure", "first", "second", "verdict", "source", "query_id", "doc_id", "stage"}  # columns without numbers
Rows = list[dict[str, Any]]


def write(sweep: Path) -> Path:
    """Write `results/report.html` of a sweep's folder; returns its path.

    Raises WorkbookError for a folder that is no sweep, and for a file of it that cannot be read.
    """
    return paths.write_text(sweep / REPORT, render(sweep))


def render(sweep: Path) -> str:
    """The page as text: the same for the same files."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    pages = explorer.Pages(sweep)
    style = "\n".join(explorer.asset(name) for name in ("explorer.css", "report.css"))
    script = "\n".join(explorer.asset(name) for name in ("explorer.js", "report.js"))
    embedded = explorer.embed(pages)
    environment = Environment(
        loader=FileSystemLoader(explorer.ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"fixed": fixed, "p_value": p_value, "counted": counted}
    page = environment.get_template("report.html").render(
        **contents(sweep, pages),
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        explorer=embedded,
        index=Markup(in_script(embedded.index)),
    )
    return paths.encodable(page)


def in_script(value: Any) -> str:
    """JSON that can stand in a `script` element: nothing in it can close the element or open a comment."""
    text = paths.to_json(value)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _policy(style: str, script: str) -> str:
    """A content security policy: inline images, and this style and this script; nothing else, from nowhere."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    sources = f"style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'"
    return f"default-src 'none'; img-src data:; {sources}; base-uri 'none'; form-action 'none'"


def contents(sweep: Path, pages: explorer.Pages) -> dict[str, Any]:
    """Everything that the template shows but the explorer."""
    tables = {name: _table(sweep / "results" / f"{name}.csv", columns) for name, columns in COLUMNS.items()}
    scores = [s for name in explorer.SCORES if (p := sweep / "scores" / name).exists() for s in read_scores(p)]
    known = list(dict.fromkeys(row["measure"] for row in tables["leaderboard"]))
    short = [name for name in known if name.partition("[")[0] in MAIN and "unicode words" not in name]
    profile = load_profile(str(sweep / "profile.yaml")) if (sweep / "profile.yaml").exists() else None
    systems, (command, with_path, commas) = _systems(sweep, pages.runs), _command(sweep, pages.slice_)
    shown = _shown(tables["leaderboard"])
    return {
        "name": pages.slice_.report.source,
        "runs": pages.runs,
        "notes": pages.notes,
        "uncompared": MISSING["single" if len(pages.runs) == 1 else "pairwise"],
        "facts": _facts(pages.slice_, pages.runs),
        "sections": list(SECTIONS.items()),
        "missing": MISSING,
        "findings": _findings(short, tables),
        "proxies": _proxies([*known, *measures(scores)], scores),
        "main": _board(short, tables["leaderboard"], tables["pairwise"]),
        "others": _board([name for name in known if name not in short], tables["leaderboard"], tables["pairwise"]),
        "tuned": _tuned(pages.slice_, systems["rows"]),
        "figures": [_figure(figure, sweep / "results" / "figures" / f"{figure.name}.svg", shown) for figure in FIGURES],
        "pairs": [_pair(row) for row in tables["pairwise"]],
        "pair_measures": [(name, heading(name)) for name in dict.fromkeys(row["measure"] for row in tables["pairwise"])],
        "pair_runs": list(dict.fromkeys(run for row in tables["pairwise"] for run in (row["first"], row["second"]))),
        "noise": [{**row, "heading": heading(row["measure"])} for row in tables["noise_floor"]],
        "agreement": [
            {**row, "first_heading": heading(row["first"]), "second_heading": heading(row["second"])}
            for row in tables["agreement"]
        ],
        "losses": _losses(tables["losses"], tables["wrongly_cited"]),
        "changes": tables["changes"],
        "systems": systems,
        "models": _models(profile),
        "profile_name": profile.name if profile else "not recorded",
        "run_models": _run_models(sweep, pages.runs),
        "measures": _measures(scores),
        "command": command,
        "with_path": with_path,
        "commas": commas,
        "version": __version__,
        "hashes": [(name, paths.sha256(pages.slice_.folder / name)) for name in ("queries.jsonl", "documents.jsonl")],
    }


def fixed(value: float | None, digits: int = 3) -> str:
    """A number with that many digits after the point, `–` for none."""
    if value is None:
        return "–"
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0 turns -0.0 into 0.0


def p_value(value: float | None) -> str:
    """A p-value with three digits, `<0.001` below that."""
    return "–" if value is None else "<0.001" if value < 0.0005 else f"{value:.3f}"


def counted(n: int, noun: str) -> str:
    """`1 system`, `2 systems`, `2 queries`."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n} {noun if n == 1 else many}"


def _table(path: Path, columns: Sequence[str]) -> Rows:
    """The rows of a file of results with its numbers as numbers, None where a cell is blank."""
    rows = enumerate(read_table(path, columns), 2)
    return [{name: _cell(name, row[name], f"{path}:{number}") for name in columns} for number, row in rows]


def _cell(column: str, text: str, place: str) -> str | float | None:
    if column in WORDS:
        return text
    try:
        value = float(text) if text else None
    except ValueError:
        raise WorkbookError(f"{place}: {column} is no number: {text!r}; run notebook 07 again") from None
    return value if value is not None and math.isfinite(value) else None


def _facts(slice_: Slice, runs: Sequence[str]) -> list[dict[str, Any]]:
    """The counts at the head of the page."""
    about, gold, qrels = slice_.report, slice_.gold_answers(), slice_.qrels()
    ids = [query.query_id for query in slice_.queries]
    facts = {
        "systems": len(runs),
        "queries": about.queries,
        "candidates of all queries": about.instances,
        "distinct documents": about.documents,
        "candidates with full text": about.text_sources.get("fullText", 0),
        "queries with judgements": sum(query_id in qrels for query_id in ids),
        "queries with a gold answer": sum(query_id in gold for query_id in ids),
    }
    return [{"words": words, "value": value} for words, value in facts.items()]


def _findings(names: Sequence[str], tables: dict[str, Rows]) -> dict[str, Any]:
    """A row a measure, and the whole in one sentence; no sentence where no pair was tested."""
    rows = [_finding(name, tables) for name in names]
    tested = [row for row in rows if row["pairs"]]
    return {"rows": rows, "words": _headline(tested) if tested else ""}


def _headline(rows: Rows) -> str:
    """What the tests of all tested measures come to."""
    pairs, different = sum(row["pairs"] for row in rows), sum(row["different"] for row in rows)
    where = [row for row in rows if row["different"]]
    if not where:
        told = (
            f"No difference between two systems is distinguishable, on any of {counted(len(rows), 'measure')} and "
            f"{counted(pairs, 'comparison')}: these queries support no order among the systems."
        )
        most = max(rows, key=lambda row: row["queries"])
        few = f"{counted(most['queries'], 'query')} {'is' if most['queries'] == 1 else 'are'} too few"
        never = f" Nor could they show any: {few} for {counted(most['pairs'], 'pair')}, however large a difference."
        return told if any(row["able"] for row in rows) else told + never
    fewest, most = min(row["pairs"] for row in rows), max(row["pairs"] for row in rows)
    told = (
        f"{different} of {pairs} comparisons between two systems are distinguishable, "
        f"on {len(where)} of {counted(len(rows), 'measure')}, after Holm's correction over the "
        f"{'' if fewest == most else f'{fewest} to '}{counted(most, 'pair')} of each measure; the measures are not "
        "corrected for one another, and the verdicts hold for this set of systems, which should be fixed before looking."
    )
    rest = [row["heading"] for row in rows if not row["different"]]
    return f"{told} On {_listed(rest)}, no order among the systems can be read from these queries." if rest else told


def _finding(name: str, tables: dict[str, Rows]) -> dict[str, Any]:
    means = [row for row in tables["leaderboard"] if row["measure"] == name and row["mean"] is not None]
    pairs = [row for row in tables["pairwise"] if row["measure"] == name]
    noise = [abs(end) for r in tables["noise_floor"] if r["measure"] == name for end in _ends(r)]
    detectable = [row["detectable"] for row in pairs if row["detectable"] is not None]
    best = max((row["mean"] for row in means), default=None)
    return {
        "heading": heading(name),
        "best": best,
        "runs": _listed([row["run"] for row in means if row["mean"] == best]) or "–",
        "pairs": len(pairs),
        "queries": int(max((row["n"] for row in pairs), default=0)),
        "different": sum(_differs(row) for row in pairs),
        "able": len(detectable),
        "detectable": median(detectable) if detectable else None,
        "noise": max(noise, default=None),
    }


def _ends(row: dict[str, Any]) -> list[float]:
    """The ends of a row's interval that are there."""
    return [row[end] for end in ("low", "high") if row[end] is not None]


def _differs(row: dict[str, Any]) -> bool:
    return row["verdict"] != stats.ALIKE


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _proxies(names: Iterable[str], scores: Iterable[Score]) -> str:
    """What the measures with a stand-in for a model judge are, in words; empty where there is none."""
    proxies = list(dict.fromkeys(name for name in names if "[proxy]" in name))
    shown = [HEADINGS[stem] for stem in HEADINGS if any(name.partition("[")[0] == stem for name in proxies)]
    if not shown:
        return ""
    models = sorted({score.model.partition(",")[0] for score in scores if score.measure in proxies and score.model})
    model = f" ({_listed(models)})" if models else ""
    return (
        f"{_listed(shown)} come from a proxy, not from a judge: it measures how close the wording of an answer is to "
        f"what is asked or expected{model}. Notebooks 05 and 06 show how far it agrees with what it stands in for."
    )


def _board(names: Sequence[str], board: Rows, pairs: Rows) -> dict[str, Any]:
    """Means as a table: a row a system, a cell a measure.

    A cell's `kind` is `best level`, `level` where no test tells it from the best, or ``.
    """
    cells = {(row["run"], row["measure"]): row for row in board}
    runs = list(dict.fromkeys(row["run"] for row in board))
    covers = {name: {_covers(row) for row in board if row["measure"] == name} for name in names}
    level = {name: _level(name, board, pairs) for name in names}

    def cell(run: str, name: str) -> dict[str, Any]:
        row = cells.get((run, name), {})
        alone = len(covers[name]) > 1
        kind = "best level" if run in level[name].best else "level" if run in level[name].alike else ""
        there = {key: row.get(key) for key in ("mean", "low", "high")}
        return {**there, "covers": _covers(row) if row and alone else "", "kind": kind}

    return {
        "measures": [
            {
                "heading": heading(n),
                "covers": next(iter(covers[n])) if len(covers[n]) == 1 else "",
                "not_higher": NOT_HIGHER.get(n.partition("[")[0], ""),
            }
            for n in names
        ],
        "rows": [{"run": run, "cells": [cell(run, name) for name in names]} for run in runs],
        "words": " ".join(["Mean, and below it its interval.", *_marks_told(level)]),
    }


def _marks_told(level: dict[str, "Level"]) -> list[str]:
    """What is marked in a table of means, and why it is the highest mean alone in some columns or in all."""
    named = {why: [heading(name) for name, own in level.items() if own.why == why] for why in (TESTED, *ALONE)}
    kinds = [why for why in named if named[why]]
    told = ["Shaded: the highest mean, in bold, and every system that no test tells from it."] if named[TESTED] else []
    for why in (why for why in kinds if why in ALONE):
        told.append(f"The highest mean of {_listed(named[why]) if len(kinds) > 1 else 'a measure'} {ALONE[why]}.")
    return told


def _covers(row: dict[str, Any]) -> str:
    """`5 of 6 queries` where a mean does not cover all of them."""
    return "" if row["n_scored"] == row["n"] else f"{row['n_scored']:.0f} of {row['n']:.0f} queries"


class Level(NamedTuple):
    """The runs with the highest mean of a measure, those that no test tells from the first of them, and why."""

    best: set[str]
    alike: set[str]
    why: str  # TESTED, TOO_FEW, UNTESTED, or `` where nothing is to be marked


def _level(name: str, board: Rows, pairs: Rows) -> Level:
    """What to mark of a measure: the highest mean alone where no test could tell any two runs apart."""
    means = {row["run"]: row["mean"] for row in board if row["measure"] == name and row["mean"] is not None}
    tested = [stats.Difference(**{f: row[f] for f in COLUMNS["pairwise"]}) for row in pairs if row["measure"] == name]
    if len(means) < 2 or name.partition("[")[0] in NOT_HIGHER:
        return Level(set(), set(), "")
    best = {run for run, mean in means.items() if mean == max(means.values())}
    if all(found.detectable is None for found in tested):
        return Level(best, best, TOO_FEW if tested else UNTESTED)
    return Level(best, set(stats.indistinguishable_from_best(tested, means)), TESTED)


def _shown(board: Rows) -> str:
    """The heading of the measure that figures of one measure show; empty where no measure has a value."""
    there = [row for row in board if row["mean"] is not None]
    return heading(comparing.shown_measure(pd.DataFrame(there))) if there else ""


def _tuned(slice_: Slice, systems: Rows) -> str:
    """The systems that were tuned on this very slice, in words; empty where there is none."""
    tuned = [row["run"] for row in systems if "tuned on the sample" in row["description"].lower()]
    if slice_.report.source != "sample" or not tuned:
        return ""
    return f"{_listed(tuned)} {'was' if len(tuned) == 1 else 'were'} tuned on this slice: it favours them."


def _figure(figure: Figure, path: Path, measure: str) -> dict[str, Any]:
    """A figure of the page; `measure` is that of the figures that show a single one."""
    data = base64.b64encode(path.read_bytes()).decode() if path.exists() else ""
    absent = f"{figure.title}: not drawn yet. Notebook 07 writes results/figures/{figure.name}.svg."
    of = f"Measure: {measure}. " if measure and figure.name in OF_ONE_MEASURE else ""
    return {**figure._asdict(), "data": data, "absent": absent, "caption": of + figure.caption}


def _pair(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "heading": heading(row["measure"]), "differs": _differs(row)}


def _losses(losses: Rows, wrong: Rows) -> dict[str, Any]:
    """Relevant documents of each run by stage, in the pipeline's order; and how many others it cites."""
    found = Counter((row["run"], row["stage"]) for row in losses)
    others = Counter(row["run"] for row in wrong)
    stages = [*diagnosis.STAGES, *sorted({row["stage"] for row in losses} - set(diagnosis.STAGES))]
    runs = dict.fromkeys(row["run"] for row in losses)
    return {
        "stages": [explorer.STAGES.get(stage, stage) for stage in stages],
        "rows": [{"run": r, "counts": [found[r, stage] for stage in stages], "wrong": others[r]} for r in runs],
    }


def _systems(sweep: Path, runs: Sequence[str]) -> dict[str, Any]:
    """Parameters of the sweep's systems: those in which they differ, a column each, and those that they share."""
    files = [path for path in sorted((sweep / "variants").glob("*.yaml")) if path.stem in runs]
    variants = [asdict(load_variant(path)) for path in files]
    names = [name for name in Variant.__dataclass_fields__ if name not in ("name", "description")]
    values = {name: [_spelt(variant[name]) for variant in variants] for name in names}
    differ = [name for name in names if len(set(values[name])) > 1]
    return {
        "names": differ,
        "rows": [
            {"run": v["name"], "description": v["description"], "parameters": [_spelt(v[name]) for name in differ]}
            for v in variants
        ],
        "shared": [(name, values[name][0]) for name in names if name not in differ and values[name]],
        "words": "The parameters in which the systems differ, a column each."
        if differ
        else "The systems do not differ in any parameter.",
    }


def _spelt(value: Any) -> str:
    """A parameter's value as YAML spells it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _models(profile: Profile | None) -> dict[str, Any]:
    """The models of the profile by what they do, each in words."""
    if profile is None:
        return {"rows": [], "words": ""}
    late, bert = profile.sentence_reranker, profile.bertscore or profile.encoder.plain
    layer = f"layer {profile.bertscore_layer}" if profile.bertscore_layer else "last layer"
    scale = "rescaled" if profile.bertscore_rescaled else "not rescaled"
    rows = {
        "sentence encoder": (profile.encoder.label, "the cosine of two sentence vectors"),
        "sentence reranker": (late.label, _reranker(late)),
        "generator": _generator(profile),
        "BERTScore": (bert.label, f"{layer}, {scale}; another encoder gives another measure"),
        "nugget grader and judge": _judge(profile),
    }
    shown = [{"part": part, "model": model, "words": words} for part, (model, words) in rows.items()]
    return {"rows": shown, "words": f"Profile {profile.name}: the models that stand behind every figure of this page."}


def _reranker(spec: ModelSpec) -> str:
    if spec.kind == "cross-encoder":
        return "a cross-encoder: the raw logit of query and sentence"
    return "the cosine of two sentence vectors, in place of a cross-encoder"


def _generator(profile: Profile) -> tuple[str, str]:
    if profile.generator == "extractive":
        return "none", "extractive: sentences of the evidence, as they stand"
    how = "through the Batch API" if profile.generator == "openai-batch" else "live"
    draws = f", {profile.repeat} draws a query" if profile.repeat > 1 else ""
    return profile.service.model, f"a language model, asked {how}{draws}"


def _judge(profile: Profile) -> tuple[str, str]:
    if profile.judge == "proxy":
        return f"proxy on {profile.encoder.label}", "closeness of wording, in place of a model that judges"
    return profile.judge_service.model, "a language model"


def _run_models(sweep: Path, runs: Sequence[str]) -> dict[str, Any]:
    """The models that each run's `ir-metadata.yml` names."""
    files = {run: path for run in runs if (path := sweep / "runs" / run / "ir-metadata.yml").exists()}
    named = {run: read_yaml(path).get("models") for run, path in files.items()}
    named = {run: models for run, models in named.items() if isinstance(models, dict)}
    names = list(dict.fromkeys(str(name) for models in named.values() for name in models))
    rows = [{"run": run, "values_": [str(models.get(name, "–")) for name in names]} for run, models in named.items()]
    return {"names": [name.replace("_", " ") for name in names], "rows": rows}


def _measures(scores: Sequence[Score]) -> Rows:
    """The main measures: what each says, what computed it, its pool, and how many of its values are there."""
    rows = []
    for name in main_measures(list(scores)):
        own = [score for score in scores if score.measure == name]
        without = Counter(score.status for score in own if score.value is None)
        missing = sum(score.status != OK and score.value is not None for score in own)
        told = [f"{sum(score.value is not None for score in own)} of {len(own)}"]
        told += [f"{count} {status}" for status, count in sorted(without.items())]
        told += [f"{missing} scored as missing answers"] if missing else []
        rows.append(
            {
                "name": name,
                "heading": heading(name),
                "words": SAYS[name.partition("[")[0]],
                "model": _listed(sorted({score.model for score in own if score.model})) or "a formula",
                "pool": _listed(sorted({score.pool for score in own if score.pool})) or "–",
                "values_": ", ".join(told),
            }
        )
    return rows


def _command(sweep: Path, slice_: Slice) -> tuple[str, bool, list[str]]:
    """The command that makes the sweep again, to be run in its folder; whether a path is to be filled in, and which
    files must be renamed first, as a comma in a name would be taken to end it."""
    source = slice_.report.source
    with_path = source != "sample" and "/" not in source
    spec = f"PATH/{source}" if with_path else source
    files = [f"variants/{path.name}" for path in sorted((sweep / "variants").glob("*.yaml"))]
    parts = ["workbook", "sweep", "--slice", spec, "--profile", "profile.yaml", "--variants", ",".join(files) or "all"]
    return shlex.join([*parts, "--out", "../again"]), with_path, [name for name in files if "," in name]
