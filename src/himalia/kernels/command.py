"""The command that starts a kernel: its kernelspec's, but for what ipykernel needs to lose nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

LAUNCHER = Path(__file__).with_name("launcher.py")

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?(\.exe)?\Z")
_MODULES = ("ipykernel_launcher", "ipykernel")
_FROZEN = "frozen_modules"


def kernel_command(argv: Sequence[str]) -> list[str]:
    """The command of a kernelspec, with ``-m ipykernel_launcher`` replaced by our own launcher.

    Only where Python runs ipykernel directly: another program in front, such as ``docker run``, may not see our file.
    """
    at = _ipykernel_at(argv)
    if at is None:
        return list(argv)
    before, behind = list(argv[:at]), argv[at + 2 :]
    if not any(_FROZEN in part for part in before):
        # ipykernel imports the debugger, which prints four lines of warning if standard modules are frozen.
        before.append(f"-X{_FROZEN}=off")
    return [*before, str(LAUNCHER), *behind]


def _ipykernel_at(argv: Sequence[str]) -> int | None:
    """Where ``-m ipykernel_launcher`` stands among Python's own options; None if that is not what is run."""
    if not argv or not _PYTHON.match(Path(argv[0]).name):
        return None
    at = 1
    while at < len(argv) - 1 and argv[at].startswith("-"):
        if argv[at] == "-m":
            return at if argv[at + 1] in _MODULES else None
        if argv[at] == "-c":
            return None
        at += 2 if argv[at] in ("-X", "-W") else 1
    return None
