"""Child processes that end when their parent does, however that ends, ``kill -9`` included.

Two ways, for two kinds of children:

- ``kill_with_parent`` has Linux send SIGKILL. It works for any program, at once, and gives it no time to clean up.
- ``lifeline_command`` runs a Python module that holds one end of a pipe, its stdin. When the parent is gone the pipe
  closes, on every system; the module then gets SIGTERM and shuts down in order.

A child that serves requests from its stdin needs neither: it ends at the end of its input (``himalia.tables.worker``,
Spark's JVM).
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def kill_with_parent() -> Callable[[], None]:
    """Return a function that the child calls between fork and exec (``preexec_fn``); it only works on Linux.

    Linux sends the signal when the thread that forked ends: call ``Popen`` in one that lives as long as the process.
    """
    if sys.platform != "linux":
        return lambda: None
    parent = os.getpid()
    # Loaded before the fork: between fork and exec only calls that take no lock are safe.
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return in_child


def lifeline_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with a lifeline: the parent gives it a pipe as stdin, and keeps it open."""
    return [sys.executable, "-m", "himalia.child_process", module, *arguments]


def main() -> None:
    """Run the module that ``sys.argv`` names, with the arguments behind it, until it ends or the lifeline closes."""
    lifeline = os.dup(sys.stdin.fileno())
    _replace_stdin_with_null()
    threading.Thread(target=_hold, args=(lifeline,), name="himalia-lifeline", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _replace_stdin_with_null() -> None:
    """Keep the module from reading the lifeline."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, sys.stdin.fileno())
    os.close(null)


def _hold(lifeline: int) -> None:
    """Block until the parent's end of the pipe closes, then send this process SIGTERM. Runs in a thread of its own."""
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
