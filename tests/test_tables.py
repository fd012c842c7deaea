"""The main table as text cells, Markdown and LaTeX, against strings written by hand."""

import re

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import tables
from lib.errors import WorkbookError

NAN = float("nan")
ROWS = [
    ("rule-minilm", "rougeL_f1", 0.15712, 0.1421, 0.17149, 47, 47),
    ("rule-minilm", "bertscore_f1", 0.168, 0.15, 0.19, 40, 47),
    ("a_b", "rougeL_f1", 0.0819, 0.07, 0.09, 47, 47),
    ("a_b", "bertscore_f1", -0.1184, -0.14, -0.0004, 47, 47),
    ("no gold", "rougeL_f1", NAN, NAN, NAN, 0, 47),
    ("default", "rougeL_f1", 0.147, 0.13, 0.16, 47, 47),
    ("default", "bertscore_f1", 0.146, NAN, NAN, 1, 1),
]
BOARD = pd.DataFrame(ROWS, columns=tables.COLUMNS)
MEASURES = {"rougeL_f1": "ROUGE-L", "bertscore_f1": "BERTScore"}
ALIKE = {"rougeL_f1": {"default", "no gold"}}
TABLE = tables.main_table(BOARD, MEASURES, ALIKE)


def board(*runs: str) -> pd.DataFrame:
    return pd.DataFrame([(run, "m", 0.5, 0.4, 0.6, 3, 3) for run in runs], columns=tables.COLUMNS)


def test_a_cell_holds_the_mean_its_interval_what_it_covers_and_a_mark():
    assert TABLE.to_dict("index") == {
        "rule-minilm": {"ROUGE-L": "0.157 [0.142, 0.171] *", "BERTScore": "0.168 [0.150, 0.190] (40 of 47) *"},
        "a_b": {"ROUGE-L": "0.082 [0.070, 0.090]", "BERTScore": "−0.118 [−0.140, 0.000]"},
        "no gold": {"ROUGE-L": "–", "BERTScore": "–"},
        "default": {"ROUGE-L": "0.147 [0.130, 0.160] *", "BERTScore": "0.146"},
    }
    assert list(TABLE.index) == ["rule-minilm", "a_b", "no gold", "default"]


def test_the_best_is_marked_whether_or_not_it_is_among_the_indistinguishable_and_so_is_its_equal():
    equal = pd.concat([board("a", "b"), pd.DataFrame([("c", "m", 0.4, 0.3, 0.5, 3, 3)], columns=tables.COLUMNS)])
    assert tables.main_table(equal, {"m": "M"}, {})["M"].str.endswith("*").tolist() == [True, True, False]
    assert tables.main_table(equal, {"m": "M"}, {"m": ["c"]})["M"].str.endswith("*").tolist() == [True, True, True]


def test_columns_stand_in_the_order_asked_for_even_under_one_heading():
    table = tables.main_table(BOARD, {"bertscore_f1": "x", "rougeL_f1": "x"}, {})
    assert table.iloc[3].tolist() == ["0.146", "0.147 [0.130, 0.160]"]
    assert list(table.columns) == ["x", "x"]
    assert tables.to_markdown(table, "c").splitlines()[5] == "| default | 0.146 | 0.147 [0.130, 0.160] |"


def test_a_table_without_any_value():
    empty = pd.DataFrame([("a", "m", NAN, NAN, NAN, 0, 3)], columns=tables.COLUMNS)
    table = tables.main_table(empty, {"m": "M"}, {"m": {"a"}})
    assert table.to_dict("index") == {"a": {"M": "–"}}
    assert "    a & -- \\\\[3pt]\n" in tables.to_latex(table, "c")


def test_the_tables_text_does_not_depend_on_the_order_of_a_set():
    other = tables.main_table(BOARD, MEASURES, {"rougeL_f1": ["no gold", "default"]})
    assert tables.to_latex(other, "c") == tables.to_latex(TABLE, "c")


