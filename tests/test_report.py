"""The report as a reader gets it: the file itself, and the page in a real browser."""

import base64
import csv
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lib import comparing, paths, report, scoring
from lib.errors import WorkbookError
from lib.measures import primary, supplementary
from lib.runs import pool_label, read_runs
from lib.score_tables import Score, write_scores
from lib.slices import Slice
from tests import test_explorer
from tests.browser import console, go, requested, screen, until
from tests.process import result
from tests.slice_files import put
from tests.test_explorer import raw, span, tiny, traced

swept = test_explorer.swept  # the fixture
CSS = "css selector"
HIT = "<img src=x onerror=window.hit=1>"
BAD = f"{HIT}</script><script>window.hit=1</script>\" ' &lt; {{{{ 7 * 7 }}}} \u202egnorw\u202c \u0001 end"
ASTRAL = "𝔘𝔫𝔦 🜁 "  # 6 characters, 10 UTF-16 units


@pytest.fixture(scope="session")
def scored(swept) -> Path:
    """The sweep with the scores that need no model, and everything that notebook 07 writes."""
    slice_ = Slice(swept / "slice")
    runs = read_runs(swept / "runs", slice_.queries)
    scores = [*primary.rouge_scores(runs, slice_.gold_answers()), *primary.citation_scores(runs, slice_.qrels())]
    write_scores(swept / "scores" / scoring.PRIMARY, scores)
    put(swept / "scores" / "primary.json", json.dumps({"pool": pool_label(runs)}))
    outside = [s for s in supplementary.citation_scores(runs, {}, slice_.queries) if s.measure == "unsupported_citations"]
    write_scores(swept / "scores" / scoring.SUPPLEMENTARY, outside)
    comparing.write(swept, comparing.compare(swept, comparing.systems(swept)))
    return swept


@pytest.fixture(scope="session")
def page(scored) -> Path:
    return report.write(scored)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory) -> Path:
    """A sweep in which every text that comes from outside is an attack, and one text begins beyond 16 bits."""
    folder = tmp_path_factory.mktemp("hostile")
    text = f"{ASTRAL}Before. {BAD} evidence {ASTRAL}after. The end."
    end = text.index("after.") + 6
    rows = [
        traced(f"q{BAD}", (f"Sentence {BAD}", [span(f"d1{HIT}", 15, end), span(f"d1{HIT}", 6, 14)]), status=BAD),
        traced("q2", ("Two sources.", [span(f"d1{HIT}", 0, 5), {"field": "title", "doc_id": "d2"}])),
    ]
    out = tiny(
        folder,
        [
            {"query_id": f"q{BAD}", "query": f"Query {BAD}", "doc_ids": [f"d1{HIT}", "d2"]},
            {"query_id": "q2", "query": "Second?", "doc_ids": ["d2", f"d1{HIT}"]},
        ],
        [
            {"id": f"d1{HIT}", "title": f"Title {BAD}", "text": text},
            {"id": "d2", "title": f"Other {BAD}", "text": "Short."},
        ],
        {f"a {HIT}": rows, "b": [traced(f"q{BAD}", (BAD, []))]},
        gold_answers__jsonl=json.dumps({"query_id": "q2", "answer": f"Gold {BAD}"}) + "\n",
    )
    runs = [f"a {HIT}", "b"]
    write_scores(out / "scores" / scoring.PRIMARY, [Score("q2", run, "rougeL_f1", 0.5, HIT, HIT, HIT) for run in runs])
    results(
        out,
        leaderboard=[[run, measure, 0.5, "", "", 1, 2] for run in runs for measure in ("rougeL_f1", HIT)],
        pairwise=[["rougeL_f1", *runs, 0.0, 0.0, 0.0, 1, 1, 0.1, 1, HIT], [HIT, *runs, "", "", "", "", "", "", 0, BAD]],
        noise_floor=[[HIT, HIT, 0.0, 0.0, 0.0, 2]],
        agreement=[[HIT, "rougeL_f1", "", "", "", "", "", "", 2, 0]],
        losses=[[f"q{BAD}", runs[0], f"d1{HIT}", HIT]],
    )
    return out


def results(out: Path, **tables: list[list]) -> None:
    """Files of results with the columns that the report reads."""
    for name, rows in tables.items():
        path = out / "results" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([report.COLUMNS[name], *rows])


def table_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------------- the file


def test_the_report_lies_in_results_and_is_the_same_for_the_same_files(scored, page):
    assert page == scored / "results" / "report.html"
    code = "import sys, hashlib, pathlib\nfrom lib import report\n"
    code += "print('\"' + hashlib.sha256(report.render(pathlib.Path(sys.argv[1])).encode()).hexdigest() + '\"')"
    digests = [result(code, str(scored), PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert digests == [hashlib.sha256(page.read_bytes()).hexdigest()] * 2


def test_the_report_holds_no_path_and_no_address(scored, page):
    text = page.read_text(encoding="utf-8")
    for folder in (scored, paths.PROJECT, Path.home()):
        assert str(folder) not in text
    assert "https:" not in text and "http:" not in text
    links = re.findall(r'\b(?:src|href|action|srcset|poster)="([^"]*)"', text)
    assert {link[:1] if link.startswith("#") else link[:19] for link in links} == {"#", "data:image/svg+xml;"}


def test_the_policy_allows_this_script_and_this_style_and_nothing_else(page):
    text = page.read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy).split(";"))
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": f"'sha256-{digest(style)}'",
        "script-src": f"'sha256-{digest(script)}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_a_folder_that_is_no_sweep_is_refused(tmp_path):
    with pytest.raises(WorkbookError, match="no sweep"):
        report.write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_sweep_does_not_have_is_said_in_words(tmp_path):
    out = test_explorer.small(tmp_path, a=[traced("q1")], b=[traced("q1")])
    text = report.write(out).read_text(encoding="utf-8")
    for words in (report.MISSING[name] for name in report.MISSING if name not in ("single", "changes")):
        assert html.escape(words).replace("&#x27;", "&#39;") in text
    assert text.count(report.MISSING["pairwise"]) == 1 and report.MISSING["single"] not in text
    results(out, losses=[["q1", "a", "d1", "not-used"]])
    assert report.MISSING["changes"] in report.render(out)
    assert text.count("not drawn yet") == len(report.FIGURES)


