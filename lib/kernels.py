"""Kernels without the wait: the papermill engine `warm`, whose kernels are forked from a process with everything imported.

One process, the zygote, imports what notebooks need and then does nothing but fork. A notebook's kernel is a fork of
it that becomes an ordinary ipykernel: a process of its own, as isolated as a new one, whose imports are done. One
running kernel that is reset between notebooks would start sooner still, but cannot forget: whatever a notebook leaves
in the process would have to be known to be put back. A fork has nothing to forget. It is taken before any thread of
Python runs, so the zygote only imports and computes nothing.

What a fork cannot take back is the moment of import. When a file of `lib` or the environment is not what it was, the
next kernel comes from a new zygote; a variable that a notebook itself sets, for a library that is imported by then,
comes too late.

No kernel outlives the process that asked for it. A keeper, which is the process that forked the kernel, holds one end
of a socket; when the other end is closed, it kills the kernel and all that the kernel started. The system closes a
socket whichever way a process ends. Should the keeper be killed, the kernel, which looks after it every second, ends.
"""

import asyncio
import json
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

from lib import paths
from lib.errors import WorkbookError
from lib.zygote import LAUNCHER, SAID

# What a kernel imports while it starts, then what notebooks 01 to 07 import. The models' libraries are not among it:
# few notebooks load a model, and the others would wait for them.
PRELOADED = (
    "ipykernel.kernelapp",
    "ipykernel.debugger",
    "psutil",
    "pandas",
    "matplotlib.pyplot",
    "lib.ablation",
    "lib.comparing",
    "lib.explorer",
    "lib.preparing",
    "lib.steps",
)
START_SECONDS = 60  # what a kernel may take to start, as with papermill's own engine


class Kernel:
    """A forked kernel, with what `LocalProvisioner` asks of a `subprocess.Popen`; letting go of it ends it."""

    stdin = stdout = stderr = None

    def __init__(self, control: socket.socket, request: dict[str, Any]):
        """Say what the kernel is to be, and wait until it listens. Raises RuntimeError if it does not come to that."""
        self._control = control
        self.returncode: int | None = None
        control.settimeout(START_SECONDS)
        try:
            with suppress(BrokenPipeError):  # then there is nobody to hear from, either
                control.sendall(json.dumps(request).encode() + b"\n")
            ended, self.pid = self._hear()
        except TimeoutError:
            self.close()
            raise RuntimeError(f"the kernel did not start in {START_SECONDS} seconds") from None
        if ended:
            self.close()
            raise RuntimeError(f"the kernel ended with status {self.pid} before it was ready")
        control.setblocking(False)

    def poll(self) -> int | None:
        """The exit status (minus the signal's number after a signal), or None while it runs."""
        if self.returncode is None:
            with suppress(BlockingIOError):
                _, self.returncode = self._hear()
        return self.returncode

    def wait(self) -> int | None:
        """The exit status of a kernel that has ended."""
        self.close()
        return self.returncode

    def close(self) -> None:
        """Let go: the keeper kills what is left of the kernel."""
        self._control.close()

    def _hear(self) -> tuple[bool, int]:
        """What the kernel or its keeper says next; that it was killed, if its keeper was."""
        try:
            said = self._control.recv(SAID.size)
        except ConnectionResetError:
            said = b""
        return SAID.unpack(said) if said else (True, -signal.SIGKILL)


class Origin(NamedTuple):
    """What a zygote's imports depend on: the interpreter, its environment, and the files of `lib` (path, time, size)."""

    interpreter: list[str]
    environment: dict[str, str]
    code: tuple[tuple[str, int, int], ...]


class Zygote:
    """The process that forks the kernels, seen from the one that asks for them; it ends when it is let go of."""

    def __init__(self, origin: Origin):
        self.origin = origin
        self._requests, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*origin.interpreter, "-m", "lib.zygote", str(theirs.fileno()), *PRELOADED],
                cwd=paths.PROJECT,
                env=origin.environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt at the terminal is not for it
            )

    def ask(self) -> socket.socket:
        """Ask for a kernel; returns the socket over which it is to be told what it is to be."""
        control, theirs = socket.socketpair()
        with theirs, suppress(BrokenPipeError):  # then nothing will be heard from the other end
            socket.send_fds(self._requests, [b"k"], [theirs.fileno()])
        return control

    def close(self) -> None:
        self._requests.close()


_zygote: Zygote | None = None
_controls: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # of all kernels
_one_at_a_time = threading.Lock()


def fork(command: list[str], cwd: str, environment: dict[str, str]) -> Kernel:
    """A kernel for the command of a kernel specification, which must be that of an ipykernel.

    The first call starts a zygote. Raises RuntimeError if the kernel does not become ready.
    """
    origin = Origin(_interpreter(command), dict(environment), paths.code_state())
    with _one_at_a_time:
        control = _zygote_of(origin).ask()
        _controls.add(control)
    return Kernel(control, {"command": command, "cwd": cwd, "environment": environment})


