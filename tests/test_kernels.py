"""Notebooks on forked kernels against the same on new ones, and what becomes of kernels whichever way things end."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from lib import kernels, notebooks, paths
from lib.errors import WorkbookError
from lib.zygote import SAID
from tests.process import interruptible, result
from tests.test_notebooks import code_cells, make, stdout

IPYKERNEL = [sys.executable, "-m", "ipykernel_launcher"]
IDS = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")


@pytest.fixture(autouse=True)
def same_environment(monkeypatch):
    """pytest names each test in the environment; each would have a zygote of its own."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")


@pytest.fixture(scope="module", autouse=True)
def all_end():
    yield
    kernels.end()


@pytest.fixture
def light(monkeypatch):
    """A zygote that imports little, and so starts at once, for what does not depend on it."""
    kernels.end()
    monkeypatch.setattr(kernels, "PRELOADED", ("ipykernel.kernelapp", "no_such_module"))
    yield
    kernels.end()


def printed(folder: Path, *cells: str, engine: str = "warm") -> str:
    """What a notebook of these cells prints."""
    path = make(folder / f"{engine}.ipynb", "x: int = 1", *cells)
    assert notebooks.run(path, folder / f"{engine}-out.ipynb", {}, engine) is None
    return stdout(folder / f"{engine}-out.ipynb")


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none of the processes is there any more, within some seconds."""
    until = time.monotonic() + 30
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("first", ["papermill", "lib.kernels"])
def test_papermill_knows_the_engine_whichever_is_imported_first(first):
    code = f"""
