"""Leaderboard -> the main table of a paper: text cells, Markdown and LaTeX."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd

from lib.errors import WorkbookError
from lib.text import one_line

COLUMNS = ("run", "measure", "mean", "low", "high", "n_scored", "n")
MISSING = "–"
MARK = "*"

_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~$&]")
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "`": r"\textasciigrave{}",
        "−": r"\textminus{}",
        "–": r"\textendash{}",
        "…": r"\ldots{}",
        # After the end of a row, these would be taken for its options.
        "[": "{[}",
        "]": "{]}",
        "*": "{*}",
        **{char: f"\\{char}" for char in "&%$#_{}"},
    }
)


def main_table(
    board: pd.DataFrame, measures: Mapping[str, str], indistinguishable: Mapping[str, Collection[str]]
) -> pd.DataFrame:
    """A row a run, a column a measure under its heading, of cells like `0.157 [0.142, 0.171] (40 of 47) *`.

    `board` has the columns of `results/leaderboard.csv`; runs keep its order. In brackets stands the
    interval, then how many queries the mean covers if not all; `–` is no value. The star at the end of a
    cell marks the highest mean of the column and the runs in `indistinguishable[measure]`; a measure that is
    not in there has its highest mean marked alone, and a single run is not marked.
    Raises WorkbookError for a board that lacks a column or measure, or has two rows for one cell.
    """
    _check(board, measures)
    rows = {(str(row.run), row.measure): row for row in board.itertuples(index=False)}
    runs = list(dict.fromkeys(str(run) for run in board["run"]))
    cells = pd.DataFrame(index=pd.Index(runs, name="run"), columns=range(len(measures)), dtype=object)
    for number, measure in enumerate(measures):
        there = {run: rows[run, measure] for run in runs if (run, measure) in rows and pd.notna(rows[run, measure].mean)}
        best = max((row.mean for row in there.values()), default=None)
        alike = {run for run, row in there.items() if row.mean == best or run in indistinguishable.get(measure, ())}
        alike = alike if len(runs) > 1 else set()
        cells[number] = [_cell(there[run]) + f" {MARK}" * (run in alike) if run in there else MISSING for run in runs]
    return cells.set_axis(list(measures.values()), axis=1)


def caption(board: pd.DataFrame, measures: Mapping[str, str], alone: Collection[str] = ()) -> str:
    """What a reader must know of the table, in plain text.

    `measures` says of each heading which measure, and which model, is behind it. `alone` are the headings
    on which no pair of runs could be told apart, however large the difference, so that only the highest
    mean is marked.
    """
    fewest, most = int(board["n"].min()), int(board["n"].max())
    partial = board[(board["n_scored"] < board["n"]) & board["mean"].notna()]
    queries = f"{'' if fewest == most else f'{fewest} to '}{most} {'query' if most == 1 else 'queries'}"
    told = [f"Means over {queries} with 95 % bootstrap intervals."]
    if board["run"].nunique() > 1:
        told.append(_marks(list(measures), [heading for heading in measures if heading in alone]))
    if len(partial):
        told.append("In parentheses: how many of the queries a mean covers, where not all have a value.")
    if measures:
        told.append(f"Measures: {'; '.join(f'{heading} {words}' for heading, words in measures.items())}.")
    return " ".join(told)


def _marks(headings: Collection[str], alone: Collection[str]) -> str:
    """What is in bold, and why it is the best run alone in some columns or in all."""
    why = "with so few queries no test could tell the others from it"
    if alone and len(alone) == len(headings):
        return f"Bold: the best run of each column, marked alone: {why}."
    tested = (
        "Bold: the best run of each column and every run that a paired sign-flip permutation test over the queries, "
        "Holm-corrected over all pairs of runs, does not distinguish from it at the level 0.05."
    )
    return f"{tested} In {', '.join(alone)}, the best run is marked alone: {why}." if alone else tested


def to_markdown(table: pd.DataFrame, caption: str) -> str:
    """The table of `main_table` as Markdown, marked means in bold, the caption below."""
    head = ["run", *(_markdown(heading) for heading in table.columns)]
    lines = [head, [":--", *["--:"] * len(table.columns)]]
    for run, cells in zip(table.index, table.to_numpy(), strict=True):
        parts = [_parts(cell) for cell in cells]
        lines.append([_markdown(run), *(f"{f'**{m}**' if marked else m} {rest}".strip() for m, rest, marked in parts)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{_markdown(caption)}\n"


def to_latex(table: pd.DataFrame, caption: str, label: str = "tab:main") -> str:
    """The table of `main_table` as LaTeX for the package `booktabs`, marked means in bold.

    The intervals stand below the means, so that six columns fit the width of a page. Names in scripts
    other than Latin need XeLaTeX or LuaLaTeX and a font.
    """
    head = ["Run", *(_latex(heading) for heading in table.columns)]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table*}",
        r"  \centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"  \caption{{{_latex(caption)}}}",
        rf"  \label{{{label}}}",
        rf"  \begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"    \toprule",
        rf"    {' & '.join(head)} \\",
        r"    \midrule",
        *(line for run, cells in zip(table.index, table.to_numpy(), strict=True) for line in _latex_rows(run, cells)),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _latex_rows(run: Any, cells: Collection[str]) -> list[str]:
    """A line of means, and below it one of intervals if there are any."""
    parts = [_parts(cell) for cell in cells]
    means = [rf"\textbf{{{_number(mean)}}}" if marked else _number(mean) for mean, _, marked in parts]
    below = [rf"{{\scriptsize {_number(rest)}}}" if rest else "" for _, rest, _ in parts]
    rows = [[_latex(run), *means]] + ([["", *below]] if any(below) else [])
    return [f"    {' & '.join(row)} \\\\{'[3pt]' if row is rows[-1] else ''}" for row in rows]


def _check(board: pd.DataFrame, measures: Mapping[str, str]) -> None:
    absent = [column for column in COLUMNS if column not in board.columns]
    if absent:
        raise WorkbookError(f"leaderboard: no column '{absent[0]}'; expected {', '.join(COLUMNS)}")
    unknown = [measure for measure in measures if measure not in set(board["measure"])]
    if unknown:
        raise WorkbookError(f"leaderboard: no measure '{unknown[0]}'; it has {', '.join(dict.fromkeys(board['measure']))}")
    twice = board[board.duplicated(["run", "measure"])]
    if len(twice):
        run, measure = twice.iloc[0][["run", "measure"]]
        raise WorkbookError(f"leaderboard: two rows for the run '{run}' and the measure '{measure}'; keep one")


def _cell(row: Any) -> str:
    interval = "" if pd.isna(row.low) or pd.isna(row.high) else f" [{_decimal(row.low)}, {_decimal(row.high)}]"
    covered = "" if row.n_scored == row.n else f" ({row.n_scored:.0f} of {row.n:.0f})"
    return _decimal(row.mean) + interval + covered


def _decimal(value: float) -> str:
    """Three decimals with a minus sign where anything is left of the number, never `−0.000`."""
    digits = f"{abs(value):.3f}"
    return f"−{digits}" if value < 0 and float(digits) else digits


def _parts(cell: str) -> tuple[str, str, bool]:
    """The mean, what follows it, and whether the cell is marked."""
    mean, _, rest = cell.removesuffix(f" {MARK}").partition(" ")
    return mean, rest, cell.endswith(f" {MARK}")


def _markdown(text: Any) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", one_line(str(text)))


def _latex(text: Any) -> str:
    """`text` as it is read; `--`, `''` and `,,` are kept from becoming other characters."""
    return re.sub(r"([-',])(?=\1)", r"\1{}", one_line(str(text)).translate(_LATEX))


def _number(text: str) -> str:
    return text.replace("−", "$-$").replace(MISSING, "--")
