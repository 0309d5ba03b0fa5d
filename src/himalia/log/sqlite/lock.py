"""Locks that give one process a log file, under all its names; the operating system releases them however it ends.

There are two locks, because each covers what the other cannot. ``<path>.lock``, next to the file that symbolic links
lead to, names the owner and exists before the log does. A lock on the file itself also holds for its hard links and for
a file that was moved while in use.

The name under which a log is open is kept in the file until it is closed. SQLite puts its write-ahead log next to that
name, so after a crash a process that opens the file by another name (a hard link, or the place it was moved to without
its write-ahead log) would not find the last commits, and the next start by the first name would overwrite what was
stored meanwhile. A file that was not closed is therefore refused under any other name while that write-ahead log, or
the note of a first start after the crash, exists.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import struct
import threading
import weakref
from contextlib import closing
from pathlib import Path

from himalia.errors import ConfigurationError, LogLocked
from himalia.file_lock import lock_file, read_owner, unlock_file
from himalia.log.sqlite.database import connect_reader
from himalia.log.sqlite.files import file_size, real_path
from himalia.log.sqlite.recovery import RECOVERING

# A lock of the open file description, not of the process: SQLite opens and closes the same file, and a lock of the
# process would end with the first close. One byte far behind those that SQLite locks (at 1 GiB).
_LOCK_OWN_DESCRIPTION: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_LOCK = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 1 << 62, 1, 0)
_UNLOCK = struct.pack("hhqqi0q", fcntl.F_UNLCK, os.SEEK_SET, 1 << 62, 1, 0)
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}

Identity = tuple[int, int]
"""Device and inode: the same under all names of a file."""


class LogLock:
    """The lock on one log: ``acquire``, then ``acquire_file`` as soon as there is a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._named: int | None = None
        self._file: int | None = None
        self.identity: Identity | None = None
        """The file that is locked."""

    def acquire(self) -> None:
        """Lock the name, or raise ``LogLocked``, also if this process itself has locked it."""
        named = f"{real_path(self._path)}.lock"
        descriptor = lock_file(named, f"{os.getpid()}\n".encode())
        if descriptor is None:
            owner = read_owner(named).decode(errors="replace").strip()
            raise _in_use(self._path, int(owner) if owner.isdecimal() else None)
        self._named = descriptor
        _held.add(self)

    def acquire_file(self) -> None:
        """Lock the file, under all its names, or raise ``LogLocked``."""
        with _acquiring:
            found = os.stat(self._path)
            identity = found.st_dev, found.st_ino
            # Checked before the lock: closing the file again would end all locks that SQLite has on it in this process.
            if any(lock.identity == identity for lock in _held):
                raise _in_use(self._path, os.getpid(), by_link=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._lock(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._file = descriptor
            # The identity of what was locked: another file may have got the name meanwhile.
            locked = os.fstat(descriptor)
            self.identity = locked.st_dev, locked.st_ino

    def release(self) -> None:
        """Release both locks. Not while this process has a connection to the file."""
        if self._named is None:
            return
        _held.discard(self)
        unlock_file(self._named)
        self._named = None
        if self._file is not None and _LOCK_OWN_DESCRIPTION is not None:
            fcntl.fcntl(self._file, _LOCK_OWN_DESCRIPTION, _UNLOCK)
        self._close()

    def _lock(self, descriptor: int) -> None:
        try:
            if _LOCK_OWN_DESCRIPTION is None:
                raise OSError(errno.ENOSYS, "no locks of open files")
            fcntl.fcntl(descriptor, _LOCK_OWN_DESCRIPTION, _LOCK)
        except (BlockingIOError, PermissionError):
            raise _in_use(self._path, None, by_link=True) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            if os.fstat(descriptor).st_nlink > 1:
                raise LogLocked(
                    f"the log {self._path} has several names (hard links), and this system cannot tell whether it "
                    "is in use under another one: leave it one name",
                    path=str(self._path),
                ) from None

    def _close(self) -> None:
        """Close without unlocking: in a forked child, where the locks are the parent's."""
        for descriptor in (self._named, self._file):
            if descriptor is not None:
                os.close(descriptor)
        self._named = self._file = self.identity = None


def _in_use(path: Path, owner: int | None, *, by_link: bool = False) -> LogLocked:
    process = "another process" if owner is None else f"process {owner}"
    name = " under another name (a hard link, or the name it had before)" if by_link else ""
    return LogLocked(
        f"the log {path} is in use by {process}{name}: use that server, stop it, or start this one with another --log",
        path=str(path),
        pid=owner,
    )


def is_in_use(path: Path) -> bool:
    """Whether a server uses this log, as far as can be found out without locking it."""
    with _acquiring:
        found = os.stat(path)
        if any(lock.identity == (found.st_dev, found.st_ino) for lock in _held):
            return True
        if _LOCK_OWN_DESCRIPTION is None:
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK)
            return bool(struct.unpack("hhqqi0q", answer)[0] != fcntl.F_UNLCK)
        except OSError:
            return True
        finally:
            os.close(descriptor)


_acquiring = threading.Lock()
# A forked child shares the parent's lock until both have closed it, and could keep it after the parent has ended.
_held: weakref.WeakSet[LogLock] = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_held):
        lock._close()
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def check_last_name(path: Path) -> None:
    """Refuse a file whose last commits are in a write-ahead log next to another name. ``path`` has no symbolic links.

    Called before anything is written to the file, and after ``wal.examine``, which must come before any connection.
    """
    if file_size(f"{path}-wal"):
        return  # it is in use by this name
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
    """Whether a file that belongs to the one at ``path`` is next to another name of it."""
    try:
        # If another file has that name, this one is a copy, and the write-ahead log belongs to the original.
        return file_size(f"{other}{suffix}") > 0 and (not other.exists() or os.path.samefile(other, path))
    except PermissionError:
        return False  # in a directory of another user: unknown


def save_name(db: sqlite3.Connection, path: Path) -> None:
    """Store in the file by which name it is in use."""
    if _read(db) == path:
        return
    db.execute("INSERT OR REPLACE INTO opened VALUES (1, ?)", (os.fsencode(path),))
    # Into the main file, where it is found by another name. Does not wait for readers.
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def remove_name(db: sqlite3.Connection) -> None:
    """Remove the stored name: the file is about to be complete in itself, and can be opened by any name."""
    if _has_table(db):
        db.execute("DELETE FROM opened")


def _read(db: sqlite3.Connection) -> Path | None:
    row = db.execute("SELECT path FROM opened").fetchone() if _has_table(db) else None
    return None if row is None else Path(os.fsdecode(row[0]))


def _has_table(db: sqlite3.Connection) -> bool:
    """Whether the file can store its name: not one of an earlier version, or of another program."""
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'opened'").fetchone() is not None
