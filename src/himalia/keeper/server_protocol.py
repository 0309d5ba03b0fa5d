"""The protocol between servers and a keeper: JSON lines over a Unix socket. Both ends use these declarations.

A server sends requests: objects with an ``op``, an ``id`` and the fields of the op. The keeper answers each with an
object that has the same ``id``, and ``"ok": true`` with the fields of the answer, or ``"ok": false`` with ``error``.

======== ============== ========================================= ===================================================
op       fields         answer                                    effect
======== ============== ========================================= ===================================================
start    ``Launch``     ``KeeperInfo``, ``ProcessState``          Starts the kernel. Only as first line of a keeper.
hello    none           ``KeeperInfo``, ``ProcessState``          None.
signal   ``signum``     ``delivered``: whether the kernel ran     Signals the kernel and what it started.
stay     ``seconds``    none                                      Sets how long the kernel is kept without a server.
spool    none           ``SpoolState``                            Writes what has been received by now.
launch   none           ``launch``: that of ``Launch``            None.
follow   none           none                                      See below.
release  ``keep_files`` none; sent when all has ended             Ends the kernel and the keeper.
======== ============== ========================================= ===================================================

Events, objects with an ``event``, come between the answers: ``listening`` when the keeper is connected to the kernel's
IOPub, and ``exited`` with ``returncode`` and ``lost`` when the kernel has ended and all that it published is in the
spool, except for the ``lost`` messages that the disk did not store. A server that connects later gets both at once.

A connection holds the lease until its ``follow``. From then on it gets an empty line whenever the spool has grown, and
no events.

A server and a keeper may be of different versions. A new field has a default, no field is ever removed, and unknown
fields are ignored. The keeper imports this module, so it uses the standard library only, and ``NamedTuple`` in place of
dataclasses, whose imports take 10 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from himalia.keeper.limits import Limits

SPOOL_BYTES_MAX = 256 << 20
KEEP_S = 600.0
BUSY_KEEP_S = 86400.0
GRACE_S = 5.0


class KeeperOp(StrEnum):
    START = "start"
    HELLO = "hello"
    SIGNAL = "signal"
    STAY = "stay"
    SPOOL = "spool"
    LAUNCH = "launch"
    FOLLOW = "follow"
    RELEASE = "release"


class KeeperEvent(StrEnum):
    LISTENING = "listening"
    EXITED = "exited"


class Launch(NamedTuple):
    """The kernel to start, and how long and within which limits to keep it."""

    kernel_id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    connection_file: str
    kernel_name: str = ""
    owner: str = ""
    """The caller whose kernel it is; empty for none."""
    display_name: str = ""
    interrupt_mode: str = "signal"
    launch: dict[str, Any] = {}  # noqa: RUF012
    """What a later server needs to start the kernel again. The keeper only remembers it, and not on disk."""
    keep_s: float = KEEP_S
    """How long to keep the kernel while no server is connected."""
    busy_keep_s: float = BUSY_KEEP_S
    """The same while it is busy, if that is longer; 0 for no limit."""
    keeps_files: bool = True
    """Whether a later server can read what the keeper leaves when it ends by itself."""
    spool_bytes_max: int = SPOOL_BYTES_MAX
    grace_s: float = GRACE_S
    """How long a kernel may take to end after SIGTERM, before SIGKILL."""
    memory_max: int = 0
    """Most bytes of address space; 0 for no limit."""
    cpu_s_max: int = 0
    """Most seconds of CPU time; 0 for no limit."""
    descriptors: int = 0
    """Open files, which the kernel may raise itself; 0 for the keeper's own limit."""


class KeeperInfo(NamedTuple):
    """A keeper and its kernel, as ``keeper.json`` describes them. No environment: it may hold secrets."""

    kernel_id: str
    kernel_name: str
    display_name: str
    interrupt_mode: str
    connection_file: str
    argv: list[str]
    cwd: str
    pid: int
    """The kernel's process, and its process group."""
    keeper_pid: int
    socket: str
    started_us: int
    version: str
    grace_s: float
    owner: str = ""
    keeps_files: bool = False
    """Whether it leaves the spool and the exit code for a later server when its lease is over; that of 0.1 does not."""


class SpoolState(NamedTuple):
    """Seqs ``first`` to ``end`` (not included) can be read, except for what was ``dropped`` among them."""

    dir: str
    first: int
    end: int
    dropped: int
    """Messages that made room for later ones, or that the disk did not store, since this keeper started."""
    size_bytes: int
    unwritten: int = 0
    """The last messages that cannot be read yet: they wait for a disk that is full."""


class ProcessState(NamedTuple):
    """A kernel at the moment of the answer."""

    alive: bool
    returncode: int | None
    spool: dict[str, Any]
    """The fields of ``SpoolState``."""


class KernelExit(NamedTuple):
    """How a kernel ended, as its keeper left it in ``keeper.json`` for a later server, under ``exit``."""

    returncode: int | None = None
    lost: int = 0
    """How many of its last messages the disk did not store."""
    reason: str = ""
    """Why the keeper ended it; empty if it ended by itself."""
    ended_us: int | None = None
    limits: Limits = Limits()


T = TypeVar("T", bound=tuple[Any, ...])


def from_fields(kind: type[T], fields: Mapping[str, Any]) -> T:
    """Build one of these messages from its fields, without those that this version does not know.

    Raises ``TypeError`` if a required field is missing.
    """
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return kind(**{name: fields[name] for name in names if name in fields})
