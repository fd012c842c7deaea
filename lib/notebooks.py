"""One notebook: its parameters, what it depends on, and a run of it through papermill.

`python -m lib.notebooks` runs the notebooks of the repository anew and keeps what is worth committing.
"""

import ast
import hashlib
import json
import os
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from lib import paths
from lib.errors import WorkbookError

# Python 3.11 counts the depth of a conversion to AST objects for the whole process, so that two
# threads that parse at once can fail with "AST constructor recursion depth mismatch".
_one_parser = threading.Lock()


class Failure(NamedTuple):
    """Why a notebook failed: the number of the code cell (from 1), the error's name, and its message."""

    cell: int | None
    error: str
    message: str

    def __str__(self) -> str:
        where = f"cell {self.cell}: " if self.cell else ""
        return f"{where}{self.error}: {self.message}"


def parameters(path: Path) -> dict[str, Any]:
    """Default values of a notebook's parameters. Raises WorkbookError unless exactly one cell, of literals, is tagged."""
    cells = [c for c in _cells(path) if "parameters" in c["metadata"].get("tags", [])]
    if len(cells) != 1:
        raise WorkbookError(f"{path}: {len(cells)} cells are tagged 'parameters'; there must be exactly one")
    values = {}
    for node in _parse("".join(cells[0]["source"])).body:
        try:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            values[target.id] = ast.literal_eval(node.value)
        except (AttributeError, ValueError):
            raise WorkbookError(f"{path}: the parameters cell may hold only 'name: type = literal' lines") from None
    return values


def check_parameters(path: Path, given: dict[str, Any]) -> None:
    """Raise WorkbookError for a parameter that the notebook does not have or that has another type."""
    known = parameters(path)
    for name, value in given.items():
        if name not in known:
            raise WorkbookError(f"{path}: unknown parameter '{name}'; known: {', '.join(known)}")
        if type(value) is not type(known[name]):
            kind = type(known[name]).__name__
            raise WorkbookError(f"{path}: parameter '{name}' must be {kind}, not {value!r}")


def run(path: Path, output: Path, given: dict[str, Any], engine: str = "fresh") -> Failure | None:
    """Execute a notebook with parameters; returns None if it ran to its end.

    The engine `fresh` starts a new kernel and `warm` forks one, see `lib.kernels`; what a notebook puts out is the same.
    The executed copy appears at `output` only on success; otherwise as `<name>.failed.ipynb` beside it.
    """
    check_parameters(path, given)
    _quiet_debugger()
    import papermill
    from nbclient.exceptions import DeadKernelError

    engine_name = _engine_name(engine)
    failed = output.with_suffix(".failed.ipynb")
    running = output.with_name(f".{output.name}.running.ipynb")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        papermill.execute_notebook(
            str(path),
            str(running),
            parameters=given,
            engine_name=engine_name,
            kernel_name="python3",
            progress_bar=False,
            cwd=str(paths.PROJECT),
            # Kernels warn of unencrypted loopback at every start, and keep a user's history of what is typed.
            extra_arguments=["--IPKernelApp.log_level=ERROR", "--HistoryManager.enabled=False"],
        )
    except papermill.PapermillExecutionError as error:
        running.replace(failed)
        return Failure(error.exec_count, error.ename, error.evalue)
    except (DeadKernelError, RuntimeError) as error:
        running.replace(failed)
        return Failure(None, type(error).__name__, str(error) or "the kernel died")
    running.replace(output)
    failed.unlink(missing_ok=True)
    return None


def _engine_name(engine: str) -> str | None:
    """The name by which papermill knows an engine; its own, which starts new kernels, has none."""
    from papermill.engines import papermill_engines
    from papermill.exceptions import PapermillException

    name = None if engine == "fresh" else engine
    try:
        papermill_engines.get_engine(name)
    except PapermillException:
        raise WorkbookError(
            f"no engine '{engine}'; known: fresh, and warm once this version of the project is installed (pip install -e .)"
        ) from None
    return name


