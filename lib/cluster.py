"""Who runs the tasks of a sweep: threads of this process, or the workers of a Dask cluster."""

import hashlib
import os
import platform
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import WorkbookError
from lib.sweep import Workers, execute
from lib.tasks import Task

CONNECT_SECONDS, JOIN_SECONDS = 10, 60  # to reach a scheduler; for its first worker to join


@contextmanager
def workers(address: str | None, out: Path, jobs: int | None = None) -> Iterator[Workers]:
    """`jobs` threads of this process (by default a core each), or the workers of the scheduler at `address`.

    The workers of a cluster read and write the sweep's folder `out`, which must lie where all machines see
    it. What asks a model service, or reads the source of the slice, runs here: keys, paid replies and the
    source need not be elsewhere. A task whose worker is lost is run again by another. Raises WorkbookError where
    no scheduler or worker is there, or one of them has other code, packages or files than this process.
    """
    if not address:
        n_threads = jobs or os.cpu_count() or 1
        with ThreadPoolExecutor(n_threads) as threads:
            yield Workers(partial(threads.submit, execute), n_threads)
        return
    with ThreadPoolExecutor(1) as here, _connected(address) as client:
        _check(client, out)
        remote = client.get_executor(pure=False)

        def submit(task: Task, *given: Any) -> Future:
            return (here if task.here or task.service else remote).submit(execute, task, *given)

        yield Workers(submit, jobs or sum(client.nthreads().values()))


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        raise WorkbookError(
            "--cluster: the package 'distributed' is not installed; run: pip install -r requirements-cluster.lock"
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
    own = machine(str(out))
    for worker, there in client.run(machine, str(out)).items():
        for what, value in own.items():
            if there[what] != value:
                raise WorkbookError(
                    f"--cluster: worker {worker} has another {what} ({there[what]}) than this machine ({value}); "
                    "update it, restart it after a change, and have all machines see the sweep's folder"
                )


def machine(out: str) -> dict[str, Any]:
    """What must be the same on all machines of a sweep."""
    profile = Path(out, "profile.yaml")
    return {
        "Python": platform.python_version(),
        "version of the workbook": _code()[:12],
        f"folder {out}": paths.sha256(profile)[:12] if profile.exists() else "not there",
    }


@cache
def _code() -> str:
    """SHA-256 of all that the tasks run from: code, notebooks, parameters and the locked packages.

    Taken once: a worker that has imported what the files were before they changed is found out.
    """
    patterns = ("lib/**/*.py", "notebooks/[0-9]*.ipynb", "params/**/*.*", "requirements.lock")
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in paths.PROJECT.glob(pattern)):
        digest.update(path.relative_to(paths.PROJECT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
