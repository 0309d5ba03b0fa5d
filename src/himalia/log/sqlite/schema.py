"""The tables of the log file, and how an older file becomes a newer one.

``topics`` holds one row for each topic and epoch; its number is never used again. A deleted topic has no name and
stays until its records are erased. ``topic_state`` is what changes with every commit. A topic's records are
``first`` to ``end - 1`` without holes; ``bytes`` is the sum of their ``size``.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from himalia.errors import ConfigurationError, LogTooNew
from himalia.log.sqlite.failures import corrupt
from himalia.log.sqlite.files import length

APPLICATION_ID = 0x48494D41  # "HIMA"

_V1 = (
    """
    CREATE TABLE topics (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT UNIQUE,
        epoch TEXT NOT NULL,
        created_us INTEGER NOT NULL,
        retention_age_s REAL,
        retention_bytes INTEGER,
        retention_count INTEGER
    )
    """,
    """
    CREATE TABLE topic_state (
        topic INTEGER PRIMARY KEY,
        first INTEGER NOT NULL,
        end INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        last_ts_us INTEGER NOT NULL,
        first_ts_us INTEGER NOT NULL
    )
    """,
    # The id is kept as UTF-8 in a blob: its length is then a length in bytes, also if it contains a NUL.
    """
    CREATE TABLE records (
        topic INTEGER NOT NULL,
        offset INTEGER NOT NULL,
        ts_us INTEGER NOT NULL,
        size INTEGER NOT NULL,
        id BLOB NOT NULL,
        headers BLOB NOT NULL,
        payload BLOB NOT NULL,
        PRIMARY KEY (topic, offset)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE producers (
        topic INTEGER NOT NULL,
        producer TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        first_offset INTEGER NOT NULL,
        count INTEGER NOT NULL,
        ts_us INTEGER NOT NULL,
        PRIMARY KEY (topic, producer)
    ) WITHOUT ROWID
    """,
    # Written to and emptied again in order to find out whether a log that failed can store again.
    "CREATE TABLE probe (filler BLOB)",
    f"PRAGMA application_id = {APPLICATION_ID}",
)

# Ids of records that retention removed while a repeat of them must still be recognised.
_V2 = (
    """
    CREATE TABLE trimmed_ids (
        ts_us INTEGER NOT NULL,
        topic INTEGER NOT NULL,
        offset INTEGER NOT NULL,
        id BLOB NOT NULL,
        PRIMARY KEY (ts_us, topic, offset)
    ) WITHOUT ROWID
    """,
)

MIGRATIONS = (_V1, _V2)
"""Applied in order, each in one transaction; the file's ``user_version`` counts those it has."""


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Bring the file to the newest version, or refuse it. A new, empty file is given all tables."""
    version = check(db, path)
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        db.execute("BEGIN IMMEDIATE")
        for statement in statements:
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")


def check_length(path: Path) -> None:
    """Refuse a file that ends within a page: SQLite would take what is missing for zeros.

    Not while this process has the file open: closing a file gives up all of SQLite's locks on it (POSIX), and
    another process that reads could then take itself for the last and remove the write-ahead log in use.
    """
    if length(f"{path}-wal"):
        return  # The file may end anywhere: its last pages are still in there.
    with open(path, "rb") as file:
        header = file.read(18)
    page_bytes = int.from_bytes(header[16:18], "big")
    if header.startswith(b"SQLite format 3\0") and page_bytes > 1 and length(path) % page_bytes:
        raise corrupt(path, "its end is missing")


def check(db: sqlite3.Connection, path: Path, *, may_be_new: bool = True) -> int:
    """The version of the file, or an error if it is no log or one of a newer Himalia."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or version or application or not may_be_new):
        raise ConfigurationError(
            f"{path} is a database of another program, not a log; name another file", path=str(path)
        )
    if version > len(MIGRATIONS):
        raise LogTooNew(
            f"the log {path} has version {version}, this Himalia knows {len(MIGRATIONS)}: use a newer Himalia",
            path=str(path),
            version=version,
        )
    return int(version)
