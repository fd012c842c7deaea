"""The notebooks as files, and the runner that stands around papermill."""

import ast
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest

from lib import notebooks, paths
from lib.errors import WorkbookError

ALL = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
names = pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)


def make(path, *cells, tags=("parameters",)):
    """A notebook of code cells at `path`; the first cell carries `tags`."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.cells[0].metadata["tags"] = list(tags)
    notebook.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(notebook, path)
    return path


def stdout(path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [o for c in cells if c["cell_type"] == "code" for o in c["outputs"]]
    return "".join("".join(o.get("text", "")) for o in outputs)


def code_cells(path):
    return [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


@names
def test_a_notebook_has_one_cell_of_typed_literal_parameters_with_comments(path):
    assert notebooks.parameters(path)
    (cell,) = [c for c in code_cells(path) if "parameters" in c["metadata"].get("tags", [])]
    for line in "".join(cell["source"]).splitlines():
        assert isinstance(ast.parse(line).body[0], ast.AnnAssign)
        assert "#" in line


@names
def test_a_notebook_reads_like_a_chapter(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    first = "".join(notebook["cells"][0]["source"])
    assert first.startswith("# ")
    assert "?**" in first  # the question that it answers
    assert all(part in first for part in ("*In:*", "*Out:*", "*Time:*"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert all(len("".join(c["source"]).splitlines()) <= 25 for c in code_cells(path))


@names
def test_a_notebook_uses_no_shell_path_tricks_or_network(path):
    source = "\n".join("".join(c["source"]) for c in code_cells(path))
    for word in ("!pip", "%run", "sys.path", "chdir", "requests", "urlopen", "getcwd"):
        assert word not in source


@names
def test_c26_stored_outputs_hold_nothing_that_changes_from_run_to_run(path):
    text = path.read_text(encoding="utf-8")
    for noise in ("object at 0x", str(paths.PROJECT), "it/s", "widget-view", '"stderr"', "Warning:", "<Axes", "<Figure"):
        assert noise not in text
    assert any(c["outputs"] for c in code_cells(path))


@names
def test_c27_numbers_in_every_notebook_are_compared(path):
    compared = [c for c in code_cells(path) if "nbval-check-output" in c["metadata"].get("tags", [])]
    assert any(any(char.isdigit() for char in json.dumps(c["outputs"])) for c in compared)


def nbval(path, **environment) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "-p", "no:cacheprovider", "-q", path.name]
    return subprocess.run(command, cwd=path.parent, env=os.environ | environment, capture_output=True, text=True)


def test_c27_a_changed_number_fails_and_so_do_removed_outputs(tmp_path):
    source = tmp_path / "metric.ipynb"
    make(source, "print(f'{1 / 2:.2f}')", tags=["nbval-check-output"])
    notebook = nbformat.read(source, as_version=4)
    notebook.cells[0].execution_count = 1
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", name="stdout", text="0.50\n")]
    nbformat.write(notebook, source)
    assert nbval(source).returncode == 0
    notebook.cells[0].outputs[0]["text"] = "0.51\n"
    nbformat.write(notebook, source)
    assert nbval(source).returncode == 1
    notebook.cells[0].outputs = []
    nbformat.write(notebook, source)
    assert nbval(source).returncode == 1


def test_c21_a_value_given_reaches_what_is_derived_from_it(tmp_path):
    path = make(tmp_path / "n.ipynb", "top_k: int = 5", "out = 'run_%d' % top_k", "print(top_k, out)")
    assert notebooks.run(path, tmp_path / "out.ipynb", {"top_k": 9}) is None
    assert stdout(tmp_path / "out.ipynb") == "9 run_9\n"


def test_c21_a_derived_value_among_the_parameters_is_refused(tmp_path):
    path = make(tmp_path / "n.ipynb", "top_k = 5\nout = 'run_%d' % top_k")
    with pytest.raises(WorkbookError, match=r"n\.ipynb: the parameters cell may hold only"):
        notebooks.run(path, tmp_path / "out.ipynb", {"top_k": 9})


def test_c21_a_missing_tag_is_refused(tmp_path):
    path = make(tmp_path / "n.ipynb", "top_k: int = 5", tags=())
    with pytest.raises(WorkbookError, match="0 cells are tagged 'parameters'"):
        notebooks.run(path, tmp_path / "out.ipynb", {"top_k": 9})


def test_c21_an_unknown_parameter_is_refused(tmp_path):
    path = make(tmp_path / "n.ipynb", "top_k: int = 5")
    with pytest.raises(WorkbookError, match="unknown parameter 'topk'; known: top_k"):
        notebooks.run(path, tmp_path / "out.ipynb", {"topk": 9})
    assert list(tmp_path.iterdir()) == [path]


def test_c22_text_parameters_stay_text(tmp_path):
    path = make(tmp_path / "n.ipynb", "query_id: str = ''\ntag: str = ''", "print(repr(query_id), repr(tag))")
    assert notebooks.run(path, tmp_path / "out.ipynb", {"query_id": "007", "tag": "2021_03"}) is None
    assert stdout(tmp_path / "out.ipynb") == "'007' '2021_03'\n"


@pytest.mark.parametrize("value", [7, 7.0, None, True])
def test_c22_a_wrong_type_is_refused_before_anything_runs(tmp_path, value):
    path = make(tmp_path / "n.ipynb", "query_id: str = ''")
    with pytest.raises(WorkbookError, match="parameter 'query_id' must be str"):
        notebooks.run(path, tmp_path / "out.ipynb", {"query_id": value})
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_cell_is_named_with_its_error(tmp_path):
    path = make(tmp_path / "n.ipynb", "x: int = 1", "raise KeyError('the message')")
    failure = notebooks.run(path, tmp_path / "out.ipynb", {})
    assert (failure.error, failure.message) == ("KeyError", "'the message'")
    assert failure.cell == 2
    assert not (tmp_path / "out.ipynb").exists()
    assert (tmp_path / "out.failed.ipynb").exists()


def test_c23_a_dead_kernel_is_a_failure_and_leaves_no_executed_copy(tmp_path):
    path = make(tmp_path / "n.ipynb", "x: int = 1", "import os\nprint('partial', flush=True)\nos._exit(1)", "print('end')")
    failure = notebooks.run(path, tmp_path / "out.ipynb", {})
    assert failure is not None
    assert not (tmp_path / "out.ipynb").exists()


def test_the_code_key_follows_the_cells_and_the_modules_behind_them(tmp_path):
    with_text = make(tmp_path / "a.ipynb", "from lib.text import tokens")
    without = make(tmp_path / "b.ipynb", "from lib.errors import WorkbookError")
    assert notebooks.code_key(with_text) != notebooks.code_key(without)
    before = notebooks.code_key(without)
    make(without, "from lib.errors import WorkbookError  # changed")
    assert notebooks.code_key(without) != before


def test_the_code_key_reaches_modules_that_are_imported_by_others():
    closure = notebooks._closure({paths.PROJECT / "lib" / "steps.py"})
    found = {path.relative_to(paths.PROJECT).as_posix() for path in closure}
    assert {"lib/steps.py", "lib/text.py", "lib/errors.py", "lib/retrieval.py"} <= found
    assert not {"lib/cli.py", "lib/sweep.py"} & found


def test_threads_parse_one_after_the_other(monkeypatch):
    """Python 3.11 cannot convert two syntax trees at once in one process; a sweep's threads all ask for keys."""
    inside, most = [], []
    parse = ast.parse

    def slow(*args):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()
        return parse(*args)

    monkeypatch.setattr(ast, "parse", slow)
    notebooks._key.cache_clear()
    notebooks._imports_of.cache_clear()
    sweep_notebooks = sorted(paths.NOTEBOOKS.glob("0*.ipynb"))[:4]
    with ThreadPoolExecutor(4) as pool:
        keys = list(pool.map(notebooks.code_key, sweep_notebooks))
    assert len(set(keys)) == len(sweep_notebooks)
    assert len(most) > 4 and max(most) == 1