import importlib, json
importlib.import_module("{first}")
from papermill.engines import papermill_engines
from lib import kernels
print(json.dumps(papermill_engines.get_engine("warm") is kernels.WarmEngine))
"""
    assert result(code) is True


def test_an_unknown_engine_is_refused_before_anything_runs(tmp_path):
    path = make(tmp_path / "n.ipynb", "x: int = 1")
    with pytest.raises(WorkbookError, match="no engine 'hot'; known: fresh, and warm"):
        notebooks.run(path, tmp_path / "out.ipynb", {}, "hot")
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_ipykernel_is_refused(monkeypatch):
    with pytest.raises(WorkbookError, match="'R --slave' does not start an ipykernel; use --engine fresh"):
        kernels.fork(["R", "--slave"], ".", {})
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(WorkbookError, match="kernels are forked on Linux only; use --engine fresh"):
        kernels.fork([*IPYKERNEL, "-f", "file"], ".", {})


# What a cell can change beyond its own names, and how it reads afterwards.
SPOIL = """
import builtins, decimal, logging, os, random, signal, sys, threading, time, warnings
import matplotlib, numpy as np, pandas as pd
from matplotlib import pyplot as plt
from tqdm.auto import tqdm
import lib.text
spoilt = "a name"
os.environ["WORKBOOK_SPOILT"] = "1"; del os.environ["PATH"]
os.chdir("/"); os.umask(0o077)
sys.path.insert(0, "/spoilt"); sys.argv.append("spoilt"); sys.modules["spoilt"] = sys
sys.setrecursionlimit(500)
warnings.simplefilter("error")
random.seed(1); np.random.seed(1); np.set_printoptions(precision=1); np.seterr(all="raise")
pd.set_option("display.max_rows", 1)
matplotlib.rcParams["font.size"] = 30; plt.figure(); plt.switch_backend("svg")
logging.getLogger().addHandler(logging.StreamHandler()); logging.disable(logging.CRITICAL)
decimal.getcontext().prec = 3
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
lib.text.tokens = None
builtins.spoilt = True
get_ipython().display_formatter.formatters["text/plain"].for_type(int, lambda *_: "spoilt")
get_ipython().events.register("post_run_cell", lambda *_: print("spoilt"))
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
bar = tqdm(range(9)); next(iter(bar))
"""
SEEN = """
import json, builtins, decimal, logging, os, signal, sys, threading, warnings
import matplotlib, numpy as np, pandas as pd, threadpoolctl
from matplotlib import pyplot as plt
from tqdm.auto import tqdm
import lib.text
from lib import ablation, comparing, diagnosis, explorer, preparing, scoring, steps
shell, umask = get_ipython(), os.umask(0)
os.umask(umask)
seen = {
    "names": sorted(set(globals()) - {"x"}),
    "history": [len(In), dict(Out), shell.execution_count],
    "environment": {name: value for name, value in os.environ.items() if name != "JPY_PARENT_PID"},
    "folder": [os.getcwd(), umask],
    "path": sys.path,
    "arguments": [os.path.basename(sys.argv[0]), sys.argv[1], *sys.argv[3:]],
    "limit": sys.getrecursionlimit(),
    "warnings": sorted(str(entry) for entry in warnings.filters),
    "numpy": [str(np.get_printoptions()), str(np.geterr())],
    "pandas": pd.describe_option("", _print_desc=False).replace("utf-8", "UTF-8"),  # as the encoding of a stream has it
    "matplotlib": {key: str(value) for key, value in dict.items(matplotlib.rcParams)},
    "figures": plt.get_fignums(),
    "logging": [[type(h).__name__ for h in logging.root.handlers], logging.root.level, logging.root.manager.disable],
    "decimal": str(decimal.getcontext()),
    "signals": {name.name: str(signal.getsignal(name)).split(" at ")[0] for name in signal.Signals},
    "threads": threading.active_count(),
    "shell": [sorted(shell.events.callbacks["post_run_cell"]), sorted(shell.extension_manager.loaded)],
    "formatters": {
        kind: [sorted(str(t) for t in f.type_printers), sorted(str(t) for t in f.deferred_printers)]
        for kind, f in shell.display_formatter.formatters.items()
    },
    "tqdm": [str(tqdm.__mro__), len(tqdm._instances), str(tqdm.monitor)],
    "builtins": sorted(vars(builtins)),
    "spoilt": ["spoilt" in sys.modules, lib.text.tokens is None],
    "streams": [type(sys.stdout).__name__, sys.stdout.isatty(), sys.stdin.isatty(), sys.__stdin__.read()],
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "numerics": sorted((pool["internal_api"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()),
}
print(json.dumps(seen))
"""


def test_nothing_of_an_earlier_notebook_is_there_and_all_is_as_in_a_new_kernel(tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND")  # each kernel chooses, as it does outside of tests
    new = json.loads(printed(tmp_path, SEEN, engine="fresh"))
    first = json.loads(printed(tmp_path, SEEN))
    spoiling = make(tmp_path / "spoil.ipynb", "x: int = 1", SPOIL)
    assert notebooks.run(spoiling, tmp_path / "out.ipynb", {}, "warm") is None
    second = json.loads(printed(tmp_path, SEEN))
    assert second == first
    assert {part: value for part, value in first.items() if value != new[part]} == {}


def test_unseeded_generators_go_their_own_ways(tmp_path, monkeypatch):
    """A fork inherits the state of its parent's generators."""
    monkeypatch.delenv("MPLBACKEND")
    draw = "import random, numpy as np\nprint(random.random(), np.random.random(), np.random.default_rng().random())"
    drawn = [printed(tmp_path, draw).split() for _ in range(2)]
    assert all(a != b for a, b in zip(*drawn, strict=True))


@pytest.mark.parametrize("engine", ["warm", "fresh"])
def test_what_a_notebook_leaves_to_the_end_of_its_kernel_is_done(tmp_path, engine, light):
    """Files left open, by a name, a cycle and a module; an exit handler; a thread that runs on; a finaliser."""
    leave = f"""
import atexit, threading, time
from pathlib import Path
folder = Path({str(tmp_path)!r})
named = open(folder / "named", "w"); named.write("text")
knot = [open(folder / "knot", "w")]; knot[0].write("text"); knot.append(knot)
time.kept = open(folder / "module", "w"); time.kept.write("text")
atexit.register((folder / "handler").write_text, "text")
threading.Thread(target=lambda: (time.sleep(0.5), (folder / "thread").write_text("text"))).start()
class Farewell:
    def __del__(self, path=folder / "finaliser"):
        path.write_text("text")
last = Farewell()
"""
    assert printed(tmp_path, leave, engine=engine) == ""
    for name in ("named", "knot", "module", "handler", "thread", "finaliser"):
        assert (tmp_path / name).read_text() == "text"


DEATHS = {
    "exit": "os._exit(3)",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "fault": "ctypes.string_at(0)",
}


@pytest.mark.parametrize("death", DEATHS)
def test_c23_a_dead_kernel_fails_its_notebook_as_ever_and_no_other(tmp_path, light, death):
    """And what it started dies with it."""
    dying = f"""
import ctypes, os, signal, subprocess
from pathlib import Path
Path({str(tmp_path)!r}, "pid").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
{DEATHS[death]}
"""
    path = make(tmp_path / "n.ipynb", "x: int = 1", dying, "print('end')")
    failure = notebooks.run(path, tmp_path / "out.ipynb", {}, "warm")
    assert failure == notebooks.Failure(None, "DeadKernelError", "Kernel died")
    assert not (tmp_path / "out.ipynb").exists()
    assert len(code_cells(tmp_path / "out.failed.ipynb")) == 3
    started = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(started) or gone([psutil.Process(started)])
    assert printed(tmp_path, "print('alive')") == "alive\n"
    if death == "exit":
        path = make(tmp_path / "n.ipynb", "x: int = 1", "import os; os._exit(3)")
        assert notebooks.run(path, tmp_path / "new.ipynb", {}, "fresh") == failure


def test_a_kernel_that_dies_while_it_starts_fails_its_notebook(tmp_path, monkeypatch):
    """Here because the folder is not there in which it is to run."""
    kernels.end()
    with pytest.raises(RuntimeError, match="the kernel ended with status 1 before it was ready"):
        kernels.fork([*IPYKERNEL, "-f", "file"], str(tmp_path / "nowhere"), dict(os.environ))
    kernels.end()


def test_a_kernel_that_does_not_start_is_given_up(tmp_path, light, monkeypatch):
    monkeypatch.setattr(kernels, "START_SECONDS", 0.001)
    path = make(tmp_path / "n.ipynb", "x: int = 1")
    failure = notebooks.run(path, tmp_path / "out.ipynb", {}, "warm")
    assert failure == notebooks.Failure(None, "RuntimeError", "the kernel did not start in 0.001 seconds")
    assert (tmp_path / "out.failed.ipynb").exists()


def test_a_failing_cell_is_named_as_ever(tmp_path, light):
    path = make(tmp_path / "n.ipynb", "x: int = 1", "raise KeyError('the message')")
    failures = [notebooks.run(path, tmp_path / "out.ipynb", {}, engine) for engine in ("fresh", "warm")]
    assert failures == [notebooks.Failure(2, "KeyError", "'the message'")] * 2


# Runs a notebook that starts a process and then sleeps; it writes their process ids to a file.
SLEEPER = """
import os, subprocess, sys, time
from pathlib import Path
part = Path(sys_folder, "part")
part.write_text(f"{os.getpid()} {subprocess.Popen(['sleep', '1000']).pid}")
part.rename(Path(sys_folder, "pids"))
time.sleep(1000)
"""
DRIVER = """
import sys
from pathlib import Path
from lib import kernels, notebooks
kernels.PRELOADED = ("ipykernel.kernelapp",)
folder = Path(sys.argv[1])
notebooks.run(folder / "n.ipynb", folder / "out.ipynb", {}, "warm")
"""


def test_no_kernel_outlives_the_process_that_asked_for_it(tmp_path):
    """Interrupted, terminated or killed; all at once, to save time."""
    drivers = {}
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        folder = tmp_path / signum.name
        folder.mkdir()
        make(folder / "n.ipynb", "x: int = 1", f"sys_folder = {str(folder)!r}\n{SLEEPER}")
        command = [sys.executable, "-c", DRIVER, str(folder)]
        drivers[signum] = subprocess.Popen(command, cwd=paths.PROJECT, stderr=subprocess.DEVNULL, preexec_fn=interruptible)
    for signum, driver in drivers.items():
        pids = tmp_path / signum.name / "pids"
        while not pids.exists():
            assert driver.poll() is None
            time.sleep(0.05)
        family = psutil.Process(driver.pid).children(recursive=True)
        assert {int(pid) for pid in pids.read_text().split()} < {process.pid for process in family}
        driver.send_signal(signum)
        driver.wait()
        assert gone(family), signum


def kernel(folder: Path, **more: str) -> kernels.Kernel:
    command = [*IPYKERNEL, "-f", str(folder / f"{time.monotonic_ns()}.json")]
    return kernels.fork(command, str(folder), os.environ | more)


def keeper(kernel: kernels.Kernel) -> psutil.Process:
    return psutil.Process(kernel.pid).parent()


def test_a_kernel_ends_when_it_is_let_go_of_before_it_was_heard(tmp_path, light):
    """The system then says that the connection was reset, not that it was closed."""
    running = kernel(tmp_path)
    control = kernels._zygote.ask()
    command = [*IPYKERNEL, "-f", str(tmp_path / "unheard.json")]
    request = {"command": command, "cwd": str(tmp_path), "environment": dict(os.environ)}
    control.sendall(json.dumps(request).encode() + b"\n")
    ended, pid = SAID.unpack(control.recv(5, socket.MSG_PEEK))
    assert not ended and pid != running.pid
    unheard = psutil.Process(pid)
    control.close()
    assert gone([unheard])
    assert running.poll() is None


def test_a_killed_zygote_leaves_its_kernels_and_is_replaced(tmp_path, light):
    running = kernel(tmp_path)
    zygote = kernels._zygote.process
    assert keeper(running).ppid() == zygote.pid
    zygote.kill()
    zygote.wait()
    assert keeper(kernel(tmp_path)).ppid() not in (1, zygote.pid)
    assert running.poll() is None
    process = psutil.Process(running.pid)
    running.close()
    assert gone([process])


def test_a_killed_keeper_takes_its_kernel_along(tmp_path, light):
    running = kernel(tmp_path)
    process = psutil.Process(running.pid)
    keeper(running).kill()
    assert gone([process])
    assert running.poll() == -signal.SIGKILL


def test_another_environment_or_changed_code_means_another_zygote(tmp_path, light, monkeypatch):
    """What was imported before stays with the kernels that run; the zygote before ends."""
    before, alike = kernel(tmp_path), kernel(tmp_path)
    old = keeper(before).parent()
    assert keeper(alike).parent() == old
    after = kernel(tmp_path, WORKBOOK_CACHE="elsewhere")
    assert gone([old])
    assert before.poll() is None
    psutil.Process(before.pid).terminate()
    while before.poll() is None:
        time.sleep(0.01)
    assert before.wait() == -signal.SIGTERM
    file = paths.PROJECT / "lib" / "kernels.py"
    code = paths.code_state()
    assert (str(file), file.stat().st_mtime_ns, file.stat().st_size) in code
    monkeypatch.setattr(paths, "code_state", lambda: (*code, ("lib/new.py", 1, 1)))
    changed = kernel(tmp_path, WORKBOOK_CACHE="elsewhere")
    assert keeper(changed).parent() != keeper(after).parent()


def test_a_forked_process_holds_no_kernel_and_has_its_own(tmp_path, light):
    """As a worker process of a pool: it neither keeps its parent's kernels nor uses its parent's zygote."""
    running = kernel(tmp_path)
    process = psutil.Process(running.pid)
    asked, answered = multiprocessing.Event(), multiprocessing.Queue()

    def work():
        answered.put(printed(tmp_path, "import os\nprint(os.getppid())"))
        asked.wait()

    child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    child.start()
    assert int(answered.get(timeout=60)) != keeper(running).pid
    assert running.poll() is None
    running.close()
    assert gone([process])
    asked.set()
    child.join()
    assert child.exitcode == 0


def test_several_threads_run_notebooks_at_once(tmp_path, light):
    """All wait until all are there, so that none can run alone."""
    meet = f"""
import time
from pathlib import Path
Path({str(tmp_path)!r}, f"here-{{name}}").touch()
while len(list(Path({str(tmp_path)!r}).glob("here-*"))) < 4:
    time.sleep(0.01)
print(name)
"""
    path = make(tmp_path / "n.ipynb", "name: str = ''", meet)

    def run(name: str) -> notebooks.Failure | None:
        return notebooks.run(path, tmp_path / f"{name}.ipynb", {"name": name}, "warm")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, "abcd")) == [None] * 4
    assert [stdout(tmp_path / f"{name}.ipynb") for name in "abcd"] == ["a\n", "b\n", "c\n", "d\n"]


