"""The durable log: its interface (``api``), its options, and how to get one (``open_log``)."""

from __future__ import annotations

from pathlib import Path

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
from himalia.log.options import LogOptions

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

SUPPORTED = "sqlite:///path/to/log.db (durable) or memory:// (lost on restart)"


def open_log(url: str, options: LogOptions | None = None) -> Log:
    """Return the log at this URL; the caller then awaits its ``open``.

    ``sqlite:///var/lib/himalia/log.db`` is that absolute path, ``sqlite:///~/log.db`` is in the home directory,
    ``sqlite:log.db`` in the current one. Raises ``ConfigurationError`` for anything else.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "memory" and url[len(scheme) :] in (":", "://"):
        from himalia.log.memory import MemoryLog

        return MemoryLog(options)
    if scheme == "sqlite":
        from himalia.log.sqlite import SqliteLog

        return SqliteLog(sqlite_path(url), options)
    if scheme == "nats":
        raise ConfigurationError(f"a log on NATS is not supported yet; use {SUPPORTED}", url=url)
    raise ConfigurationError(f"{url!r} is not the URL of a log; use {SUPPORTED}", url=url)


def sqlite_path(url: str) -> Path:
    """Return the absolute path that a ``sqlite:`` URL names."""
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