def make_ready(engine: str) -> None:
    """Begin with what an engine needs for its first notebook, to go on while this process does something else."""
    _quiet_debugger()
    if engine == "warm":
        from lib import kernels

        kernels.make_ready()


def _quiet_debugger() -> None:
    """Keep kernels from warning of frozen modules at every start; part of their environment, so always the same."""
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")


def code_key(path: Path) -> str:
    """SHA-256 of a notebook's code cells and of every module of `lib` that they import, directly or not.

    The explorer's page, which its module reads from `lib/assets`, counts as part of it.
    """
    sources = ["".join(cell["source"]) for cell in _cells(path) if cell["cell_type"] == "code"]
    return _key("\0".join([*sources, ""]), paths.code_state())


def module_key(name: str) -> str:
    """SHA-256 of a module of `lib` and of every module of `lib` that it imports, directly or not."""
    return _key(f"import {name}", paths.code_state())


@lru_cache(maxsize=256)
def _key(source: str, _state: tuple) -> str:
    digest = hashlib.sha256(source.encode())
    used = _closure(_imports(source.replace("\0", "\n")))
    if paths.PROJECT / "lib" / "explorer.py" in used:
        used |= set((paths.PROJECT / "lib" / "assets").iterdir())
    for module in sorted(used):
        digest.update(module.relative_to(paths.PROJECT).as_posix().encode() + b"\0" + module.read_bytes())
    return digest.hexdigest()


def _cells(path: Path) -> list[dict[str, Any]]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise WorkbookError(f"{path}: not a readable notebook ({error})") from None


def _closure(modules: set[Path]) -> set[Path]:
    reached: set[Path] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += _module_imports(module)
    return reached


def _module_imports(module: Path) -> frozenset[Path]:
    stat = module.stat()
    return _imports_of(module, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1 << 10)
def _imports_of(module: Path, *_: int) -> frozenset[Path]:
    return frozenset(_imports(module.read_text(encoding="utf-8")))


def _parse(source: str) -> ast.Module:
    with _one_parser:
        return ast.parse(source)


def _imports(source: str) -> set[Path]:
    """Files of the `lib` modules that a piece of source imports."""
    found = set()
    lines = "\n".join(line for line in source.split("\n") if not line.lstrip().startswith(("%", "!")))
    for node in ast.walk(_parse(lines)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lib":
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "lib"}
    files = set()
    for name in found:
        base = paths.PROJECT.joinpath(*name.split("."))
        files |= {f for f in (base.with_suffix(".py"), base / "__init__.py") if f.exists()}
    return files


def refresh(path: Path) -> None:
    """Run a notebook of the repository with its defaults and keep its outputs, free of times, paths and progress bars."""
    copy = path.with_name(f".{path.name}.fresh.ipynb")
    try:
        failure = run(path, copy, {})
        if failure:
            raise WorkbookError(f"{path}: {failure}")
        notebook = json.loads(copy.read_text(encoding="utf-8"))
    finally:
        for left in (copy, copy.with_suffix(".failed.ipynb")):
            left.unlink(missing_ok=True)
    notebook["metadata"] = {"kernelspec": notebook["metadata"]["kernelspec"], "language_info": {"name": "python"}}
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags")
        cell["metadata"] = {"tags": tags} if tags else {}
        if cell["cell_type"] == "code":
            for output in cell["outputs"]:
                _keep_what_lasts(output.get("data", {}))
            cell["outputs"] = [output for output in cell["outputs"] if _worth_keeping(output)]
    paths.write_text(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def _keep_what_lasts(data: dict[str, Any]) -> None:
    """Drop from an output's forms a widget, which dies with its kernel, and the bare name of what has a better form."""
    widget = [kind for kind in data if "widget" in kind]
    for kind in widget:
        del data[kind]
    if widget or "image/png" in data:
        data.pop("text/plain", None)


def _worth_keeping(output: dict[str, Any]) -> bool:
    return output.get("name") != "stderr" and output.get("data") != {}


if __name__ == "__main__":
    for notebook_path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")):
        refresh(notebook_path)
        print(notebook_path.name)
