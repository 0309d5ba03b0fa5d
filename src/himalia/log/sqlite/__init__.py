"""A log in one SQLite file: durable, embedded, owned by one process."""

from himalia.log import LogOptions, sqlite_path
from himalia.log.sqlite.log import SqliteLog

__all__ = ["SqliteLog", "open_url"]


def open_url(url: str, options: LogOptions | None = None) -> SqliteLog:
    """Return the log in the file that a ``sqlite:`` URL names; see ``himalia.log.open_log``."""
    return SqliteLog(sqlite_path(url), options)
