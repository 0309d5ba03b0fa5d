"""A log in one SQLite file: durable, embedded, owned by one process."""

from himalia.log.sqlite.log import SqliteLog

__all__ = ["SqliteLog"]
