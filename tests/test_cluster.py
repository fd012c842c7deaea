"""A sweep on a real Dask scheduler with real workers, on loopback."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lib import cli, cluster, paths
from lib.errors import WorkbookError
from tests.process import workbook
from tests.test_sweep import files

distributed = pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

SYSTEMS = "rule-minilm,semantic-current,official-naive-baseline"
GIVEN = ("--variants", SYSTEMS, "--shard-size", 3, "--no-score")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def dask(*arguments: object, **environment: str) -> subprocess.Popen:
    """A Dask command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli." + str(arguments[0]), *map(str, arguments[1:])],
        cwd=paths.PROJECT,
        env=os.environ | {"PYTHONPATH": str(paths.PROJECT)} | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


class Cluster:
    """A scheduler and workers of one thread each, under nannies as by default or, to be killed, without."""

    def __init__(self, folder: Path, n_workers: int, nanny: bool):
        self.address = f"tcp://127.0.0.1:{free_port()}"
        scheduler = ("dask_scheduler", "--host", self.address, "--no-dashboard", "--no-jupyter")
        self.scheduler = dask(*scheduler)
        given = ("--nanny" if nanny else "--no-nanny", "--nthreads", 1, "--no-dashboard", "--host", "127.0.0.1")
        self.workers = {
            f"w{n}": dask("dask_worker", self.address, *given, "--name", f"w{n}", "--local-directory", folder / f"w{n}")
            for n in range(n_workers)
        }

    def busy(self) -> str:
        """The name of a worker that is at a task, as soon as there is one."""
        with distributed.Client(self.address, timeout=30) as client:
            while True:
                told = client.scheduler_info(n_workers=-1)["workers"]
                processing = client.processing()
                for address, keys in processing.items():
                    if keys and address in told:
                        return told[address]["name"]
                time.sleep(0.05)

    def close(self) -> None:
        for process in (*self.workers.values(), self.scheduler):
            process.terminate()
            process.wait(60)


@contextmanager
def running(folder: Path, n_workers: int, nanny: bool = False) -> Iterator[Cluster]:
    started = Cluster(folder, n_workers, nanny)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    """The same systems swept by this machine alone, in one piece."""
    out = tmp_path_factory.mktemp("local") / "out"
    done = workbook("sweep", "--out", out, "--variants", SYSTEMS, "--no-score")
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def test_three_workers_end_with_the_bytes_of_a_local_sweep_though_one_is_killed(local, tmp_path):
    out = tmp_path / "out"
    with running(tmp_path, 3) as there:
        command = [sys.executable, "-m", "lib.cli", "sweep", "--out", str(out), *map(str, GIVEN)]
        sweep = subprocess.Popen(
            [*command, "--cluster", there.address], cwd=paths.PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while not list(out.glob("notebooks/.done/02_study_chunking.*.json")):
            assert sweep.poll() is None, sweep.stderr.read().decode()[-2000:]
            time.sleep(0.1)
        lost = there.busy()
        there.workers[lost].kill()
        said, errors = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, errors.decode()[-3000:]
    # 01 and a split; 02, three of 03 and three of 04 for each of three shards; two joins of chunks, and two a system.
    assert b"31 tasks run, 0 unchanged" in said
    assert files(out) == files(local)


def test_a_sweep_in_one_piece_has_the_same_bytes_on_a_cluster(local, tmp_path):
    with running(tmp_path, 2, nanny=True) as there:
        done = workbook("sweep", "--out", tmp_path / "out", "--no-score", "--variants", SYSTEMS, "--cluster", there.address)
    assert done.returncode == 0, done.stderr[-2000:]
    assert files(tmp_path / "out") == files(local)


def test_a_failing_task_stops_only_what_depends_on_it(tmp_path):
    """Its folder cannot be written by the worker: a file stands where the run's folder should be."""
    out = tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    (out / "runs" / "rule-minilm").write_text("")
    with running(tmp_path, 1) as there:
        done = workbook(
            "sweep", "--out", out, "--no-score", "--variants", "rule-minilm,concat-baseline", "--cluster", there.address
        )
    assert done.returncode == 1
    assert "failed: 03_ablate_retrieval.rule-minilm" in done.stdout
    assert (out / "runs" / "concat-baseline" / "responses.jsonl").exists()


def test_no_scheduler_is_one_line_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    address = f"tcp://127.0.0.1:{free_port()}"
    assert cli.main(["sweep", "--out", str(tmp_path / "out"), "--cluster", address]) == 2
    said = capsys.readouterr().err
    assert f"--cluster {address}: no scheduler answers there" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_address_that_is_none_is_one_line(tmp_path, capsys):
    assert cli.main(["sweep", "--out", str(tmp_path / "out"), "--cluster", "nonsense://"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_scheduler_without_workers_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 1)
    said = "no worker joined within 1 s; start one: dask worker tcp://"
    with (
        running(tmp_path, 0) as there,
        pytest.raises(WorkbookError, match=said),
        cluster.workers(there.address, tmp_path),
    ):
        pass


def test_a_worker_with_other_code_or_another_folder_is_named(tmp_path):
    with running(tmp_path, 1) as there, cluster._connected(there.address) as client:
        cluster._check(client, tmp_path)
        assert list(tmp_path.glob(".cluster")) == []
        told = client.run(cluster.machine, str(tmp_path))
        assert [found[f"folder {tmp_path}"] for found in told.values()] == ["not there"]
        (worker,) = told
        client.run(move_the_workbook)
        with pytest.raises(WorkbookError, match="has another version of the workbook .*restart it after a change"):
            cluster._check(client, tmp_path)
        failure = client.submit(cluster.execute_there, cluster._version(), None, tmp_path, "fresh").result()
        assert failure.error == "WorkbookError" and "another version" in failure.message


def test_a_worker_that_sees_another_disk_is_named(tmp_path):
    """A folder of the same name without this sweep's token, as on the worker's own disk."""
    with running(tmp_path, 1) as there, cluster._connected(there.address) as client:
        cluster._check(client, tmp_path)
        client.run(see_nothing)
        with pytest.raises(WorkbookError, match=f"has another folder {tmp_path} .not there"):
            cluster._check(client, tmp_path)


def move_the_workbook() -> None:
    paths.PROJECT = Path("/nowhere")
    cluster._version.cache_clear()


def see_nothing() -> None:
    Path.exists = lambda self: False