def make_ready() -> None:
    """Start the zygote that the first notebook would start, so that it imports while this process goes on."""
    with _one_at_a_time:
        _zygote_of(Origin([sys.executable], dict(os.environ), paths.code_state()))


def _zygote_of(origin: Origin) -> Zygote:
    """The zygote, which is a new one if there is none, it has died, or what it imported has changed."""
    global _zygote
    if not _zygote or _zygote.origin != origin or _zygote.process.poll() is not None:
        if _zygote:
            _zygote.close()
        _zygote = Zygote(origin)
    return _zygote


def end() -> None:
    """Let go of all kernels and of what forks them, which ends them."""
    global _zygote, _one_at_a_time
    for control in list(_controls):
        control.close()
    if _zygote:
        _zygote.close()
    _zygote, _one_at_a_time = None, threading.Lock()


# A process that this one forks has nothing to do with the kernels, but as long as it held the sockets they would live.
os.register_at_fork(after_in_child=end)


def _interpreter(command: list[str]) -> list[str]:
    """The part of a kernel's command that names the interpreter and its options."""
    if sys.platform != "linux":
        raise WorkbookError("engine warm: kernels are forked on Linux only; use --engine fresh")
    if LAUNCHER not in command:
        raise WorkbookError(f"engine warm: '{' '.join(command)}' does not start an ipykernel; use --engine fresh")
    return command[: command.index(LAUNCHER) - 1]


class Provisioner(LocalProvisioner):
    """Starts kernels by asking the zygote for a fork; the rest is as for kernels that are launched."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """Fork a kernel; returns its connection information once it listens. Raises RuntimeError if it ends before."""
        self.cwd = kwargs.get("cwd") or Path.cwd()
        self.process = fork(cmd, str(self.cwd), kwargs["env"])
        self.pid = self.pgid = self.process.pid
        return self.connection_info

    async def send_signal(self, signum: int) -> None:
        """Send a signal, except for the interrupt with which managers begin a shutdown.

        That is for a cell that still runs. There is none, or the sweep is interrupted and SIGTERM follows; and a kernel
        that is interrupted while it ends its last answer puts an error on the terminal.
        """
        if signum != signal.SIGINT or not self.parent.shutting_down:
            with suppress(ProcessLookupError):  # its keeper was killed, and so was the kernel
                os.killpg(self.pid, signum)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Wait a second for the kernel to end by itself, at finer steps than its manager does thereafter."""
        until = time.monotonic() + 1
        while self.process.poll() is None and time.monotonic() < until:
            await asyncio.sleep(0.005)

    async def cleanup(self, restart: bool = False) -> None:
        await super().cleanup(restart)
        if self.process:
            self.process.close()
            self.process = None


class Client(AsyncKernelClient):
    """A client that is ready as soon as the kernel answers it; the usual one then listens for another 0.2 seconds."""

    async def wait_for_ready(self, timeout: float | None = None) -> None:
        """Wait for an answer, and for anything published, after which nothing that is published gets lost."""
        until = time.monotonic() + (timeout or math.inf)
        while True:
            try:
                reply = await self.kernel_info(reply=True, timeout=1)
                await self.get_iopub_msg(timeout=1)
            except (TimeoutError, queue.Empty):
                if not await self.is_alive():
                    raise RuntimeError("the kernel died before it answered") from None
                if time.monotonic() > until:
                    raise RuntimeError(f"the kernel did not answer in {timeout} seconds") from None
            else:
                self._handle_kernel_info_reply(reply)
                return


class KernelManager(AsyncKernelManager):
    """A manager of a forked kernel."""

    def __init__(self, **kwargs: Any):
        super().__init__(client_factory=Client, **kwargs)
        self.provisioner = Provisioner(kernel_spec=self.kernel_spec, parent=self)


class WarmEngine:
    """papermill's own engine with forked kernels, and without its saving a notebook twice for every cell.

    Not a class derived from it: papermill loads this module, as that of an entry point, before it is loaded itself.
    """

    @staticmethod
    def execute_notebook(nb: Any, kernel_name: str, output_path: str | None = None, **kwargs: Any) -> Any:
        """The executed notebook, which papermill then saves; if its kernel dies, what there is of it is saved here."""
        try:
            return _usual().execute_notebook(nb, kernel_name, kernel_manager_class=KernelManager, **kwargs)
        except RuntimeError:
            from papermill.iorw import write_ipynb

            write_ipynb(nb, output_path)
            raise

    @staticmethod
    def nb_kernel_name(nb: Any, name: str | None = None) -> str:
        return _usual().nb_kernel_name(nb, name)

    @staticmethod
    def nb_language(nb: Any, language: str | None = None) -> str:
        return _usual().nb_language(nb, language)


def _usual() -> Any:
    from papermill.engines import papermill_engines

    return papermill_engines.get_engine(None)
