"""Starts ipykernel with a send buffer on IOPub that a reader can fall behind on.

ipykernel leaves ZeroMQ's limit of 1,000 messages on the socket by which it publishes, and ZeroMQ silently drops
messages beyond it: a reader that does not run for a moment loses output. ``launch.py`` starts our own kernels with this
file in place of ``-m ipykernel_launcher``. It runs as a script of the kernel's own Python, in which Himalia may not be
installed, so it imports nothing of Himalia.
"""

from __future__ import annotations

import os
import sys
from typing import Any

IOPUB_MESSAGES_MAX = 50_000
"""Messages that wait in the kernel for one reader of IOPub; ZeroMQ drops those beyond it."""


def raise_iopub_limit(app: Any, messages_max: int = IOPUB_MESSAGES_MAX) -> None:
    """Have the application class create its IOPub socket with this limit; one without ``init_iopub`` is not changed."""
    init_iopub = getattr(app, "init_iopub", None)
    if init_iopub is None:
        return

    def init_with_limit(self: Any, context: Any) -> None:
        # The default of sockets made meanwhile: the limit holds for what is bound after it was set.
        context.sndhwm = messages_max
        try:
            init_iopub(self, context)
        finally:
            del context.sndhwm

    app.init_iopub = init_with_limit


def main() -> None:
    """Run ``ipykernel_launcher`` as ``python -m`` does, with the same ``sys.argv`` and ``sys.path``."""
    here = os.path.dirname(os.path.realpath(__file__))
    # Python puts a script's directory there (not with -P or -I): its modules would hide those of the standard library.
    was_added = bool(sys.path) and os.path.realpath(sys.path[0]) == here
    if was_added:
        del sys.path[0]

    import runpy

    from ipykernel.kernelapp import IPKernelApp

    raise_iopub_limit(IPKernelApp)
    if was_added:
        # As -m has it; ipykernel_launcher takes it out again while it imports.
        sys.path.insert(0, "")
    runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
