"""``python -m himalia.cli.process.lifeline MODULE ARGUMENTS``: a module that ends when whoever started it does.

Its stdin is a pipe that only the starter holds the other end of. However the starter ends, be it by ``kill -9``, the
pipe closes; the module then gets SIGTERM, and ends in order by itself.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    """Run the module that the arguments name, with the arguments behind it."""
    lifeline = os.dup(sys.stdin.fileno())
    _let_nobody_read_stdin()
    threading.Thread(target=_hold, args=(lifeline,), name="himalia-lifeline", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _let_nobody_read_stdin() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)


def _hold(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
