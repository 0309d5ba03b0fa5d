"""Connections to the log file, with the settings each kind needs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from himalia.errors import ConfigurationError

BUSY_TIMEOUT_S = 10.0
PAGE_BYTES = 4096
CHECKPOINT_PAGES = 4000
"""Pages (16 MiB) in the write-ahead log at which they are moved into the file: often enough to bound it, rarely
enough that a page written many times is moved once."""
WAL_BYTES_KEPT = 64 << 20
"""A write-ahead log that grew beyond this, because a backup was reading, is cut back to it."""


def prepare_to_write(db: sqlite3.Connection, path: Path) -> None:
    """Settings of the one connection that writes."""
    # Both count only for a new file: freed pages can then be given back to the disk in small steps.
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigurationError(
            f"the file system of {path} cannot hold a log: it cannot share memory", path=str(path)
        )
    db.execute("PRAGMA synchronous = FULL")
    # On macOS the disk keeps what was synced in its cache unless asked in this way; elsewhere it changes nothing.
    db.execute("PRAGMA fullfsync = ON")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    db.execute("PRAGMA cache_size = -16384")
    # What is removed is overwritten with zeros, so that a deleted topic is gone from the file. Measured with 100,000
    # records of 200 bytes: no more CPU than FAST, which leaves freed pages as they were.
    db.execute("PRAGMA secure_delete = ON")


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write and does not need the lock: also for another process than the owner's."""
    db = connect(path)
    db.execute("PRAGMA query_only = ON")
    return db


def connect(path: Path) -> sqlite3.Connection:
    """Without settings. A missing file is an error, never a new and empty log."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        # A connection moves between the threads of a pool, one at a time.
        check_same_thread=False,
        # The wide statements come in about twenty-five sizes for each of a few tables.
        cached_statements=256,
    )