@pytest.mark.parametrize(
    ("broken", "measures", "message"),
    [
        (BOARD.drop(columns="low"), MEASURES, "leaderboard: no column 'low'; expected run, measure, mean, low,"),
        (BOARD, {"rouge": "ROUGE"}, "leaderboard: no measure 'rouge'; it has rougeL_f1, bertscore_f1"),
        (pd.concat([BOARD, BOARD[:1]]), MEASURES, "two rows for the run 'rule-minilm' and the measure 'rougeL_f1'"),
    ],
)
def test_a_broken_leaderboard_is_refused_by_name(broken, measures, message):
    with pytest.raises(WorkbookError, match=re.escape(message)) as error:
        tables.main_table(broken, measures, {})
    assert "\n" not in str(error.value)


def test_markdown_by_hand():
    assert tables.to_markdown(TABLE, "Means over 47 queries; model a_b.") == (
        "| run | ROUGE-L | BERTScore |\n"
        "| :-- | --: | --: |\n"
        "| rule-minilm | **0.157** [0.142, 0.171] | **0.168** [0.150, 0.190] (40 of 47) |\n"
        "| a\\_b | 0.082 [0.070, 0.090] | −0.118 [−0.140, 0.000] |\n"
        "| no gold | – | – |\n"
        "| default | **0.147** [0.130, 0.160] | 0.146 |\n"
        "\n"
        "Means over 47 queries; model a\\_b.\n"
    )


def test_latex_by_hand():
    assert tables.to_latex(TABLE, "Means, 95 % intervals.", "tab:x") == (
        "% \\usepackage{booktabs}\n"
        "\\begin{table*}\n"
        "  \\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
        "  \\caption{Means, 95 \\% intervals.}\n"
        "  \\label{tab:x}\n"
        "  \\begin{tabular}{lcc}\n"
        "    \\toprule\n"
        "    Run & ROUGE-L & BERTScore \\\\\n"
        "    \\midrule\n"
        "    rule-minilm & \\textbf{0.157} & \\textbf{0.168} \\\\\n"
        "     & {\\scriptsize [0.142, 0.171]} & {\\scriptsize [0.150, 0.190] (40 of 47)} \\\\[3pt]\n"
        "    a\\_b & 0.082 & $-$0.118 \\\\\n"
        "     & {\\scriptsize [0.070, 0.090]} & {\\scriptsize [$-$0.140, 0.000]} \\\\[3pt]\n"
        "    no gold & -- & -- \\\\[3pt]\n"
        "    default & \\textbf{0.147} & 0.146 \\\\\n"
        "     & {\\scriptsize [0.130, 0.160]} &  \\\\[3pt]\n"
        "    \\bottomrule\n"
        "  \\end{tabular}\n"
        "\\end{table*}\n"
    )


def test_a_single_run_is_not_marked_and_a_measure_without_test_has_its_best_marked_alone():
    assert tables.main_table(board("a"), {"m": "M"}, {"m": {"a"}})["M"].tolist() == ["0.500 [0.400, 0.600]"]
    assert TABLE["BERTScore"].str.endswith("*").tolist() == [True, False, False, False]


def test_the_caption_states_interval_test_correction_and_measures():
    assert tables.caption(BOARD[:4], {"ROUGE-L": "rougeL_f1", "BERTScore": "bertscore_f1 (all-MiniLM-L6-v2)"}) == (
        "Means over 47 queries with 95 % bootstrap intervals. Bold: the best run of each column and every run that "
        "a paired sign-flip permutation test over the queries, Holm-corrected over all pairs of runs, does not "
        "distinguish from it at the level 0.05. In parentheses: how many of the queries a mean covers, where not "
        "all have a value. Measures: ROUGE-L rougeL_f1; BERTScore bertscore_f1 (all-MiniLM-L6-v2)."
    )


def test_the_caption_says_where_and_why_the_best_is_marked_alone():
    measures = {"A": "a", "B": "b", "C": "c"}
    some = tables.caption(board("x", "y"), measures, ["C", "A"])
    assert "at the level 0.05. In A, C, the best run is marked alone: with so few queries no test could tell" in some
    every = tables.caption(board("x", "y"), measures, measures)
    assert every == (
        "Means over 3 queries with 95 % bootstrap intervals. Bold: the best run of each column, marked alone: with so few "
        "queries no test could tell the others from it. Measures: A a; B b; C c."
    )


