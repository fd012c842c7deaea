"""Python in a process of its own, without network."""

import json
import os
import signal
import subprocess
import sys

from lib import paths

# To begin a piece of code with: every attempt to reach the network fails, and is noted in `tried`.
NO_NETWORK = """
import json, socket, sys
tried = []
def refuse(*arguments, **named):
    tried.append(repr(arguments))
    raise OSError("the test blocks the network")
socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=paths.PROJECT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def result(code: str, *arguments: str, **environment: str) -> dict:
    """What a process prints as JSON."""
    return finished(python(code, *arguments, **environment))


def workbook(*arguments, cwd=None, **environment) -> subprocess.CompletedProcess:
    """The command line, as a user starts it."""
    command = [sys.executable, "-m", "lib.cli", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": str(paths.PROJECT)} | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def interruptible() -> None:
    """To be called in a new process: it heeds SIGINT, which what runs in the background of a shell ignores."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
