"""The notebooks in a real JupyterLab, in a real Chromium that does what a reader does.

JupyterLab serves copies in a temporary folder, so that nothing that it saves reaches the repository. In a copy
the outputs are taken out, so that whatever is there at the end was made there, and the default of `sweep_dir`
becomes a temporary folder, so that whatever a notebook writes stays outside as well.
"""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import psutil
import pytest

from lib import notebooks, paths, slices, steps, sweep, tasks, variants
from tests.browser import console, requested, screen, until

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: nothing drives the browser")

ALL = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
names = pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
PAGE, RUN = 60, 600  # seconds to wait for a page, and for all cells of a notebook
CSS = "css selector"
KINDS = {"images": "image/png", "tables": "text/html"}
QUIET = {"fetchNews": "false", "checkForUpdates": False}  # else JupyterLab asks whether it may go online for news

# What a reader sees of the open notebook: the kernel's state in the status bar, the prompts of the code cells, dialogs.
STATE = r"""
const all = (css) => [...document.querySelectorAll(css)];
return {
    idle: all(".jp-StatusBar-Left").some((e) => / \| Idle$/.test(e.textContent)),
    cells: all(".jp-Notebook .jp-Cell").length,
    prompts: all(".jp-CodeCell .jp-InputPrompt").map((e) => e.textContent),
    unsaved: all(".lm-TabBar-tab.jp-mod-dirty").length > 0,
    dialogs: all(".jp-Dialog").map((e) => e.innerText),
};
"""
# What a code cell shows: its images and tables in pixels, and what should not be there: text in red, a widget that did
# not come, an output wider than its place.
SHOWN = r"""
const cell = document.querySelectorAll(".jp-CodeCell")[arguments[0]];
cell.scrollIntoView();
const all = (css) => [...cell.querySelectorAll(css)];
const size = (e) => [e.offsetWidth, e.offsetHeight];
const text = (elements) => elements.map((e) => e.textContent);
const outputs = all(".jp-OutputArea-output");
return {
    images: all(".jp-OutputArea-output img").map((e) => e.naturalWidth ? size(e) : [0, 0]),
    tables: all(".jp-OutputArea-output table").map(size),
    red: text(all('[data-mime-type$="jupyter.stderr"], [data-mime-type$="jupyter.error"]')),
    lost: text(outputs).filter((words) => /Loading widget|Error displaying widget/.test(words)),
    cut: text(outputs.filter((e) => e.scrollWidth > e.clientWidth + 1)),
};
"""


class Lab(NamedTuple):
    """A running JupyterLab: its address, its token, the folder that it serves, and its log."""

    url: str
    token: str
    folder: Path
    log: Path


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):  # after `browser`: where there is none, no server is started
    home = tmp_path_factory.mktemp("lab")
    folder, log, token = home / "served", home / "server.log", secrets.token_hex(16)
    folder.mkdir()
    settings = home / "config/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    paths.write_text(settings, json.dumps(QUIET))
    process = started(home, folder, token, log)
    try:
        yield Lab(address(process, home / "runtime", log), token, folder, log)
    finally:
        ended(process)


def started(home: Path, folder: Path, token: str, log: Path) -> subprocess.Popen:
    """JupyterLab of the same environment, without the settings and the running servers of whoever tests."""
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", f"--ServerApp.root_dir={folder}"]
    own = {f"JUPYTER_{kind.upper()}_DIR": str(home / kind) for kind in ("config", "data", "runtime")}
    environment = {**os.environ, **own, "IPYTHONDIR": str(home / "ipython")}
    environment.pop("MPLBACKEND", None)  # the tests' own backend shows nothing in a notebook
    with open(log, "w") as lines:
        return subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options, f"--IdentityProvider.token={token}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=lines,
            start_new_session=True,
        )


