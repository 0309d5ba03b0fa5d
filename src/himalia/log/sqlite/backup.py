"""Backs up a log file, while a server may write to it, and restores one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from himalia.errors import ConfigurationError
from himalia.log.sqlite.database import RENEW_EPOCHS, check, connect, connect_reader
from himalia.log.sqlite.errors import corrupt, is_content_error, is_full, translate, translate_errors
from himalia.log.sqlite.files import create_private, fsync_path, make_directory, real_path, remove_durably
from himalia.log.sqlite.lock import LogLock, check_last_name, is_in_use, remove_name
from himalia.log.sqlite.recovery import check_recovered, recovery_file
from himalia.topics import AUDIT_TOPIC

Progress = Callable[[int, int], None]
"""Called from time to time with the bytes done and the total, which is an estimate."""

_INSTRUCTIONS_PER_REPORT = 100_000
_PAGES_PER_REPORT = 1024


class BackupReport(msgspec.Struct, frozen=True):
    path: Path
    bytes: int
    topics: int
    records: int


def backup(log_path: Path, target: Path, *, progress: Progress | None = None) -> BackupReport:
    """Copy the log at ``log_path``, as it is at this moment, into the new file ``target``.

    Needs no lock: a server may continue to write. The copy is complete in one file and checked before it gets its
    name, so a file called ``target`` is a good backup. Refuses to overwrite (``ConfigurationError``).
    """
    _require_file(log_path, "log")
    if not is_in_use(log_path):
        check_recovered(real_path(log_path))
    with translate_errors(log_path):
        check_last_name(real_path(log_path))
    partial = Path(f"{target}.partial")
    with _translate_target_errors(target):
        if not target.parent.is_dir():
            raise ConfigurationError(
                f"there is no directory {target.parent}: create it first", path=str(target)
            )
        _require_absent(target, "name another file for the backup")
        with _partial_file(partial):
            _vacuum_into(log_path, partial, progress)
            _mark_closed(partial)
            report = _verify(partial)
            _require_absent(target, "name another file for the backup")
            _put_in_place(partial, target)
    return msgspec.structs.replace(report, path=target)


def restore(
    backup_path: Path, log_path: Path, *, force: bool = False, progress: Progress | None = None
) -> BackupReport:
    """Create a log at ``log_path`` from a backup, which stays unchanged.

    Every topic gets a new epoch: what was stored after the backup is gone, so a reader that resumes must not get
    other records under the offsets it knows. Raises ``LogLocked`` while a server uses the log, and
    ``ConfigurationError`` if there is a log already, unless ``force``.
    """
    _require_file(backup_path, "backup")
    _verify(backup_path)
    # The file is replaced, not a symbolic link to it.
    given_path, log_path = log_path, real_path(log_path)
    with translate_errors(log_path):
        make_directory(log_path.parent)
        lock = LogLock(log_path)
        lock.acquire()
    try:
        with translate_errors(log_path):
            if log_path.exists():
                lock.acquire_file()
        if not force:
            _require_absent(log_path, "restoring would replace it; use --force to replace it")
        partial = Path(f"{log_path}.partial")
        with translate_errors(log_path), _partial_file(partial):
            with translate_errors(log_path):
                _copy(backup_path, partial, progress)
                _renew_epochs(partial)
            report = _verify(partial)
            with translate_errors(log_path):
                # Before the new file has the name: SQLite would apply these to it and damage it.
                for suffix in ("-wal", "-shm"):
                    Path(f"{log_path}{suffix}").unlink(missing_ok=True)
                _put_in_place(partial, log_path)
                remove_durably(recovery_file(log_path))
    finally:
        lock.release()
    return msgspec.structs.replace(report, path=given_path)


def _vacuum_into(log_path: Path, partial: Path, progress: Progress | None) -> None:
    with translate_errors(log_path):
        db = connect(log_path)
    with closing(db):
        with translate_errors(log_path):
            check(db, log_path, may_be_new=False)
        if progress is not None:
            total = _count_used_bytes(db)

            def report() -> int:
                progress(min(partial.stat().st_size, total), total)
                return 0

            db.set_progress_handler(report, _INSTRUCTIONS_PER_REPORT)
        try:
            db.execute("VACUUM INTO ?", (str(partial),))
        except sqlite3.Error as error:
            if is_content_error(error):
                raise translate(error, log_path) from error
            raise


def _copy(backup_path: Path, partial: Path, progress: Progress | None) -> None:
    def report(_status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress((total - remaining) * page_bytes, total * page_bytes)

    # Through SQLite, not byte by byte: the backup may be a plain copy with a write-ahead log next to it.
    with closing(connect_reader(backup_path)) as source, closing(connect(partial)) as copy:
        (page_bytes,) = source.execute("PRAGMA page_size").fetchone()
        source.backup(copy, pages=_PAGES_PER_REPORT, progress=report)


def _mark_closed(path: Path) -> None:
    """Remove the name of the original, by which the copy is not in use."""
    with closing(connect(path)) as db:
        remove_name(db)


def _renew_epochs(path: Path) -> None:
    with closing(connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute(RENEW_EPOCHS)
        remove_name(db)


def _verify(path: Path) -> BackupReport:
    """Read the whole file and check that it is an intact log."""
    with translate_errors(path), closing(connect_reader(path)) as db:
        check(db, path, may_be_new=False)
        problems = [text for (text,) in db.execute("PRAGMA integrity_check(1)") if text != "ok"]
        if problems:
            raise corrupt(path, problems[0])
        _check_records(db, path)
        topics, records = db.execute(
            """
            SELECT count(*), coalesce(sum(end - first), 0)
            FROM topics JOIN topic_state ON topic_state.topic = topics.id WHERE name IS NOT NULL AND name != ?
            """,
            # The server's own topic, which lists do not show either.
            (AUDIT_TOPIC,),
        ).fetchone()
        return BackupReport(path, path.stat().st_size, topics, records)


# ``size`` counts an id's characters, which are at most as many as its bytes.
_UNSOUND = """
    SELECT coalesce(name, 'a deleted topic'), count(offset), end - first, sum(size), bytes,
        sum(size - length(headers) - length(payload) NOT BETWEEN 0 AND length(records.id)),
        min(CASE WHEN json_valid(CAST(payload AS TEXT)) AND json_valid(CAST(headers AS TEXT)) THEN NULL ELSE offset END)
    FROM topics JOIN topic_state ON topic_state.topic = topics.id LEFT JOIN records ON records.topic = topics.id
    WHERE first < end GROUP BY topics.id