def test_c25_a_key_reaches_the_kernel_and_nothing_else(tmp_path, monkeypatch, light):
    monkeypatch.setenv("OPENAI_API_KEY", "dummy-key-123")
    path = make(tmp_path / "n.ipynb", "x: int = 1", "import os\nprint(len(os.environ['OPENAI_API_KEY']))", "1 / 0")
    assert notebooks.run(path, tmp_path / "out.ipynb", {}, "warm").error == "ZeroDivisionError"
    assert stdout(tmp_path / "out.failed.ipynb") == "13\n"
    assert "dummy-key-123" not in " ".join(psutil.Process(kernels._zygote.process.pid).cmdline())
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"dummy-key-123" in file.read_bytes()]


ZYGOTE = """
import json, sys, threading
from lib import kernels, zygote
zygote.preload(kernels.PRELOADED)
import zmq
there = set(sys.modules)
exec(sys.argv[1])
print(json.dumps({
    "python threads": threading.active_count(),
    "zmq contexts": zmq.Context._instance is not None,
    "models": "torch" in there,
    "shell": "get_ipython" in vars(__builtins__),
    "late": sorted(name for name in set(sys.modules) - there if name.split(".")[0] in ("lib", "pandas", "matplotlib")),
}))
"""


def test_a_zygote_starts_nothing_and_imports_what_the_notebooks_will():
    lines = [
        line
        for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
        for cell in code_cells(path)
        for line in "".join(cell["source"]).splitlines()
        if re.match(r"(import|from) ", line)
    ]
    assert len(lines) > 20
    nothing = {"python threads": 1, "zmq contexts": False, "models": False, "shell": False, "late": []}
    assert result(ZYGOTE, "\n".join(lines), PYDEVD_DISABLE_FILE_VALIDATION="1") == nothing


