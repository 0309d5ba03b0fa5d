"""The durable log: what it is (``contract``) and how to get one (``open_log``)."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack

from himalia.errors import ConfigurationError
from himalia.log.api import (
    Appended,
    Batch,
    Change,
    ChangeKind,
    Chunk,
    Health,
    Log,
    LogStats,
    Watch,
)
from himalia.log.clock import TimeSource
from himalia.record import Retention

__all__ = [
    "Appended",
    "Batch",
    "Change",
    "ChangeKind",
    "Chunk",
    "Health",
    "Log",
    "LogOptions",
    "LogStats",
    "Watch",
    "open_log",
    "sqlite_path",
]

SUPPORTED = "sqlite:///path/to/log.db (durable) or memory:// (gone on restart)"


class LogOptions(TypedDict, total=False):
    """What may be asked of any log. Each has a default."""

    retention: Retention | None
    """Limits of every topic that sets none of its own."""
    dedup_window_s: float
    dedup_ids_max: int
    retention_interval_s: float
    """How often to look for records that retention does not keep."""
    retention_wait: float
    """How far beyond its limits a topic may go while ``Log.hold_retention`` protects it: 1 is twice as far."""
    retention_paused: bool
    """Whether retention begins only with the first call of ``Log.hold_retention``."""
    topics_max: int
    producers_max: int
    """Of one caller, over all topics."""
    producer_age_s: float
    """How long a producer that is not used is remembered at least; 0 for ever."""
    clock: TimeSource | None
    """Other clocks than this machine's, for tests."""


def open_log(url: str, **options: Unpack[LogOptions]) -> Log:
    """The log at this URL, not opened yet: the caller awaits ``open``.

    ``sqlite:///var/lib/himalia/log.db`` is that absolute path, ``sqlite:///~/log.db`` is in the home directory,
    ``sqlite:log.db`` in the current one. Raises ``ConfigurationError`` for anything else.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "memory" and url[len(scheme) :] in (":", "://"):
        from himalia.log.memory import MemoryLog

        return MemoryLog(**options)
    if scheme == "sqlite":
        from himalia.log.sqlite import SqliteLog

        return SqliteLog(sqlite_path(url), **options)
    if scheme == "nats":
        raise ConfigurationError(f"a log on NATS comes later; use {SUPPORTED}", url=url)
    raise ConfigurationError(f"{url!r} is not the URL of a log; use {SUPPORTED}", url=url)


def sqlite_path(url: str) -> Path:
    """The absolute path that a ``sqlite:`` URL names."""
    _, _, rest = url.partition(":")
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise ConfigurationError(
                f"{url!r} names a host; a path takes three slashes: sqlite:///path", url=url
            )
        rest = rest[2:].replace("/~", "~", 1) if rest.startswith("///~") else rest[2:]
    if not rest.strip("/") or "\0" in rest:
        raise ConfigurationError(f"{url!r} names no file; use {SUPPORTED}", url=url)
    # Not resolved further: a symbolic link may be moved to another file between two starts.
    return Path("/" + rest.lstrip("/") if rest.startswith("/") else rest).expanduser().absolute()
