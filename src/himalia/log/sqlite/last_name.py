"""The name under which a log file is in use, kept in the file until it is closed.

SQLite puts its write-ahead log beside the name by which a file was opened. After a crash, a process that opens the
file by another name (a hard link, or the place it was moved to without its write-ahead log) would not find what was
committed last, and the next start by the first name would overwrite what was stored meanwhile. So a file that was not
closed is refused by any other name while that write-ahead log is there, or what a first start after the crash noted.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from himalia.errors import ConfigurationError
from himalia.log.sqlite.connection import connect_reader
from himalia.log.sqlite.files import length
from himalia.log.sqlite.recovery import RECOVERING


def check_last_name(path: Path) -> None:
    """Refuse a file whose last commits are in a write-ahead log beside another name. ``path`` has no symbolic links.

    Before anything is written to the file, and after ``wal.examine``, which has to come before any connection.
    """
    if length(f"{path}-wal"):
        return  # It is in use by this name.
    with closing(connect_reader(path)) as db:
        other = _read(db)
    if other is None or other == path:
        return
    if _is_beside(other, path, "-wal"):
        raise _not_closed(other, path, "-wal", "what was stored last is in")
    if _is_beside(other, path, RECOVERING):
        raise _not_closed(other, path, RECOVERING, "whether records are missing is in")


def _not_closed(other: Path, path: Path, suffix: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"the log {path} was not closed when it was last used as {other}, and {what} {other}{suffix}: "
        f"use the name {other}" + ("" if other.exists() else f", or move {other}{suffix} to {path}{suffix}"),
        path=str(path),
    )


def _is_beside(other: Path, path: Path, suffix: str) -> bool:
    """Whether a file that belongs to the one at ``path`` is beside another name of it."""
    try:
        # If another file has that name, this one is a copy, and what is beside it is of the original.
        return length(f"{other}{suffix}") > 0 and (not other.exists() or os.path.samefile(other, path))
    except PermissionError:
        return False  # It is in a directory of another user: there is no telling.


def save_name(db: sqlite3.Connection, path: Path) -> None:
    """Have the file itself say, from now on, by which name it is in use."""
    if _read(db) == path:
        return
    db.execute("INSERT OR REPLACE INTO opened VALUES (1, ?)", (os.fsencode(path),))
    # Into the main file, where it is found by another name. Does not wait for readers.
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def forget_name(db: sqlite3.Connection) -> None:
    """The file is about to be complete in itself: it can be opened by any name."""
    if _has_table(db):
        db.execute("DELETE FROM opened")


def _read(db: sqlite3.Connection) -> Path | None:
    row = db.execute("SELECT path FROM opened").fetchone() if _has_table(db) else None
    return None if row is None else Path(os.fsdecode(row[0]))


def _has_table(db: sqlite3.Connection) -> bool:
    """Not in a file of an earlier version, or of another program."""
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'opened'").fetchone() is not None