def test_a_model_and_linear_algebra_compute_the_same_in_a_fork(tmp_path, monkeypatch):
    """Their threads start in the kernel; what a zygote's threads were would be missing, and waited for."""
    monkeypatch.delenv("MPLBACKEND")
    compute = f"""
import hashlib, os
import numpy as np
os.environ["WORKBOOK_CACHE"] = {str(tmp_path)!r} + f"/{{os.getpid()}}"
from lib import steps
from lib.variants import load_profile
encoded = steps.models_of(load_profile("embedded")).encoder.encode([f"sentence {{i}} " * (i % 9 + 1) for i in range(200)])
matrix = np.random.default_rng(0).standard_normal((600, 600))
for result in (encoded.vectors, matrix @ matrix, np.linalg.svd(matrix)[1]):
    print(result.shape, hashlib.sha256(np.ascontiguousarray(result).tobytes()).hexdigest())
"""
    warm, fresh = (printed(tmp_path, compute, engine=engine) for engine in ("warm", "fresh"))
    assert warm == fresh
    assert warm.startswith("(200, 384) ")
    assert len(list(tmp_path.glob("*/*"))) >= 2  # both computed, none read what the other had


def lasting(path: Path) -> dict:
    """An executed notebook without times and identifiers. Of the state of widgets, which are bars, the kinds are left."""
    notebook = json.loads(IDS.sub("ID", path.read_text(encoding="utf-8")))
    for part in (notebook, *notebook["cells"]):
        for name in ("start_time", "end_time", "duration"):
            part["metadata"]["papermill"].pop(name)
        part["metadata"].pop("execution", None)
        part.pop("id", None)
    notebook["metadata"]["widgets"] = sorted(re.findall(r'"model_name": "(.*)"', path.read_text(encoding="utf-8")))
    return notebook


