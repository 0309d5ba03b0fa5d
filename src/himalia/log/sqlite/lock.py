"""One process owns a log file: a lock beside it, which the operating system frees however the owner ends."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from himalia.errors import LogLocked


class FileLock:
    """``<path>.lock``, with the owner's process id inside. The file stays; the lock on it is what counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Own the log or fail with ``LogLocked``, also if this same process owns it already."""
        descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise LogLocked(
                f"the log {self._path} is in use by process {owner}: talk to that server, stop it, "
                "or give this one another --log",
                path=str(self._path),
                pid=int(owner) if owner.isdecimal() else None,
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        if self._descriptor is None:
            return
        _held.discard(self)
        os.ftruncate(self._descriptor, 0)
        # Said outright, because a forked child may hold the same descriptor for a moment longer.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._let_go()

    def _let_go(self) -> None:
        """Close without unlocking: in a forked child, where the lock is the parent's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


# A forked child shares the parent's lock until both have closed it, and could keep it after the parent's end.
_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock._let_go()
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
