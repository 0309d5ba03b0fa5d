"""How a kernel is started: its command, its environment without secrets, and whether its sockets are encrypted.

CURVE encryption uses keys that only the connection file has; without it IOPub is open to every user of the machine who
finds its port. Kernels whose kernelspec declares ``metadata.supported_encryption`` take part (ipykernel from 7.4).

Code that prints ``os.environ`` stores all of it in the log, for every reader of the topic. Leaving secrets out is not a
security boundary: code in a kernel runs as the server's user and can read what that user can, ``/proc/<pid>/environ``
of the server included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import zmq
from jupyter_client.kernelspec import KernelSpec

from himalia.errors import BadRequest
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.settings import KernelEncryption

LAUNCHER = Path(__file__).with_name("launcher.py")

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?(\.exe)?\Z")
_MODULES = ("ipykernel_launcher", "ipykernel")
_FROZEN = "frozen_modules"


def kernel_command(argv: Sequence[str]) -> list[str]:
    """Return the command of a kernelspec, with ``-m ipykernel_launcher`` replaced by our own launcher.

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
    """Return the index of ``-m ipykernel_launcher`` among Python's own options; None for another command."""
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


SECRET_PREFIXES = ("HIMALIA_", "AWS_", "GOOGLE_", "AZURE_", "NATS_")


def kernel_environment(
    own: Mapping[str, str], kept: Iterable[str] = (), requested: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a kernel's environment: the server's variables that are not secret or are ``kept``, then those requested.

    ``kept`` are names, or patterns such as ``AWS_*``.
    """
    patterns = tuple(kept)

    def is_passed(name: str) -> bool:
        is_secret = name.upper().startswith(SECRET_PREFIXES)
        return not is_secret or any(fnmatchcase(name, pattern) for pattern in patterns)

    return {name: value for name, value in own.items() if is_passed(name)} | dict(requested or {})


def transport_encryption(name: str, spec: KernelSpec, policy: KernelEncryption) -> str:
    """Return the ``transport_encryption`` of jupyter_client's manager for a kernel of this kernelspec.

    Raises ``BadRequest`` if the kernel has to be encrypted and cannot be.
    """
    is_possible = _declares_curve(spec) and bool(zmq.has("curve"))
    if policy == "required" and not is_possible:
        raise BadRequest(
            f"kernelspec {name!r} does not declare CURVE encryption, which this server requires "
            "(kernel_encryption is 'required'); choose another kernel, or have the server run with 'auto'",
            kernel_name=name,
        )
    return "auto" if is_possible and policy != "off" else "disabled"


def check_attachable(connection: ConnectionInfo, path: str, policy: KernelEncryption) -> None:
    """Raise ``BadRequest`` for a foreign kernel that is not encrypted although the server requires it."""
    if policy == "required" and not connection.is_encrypted:
        raise BadRequest(
            f"the kernel of {path} is not encrypted, which this server requires (kernel_encryption is 'required')",
            path=path,
        )


def _declares_curve(spec: KernelSpec) -> bool:
    declared = (spec.metadata or {}).get("supported_encryption") or ()
    names = [declared] if isinstance(declared, str) else declared
    return isinstance(names, (list, tuple)) and "curve" in [str(name).strip().lower() for name in names]
