"""Who runs the tasks of a sweep: threads of this process, or the workers of a Dask cluster."""

import hashlib
import os
import platform
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

from lib import paths
from lib.errors import WorkbookError
from lib.notebooks import Failure
from lib.sweep import Workers, execute
from lib.tasks import Task

CONNECT_SECONDS, JOIN_SECONDS = 10, 60  # to reach a scheduler; for its first worker to join
_REMEDY = "update it, restart it after a change, and have all machines see the sweep's folder"


@contextmanager
def workers(address: str | None, out: Path, jobs: int | None = None) -> Iterator[Workers]:
    """`jobs` threads of this process, by default one a core, or the workers of a scheduler.

    The workers of a cluster, whose scheduler is at `address`, read and write the sweep's folder `out`, which
    must lie where all machines see it. What asks a model service, or reads the source of the slice, runs here:
    keys, paid replies and the source need not be elsewhere. Workers may come and go; a task whose worker is
    lost is run again by another. Raises WorkbookError where no scheduler or worker is there, or one of them has
    other code, packages or files than this process.
    """
    if not address:
        n_threads = jobs or os.cpu_count() or 1
        with ThreadPoolExecutor(n_threads) as threads:
            yield Workers(partial(threads.submit, execute), lambda: n_threads)
        return
    with ThreadPoolExecutor(1) as here, _connected(address) as client:
        _check(client, out)
        remote = client.get_executor(pure=False)

        def submit(task: Task, *given: Any) -> Future:
            if task.here or task.service:
                return here.submit(execute, task, *given)
            return remote.submit(execute_there, _version(), task, *given)

        yield Workers(submit, lambda: jobs or max(1, sum(client.nthreads().values())))


def execute_there(version: str, task: Task, out: Path, engine: str) -> Failure | None:
    """`execute` on a worker, which may have joined after the others were looked at."""
    if _version() != version:
        return Failure(None, WorkbookError.__name__, f"worker {platform.node()} has another version of the workbook")
    return execute(task, out, engine)


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        raise WorkbookError(
            "--cluster: the package 'distributed' is not installed; run: pip install -r requirements.lock"
        ) from None
    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise WorkbookError(
            f"--cluster {address}: no scheduler answers there ({error}); start one: dask scheduler"
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=JOIN_SECONDS)
        except TimeoutError:
            raise WorkbookError(
                f"--cluster {address}: no worker joined within {JOIN_SECONDS} s; start one: dask worker {address}"
            ) from None
        yield client


def _check(client: Any, out: Path) -> None:
    """Raise WorkbookError unless every worker has this process's Python, code and packages, and sees its files."""
    token = out / ".cluster"
    paths.write_text(token, uuid4().hex)
    try:
        own, found = machine(str(out)), client.run(machine, str(out))
    except ImportError as error:
        raise WorkbookError(f"--cluster: a worker does not have the workbook ({error}); {_REMEDY}") from None
    finally:
        token.unlink()
    for worker, there in found.items():
        for what, value in own.items():
            if there[what] != value:
                raise WorkbookError(
                    f"--cluster: worker {worker} has another {what} ({there[what]}) than this machine ({value}); {_REMEDY}"
                )


def machine(out: str) -> dict[str, Any]:
    """What must be the same on all machines of a sweep; `out` holds a token that only those who see it can know."""
    token = Path(out, ".cluster")
    return {
        "Python": platform.python_version(),
        "version of the workbook": _version(),
        "place of the workbook": str(paths.PROJECT),
        f"folder {out}": token.read_text(encoding="utf-8") if token.exists() else "not there",
    }


@cache
def _version() -> str:
    """A hash of all that the tasks run from: code, notebooks, parameters, and the packages that are installed.

    Taken once: a worker that has imported what the files were before they changed is found out.
    """
    digest = hashlib.sha256()
    patterns = ("lib/**/*.py", "notebooks/[0-9]*.ipynb", "params/**/*.*", "requirements.lock")
    for path in sorted(path for pattern in patterns for path in paths.PROJECT.glob(pattern)):
        digest.update(path.relative_to(paths.PROJECT).as_posix().encode() + b"\0" + path.read_bytes())
    installed = {(package.name, package.version) for package in metadata.distributions()}
    digest.update(repr(sorted(installed)).encode())
    return digest.hexdigest()[:12]
