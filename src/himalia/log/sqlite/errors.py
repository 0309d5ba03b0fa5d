"""Translates errors of SQLite and of the operating system into Himalia's own, which say what to do about them."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

from himalia.errors import (
    ConfigurationError,
    HimaliaError,
    LogCorrupt,
    LogFull,
    LogReadOnly,
    LogUnavailable,
)

SHARED_MEMORY_STEP_BYTES = 32 << 10
"""SQLite extends the file ``-shm`` by this much."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def is_storage_error(error: Exception) -> TypeGuard[sqlite3.Error | OSError]:
    """Whether the cause is the file or its disk, not the values to be stored or our own statements."""
    # A damaged file is a plain DatabaseError; its other subclasses are about statements and values.
    return isinstance(error, sqlite3.OperationalError | OSError) or type(error) is sqlite3.DatabaseError


def translate(error: sqlite3.Error | OSError, path: Path) -> HimaliaError:
    """Return Himalia's error for an error of the log file at ``path``."""
    return _from_sqlite(error, path) if isinstance(error, sqlite3.Error) else _from_system(error, path)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise errors of the log file at ``path`` as Himalia's own."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise translate(error, path) from error


def is_full(error: sqlite3.Error | OSError) -> bool:
    """Whether the disk is full."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return _kind(error) == sqlite3.SQLITE_FULL


def is_content_error(error: sqlite3.Error) -> bool:
    """Whether the file that was read is damaged, or locked by another program."""
    held = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return _kind(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, *held)


def full(path: Path) -> LogFull:
    return LogFull(f"no space left for the log: free some on the disk of {path}", path=str(path))


def read_only(path: Path) -> LogReadOnly:
    return LogReadOnly(
        f"the log cannot be written: make {path} and its directory writable for this user, or name another --log",
        path=str(path),
    )


def corrupt(path: Path, detail: str) -> LogCorrupt:
    return LogCorrupt(
        f"the log {path} is damaged ({detail}): stop the server and restore a backup with `himalia restore`",
        path=str(path),
    )


def records_missing(path: Path, topic: str, offset: int) -> LogCorrupt:
    """Offsets have no gaps: one means that the file was damaged."""
    return corrupt(path, f"records of topic {topic!r} are missing from offset {offset} on")


def file_removed(path: Path) -> LogUnavailable:
    return LogUnavailable(f"the log {path} was removed while in use: restart the server", path=str(path))


def file_replaced(path: Path) -> LogUnavailable:
    return LogUnavailable(
        f"the log {path} was replaced by another file while in use: restart the server", path=str(path)
    )


def _from_sqlite(error: sqlite3.Error, path: Path) -> LogUnavailable:
    kind = _kind(error)
    if kind == sqlite3.SQLITE_FULL:
        return full(path)
    if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return read_only(path)
    if kind == sqlite3.SQLITE_CANTOPEN:
        return _cannot_open(path)
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return corrupt(path, str(error))
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LogUnavailable(f"{path} is locked by another program: stop it, or wait", path=str(path))
    if kind == sqlite3.SQLITE_IOERR and _is_disk_full(path):
        # SQLite reports SQLITE_FULL for its pages only, and IOERR_SHMSIZE if it cannot extend the shared memory file.
        return full(path)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return LogUnavailable(f"the log {path} failed: {error} ({name}); check its disk", path=str(path))


def _kind(error: sqlite3.Error) -> int:
    """Return the kind of an error: the low byte of its code. The rest says where in SQLite it was found."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _is_disk_full(path: Path) -> bool:
    """Whether there is no room to extend the shared memory file."""
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < SHARED_MEMORY_STEP_BYTES


def _cannot_open(path: Path) -> LogUnavailable:
    if not path.exists():
        return file_removed(path)
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return read_only(path)
    return LogUnavailable(f"the log {path} cannot be opened; check its directory", path=str(path))


def _from_system(error: OSError, path: Path) -> LogUnavailable | ConfigurationError:
    if error.errno in _FULL:
        return full(path)
    if error.errno in _READ_ONLY:
        return read_only(path)
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return ConfigurationError(f"{path} cannot be a log: {error.strerror}", path=str(path))
    if error.errno == errno.ENOENT:
        return file_removed(path)
    return LogUnavailable(f"the log {path} failed: {error}", path=str(path))
