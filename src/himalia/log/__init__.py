"""The durable log: its interface (``api``), its options, and how to get one (``open_log``)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

from himalia.errors import ConfigurationError
from himalia.log.api import (
    Appended,
    Batch,
    Change,
    ChangeKind,
    Chunk,
    Health,
    Log,
    LogOptions,
    LogStats,
    Watch,
)

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


class LogKind(NamedTuple):
    """A kind of log: what its URL looks like, and the module of it, imported when such a log is opened."""

    module: str
    """It has a function ``open_url``; see ``UrlOpener``."""
    example: str
    """A URL of such a log, and what becomes of its records, for error messages."""


class UrlOpener(Protocol):
    def __call__(self, url: str, options: LogOptions | None, /) -> Log:
        """Return the log at this URL, not opened yet; raise ``ConfigurationError`` if the URL names none."""
        ...


LOGS = {
    "sqlite": LogKind("himalia.log.sqlite", "sqlite:///path/to/log.db (durable)"),
    "memory": LogKind("himalia.log.memory", "memory:// (lost on restart)"),
}
"""By the scheme of the URL. A new log is a module and a line here."""


def open_log(url: str, options: LogOptions | None = None) -> Log:
    """Return the log at this URL; the caller then awaits its ``open``.

    ``sqlite:///var/lib/himalia/log.db`` is that absolute path, ``sqlite:///~/log.db`` is in the home directory,
    ``sqlite:log.db`` in the current one. Raises ``ConfigurationError`` for anything else.
    """
    scheme = url.partition(":")[0].lower()
    if scheme in LOGS:
        open_url: UrlOpener = import_module(LOGS[scheme].module).open_url
        return open_url(url, options)
    if scheme == "nats":
        raise ConfigurationError(f"a log on NATS is not supported yet; use {list_supported_urls()}", url=url)
    raise not_a_log(url)


def not_a_log(url: str) -> ConfigurationError:
    """Return the error for a URL that names no log; it lists the URLs that do."""
    return ConfigurationError(f"{url!r} is not the URL of a log; use {list_supported_urls()}", url=url)


def list_supported_urls() -> str:
    """Return an example of the URL of each log, as one phrase."""
    return " or ".join(kind.example for kind in LOGS.values())


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
        raise ConfigurationError(f"{url!r} names no file; use {list_supported_urls()}", url=url)
    # Not resolved further: a symbolic link may be moved to another file between two starts.
    return Path("/" + rest.lstrip("/") if rest.startswith("/") else rest).expanduser().absolute()
