"""One process owns a log file, by whatever name it was opened; the operating system frees it however the owner ends.

Two locks, because each covers what the other cannot. ``<path>.lock``, beside the file that symbolic links lead to,
says who the owner is and exists before the log does. A lock on the file itself holds for its hard links as well, and
for a file that was moved while in use.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import weakref
from pathlib import Path

from himalia.errors import LogLocked
from himalia.log.sqlite.files import real_path

# A lock of the open file description, not of the process: SQLite opens and closes the same file, and a lock of the
# process would end with the first of these. One byte far behind those that SQLite locks (at 1 GiB).
_LOCK_OWN_DESCRIPTION: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_LOCK = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 1 << 62, 1, 0)
_UNLOCK = struct.pack("hhqqi0q", fcntl.F_UNLCK, os.SEEK_SET, 1 << 62, 1, 0)
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}

Identity = tuple[int, int]
"""Device and inode: what a file is, under all its names."""


class FileLock:
    """The lock on one log. ``acquire`` comes first; ``acquire_file`` as soon as there is a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._named: int | None = None
        self._file: int | None = None
        self.identity: Identity | None = None
        """The file that is locked."""

    def acquire(self) -> None:
        """Own the name or fail with ``LogLocked``, also if this same process owns it already."""
        descriptor = os.open(f"{real_path(self._path)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise _in_use(self._path, int(owner) if owner.isdecimal() else None) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._named = descriptor
        _held.add(self)

    def acquire_file(self) -> None:
        """Own the file, under all its names, or fail with ``LogLocked``."""
        with _acquiring:
            found = os.stat(self._path)
            identity = found.st_dev, found.st_ino
            # Not left to the lock: closing the file again would end all locks that SQLite has on it in this process.
            if any(lock.identity == identity for lock in _held):
                raise _in_use(self._path, os.getpid(), by_link=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._lock(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._file = descriptor
            # Of what was locked, which is another file if the name was given to one meanwhile.
            locked = os.fstat(descriptor)
            self.identity = locked.st_dev, locked.st_ino

    def release(self) -> None:
        """Give both up. Not while a connection of this process to the file is open."""
        if self._named is None:
            return
        _held.discard(self)
        os.ftruncate(self._named, 0)
        # Said outright, because a forked child may hold the same descriptor for a moment longer.
        fcntl.flock(self._named, fcntl.LOCK_UN)
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
        f"the log {path} is in use by {process}{name}: talk to that server, stop it, or give this one another --log",
        path=str(path),
        pid=owner,
    )


def is_owned(path: Path) -> bool:
    """Whether a server uses this log, as far as can be told without taking it."""
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
# A forked child shares the parent's lock until both have closed it, and could keep it after the parent's end.
_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_held):
        lock._close()
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