BROKEN = {
    "no number": (
        "noise_floor.csv",
        "measure,source,difference,low,high,n\nm,s,x,0,0,1\n",
        "csv:2: difference is no number",
    ),
    "no column": ("agreement.csv", "first,second\n", "csv:1: no column 'over_runs'"),
    "ragged row": ("wrongly_cited.csv", "query_id,run,doc_id\nq1,a,d1\nq1,a\n", "csv:3: the row has not as many cells"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_of_results_that_cannot_be_read_is_named_and_the_old_report_stays(name, tmp_path):
    file, text, message = BROKEN[name]
    out = test_explorer.small(tmp_path)
    before = report.write(out).read_bytes()
    put(out / "results" / file, text)
    with pytest.raises(WorkbookError, match=message):
        report.write(out)
    assert (out / "results" / "report.html").read_bytes() == before
    assert sorted(path.name for path in (out / "results").iterdir()) == sorted(["report.html", file])


def test_a_single_system_is_not_said_to_be_waiting_for_comparison(tmp_path):
    out = test_explorer.small(tmp_path)
    results(out, leaderboard=[["a", "rougeL_f1", 0.5, 0.5, 0.5, 1, 1]])
    text = report.render(out)
    assert text.count("There is only one system, so nothing to compare.") == 2  # among the findings and the pairs
    assert report.MISSING["pairwise"] not in text
    assert shades(out) == {"a": [""]} and "Shaded" not in text and "marked alone" not in text


def pair(first: str, second: str, difference: float, verdict: str, measure: str = "rougeL_f1", detectable=0.2) -> list:
    return [measure, first, second, difference, difference, difference, 0.01, 0.03, detectable, 9, verdict]


ALIKE = "not distinguishable"


def findings(tmp_path: Path, *pairs: list) -> str:
    """The finding's sentence, for three runs of which `a` has the highest mean."""
    out = test_explorer.small(tmp_path)
    measures = dict.fromkeys(row[0] for row in pairs)
    board = [[run, m, mean, mean, mean, 9, 9] for m in measures for run, mean in (("a", 0.9), ("b", 0.8), ("c", 0.1))]
    results(out, leaderboard=board, pairwise=list(pairs))
    text = report.write(out).read_text(encoding="utf-8")
    return html.unescape(re.search(r'<p class="finding">(.*?)</p>', text)[1])


def test_the_findings_say_that_nothing_is_distinguishable(tmp_path):
    pairs = [pair("a", "b", 0.1, ALIKE), pair("a", "c", 0.8, ALIKE), pair("b", "c", 0.7, ALIKE)]
    assert findings(tmp_path, *pairs) == (
        "No difference between two systems is distinguishable, on any of 1 measure and 3 comparisons: "
        "these queries support no order among the systems."
    )
    assert shades(tmp_path / "out") == {"a": ["best level"], "b": ["level"], "c": ["level"]}


def blank(measure: str = "rougeL_f1") -> list[list]:
    """Three pairs of which none could be told apart."""
    return [pair(*names, 0.1, ALIKE, measure, "") for names in (("a", "b"), ("a", "c"), ("b", "c"))]


def test_the_findings_say_that_no_difference_could_be_shown_and_only_the_best_is_marked(tmp_path):
    assert findings(tmp_path, *blank()) == (
        "No difference between two systems is distinguishable, on any of 1 measure and 3 comparisons: "
        "these queries support no order among the systems. "
        "Nor could they show any: 9 queries are too few for 3 pairs, however large a difference."
    )
    assert shades(tmp_path / "out") == {"a": ["best level"], "b": [""], "c": [""]}
    text = (tmp_path / "out" / "results" / "report.html").read_text(encoding="utf-8")
    assert (
        "its interval. The highest mean of a measure is marked alone: "
        "with so few queries no test could tell the others from it."
    ) in text
    assert text.count('<td class="n" data-value="">none</td>') == 3
    assert '<td class="n">none <small class="words">0 of 3 pairs could be shown at all</small>' in text


def test_a_pair_that_could_not_be_shown_stays_out_of_the_detectable_difference(tmp_path):
    pairs = [pair("a", "b", 0.1, ALIKE), pair("a", "c", 0.8, ALIKE, detectable=0.4), blank()[2]]
    assert "Nor could they" not in findings(tmp_path, *pairs, *blank("tfc1"))
    text = (tmp_path / "out" / "results" / "report.html").read_text(encoding="utf-8")
    assert '<td class="n">0.300 <small class="words">2 of 3 pairs could be shown at all</small>' in text
    assert "every system that no test tells from it. The highest mean of TFC1 is marked alone: with so few" in text
    assert shades(tmp_path / "out")["b"] == ["level", ""]


def test_the_findings_count_only_the_measures_that_were_tested(tmp_path):
    out = test_explorer.small(tmp_path)
    means = [
        [run, measure, mean, mean, mean, 9, 9] for measure in ("rougeL_f1", "tfc1") for run, mean in (("a", 1), ("b", 0))
    ]
    results(out, leaderboard=means, pairwise=[pair("a", "b", 1.0, "a higher")])
    told = report.contents(out, report.explorer.Pages(out))["findings"]
    assert told["words"].startswith("1 of 1 comparisons between two systems are distinguishable, on 1 of 1 measure, after ")
    assert [row["heading"] for row in told["rows"]] == ["ROUGE-L", "TFC1"]


def test_further_measures_mark_the_best_alone_and_none_where_more_is_not_better(tmp_path):
    out = test_explorer.small(tmp_path)
    measures = ("rougeL_f1", "cited_f1", "unsupported_citations")
    results(
        out,
        leaderboard=[[run, m, mean, mean, mean, 9, 9] for m in measures for run, mean in (("a", 0.9), ("b", 0.1))],
        pairwise=[pair("a", "b", 0.8, ALIKE)],
    )
    others = report.contents(out, report.explorer.Pages(out))["others"]
    assert [[cell["kind"] for cell in row["cells"]] for row in others["rows"]] == [["best level", ""], ["", ""]]
    assert others["words"] == (
        "Mean, and below it its interval. "
        "The highest mean of a measure is marked alone: no pair of systems was tested on it."
    )
    assert 'unsupported citations <small class="words">lower is better</small>' in report.render(out)
    results(out, leaderboard=[[run, "unsupported_citations", 1, 1, 1, 9, 9] for run in "ab"])
    assert report.contents(out, report.explorer.Pages(out))["others"]["words"] == "Mean, and below it its interval."


def test_nouns_are_counted():
    assert [report.counted(*given) for given in ((1, "query"), (8, "query"), (0, "system"))] == [
        "1 query",
        "8 queries",
        "0 systems",
    ]


def test_the_noise_floor_of_a_measure_is_the_far_end_of_its_intervals(tmp_path):
    out = test_explorer.small(tmp_path)
    results(
        out,
        leaderboard=[["a", "rougeL_f1", 0.5, 0.4, 0.6, 9, 9]],
        noise_floor=[["rougeL_f1", "a - b", 0.25, 0.1, 0.3, 9], ["rougeL_f1", "c: draw 2", -0.1, -0.375, 0.2, 9]],
    )
    assert report.contents(out, report.explorer.Pages(out))["findings"]["rows"][0]["noise"] == 0.375


def test_what_changes_between_stages_stands_under_the_losses(scored, page):
    rows = table_of(scored / "results" / "changes.csv")
    assert [(row["first"], row["second"]) for row in rows] == [
        ("official-naive-baseline", "single-query-bm25"),
        ("single-query-bm25", "rrf-no-rerank"),
    ]
    (section,) = re.findall(r'<section id="losses".*?</section>', page.read_text(encoding="utf-8"), re.DOTALL)
    shown = re.findall(r"<tr><th scope=\"row\"><bdi>(.*?)</bdi></th><td><bdi>(.*?)</bdi></td>(.*?)</tr>", section)
    assert [[first, second, *re.findall(r">(\d+)<", rest)] for first, second, rest in shown] == [
        list(row.values()) for row in rows
    ]


def test_a_figure_of_one_measure_names_it(scored):
    figures = report.contents(scored, report.explorer.Pages(scored))["figures"]
    named = {figure["name"] for figure in figures if figure["caption"].startswith("Measure: ROUGE-L. ")}
    assert named == {"leaderboard", "differences", "queries"}


def test_an_interval_is_said_to_be_of_its_pair_alone(page):
    words = "of this pair alone, not corrected, so it may exclude zero where the verdict is not distinguishable"
    assert page.read_text(encoding="utf-8").count(words) == 2  # the table and the forest plot


def test_runs_of_earlier_sweeps_are_named_on_the_page_and_not_counted(tmp_path):
    out = test_explorer.small(tmp_path, a=[traced("q1")], old=[traced("q1")])
    put(out / "variants" / "a.yaml", "name: a\n")
    text = report.render(out)
    assert "<h1>Comparison of 1 system on" in text
    assert '<p class="absent">Runs of earlier sweeps in this folder, not compared: old.</p>' in text


def test_systems_that_were_tuned_on_the_sample_are_named_on_the_sample_alone(scored, tmp_path):
    slice_, other = Slice(scored / "slice"), Slice(test_explorer.small(tmp_path) / "slice")
    rows = [{"run": "a", "description": "Plain."}, {"run": "b", "description": "Late. Tuned on the sample."}]
    assert report._tuned(slice_, rows) == "b was tuned on this slice: it favours them."
    assert report._tuned(slice_, rows[:1]) == report._tuned(other, rows) == ""


NAMES = {
    "plain": ("a", "variants/a.yaml", []),
    "space": ("a b", "'variants/a b.yaml'", []),
    "comma": ("a,b", "variants/a,b.yaml", ["variants/a,b.yaml"]),
    "PATH": ("my-PATH", "variants/my-PATH.yaml", []),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_command_holds_any_name_of_a_system(name, tmp_path, scored):
    run, spelt, commas = NAMES[name]
    put(tmp_path / "variants" / f"{run}.yaml", f"name: {run}\n")
    command, with_path, renamed = report._command(tmp_path, Slice(scored / "slice"))
    assert command == f"workbook sweep --slice sample --profile profile.yaml --variants {spelt} --out ../again"
    assert (with_path, renamed) == (False, commas)


def test_the_page_asks_for_a_path_where_one_is_to_be_filled_in_and_for_new_names(tmp_path):
    out = test_explorer.small(tmp_path, **{"a,b": [traced("q1")]})
    put(out / "variants" / "a,b.yaml", "name: 'a,b'\n")
    text = report.render(out)
    assert "--slice PATH/source " in text and "in place of PATH" in text
    assert "after renaming <code>variants/a,b.yaml</code>, since a comma ends a name" in text


def test_the_findings_say_how_many_differ_and_on_which_measures_none_does(tmp_path):
    pairs = [pair("a", "b", 0.1, ALIKE), pair("a", "c", 0.8, "a higher"), pair("b", "c", 0.7, "b higher")]
    others = [pair(*names, 0.1, ALIKE, "tfc1") for names in (("a", "b"), ("a", "c"), ("b", "c"))]
    assert findings(tmp_path, *pairs, *others) == (
        "2 of 6 comparisons between two systems are distinguishable, on 1 of 2 measures, after Holm's correction over the "
        "3 pairs of each measure; the measures are not corrected for one another, and the verdicts hold for this set of "
        "systems, which should be fixed before looking. "
        "On TFC1, no order among the systems can be read from these queries."
    )
    assert shades(tmp_path / "out") == {"a": ["best level", "best level"], "b": ["level", "level"], "c": ["", "level"]}


def shades(out: Path) -> dict[str, list[str]]:
    """What kind of cell each mean of the main table is."""
    board = report.contents(out, report.explorer.Pages(out))["main"]
    return {row["run"]: [cell["kind"] for cell in row["cells"]] for row in board["rows"]}


def test_numbers_are_rounded_and_a_missing_one_is_a_dash():
    values = (0.12345, -0.0001, -1.5, 2, None)
    assert list(map(report.fixed, values)) == ["0.123", "0.000", "-1.500", "2.000", "–"]
    assert list(map(report.p_value, (0.0004, 0.0006, 0.04999, 1.0, None))) == ["<0.001", "0.001", "0.050", "1.000", "–"]


def test_the_parameters_are_those_in_which_the_systems_differ(scored):
    systems = report.contents(scored, report.explorer.Pages(scored))["systems"]
    differ = {"retrieval", "query_expansion", "prf", "generator"}
    assert differ <= set(systems["names"])
    rows = {row["run"]: dict(zip(systems["names"], row["parameters"], strict=True)) for row in systems["rows"]}
    assert rows["single-query-bm25"]["retrieval"] == "bm25"
    assert rows["rrf-no-rerank"]["query_expansion"] == "true"
    assert rows["official-naive-baseline"]["generator"] == "titles"
    assert dict(systems["shared"])["bm25_k1"] == "1.5"
    assert not set(systems["names"]) & set(dict(systems["shared"]))


# ---------------------------------------------------------------------- the page in a browser


def evidence(out: Path, run: str, query_id: str) -> list[list[str]]:
    """The characters of `documents.jsonl` that each sentence of an answer rests on, by the provenance file."""
    texts = {row["doc_id"]: row["text"] for row in raw(out / "slice" / "documents.jsonl")}
    row = next(row for row in raw(out / "runs" / run / "provenance.jsonl") if row["query_id"] == query_id)
    return [[texts[s["doc_id"]][s["start"] : s["end"]] for s in sentence["sources"]] for sentence in row["sentences"]]


def marked(browser) -> list[str]:
    return [mark.get_property("textContent") for mark in browser.find_elements(CSS, "#explorer .text mark")]


def ready(browser) -> None:
    until(browser, lambda: browser.find_elements(CSS, "#explorer .question"))


def sentences(browser, side: str) -> list:
    return browser.find_elements(CSS, f"#explorer .answer.{side} .sentence")


def view(query_id: str, left: str, right: str, **more: str) -> str:
    from urllib.parse import urlencode

    return "#" + urlencode({"query": query_id, "left": left, "right": right, **more})


def active(browser, what: str = "textContent") -> str:
    return browser.execute_script(f"return document.activeElement.{what}")


def press(browser, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def tab_to(browser, css: str, most: int = 40) -> None:
    """Tab until what the keyboard is on matches."""
    for _ in range(most):
        press(browser, "\ue004")
        if browser.execute_script("return document.activeElement.matches(arguments[0])", css):
            return
    raise AssertionError(f"no {css} within {most} tabs")


def test_the_page_opens_without_a_word_in_the_console_and_without_a_request(browser, page):
    screen(browser, 1280)
    go(browser, page)
    ready(browser)
    for button in sentences(browser, "left")[:1]:
        button.click()
    until(browser, lambda: marked(browser) or browser.find_elements(CSS, "#explorer .name mark"))
    assert console(browser) == []
    assert requested(browser) == [page.as_uri()]
    assert browser.current_url.startswith(page.as_uri())


def test_every_sentence_leads_to_the_characters_that_the_files_name(browser, page, scored):
    query_id = Slice(scored / "slice").queries[3].query_id
    screen(browser, 1280)
    go(browser, page, view(query_id, "single-query-bm25", "rrf-no-rerank"))
    ready(browser)
    seen = 0
    for side, run in (("left", "single-query-bm25"), ("right", "rrf-no-rerank")):
        expected = evidence(scored, run, query_id)
        assert len(sentences(browser, side)) == len(expected) > 0
        for button, spans in zip(sentences(browser, side), expected, strict=True):
            button.click()
            until(browser, lambda spans=spans: marked(browser) == spans)
            assert button.get_attribute("aria-pressed") == "true"
            assert len(browser.find_elements(CSS, "#explorer .sentence[aria-pressed=true]")) == 1
            assert until(browser, lambda: in_sight(browser))
            seen += 1
    assert seen >= 4


def in_sight(browser) -> bool:
    """Whether the mark lies within its text's own window, and that within the screen."""
    return browser.execute_script(
        "const box = (e) => e.getBoundingClientRect(), mark = document.querySelector('#explorer .text mark');"
        "const [m, t] = [box(mark), box(mark.closest('.text'))];"
        "return m.top >= t.top && m.top < t.bottom && m.top >= 0 && m.top < innerHeight;"
    )


def test_a_sentence_that_rests_on_a_title_marks_the_title(browser, page, scored):
    query = Slice(scored / "slice").queries[0]
    titles = {row["doc_id"]: row["title"] for row in raw(scored / "slice" / "documents.jsonl")}
    go(browser, page, view(query.query_id, "official-naive-baseline", "rrf-no-rerank"))
    ready(browser)
    sentences(browser, "left")[4].click()
    mark = until(browser, lambda: browser.find_element(CSS, "#explorer .name mark"))
    assert mark.text == titles[query.doc_ids[4]]
    assert "candidate 5 of 10" in browser.find_element(CSS, "#explorer .content .about").text


def test_the_keyboard_alone_does_the_same(browser, page, scored):
    query_id = Slice(scored / "slice").queries[0].query_id
    screen(browser, 1280)
    go(browser, page)
    ready(browser)
    left = browser.find_element(CSS, "#explorer .answer.left bdi").text
    expected = evidence(scored, left, query_id)
    press(browser, "\ue004", "\ue004")
    assert active(browser) == "Skip to the explorer"
    press(browser, "\ue007")
    tab_to(browser, "#explorer .sentence")
    press(browser, "\ue007")
    until(browser, lambda: marked(browser) == expected[0])
    assert active(browser, "className") == "sentence"
    spoken = until(browser, lambda: browser.find_element(CSS, "#explorer > [role=status]").get_property("textContent"))
    assert spoken.startswith("Document ") and spoken.endswith(f"Evidence: {expected[0][0]}")
    press(browser, "\ue015", "\ue007")  # down, enter
    until(browser, lambda: marked(browser) == expected[1])
    press(browser, "\ue004")
    assert active(browser) == "Go to the document"
    press(browser, "\ue007")
    assert active(browser) == browser.find_element(CSS, "#explorer .name").text
    press(browser, "\ue00c")  # escape
    assert active(browser, "dataset.number") == "1"
    press(browser, " ")
    until(browser, lambda: not marked(browser))


def test_every_stop_of_the_keyboard_can_be_seen(browser, page):
    screen(browser, 1280)
    go(browser, page, "#explore")
    ready(browser)
    for _ in range(12):
        press(browser, "\ue004")
        style = browser.execute_script(
            "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseFloat(s.outlineWidth)];"
        )
        assert style[0] != "none" and style[1] >= 2


def test_two_systems_stand_side_by_side_with_their_scores(browser, page, scored):
    query_id = Slice(scored / "slice").queries[1].query_id
    screen(browser, 1280)
    go(browser, page, view(query_id, "official-naive-baseline", "single-query-bm25"))
    ready(browser)
    left, right = (browser.find_element(CSS, f"#explorer .answer.{side}") for side in ("left", "right"))
    assert left.rect["y"] == right.rect["y"] and left.rect["x"] < right.rect["x"]
    rows = table_of(scored / "scores" / "primary.csv")
    value = {(r["run"], r["measure"]): float(r["value"]) for r in rows if r["query_id"] == query_id and r["value"]}
    shown = [
        [cell.text for cell in row.find_elements(CSS, "th, td")]
        for row in browser.find_elements(CSS, "#explorer .scores tbody tr")
    ]
    names = {"ROUGE-L": "rougeL_f1", "cited precision": "cited_precision", "cited recall": "cited_recall"}
    assert [row[0] for row in shown] == list(names)
    for name, *cells, words in shown:
        a, b = (value[run, names[name]] for run in ("official-naive-baseline", "single-query-bm25"))
        assert cells == [f"{a:.3f}", f"{b:.3f}"]
        assert words == ("equal" if a == b else f"{'left' if a > b else 'right'} by {abs(a - b):.3f}")


def test_another_system_takes_the_place_of_one_and_the_address_keeps_the_view(browser, page, scored):
    from selenium.webdriver.support.select import Select

    query = Slice(scored / "slice").queries[0]
    screen(browser, 1280)
    go(browser, page)
    ready(browser)
    assert "#" not in browser.current_url
    Select(browser.find_element(CSS, "#explorer .field.left select")).select_by_visible_text("rrf-no-rerank")
    until(browser, lambda: browser.find_element(CSS, "#explorer .answer.left bdi").text == "rrf-no-rerank")
    sentences(browser, "left")[1].click()
    expected = evidence(scored, "rrf-no-rerank", query.query_id)[1]
    until(browser, lambda: marked(browser) == expected)
    kept = browser.current_url.partition("#")[2]
    go(browser, page, f"#{kept}")
    until(browser, lambda: marked(browser) == expected)
    assert browser.find_element(CSS, "#explorer .answer.left bdi").text == "rrf-no-rerank"
    assert browser.execute_script("return document.getElementById('explore').getBoundingClientRect().top") < 100


def test_an_address_that_names_what_is_not_there_is_answered_in_words(browser, page):
    go(browser, page, view("nowhere", "nobody", "rrf-no-rerank", sentence="left-99"))
    ready(browser)
    note = until(browser, lambda: browser.find_element(CSS, "#explorer .page .note"))
    assert note.text == "Not here: query nowhere, system nobody."
    assert console(browser) == []


def test_queries_are_found_by_their_words_and_stepped_through(browser, page, scored):
    queries = Slice(scored / "slice").queries
    go(browser, page)
    ready(browser)
    question = lambda: browser.find_element(CSS, "#explorer .question").text  # noqa: E731
    buttons = browser.find_elements(CSS, "#explorer .controls button")
    buttons[1].click()
    until(browser, lambda: question() == queries[1].text)
    buttons[0].click()
    until(browser, lambda: question() == queries[0].text)
    buttons[0].click()  # there is none before the first
    word = max(queries[5].text.rstrip("?").split(), key=len)
    hits = [query for query in queries if word.lower() in query.text.lower()]
    browser.find_element(CSS, "#explorer input").send_keys(word.upper())
    assert browser.find_element(CSS, "#explorer .count").text == f"{len(hits)} of {len(queries)} queries match"
    press(browser, "\ue007")
    until(browser, lambda: question() == hits[0].text)


def test_queries_are_ordered_by_the_difference_of_the_two_systems(browser, page, scored):
    from selenium.webdriver.support.select import Select

    ids = [query.query_id for query in Slice(scored / "slice").queries]
    go(browser, page, view(ids[0], "rrf-no-rerank", "official-naive-baseline"))
    ready(browser)
    Select(browser.find_element(CSS, "#explorer .field.order select")).select_by_value("rougeL_f1")
    rows = [row for row in table_of(scored / "scores" / "primary.csv") if row["measure"] == "rougeL_f1"]
    value = {(row["run"], row["query_id"]): float(row["value"]) for row in rows}
    difference = {q: value["rrf-no-rerank", q] - value["official-naive-baseline", q] for q in ids}
    expected = sorted(ids, key=lambda q: -difference[q])
    options = lambda: browser.find_elements(CSS, "#explorer .field.query option")  # noqa: E731
    until(browser, lambda: [option.get_attribute("value") for option in options()] == expected)
    assert options()[0].text.startswith(f"{difference[expected[0]]:+.3f} · {ids.index(expected[0]) + 1}. ")


def test_a_candidate_opens_with_all_that_both_answers_rest_on(browser, page, scored):
    query = Slice(scored / "slice").queries[0]
    runs = ("rrf-no-rerank", "single-query-bm25")
    rows = {run: raw(scored / "runs" / run / "provenance.jsonl")[0]["sentences"] for run in runs}
    doc_id = rows[runs[0]][0]["sources"][0]["doc_id"]
    sources = [source for run in runs for sentence in rows[run] for source in sentence["sources"]]
    spans = sorted({(s["start"], s["end"]) for s in sources if s["doc_id"] == doc_id})
    text = Slice(scored / "slice").document(doc_id).text
    go(browser, page, view(query.query_id, *runs))
    ready(browser)
    browser.find_elements(CSS, "#explorer .candidates .title")[query.doc_ids.index(doc_id)].click()
    until(browser, lambda: marked(browser) == [text[start:end] for start, end in spans])


# ---------------------------------------------------------------------- tables


def cells(browser, table: str, column: int) -> list[str]:
    """The first line of each visible cell of a column."""
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => row.cells[arguments[1]].innerText.split('\\n')[0].trim())",
        table,
        column,
    )


def test_the_main_table_holds_the_leaderboard_and_sorts(browser, page, scored):
    board = [row for row in table_of(scored / "results" / "leaderboard.csv") if row["measure"] == "rougeL_f1"]
    go(browser, page)
    ready(browser)
    assert cells(browser, "#means > .board", 0) == [row["run"] for row in board]
    assert cells(browser, "#means > .board", 1) == [f"{float(row['mean']):.3f}" for row in board]
    means = {row["run"]: float(row["mean"]) for row in board}
    head = browser.find_element(CSS, "#means > .board thead th:nth-child(2)")
    assert head.get_attribute("aria-sort") is None
    head.find_element(CSS, "button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert cells(browser, "#means > .board", 0) == sorted(means, key=lambda run: -means[run])
    head.find_element(CSS, "button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert cells(browser, "#means > .board", 0) == sorted(means, key=lambda run: means[run])
    name = browser.find_element(CSS, "#means > .board thead th:first-child")
    name.find_element(CSS, "button").click()
    assert (name.get_attribute("aria-sort"), head.get_attribute("aria-sort")) == ("ascending", None)
    assert cells(browser, "#means > .board", 0) == sorted(means)


def test_pairs_are_filtered_by_measure_and_by_verdict(browser, tmp_path):
    from selenium.webdriver.support.select import Select

    pairs = [pair("a", "b", 0.1, ALIKE), pair("a", "c", 0.8, "a higher"), pair("b", "c", 0.7, "b higher")]
    findings(tmp_path, *pairs, *(pair(*names, 0.1, ALIKE, "tfc1") for names in (("a", "b"), ("a", "c"), ("b", "c"))))
    screen(browser, 1280)
    go(browser, tmp_path / "out" / "results" / "report.html")
    ready(browser)
    form = browser.find_element(CSS, "#pairwise form")
    verdicts = lambda: cells(browser, "#pairs", 8)  # noqa: E731
    assert verdicts() == [ALIKE, "a higher", "b higher"]
    assert form.find_element(CSS, ".count").text == "2 of 3 pairs are distinguishable."
    form.find_element(CSS, "input").click()
    assert verdicts() == ["a higher", "b higher"]
    Select(form.find_element(CSS, "select")).select_by_visible_text("TFC1")
    assert verdicts() == []
    assert form.find_element(CSS, ".count").text == "0 of 3 pairs are distinguishable."
    Select(form.find_element(CSS, "select")).select_by_visible_text("all measures")
    form.find_element(CSS, "input").click()
    assert len(verdicts()) == 6
    assert cells(browser, "#pairs", 4)[0] == "0.010" and cells(browser, "#pairs", 5)[0] == "0.030"
    first, second = (Select(form.find_element(CSS, f"[name={name}]")) for name in ("first", "second"))
    assert [option.text for option in first.options] == ["any system", "a", "b", "c"]
    first.select_by_visible_text("b")
    both = lambda: list(zip(*(cells(browser, "#pairs", column) for column in (1, 2)), strict=True))  # noqa: E731
    assert both() == [("a", "b"), ("b", "c")] * 2
    second.select_by_visible_text("a")
    assert both() == [("a", "b")] * 2
    assert form.find_element(CSS, ".count").text == "0 of 2 pairs are distinguishable."


def test_a_mean_that_has_no_value_stays_below_whatever_the_order(browser, tmp_path):
    out = test_explorer.small(tmp_path)
    means = {"a": 0.2, "b": "", "c": -0.5}
    results(out, leaderboard=[[run, "tfc1", mean, mean, mean, 1, 1] for run, mean in means.items()])
    go(browser, report.write(out))
    ready(browser)
    for order in (["a", "c", "b"], ["c", "a", "b"]):
        browser.find_element(CSS, "#means thead th:nth-child(2) button").click()
        assert cells(browser, "#means > .board", 0) == order
    assert cells(browser, "#means > .board", 1) == ["-0.500", "0.200", "–"]


# ---------------------------------------------------------------------- readers and screens

# Contrast of every visible text with what it stands on (WCAG 2.2, 1.4.3): those below 4.5, or 3 for large text.
CONTRAST = r"""
const channel = (c) => (c /= 255, c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const ground = (e) => {
    for (; e; e = e.parentElement) {
        const colour = rgba(getComputedStyle(e).backgroundColor);
        if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
};
const found = new Set();
let seen = 0;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility()) continue;
    if (e.closest("script, style, .unseen, .skip, .jump")) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(rgba(style.color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) found.add(`${e.tagName}.${e.className} ${ratio.toFixed(2)}`);
}
return [seen, [...found]];
"""
# What a screen reader trips over: each line is a fault.
FAULTS = r"""
const found = [];
const all = (css) => [...document.querySelectorAll(css)];
const shown = (e) => e.checkVisibility();
let before = 0;
for (const e of all("h1, h2, h3, h4, h5, h6").filter(shown)) {
    const level = Number(e.tagName[1]);
    if (level > before + 1) found.push(`heading ${e.textContent} jumps to ${level}`);
    before = level;
}
const ids = all("[id]").map((e) => e.id);
for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) found.push(`two of id ${id}`);
for (const name of ["aria-controls", "aria-labelledby", "for"]) {
    for (const e of all(`[${name}]`)) if (!document.getElementById(e.getAttribute(name))) found.push(`${name} to nothing`);
}
for (const e of all("button, a")) if (!e.textContent.trim()) found.push("a button or link without a name");
for (const e of all("select, input")) if (!e.labels.length) found.push("a field without a label");
for (const e of all("img")) if (!e.alt) found.push("an image without words");
for (const e of all("table")) if (!e.caption) found.push("a table without a caption");
for (const e of all("th")) if (!e.scope) found.push("a heading cell without a scope");
for (const e of all("[role=region], section")) {
    if (!e.ariaLabel && !e.getAttribute("aria-labelledby")) found.push("a region without a name");
}
for (const e of all("*")) {
    const scrolls = e.scrollWidth > e.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
    if (scrolls && e.tabIndex < 0 && shown(e) && e.tagName !== "PRE") found.push(`${e.className} scrolls and has no stop`);
}
if (all("main").length !== 1 || !all("nav[aria-label]").length || !all("header").length) found.push("landmarks");
if (!document.documentElement.lang) found.push("no language");
return found;
"""
OVERFLOW = "return document.scrollingElement.scrollWidth - innerWidth"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_stand_out_from_their_ground(scheme, browser, page, scored):
    query_id = Slice(scored / "slice").queries[0].query_id
    screen(browser, 1280, scheme=scheme)
    for given in ({"sentence": "left-1"}, {"sentence": "right-1"}):
        go(browser, page, view(query_id, "rrf-no-rerank", "official-naive-baseline", **given))
        until(browser, lambda: browser.find_elements(CSS, "#explorer .content mark"))
        browser.execute_script("for (const e of document.querySelectorAll('details')) e.open = true")
        seen, faint = browser.execute_script(CONTRAST)
        assert seen > 300
        assert faint == []
    dark = browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", dark)[:3])) < 200) == (scheme == "dark")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_fits_the_screen_and_has_what_a_screen_reader_needs(width, browser, page, scored):
    query_id = Slice(scored / "slice").queries[0].query_id
    screen(browser, width)
    go(browser, page, view(query_id, "rrf-no-rerank", "official-naive-baseline", sentence="left-1"))
    until(browser, lambda: marked(browser))
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script(OVERFLOW) <= 0
    browser.execute_script("for (const e of document.querySelectorAll('details')) e.open = true")
    assert browser.execute_script(OVERFLOW) <= 0
    assert browser.execute_script(FAULTS) == []
    left, right = (browser.find_element(CSS, f"#explorer .answer.{side}").rect for side in ("left", "right"))
    assert (left["y"] < right["y"]) == (width == 360)


LONG = "late-consensus+passage_max_words=220+passage_overlap=2"  # what a grid calls a system


def test_long_names_of_systems_leave_room_for_the_data(browser, tmp_path):
    out = test_explorer.small(tmp_path, **{run: [traced("q1")] for run in (LONG, f"{LONG}0")})
    scores = {"rougeL_f1": 0.25, "bertscore_f1[all-MiniLM-L6-v2]": -1.0, "cited_precision": 0.0, "completeness[proxy]": 0.5}
    rows = [Score("q1", run, m, v + n) for n, run in enumerate((LONG, f"{LONG}0")) for m, v in scores.items()]
    write_scores(out / "scores" / scoring.PRIMARY, rows)
    results(out, leaderboard=[[row.run, row.measure, row.value, row.value, row.value, 1, 1] for row in rows])
    page = report.write(out)
    for width in (360, 1280):
        screen(browser, width)
        go(browser, page, view("q1", LONG, f"{LONG}0"))
        until(browser, lambda: browser.find_elements(CSS, "#explorer .scores"))
        table = "const e = document.querySelector('#explorer .scores'); return e.scrollWidth - e.clientWidth"
        assert browser.execute_script(table) == 0
        assert browser.find_element(CSS, "#explorer .scores tbody tr:nth-child(3) .higher").text == "right by 1.000"
        assert browser.execute_script(OVERFLOW) <= 0
    screen(browser, 360)
    name, value = (browser.find_element(CSS, f"#means .board tbody tr > :nth-child({n})").rect for n in (1, 2))
    assert 100 < name["width"] <= 0.5 * 360
    assert value["x"] + value["width"] < 360


def test_without_scores_the_explorer_works_and_says_what_is_missing(browser, tmp_path):
    screen(browser, 1280)
    go(browser, report.write(test_explorer.small(tmp_path)))
    ready(browser)
    sentences(browser, "left")[0].click()
    until(browser, lambda: marked(browser) == ["Ice creeps."])
    assert browser.find_elements(CSS, "#explorer .scores, #explorer .field.order") == []
    assert "no scores yet" in browser.find_element(CSS, "#explorer .note").text
    browser.find_elements(CSS, "#explorer .controls button")[1].click()
    note = until(browser, lambda: browser.find_element(CSS, "#explorer .answer.left .note"))
    assert note.text == "no answer: the run has no record of this query"
    assert browser.execute_script(FAULTS) == []
    assert console(browser) == []


# ---------------------------------------------------------------------- hostile input


def test_nothing_that_comes_from_files_becomes_markup(browser, hostile):
    page = report.write(hostile)
    screen(browser, 360)
    go(browser, page)
    ready(browser)
    for side in ("left", "right"):
        for button in sentences(browser, side):
            button.click()
            until(browser, lambda: browser.find_elements(CSS, "#explorer .content > *"))
    browser.find_elements(CSS, "#explorer .candidates .title")[1].click()
    browser.execute_script("for (const e of document.querySelectorAll('details')) e.open = true")
    assert browser.execute_script("return window.hit") is None
    assert browser.find_elements(CSS, "img, #explorer script, iframe") == []
    assert len(browser.find_elements(CSS, "script[type=module], script:not([type])")) == 1
    assert console(browser) == []
    assert requested(browser) == [page.as_uri()]
    assert browser.execute_script(OVERFLOW) <= 0
    assert browser.execute_script(FAULTS) == []
    slice_ = Slice(hostile / "slice")
    shown = lambda css: browser.find_element(CSS, css).get_property("textContent")  # noqa: E731
    assert shown("#explorer .question") == slice_.queries[0].text
    title = slice_.document(slice_.queries[0].doc_ids[0]).title
    assert shown("#explorer .candidates tbody tr:nth-child(1) button") == title
    assert shown("#explorer .answer.left bdi") == f"a {HIT}"


def test_offsets_count_characters_even_beyond_sixteen_bits(browser, hostile):
    query = Slice(hostile / "slice").queries[0]
    text = Slice(hostile / "slice").document(query.doc_ids[0]).text
    end = text.index("after.") + 6
    assert text[6:14] == "Before. " and not text[:6].isascii()
    go(browser, report.write(hostile), view(query.query_id, f"a {HIT}", "b", sentence="left-1"))
    until(browser, lambda: marked(browser) == ["Before. ", text[15:end]])
    whole = browser.find_element(CSS, "#explorer .text").get_property("textContent")
    assert whole == text


def test_each_source_of_a_sentence_has_its_tab(browser, hostile):
    go(browser, report.write(hostile), view("q2", f"a {HIT}", "b", sentence="left-1"))
    until(browser, lambda: marked(browser) == [f"{ASTRAL}"[:5]])
    tabs = browser.find_elements(CSS, "#explorer [role=tab]")
    assert [(tab.text, tab.get_attribute("aria-selected")) for tab in tabs] == [
        ("Document 2", "true"),
        ("Document 1", "false"),
    ]
    browser.execute_script("arguments[0].focus()", tabs[0])
    press(browser, "\ue014")  # right
    until(browser, lambda: browser.find_elements(CSS, "#explorer .name mark"))
    assert active(browser) == "Document 1"
    assert [tab.get_attribute("aria-selected") for tab in tabs] == ["false", "true"]
    title = Slice(hostile / "slice").document("d2").title
    assert browser.find_element(CSS, "#explorer .name mark").get_property("textContent") == title
    assert marked(browser) == []


def test_the_index_cannot_close_its_element(hostile):
    text = report.render(hostile)
    (block,) = re.findall(r"<script type=\"application/json\" data-explorer>(.*?)</script>", text, re.DOTALL)
    assert not set("<>&") & set(block)
    index: dict[str, Any] = json.loads(block)
    assert index["runs"] == sorted([f"a {HIT}", "b"])
    assert index["queries"][0]["text"] == Slice(hostile / "slice").queries[0].text