def address(process: subprocess.Popen, runtime: Path, log: Path) -> str:
    """Where the server listens: it takes a free port and writes the address to a file."""
    deadline = time.monotonic() + PAGE
    while time.monotonic() < deadline and process.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            if text := file.read_text(encoding="utf-8"):
                return json.loads(text)["url"]
        time.sleep(0.05)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def ended(process: subprocess.Popen) -> None:
    """End the server with all that it started; a kernel is in a process group of its own."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for left in psutil.wait_procs(family, timeout=5)[1]:
        left.kill()


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """The sweep folder of all notebooks, which find there what those before them wrote."""
    return tmp_path_factory.mktemp("outputs") / "smoke"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, embedded) -> Path:
    """A sweep of two systems that need no vectors."""
    out = tmp_path_factory.mktemp("finished") / "out"
    systems = variants.load_variants(["single-query-bm25", "rrf-no-rerank"])
    sweep.prepare_folder(tasks.Plan(out, "sample", systems, embedded))
    steps.need_runs(out, steps.need_slice(out), systems, embedded)
    return out


@pytest.fixture(autouse=True)
def server_log(lab):
    """Print what the server says during a test; pytest shows it where the test fails."""
    before = lab.log.stat().st_size
    yield
    print(lab.log.read_bytes()[before:].decode(errors="replace"))


def scratch_copy(path: Path, folder: Path, outputs: Path) -> Path:
    """A notebook without outputs, whose results go to another folder by default."""
    default = notebooks.parameters(path)["sweep_dir"]
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = cell.source.replace(json.dumps(default), json.dumps(str(outputs)), 1)
    copy = folder / path.name
    nbformat.write(notebook, copy)
    assert notebooks.parameters(copy) == notebooks.parameters(path) | {"sweep_dir": str(outputs)}
    return copy


def new_notebook(path: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@contextmanager
def opened(browser, lab: Lab, path: Path):
    """A notebook of the served folder in the browser, with its kernel; both are left at the end."""
    cells = len(nbformat.read(path, as_version=4).cells)
    screen(browser, 1400, 1000)
    for log in (console, requested):
        log(browser)  # what was logged before is not this notebook's
    browser.get(f"{lab.url}lab/tree/{path.name}?reset&token={lab.token}")
    try:
        until(browser, lambda: (now := state(browser))["idle"] and now["cells"] == cells, PAGE)
        yield
    except Exception as error:
        browser.save_screenshot(str(path.with_suffix(".png")))
        error.add_note(f"the page, also in {path.with_suffix('.png')}: {browser.execute_script(STATE)}")
        raise
    finally:
        browser.get("about:blank")
        for session in api(lab, "GET", "sessions"):
            api(lab, "DELETE", f"sessions/{session['id']}")


def api(lab: Lab, method: str, what: str) -> Any:
    headers = {"Authorization": f"token {lab.token}"}
    with urllib.request.urlopen(urllib.request.Request(f"{lab.url}api/{what}", None, headers, method=method)) as reply:
        return json.loads(reply.read() or "null")


def state(browser) -> dict[str, Any]:
    """The page's state; a dialog, such as the one about a kernel that died, waits for a reader and is a failure."""
    found = browser.execute_script(STATE)
    assert found["dialogs"] == []
    return found


def run_all(browser) -> None:
    """Run > Run All Cells, until the kernel has nothing left to do."""
    menu = browser.find_elements(CSS, "#jp-MainMenu .lm-MenuBar-item")
    next(item for item in menu if item.text == "Run").click()
    until(browser, lambda: browser.find_element(CSS, '.lm-Menu-item[data-command="runmenu:run-all"]'), PAGE).click()
    until(browser, lambda: (now := state(browser))["idle"] and has_run(now["prompts"]), RUN)


def has_run(prompts: list[str]) -> bool:
    """Whether some cells have numbers and none waits; after an error the rest neither waits nor has a number."""
    return any(prompt.strip("[]:").isdigit() for prompt in prompts) and "[*]:" not in prompts


def save(browser, path: Path):
    """The notebook as saved with Ctrl+S."""
    keys = webdriver.ActionChains(browser).key_down(webdriver.Keys.CONTROL).send_keys("s")
    keys.key_up(webdriver.Keys.CONTROL).perform()
    until(browser, lambda: not state(browser)["unsaved"], PAGE)
    return nbformat.read(path, as_version=4)


def errors_of(notebook) -> list[str]:
    return [f"{o.ename}: {o.evalue}" for c in code_cells(notebook) for o in c.outputs if o.output_type == "error"]


def said(cell) -> tuple[str, list[str]]:
    """What a cell printed, and the plain text of its results."""
    printed = "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
    return printed, [o.data["text/plain"] for o in cell.outputs if "text/plain" in o.get("data", {})]