def test_the_caption_of_one_system_speaks_of_no_test_and_one_query_is_singular():
    one = pd.DataFrame([("a", "m", 0.5, 0.5, 0.5, 1, 1)], columns=tables.COLUMNS)
    assert tables.caption(one, {"M": "m"}) == "Means over 1 query with 95 % bootstrap intervals. Measures: M m."


def test_the_caption_speaks_of_parentheses_and_measures_only_where_there_are_any():
    assert tables.caption(board("a", "b"), {}).endswith("at the level 0.05.")
    assert tables.caption(BOARD[4:6], {}).endswith("at the level 0.05.")  # a run without a value, and one with all
    assert tables.caption(BOARD, {}).startswith("Means over 1 to 47 queries with")


@pytest.mark.parametrize(
    ("name", "markdown", "latex"),
    [
        ("a|b", "a\\|b", "a\\textbar{}b"),
        ("a\\|b", "a\\\\\\|b", "a\\textbackslash{}\\textbar{}b"),
        ("*a*_b_`c`", "\\*a\\*\\_b\\_\\`c\\`", "{*}a{*}\\_b\\_\\textasciigrave{}c\\textasciigrave{}"),
        ("<b>&amp;", "\\<b\\>\\&amp;", "\\textless{}b\\textgreater{}\\&amp;"),
        ("[a](b)", "\\[a\\](b)", "{[}a{]}(b)"),
        ("~~a~~", "\\~\\~a\\~\\~", "\\textasciitilde{}\\textasciitilde{}a\\textasciitilde{}\\textasciitilde{}"),
        ("50% $5 #1 {x} 2^3", "50% \\$5 #1 {x} 2^3", "50\\% \\$5 \\#1 \\{x\\} 2\\textasciicircum{}3"),
        ("\\input{x}", "\\\\input{x}", "\\textbackslash{}input\\{x\\}"),
        ("a--b---c ''", "a--b---c ''", "a-{}-b-{}-{}-c '{}'"),
        ("two\nlines\r\n\u2028\x00\x85end\t.", "two lines end .", "two lines end ."),
    ],
)
def test_names_are_escaped(name, markdown, latex):
    named = tables.main_table(board(name), {"m": name}, {})
    assert tables.to_markdown(named, name) == (
        f"| run | {markdown} |\n| :-- | --: |\n| {markdown} | 0.500 [0.400, 0.600] |\n\n{markdown}\n"
    )
    lines = tables.to_latex(named, name).splitlines()
    assert lines[3] == f"  \\caption{{{latex}}}"
    assert lines[7] == f"    Run & {latex} \\\\"
    assert lines[9] == f"    {latex} & 0.500 \\\\"
    assert len(lines) == 14


# What LaTeX may be given: plain characters, escaped ones, and commands that end in {}.
SAFE = re.compile(r"(?:[^\\&%$#_{}~^<>|`\[\]*\n]|\\[&%$#_{}]|\\[a-zA-Z]+\{\}|\{[\[\]*]\}|\{\})*")
NAMES = st.text(
    st.sampled_from("\\`*_[]<>|~$&#{}%^-'\", ab1\n\r\t\x00\u2028\u202e.−–…é") | st.characters(exclude_categories=["Cs"]),
    max_size=12,
)


@settings(deadline=None, max_examples=300)
@given(st.lists(NAMES, min_size=2, max_size=3, unique=True), NAMES)
def test_no_name_breaks_a_row_or_reaches_the_reader_unescaped(names, heading):
    table = tables.main_table(board(*names), {"m": heading}, {})
    markdown, latex = tables.to_markdown(table, heading), tables.to_latex(table, heading).splitlines()
    rows = markdown.split("\n")[: 2 + len(names)]
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3 for row in rows)
    assert len(markdown.splitlines()) == 2 + len(names) + 2
    assert len(latex) == 12 + 2 * len(names)
    for name, line in zip(names, latex[9::2], strict=False):
        cell = line.removeprefix("    ").removesuffix(" & \\textbf{0.500} \\\\")
        assert SAFE.fullmatch(cell), (name, cell)
    assert SAFE.fullmatch(latex[3].removeprefix("  \\caption{").removesuffix("}"))
