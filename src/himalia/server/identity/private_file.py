"""Files that only their owner may read: written whole or not at all, and read again when they change."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from himalia.errors import ConfigurationError
from himalia.log.sqlite.files import sync

OTHERS = 0o077
"""The permissions of everybody but the owner."""
BYTES_MAX = 16 << 20
"""Room for tens of thousands of keys. A larger file is another one, given by mistake."""


def write_private(path: Path, content: bytes) -> None:
    """Replace the file in one step: a reader, or a crash, sees the old content or the new one."""
    target = path.resolve()  # a symbolic link stays one
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(target.parent)


def others_may_read(path: Path) -> bool:
    return bool(os.stat(path).st_mode & OTHERS)


def read_private(path: Path, what: str) -> bytes:
    """The content. ``ConfigurationError``, which names ``what`` it is, if it cannot be read or others can read it."""
    try:
        if others_may_read(path):
            raise ConfigurationError(
                f"other users may read {what} {path}, which holds secrets; run: chmod 600 {path}"
            )
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {what} {path}: {error.strerror}") from None
    if len(content) > BYTES_MAX:
        raise ConfigurationError(f"{what} {path} has more than {BYTES_MAX} bytes; is it the right file?")
    return content


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process at a time changes files of this directory by way of this function."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


Stamp = tuple[int, int, int, int] | None
"""What tells one state of a file from another; None where there is no file."""


class FileWatch:
    """Tells when a file has changed since it was last read.

    A change counts when two looks in a row see the same file, so that one that an editor is still writing is left
    alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = self._seen = self._stamp()

    def has_changed(self) -> bool:
        """Look once. True at most once for each change. Blocks for as long as the disk takes."""
        now = self._stamp()
        is_steady, self._seen = now == self._seen, now
        if not is_steady or now == self._read:
            return False
        self._read = now
        return True

    def _stamp(self) -> Stamp:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        # With the time of the last change to the inode: a mode that was corrected is a change too.
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