def has(cell, kind: str) -> bool:
    return any(kind in output.get("data", {}) for output in cell.outputs)


def visible(sizes: list[list[int]]) -> bool:
    return bool(sizes) and all(width > 20 and height > 20 for width, height in sizes)


def faults(browser, number: int, kept) -> list[str]:
    """What a reader misses in a code cell that committed outputs have, and what disturbs there."""
    shown = browser.execute_script(SHOWN, number)
    missing = {kind: has(kept, mime) and not visible(shown[kind]) for kind, mime in KINDS.items()}
    found = [f"{kind} not visible: {shown[kind]}" for kind, is_so in missing.items() if is_so]
    return found + [f"{what}: {words}" for what in ("red", "lost", "cut") for words in shown[what]]


def settled(look: Callable[[], list[str]], seconds: float = 10) -> list[str]:
    """What is found in the end: an image or a widget may come a moment after the kernel is idle."""
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def asked_elsewhere(browser, lab: Lab) -> list[str]:
    """Addresses beyond the server that the page asked for; `blob:` is text that the page holds itself."""
    return [url for url in requested(browser) if not url.startswith((lab.url, f"blob:{lab.url}", "about:"))]


@names
def test_a_notebook_runs_in_jupyterlab_and_says_what_is_committed(path, lab, browser, outputs):
    before, committed = path.read_bytes(), code_cells(nbformat.read(path, as_version=4))
    copy = scratch_copy(path, lab.folder, outputs)
    with opened(browser, lab, copy):
        run_all(browser)
        notebook = save(browser, copy)
        assert errors_of(notebook) == []
        cells = code_cells(notebook)
        assert [cell.execution_count for cell in cells] == [*range(1, len(committed) + 1)]
        for number, (cell, kept) in enumerate(zip(cells, committed, strict=True)):
            assert (number, settled(lambda n=number, kept=kept: faults(browser, n, kept))) == (number, [])
            if "nbval-check-output" in kept.metadata.get("tags", []):
                assert said(cell) == said(kept)
        assert console(browser) == []
        assert asked_elsewhere(browser, lab) == []
    assert (outputs / "slice" / "slice.json").exists()
    assert path.read_bytes() == before


def evidence(sweep: Path, run: str, query_id: str) -> list[tuple[str, list[str]]]:
    """The sentences of an answer, each with the characters that it rests on, from the files alone."""
    slice_ = slices.Slice(sweep / "slice")
    rows = paths.read_jsonl(sweep / "runs" / run / "provenance.jsonl")
    sentences = next(row for row in rows if row["query_id"] == query_id)["sentences"]
    return [
        (sentence["text"], [slice_.document(s["doc_id"]).text[s["start"] : s["end"]] for s in sentence["sources"]])
        for sentence in sentences
    ]


def marked(browser) -> list[str]:
    """What is marked in the explorer's document, if a reader can see it."""
    found = browser.find_elements(CSS, ".explorer .panel mark")
    return [mark.get_property("textContent") for mark in found if mark.is_displayed()]


def test_the_explorer_leads_from_a_sentence_to_its_document_and_keeps_its_keys(lab, browser, finished):
    cell = f"from lib.explorer import Explorer\n\nExplorer({str(finished)!r})"
    first = slices.Slice(finished / "slice").queries[0].query_id
    with opened(browser, lab, new_notebook(lab.folder / "explorer.ipynb", cell, "1 + 1")):
        run_all(browser)
        for side in ("left", "right"):
            column = until(browser, lambda side=side: browser.find_element(CSS, f".explorer .answer.{side}"), PAGE)
            expected = evidence(finished, column.find_element(CSS, "bdi").text, first)
            buttons = column.find_elements(CSS, "button.sentence")
            assert len(buttons) == len(expected) > 0
            for button, (text, spans) in zip(buttons, expected, strict=True):
                assert button.find_element(CSS, ".said").text == text
                button.click()
                until(browser, lambda spans=spans: marked(browser) == spans)
        assert console(browser) == []
        assert asked_elsewhere(browser, lab) == []
        # To JupyterLab "d d" means: delete the cell. Whoever reads a sentence has not asked for that.
        webdriver.ActionChains(browser).send_keys("dd").perform()
        assert state(browser)["cells"] == 2
        assert marked(browser) == spans
