"""The process that forks kernels: it imports what notebooks need, then does nothing but fork (see `lib.kernels`).

Each kernel is the child of a keeper, which tells the asking process, over a socket, when the kernel listens and
how it ended, and kills it when the other end of the socket is closed.

    python -m lib.zygote SOCKET MODULE...
"""

import atexit
import builtins
import gc
import importlib
import importlib.util
import io
import json
import os
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

LAUNCHER = "ipykernel_launcher"
SAID = struct.Struct("!?i")  # of a kernel: whether it has ended, then its exit status, or its process id once it listens
_BUFFERED = io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom
_INLINE = "module://matplotlib_inline.backend_inline"  # what ipykernel sets, if nothing is set, before a notebook runs


def serve(requests: socket.socket, modules: list[str]) -> None:
    """The life of a zygote: import, then fork until nobody can ask any more.

    A request is a socket, over which comes what the kernel is to be.
    """
    imported = preload(modules)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a keeper ended
    while True:
        asking, handles, *_ = socket.recv_fds(requests, 1, 1)
        if not asking:
            return
        with socket.socket(fileno=handles[0]) as control:
            if os.fork() == 0:
                requests.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _keep(control, imported)


def preload(modules: list[str]) -> dict[str, str]:
    """Import modules as a kernel would; returns the environment variables that the imports have set.

    pandas asks when it is imported whether it is in a kernel, and shows wide tables otherwise than at a terminal.
    """
    before = dict(os.environ)
    os.environ["MPLBACKEND"] = os.environ.get("MPLBACKEND") or _INLINE
    builtins.get_ipython = lambda: SimpleNamespace(kernel=None)
    for name in modules:
        with suppress(Exception):  # it fails again in the kernel, in the cell that asks for it
            importlib.import_module(name)
    del builtins.get_ipython
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # the collector would write to all pages, and so unshare them
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def _keep(control: socket.socket, imported: dict[str, str]) -> NoReturn:
    """The life of a keeper: fork a kernel, tell its end, and kill it when it is let go of."""
    with control.makefile("rb") as file:
        request = file.readline()
    if not request:  # already let go of
        os._exit(0)
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_kernel(keeper, control, json.loads(request), imported)
    watch = threading.Thread(target=_kill_when_let_go, args=(control, pid))
    watch.start()
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _kill(pid)
    with suppress(OSError):  # nobody listens any more
        control.sendall(SAID.pack(True, end.si_status if end.si_code == os.CLD_EXITED else -end.si_status))
    watch.join()  # until then no other process can get the kernel's id
    os.waitpid(pid, 0)
    os._exit(0)


def _kill_when_let_go(control: socket.socket, pid: int) -> None:
    with suppress(ConnectionResetError):  # let go of before all was heard
        control.recv(1)
    _kill(pid)


def _kill(pid: int) -> None:
    """Kill a kernel, if it still runs, and what it started."""
    os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):  # it has not come to have a group of its own
        os.killpg(pid, signal.SIGKILL)


def _be_kernel(keeper: int, control: socket.socket, asked: dict[str, Any], imported: dict[str, str]) -> NoReturn:
    """The life of a kernel: become what the command would have started, and run until shut down."""
    os.setsid()
    if Path(sys.path[0]) == Path.cwd():
        del sys.path[0]  # as the launcher does
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"] | imported, JPY_PARENT_PID=str(keeper))
    sys.orig_argv[:] = asked["command"]
    arguments = sys.orig_argv[sys.orig_argv.index(LAUNCHER) + 1 :]
    sys.argv[:] = [importlib.util.find_spec(LAUNCHER).origin, *arguments]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python sees to its own generator
    from ipykernel.kernelapp import IPKernelApp

    app = IPKernelApp.instance(parent_handle=keeper)
    app.initialize(arguments)
    control.sendall(SAID.pack(False, os.getpid()))
    control.close()
    app.start()
    # It ends with the last answer, which it publishes through a thread that the exit handlers would stop before.
    app.control_thread.join(1)
    _leave()


def _leave() -> NoReturn:
    """End as Python does, with its threads, exit handlers and buffers of files, but free nothing.

    To free thousands of modules takes longer than all else that a kernel does for itself. Python promises no finaliser
    to what is alive at the end; but people rely on its writing what a file that they never closed still holds.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    for file in (sys.__stdout__, sys.__stderr__, *(item for item in gc.get_objects() if issubclass(type(item), _BUFFERED))):
        with suppress(ValueError, OSError):  # it is closed, or its other end is
            file.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