SYSTEMS = ("rule-minilm", "single-query-bm25")


def run_on_sample(sweep: Path, engine: str, last: int = 7) -> None:
    """Notebooks 01 up to `last` on the sample, for two systems."""
    chunked = sweep.parent / "systems"
    chunked.mkdir(exist_ok=True)
    for name in SYSTEMS:
        shutil.copy(paths.PARAMS / "variants" / f"{name}.yaml", chunked)
    one, both = {"variant": str(chunked / "rule-minilm.yaml")}, {"variants": ",".join(SYSTEMS)}
    given = ({}, {"variants": str(chunked)}, one, one, both, both, both)
    for path, more in list(zip(sorted(paths.NOTEBOOKS.glob("0*.ipynb")), given, strict=True))[:last]:
        failure = notebooks.run(path, sweep / "notebooks" / path.name, {"sweep_dir": str(sweep), **more}, engine)
        assert failure is None, f"{path.name}: {failure}"


def test_the_notebooks_and_all_that_they_write_come_out_the_same(tmp_path, monkeypatch):
    """With tables, figures, which only ipykernel's own choice of a backend displays, bars and the explorer."""
    monkeypatch.delenv("MPLBACKEND")
    run_on_sample(tmp_path / "vectors", "warm", last=2)  # else the first engine alone would encode, and show a bar
    made = {}
    for engine in ("fresh", "warm"):
        run_on_sample(tmp_path / "sweep", engine)
        folder = (tmp_path / "sweep").rename(tmp_path / engine)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        made[engine] = {
            path.relative_to(folder).as_posix(): lasting(path) if path.suffix == ".ipynb" else path.read_bytes()
            for path in files
        }
    executed = [json.dumps(notebook) for name, notebook in made["fresh"].items() if name.endswith(".ipynb")]
    assert len(executed) == 7
    assert all("image/png" in notebook for notebook in executed)
    assert list(made["warm"]) == list(made["fresh"])
    assert [name for name in made["fresh"] if made["warm"][name] != made["fresh"][name]] == []
