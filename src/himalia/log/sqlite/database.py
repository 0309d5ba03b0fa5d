"""The tables of the log file, their migrations, and the connections to it.

``topics`` holds one row for each topic and epoch; its number is never used again. A deleted topic has no name and
stays until its records are erased. ``topic_state`` is what changes with every commit. A topic's records are
``first`` to ``end - 1`` without holes; ``bytes`` is the sum of their ``size``.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from himalia.errors import ConfigurationError, LogTooNew
from himalia.log.sqlite.errors import corrupt
from himalia.log.sqlite.files import file_size

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
    # Written to and emptied again, to find out whether a log that failed can store again.
    "CREATE TABLE probe (filler BLOB)",
    f"PRAGMA application_id = {APPLICATION_ID}",
)

# Ids of records that retention deleted while a repeat of them must still be recognised.
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

# The caller whose topic it is: the one who started the kernel that writes to it.
_V3 = ("ALTER TABLE topics ADD COLUMN owner TEXT",)

# The state of the log's clock, and which records were stored before the clock was set: those before ``stop``.
# From here on the column ts_us of trimmed_ids is an age; see ``himalia.log.clock``.
_V4 = (
    """
    CREATE TABLE clock (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        boot_id TEXT,
        steady_us INTEGER NOT NULL,
        log_us INTEGER NOT NULL,
        age_us INTEGER NOT NULL,
        held_until_us INTEGER,
        doubt TEXT,
        jump_us INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE eras (
        topic INTEGER NOT NULL,
        stop INTEGER NOT NULL,
        shift_us INTEGER NOT NULL,
        PRIMARY KEY (topic, stop)
    ) WITHOUT ROWID
    """,
)

# The caller of the id, from the header of its record.
_V5 = ("ALTER TABLE trimmed_ids ADD COLUMN caller TEXT",)

# How much of ``age_us`` can still be subtracted; see ``himalia.log.clock``.
_V6 = ("ALTER TABLE clock ADD COLUMN assumed_us INTEGER NOT NULL DEFAULT 0",)

# When a producer's last batch was stored, as an age; see ``himalia.log.clock``. Those of earlier versions count as used
# now, so that the upgrade forgets none. And the number of producers of each caller: before the NUL in their names.
_V7 = (
    "ALTER TABLE producers ADD COLUMN age_us INTEGER NOT NULL DEFAULT 0",
    """
    UPDATE producers SET age_us = coalesce(
        (SELECT age_us FROM clock), CAST(strftime('%s', 'now') AS INTEGER) * 1000000
    )
    """,
    "CREATE TABLE producer_counts (caller TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID",
    """
    INSERT INTO producer_counts
    SELECT substr(producer, 1, instr(producer, char(0)) - 1), count(*) FROM producers
    WHERE instr(producer, char(0)) > 0 GROUP BY 1
    """,
)

# The name by which the file is in use; see ``lock.check_last_name``.
_V8 = ("CREATE TABLE opened (one INTEGER PRIMARY KEY CHECK (one = 1), path BLOB NOT NULL)",)

MIGRATIONS = (_V1, _V2, _V3, _V4, _V5, _V6, _V7, _V8)
"""Applied in order, each in one transaction; the file's ``user_version`` counts those it has."""


RENEW_EPOCHS = "UPDATE topics SET epoch = lower(hex(randomblob(8)))"


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Migrate the file to the newest version, or refuse it. A new, empty file gets all tables."""
    version = check(db, path)
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        db.execute("BEGIN IMMEDIATE")
        for statement in statements:
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")


def check_length(path: Path) -> None:
    """Refuse a file that ends within a page: SQLite would read the missing part as zeros.

    Not while this process has the file open: closing a file releases all of SQLite's locks on it (POSIX), and
    another process that reads could then take itself for the last and remove the write-ahead log in use.
    """
    if file_size(f"{path}-wal"):
        return  # the file may end anywhere: its last pages are still in the write-ahead log
    with open(path, "rb") as file:
        header = file.read(18)
    page_bytes = int.from_bytes(header[16:18], "big")
    if header.startswith(b"SQLite format 3\0") and page_bytes > 1 and file_size(path) % page_bytes:
        raise corrupt(path, "its end is missing")


def check(db: sqlite3.Connection, path: Path, *, may_be_new: bool = True) -> int:
    """Return the version of the file; raise if it is not a log, or one of a newer Himalia."""
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


BUSY_TIMEOUT_S = 10.0
PAGE_BYTES = 4096
CHECKPOINT_PAGES = 4000
"""Pages (16 MiB) in the write-ahead log at which they are moved into the file: often enough to bound it, rarely
enough that a page written many times is moved once."""
WAL_BYTES_KEPT = 64 << 20
"""A write-ahead log that grew beyond this, because a backup was reading, is truncated to it."""


def prepare_to_write(db: sqlite3.Connection, path: Path) -> None:
    """Configure the one connection that writes."""
    # Both apply only to a new file: freed pages can then be returned to the disk in small steps.
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigurationError(
            f"the file system of {path} cannot hold a log: it cannot share memory", path=str(path)
        )
    db.execute("PRAGMA synchronous = FULL")
    # On macOS the disk keeps synced data in its cache without this; elsewhere it changes nothing.
    db.execute("PRAGMA fullfsync = ON")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    db.execute("PRAGMA cache_size = -16384")
    # Deleted rows are overwritten with zeros, so that no deleted topic can be read from the file. Measured with 100,000
    # records of 200 bytes: no more CPU than FAST, which leaves freed pages as they were.
    db.execute("PRAGMA secure_delete = ON")


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write and needs no lock; other processes than the owner may have one."""
    db = connect(path)
    db.execute("PRAGMA query_only = ON")
    return db


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection without settings. A missing file is an error, never a new and empty log."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        # A connection moves between the threads of a pool, one at a time.
        check_same_thread=False,
        # Statements of ``MultiRowInsert`` have about twenty-five sizes for each of a few tables.
        cached_statements=256,
    )