"""


def _check_records(db: sqlite3.Connection, path: Path) -> None:
    """Check that each topic has all its records, that their sizes are right, and that they are JSON."""
    for name, count, expected, size, size_expected, wrong, not_json in db.execute(_UNSOUND):
        if (count, size, wrong) != (expected, size_expected, 0):
            raise corrupt(path, f"topic {name!r} does not have the records that it should")
        if not_json is not None:
            raise corrupt(path, f"record {not_json} of topic {name!r} is not JSON")


def _count_used_bytes(db: sqlite3.Connection) -> int:
    values = [
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    ]
    pages, free, page_bytes = values
    return int((pages - free) * page_bytes)


@contextmanager
def _translate_target_errors(target: Path) -> Iterator[None]:
    """Raise errors as those of the place where the backup is written."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = "no space is left there" if is_full(error) else getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"cannot write the backup to {target}: {reason}; choose another place for it", path=str(target)
        ) from error


@contextmanager
def _partial_file(partial: Path) -> Iterator[None]:
    """Create an empty private file; remove it at the end if it still has this name."""
    partial.unlink(missing_ok=True)
    create_private(partial)
    try:
        yield
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{partial}{suffix}").unlink(missing_ok=True)


def _put_in_place(partial: Path, target: Path) -> None:
    """Rename the file atomically and durably."""
    fsync_path(partial)
    os.replace(partial, target)
    fsync_path(target.parent)


def _require_file(path: Path, what: str) -> None:
    if not path.is_file():
        raise ConfigurationError(f"there is no {what} at {path}", path=str(path))


def _require_absent(path: Path, advice: str) -> None:
    if path.exists():
        raise ConfigurationError(f"{path} exists already: {advice}", path=str(path))
