"""The command line: `workbook sweep | slice | score | report | audit | validate | bundle | batch`."""

import argparse
import math
import sys
from pathlib import Path

from lib import __version__, notebooks, preparing
from lib.errors import WorkbookError


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 something failed or is invalid, 2 unusable input."""
    args = _parser().parse_args(argv)
    try:
        return args.command(args)
    except WorkbookError as error:
        print(f"workbook: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("workbook: interrupted; what was finished is kept, the same command goes on from there", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="workbook", description="Candidate-constrained RAG: run, check, submit.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    _add_sweep(commands)
    _add_score(commands)
    _add_folder_command(commands, "report", _report, "compare a scored sweep's systems and write results/report.html")
    _add_folder_command(commands, "audit", _audit, "lead every answer sentence back to its characters in the documents")

    validate = commands.add_parser(
        "validate",
        help="check a responses file against its slice",
        epilog="example: workbook validate outputs/sample/runs/rule-minilm/responses.jsonl --slice sample",
    )
    validate.add_argument("responses", type=Path, help="a responses.jsonl; the evidence and provenance beside it count too")
    validate.add_argument("--slice", required=True, help="'sample', a folder, or an ir_datasets_longeval id")
    validate.set_defaults(command=_validate)

    bundle = commands.add_parser(
        "bundle",
        help="write a run's submission folder for TIRA",
        epilog="example: workbook bundle outputs/sample/runs/rule-minilm --out submission/rule-minilm",
    )
    bundle.add_argument("run", type=Path, help="a run's folder")
    bundle.add_argument("--out", type=Path, required=True, help="a new folder")
    bundle.set_defaults(command=_bundle)
    _add_batch(commands)
    _add_slice(commands)
    return parser


def _add_sweep(commands) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="run the notebooks for every system",
        epilog="example: workbook sweep --slice data/longeval --variants rule-minilm,default --jobs 2",
    )
    sweep.add_argument("--slice", default="sample", help="'sample', a folder, or an ir_datasets_longeval id")
    sweep.add_argument("--variants", default="all", help="'all', or names or YAML files separated by commas")
    sweep.add_argument("--out", type=Path, help="folder to write (default: outputs/<name of the slice>)")
    sweep.add_argument("--jobs", type=int, help="tasks at a time (default: all cores, or all workers)")
    engine = "warm" if sys.platform == "linux" else "fresh"  # only Linux ends a forked kernel with its parent
    help_ = f"kernels forked from one that has imported everything, or new ones (default: {engine})"
    sweep.add_argument("--engine", choices=["warm", "fresh"], default=engine, help=help_)
    sweep.add_argument("--shard-size", type=int, default=0, metavar="N", help="split the slice into shards of N queries")
    sweep.add_argument("--cluster", metavar="ADDRESS", help="a Dask scheduler, tcp://HOST:PORT, to run the tasks")
    sweep.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="override parameters of every system")
    sweep.add_argument("--grid", nargs="+", default=[], metavar="KEY=V1,V2", help="a system for every value, by commas")
    sweep.add_argument("--dry-run", action="store_true", help="print requests, tokens and cost; send nothing")
    _add_models(sweep)
    sweep.add_argument("--fallback", default="", choices=["", "extractive"], help="fill failed answers, and mark them")
    sweep.add_argument("--no-score", dest="score", action="store_false", help="stop after the answers")
    sweep.set_defaults(command=_sweep)


def _add_score(commands) -> None:
    score = commands.add_parser(
        "score",
        help="measure runs under both evaluation protocols",
        epilog="example: workbook score --slice data/longeval --runs runs --out scores; runs/NAME/responses.jsonl is a run",
    )
    score.add_argument("--slice", required=True, help="'sample', a folder or a longeval id; documents are not needed")
    score.add_argument("--runs", type=Path, required=True, help="a folder with a folder a run, each with a responses.jsonl")
    score.add_argument("--out", type=Path, required=True, help="folder to write primary.csv and supplementary.csv to")
    score.add_argument("--only", default="", metavar="RUNS", help="names of runs, by commas; only these make the pool")
    score.add_argument("--bank", type=Path, help="a frozen nugget bank (default: the slice's, or mined from the pool)")
    _add_models(score)
    score.set_defaults(command=_score)


def _add_folder_command(commands, name: str, command, what: str) -> None:
    parser = commands.add_parser(name, help=what, epilog=f"example: workbook {name} outputs/sample")
    parser.add_argument("sweep", type=Path, help="the sweep's folder")
    parser.set_defaults(command=command)


def _add_models(command: argparse.ArgumentParser) -> None:
    command.add_argument("--profile", default="embedded", help="'embedded', 'paper', or a YAML file")
    command.add_argument("--budget", type=_dollars, default=0.0, metavar="USD", help="stop before it is exceeded")


def _dollars(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text}: dollars must be a number from 0 on")
    return value


def _add_batch(commands) -> None:
    steps = {
        "build": "write the input files for what has no reply yet",
        "submit": "upload them and start the batches",
        "status": "ask how far they have come",
        "collect": "fetch what has ended, and list what is left",
    }
    group = commands.add_parser(
        "batch",
        help="answers from the Batch API, resumable at every step",
        epilog="example: workbook batch build outputs/sample && workbook batch submit outputs/sample",
    ).add_subparsers(required=True, metavar="STEP")
    for name, what in steps.items():
        step = group.add_parser(name, help=what)
        step.add_argument("sweep", type=Path, help="the folder of a sweep with an openai-batch profile")
        step.set_defaults(command=_batch, step=name)
    apply_ = group.add_parser(
        "apply",
        help="turn batch results into a run's responses",
        epilog="example: workbook batch apply --evidence E.jsonl --results R.jsonl --run-id NAME --slice P --out O.jsonl",
    )
    apply_.add_argument("--evidence", type=Path, required=True, help="the evidence that was prompted")
    apply_.add_argument("--results", type=Path, required=True, help="output lines of the batch, of any number of runs")
    apply_.add_argument("--run-id", required=True, help="the run: the part of custom_id before '|'")
    apply_.add_argument("--slice", required=True, help="'sample', a folder, or an ir_datasets_longeval id")
    apply_.add_argument("--out", type=Path, required=True, help="the responses file to write")
    apply_.set_defaults(command=_batch_apply)


def _add_slice(commands) -> None:
    slice_ = commands.add_parser(
        "slice",
        help="pull the candidate documents of some queries out of a snapshot of any size",
        epilog="example: workbook slice --from data/snapshot --queries data/queries.jsonl --out data/slice",
    )
    slice_.add_argument("--from", dest="snapshot", type=Path, required=True, help="a folder of JSONL files, plain or .gz")
    slice_.add_argument("--queries", type=Path, required=True, help="a file; gold data and citations beside it are copied")
    slice_.add_argument("--out", type=Path, required=True, help="the slice folder to write, new or empty")
    slice_.add_argument("--jobs", type=int, help="processes (default: all cores)")
    slice_.set_defaults(command=_slice)


def _batch(args: argparse.Namespace) -> int:
    from lib import applying

    return applying.step(args.sweep, args.step)


def _batch_apply(args: argparse.Namespace) -> int:
    from lib import applying

    return applying.apply(args.evidence, args.results, args.run_id, _absolute(args.slice), args.out)


def _sweep(args: argparse.Namespace) -> int:
    if not args.cluster:
        notebooks.make_ready(args.engine)  # takes as long as the imports that follow
    from lib import cluster, shards, summary, sweep, tasks, variants

    jobs = sweep.check_number(args.jobs, "--jobs") if args.jobs is not None else None
    size = sweep.check_number(args.shard_size, "--shard-size", 0)
    systems = variants.load_variants(
        [n for n in args.variants.split(",") if n], _pairs(args.set, "--set"), _grid(args.grid)
    )
    if not systems:
        raise WorkbookError("--variants: name at least one system, or 'all'")
    profile = variants.load_profile(args.profile)
    sweep.check_models(systems, profile, args.score)
    spec = _absolute(args.slice)
    n_queries = preparing.check(spec)
    out = (args.out or Path("outputs") / Path(args.slice).name).resolve()
    plan = tasks.Plan(
        out, spec, systems, profile, args.budget, args.fallback, args.score and not args.dry_run, size, n_queries
    )
    todo = tasks.tasks(plan)
    if args.dry_run:
        todo = [task for task in todo if not task.name.startswith(tasks.ANSWERS)]
    existed = out.exists()
    try:
        sweep.prepare_folder(plan)
        with cluster.workers(args.cluster, out, jobs) as workers:
            shards.remove(out, keep=plan.parts.values())
            outcome = summary.run_with_progress(out, todo, workers, args.engine)
    except WorkbookError:
        sweep.remove_new(out, existed)
        raise
    prepared = outcome.failed.get(tasks.PREPARE)
    if prepared and prepared.error == WorkbookError.__name__:
        sweep.remove_new(out, existed)
        raise WorkbookError(prepared.message)
    if args.dry_run and not outcome.failed:
        summary.estimate(out, systems, profile)
        return 0
    summary.report(out, systems, outcome, profile)
    return 1 if outcome.failed else 0


def _score(args: argparse.Namespace) -> int:
    from lib import runs, scoring, variants

    def tell(problem: str) -> None:
        print(problem, file=sys.stderr)

    profile = variants.load_profile(args.profile)
    for part in (args.out, *args.out.parents):
        if part.exists() and not part.is_dir():
            raise WorkbookError(f"--out: {part} is a file; give a folder")
    wanted = [name for name in args.only.split(",") if name]
    if args.only and not wanted:
        raise WorkbookError("--only: name at least one run, or leave it out for all of them")
    with preparing.opened(_absolute(args.slice)) as slice_:
        found = runs.read_runs(args.runs, slice_.queries, tell)
        for name in wanted:
            if name not in found:
                raise WorkbookError(f"--only: no run '{name}' in {args.runs}; there are: {', '.join(found)}")
        found = {name: run for name, run in found.items() if not wanted or name in wanted}
        scoring.check_inputs(slice_, found, args.runs, profile, args.bank)
        primary = scoring.score_primary(slice_, found, args.out, profile, args.budget, args.bank)
        supplementary = scoring.score_supplementary(slice_, found, args.runs, args.out, profile, args.budget)
    for scores in (primary, supplementary):
        print(scoring.summary(scores), end="\n\n")
    print(f"{len(found)} runs, {len(slice_.queries)} queries; scores: {args.out}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from lib import comparing, report

    systems = comparing.systems(args.sweep)
    comparing.write(args.sweep, comparing.compare(args.sweep, systems))
    print(report.write(args.sweep))
    return 0


def _audit(args: argparse.Namespace) -> int:
    from lib import audit

    found = audit.audit(args.sweep)
    print(audit.summary(found))
    return 1 if any(run.faults for run in found) else 0


def _validate(args: argparse.Namespace) -> int:
    from lib import trec

    with preparing.opened(_absolute(args.slice)) as slice_:
        documents = {document.doc_id: document for document in slice_.all_documents()} or None
        faults = list(trec.validate(args.responses, slice_.queries, documents))
    for fault in faults:
        print(fault)
    if not faults:
        print(f"{args.responses}: valid ({len(slice_.queries)} queries)")
    return 1 if faults else 0


def _bundle(args: argparse.Namespace) -> int:
    from lib import trec

    print(trec.bundle(args.run, args.out))
    return 0


def _slice(args: argparse.Namespace) -> int:
    from lib import snapshot

    jobs = snapshot.CORES if args.jobs is None else args.jobs
    print(snapshot.summary(snapshot.extract(args.snapshot, args.queries, args.out, jobs)))
    return 0


def _pairs(pairs: list[str], option: str) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise WorkbookError(f"{option}: '{pair}' is not KEY=VALUE")
    keys = [pair.split("=", 1)[0] for pair in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise WorkbookError(f"{option}: '{key}' is given twice")
    return dict(pair.split("=", 1) for pair in pairs)


def _grid(pairs: list[str]) -> dict[str, list[str]]:
    """parameter -> values, from KEY=V1,V2 arguments."""
    return {key: [value.strip() for value in text.split(",")] for key, text in _pairs(pairs, "--grid").items()}


def _absolute(spec: str) -> str:
    return str(Path(spec).resolve()) if spec != "sample" and Path(spec).exists() else spec


if __name__ == "__main__":
    sys.exit(main())
