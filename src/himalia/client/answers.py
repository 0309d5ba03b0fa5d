"""What the server tells about itself. Fields that a newer server adds are ignored."""

from __future__ import annotations

from typing import Any

import msgspec

from himalia.record import Retention


class TopicSummary(msgspec.Struct, frozen=True):
    """A topic. Records kept are ``first`` to ``end - 1``; ``messages`` counts all that were ever published."""

    name: str
    subscribers: int
    messages: int
    bytes: int
    first: int
    end: int
    epoch: str
    created: str
    retention: Retention


class TopicStats(msgspec.Struct, frozen=True):
    messages: int
    bytes: int
    first: int
    end: int
    epoch: str
    subscribers: int
    lag: int
    """Records by which the slowest subscriber is behind."""
    last_minute: list[int] = []
    """Messages in each of the last 60 whole seconds, oldest first; empty if there were none."""


class SubscriberStats(msgspec.Struct, frozen=True):
    client_id: str
    topic: str
    policy: str
    sent: int
    dropped: int
    lag: int


class Rates(msgspec.Struct, frozen=True):
    """Per second, over the last ten seconds or less."""

    published: float
    delivered: float
    dropped: float


class LastMinute(msgspec.Struct, frozen=True):
    """Records in each of the last 60 seconds, oldest first; 0 before the server started."""

    published: list[int] = []
    delivered: list[int] = []
    dropped: list[int] = []


class Stats(msgspec.Struct, frozen=True):
    uptime_s: float
    topics: dict[str, TopicStats]
    subscribers: list[SubscriberStats]
    published: int
    duplicates: int
    delivered: int
    dropped: int
    rates: Rates
    in_flight: int
    queue_bytes: int
    connections: int
    kernels: int = 0
    last_minute: LastMinute = LastMinute()


class ClockConfirmed(msgspec.Struct, frozen=True):
    """``warning`` is what was doubted of the server's clock; None if nothing was, and nothing has changed."""

    status: str
    warning: str | None = None


class Health(msgspec.Struct, frozen=True):
    """``status`` is ``ok`` or ``degraded``, and ``problem`` then says what to do; ``warnings`` are about what works all
    the same. Everything but ``status`` is told with a key only."""

    status: str
    problem: str | None = None
    warnings: list[str] = []
    uptime_sec: float | None = None
    topics: int | None = None
    subscribers: int | None = None
    connections: int | None = None
    kernels: int | None = None
    version: str | None = None
    protocol: int | None = None
    log: str | None = None


class TableColumn(msgspec.Struct, frozen=True):
    name: str
    type: str
    description: str = ""


class TableSummary(msgspec.Struct, frozen=True):
    """A table of the pipeline, as it is now. ``updated`` is ISO 8601."""

    name: str
    description: str
    rows: int | None
    bytes: int
    updated: str
    columns: list[TableColumn]


class TableRows(msgspec.Struct, frozen=True):
    """Rows of a table, each a dictionary; times are ISO 8601. ``truncated``: there are more than these."""

    table: str
    columns: list[str]
    rows: list[dict[str, Any]]
    truncated: bool


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel of the server, in Jupyter Server's form and more. Times are ISO 8601."""

    id: str
    name: str
    last_activity: str
    execution_state: str
    """``starting``, ``idle``, ``busy``, ``restarting``, ``dead`` or ``unknown``."""
    connections: int
    """Subscribers of its topic."""
    topic: str
    """All that it says and all that happens to it is there."""
    foreign: bool = False
    """Something else started it; the server only listens."""
    owner: str | None = None
    """The caller who started or attached it."""
    responding: bool = True
    queued: int = 0
    active_request: str | None = None
    pid: int | None = None
    started: str = ""
    buffered_bytes: int = 0


class KernelSpec(msgspec.Struct, frozen=True):
    """A kind of kernel that the server can start."""

    name: str
    spec: dict[str, Any]
    resources: dict[str, str] = {}

    @property
    def display_name(self) -> str:
        return str(self.spec.get("display_name") or self.name)

    @property
    def language(self) -> str:
        return str(self.spec.get("language") or "")


class KernelSpecs(msgspec.Struct, frozen=True):
    default: str
    kernelspecs: dict[str, KernelSpec]


class Skipped(msgspec.Struct, frozen=True):
    """A connection file in Jupyter's runtime directory to whose kernel the server is not attached, and why."""

    connection_file: str
    reason: str


class Attached(msgspec.Struct, frozen=True):
    attached: list[Kernel]
    skipped: list[Skipped] = []


class SessionSummary(msgspec.Struct, frozen=True):
    """A browser that is signed in. ``id`` names the session; it is not what the browser's cookie holds."""

    id: str
    caller: str
    created: str
    expires: str
    agent: str


class Submitted(msgspec.Struct, frozen=True):
    """Code that waits or runs: ``subscribe(topic, from_=offset)`` sees all of it."""

    request_id: str
    topic: str
    offset: int


class ExecutionError(msgspec.Struct, frozen=True):
    """What the code raised. The traceback's lines may be coloured by escape sequences."""

    ename: str
    evalue: str
    traceback: list[str]


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """Code that a kernel was given, and what has come of it. Times are microseconds since 1970."""

    request_id: str
    kernel_id: str
    topic: str
    status: str
    """``ok``, ``error``, ``aborted``, ``died``, ``timeout``, ``cancelled`` or ``stale``; ``running`` until then."""
    reason: str = ""
    execution_count: int | None = None
    code: str = ""
    caller: str = ""
    """Who asked, by its qualified name."""
    withheld: bool = False
    """Code, outputs and error are left out: this key may run code, but not read what it prints."""
    outputs: list[dict[str, Any]] = []
    """In the form of nbformat 4."""
    error: ExecutionError | None = None
    queued_us: int | None = None
    sent_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    run_us: int | None = None
    """How long it ran, by the kernel's own clock where that can be trusted; None if it has not run."""
    counts: dict[str, int] = {}
    offset: int | None = None
    end: int = 0
    truncated: bool = False
    """The outputs are not whole; the kernel's topic has all of them."""
    dropped: int = 0
    malformed: int = 0
