"""Exclusive locks on files and directories, which the operating system releases however their owner ends.

A lock belongs to the open descriptor: it ends when the last descriptor of the same ``open`` is closed, so a process
that was forked meanwhile keeps it until it closes its own, unless the owner unlocks first.

Standard library only: the keeper imports this module.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER_BYTES_MAX = 4096


def lock_file(path: Path | str, owner: bytes) -> int | None:
    """Create and lock the file, and write into it who owns it; return the descriptor, None if it is locked already."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _try_lock(descriptor):
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, owner, 0)
    return descriptor


def unlock_file(descriptor: int) -> None:
    """Release what ``lock_file`` returned, and remove the owner from the file."""
    try:
        os.ftruncate(descriptor, 0)
    finally:
        # Explicitly: a forked process may hold the same descriptor for a moment longer.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def read_owner(path: Path | str) -> bytes:
    """Return what the owner of a locked file wrote into it; empty if it is just being locked or unlocked."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, OWNER_BYTES_MAX, 0)
    finally:
        os.close(descriptor)


def lock_directory(directory: Path) -> int | None:
    """Lock a directory; return the descriptor, None if it is locked already. Closing the descriptor unlocks it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return descriptor if _try_lock(descriptor) else None


@contextmanager
def hold_directory(directory: Path) -> Iterator[None]:
    """Lock a directory for the duration of the block. Waits for as long as another process holds the lock."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock without waiting; close the descriptor and return False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except BaseException:
        os.close(descriptor)
        raise
    return True
