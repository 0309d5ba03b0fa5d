"""Files that only their owner may read: written atomically, and reloaded when they change."""

from __future__ import annotations

import os
import pwd
import secrets
import stat
from pathlib import Path

from himalia.errors import ConfigurationError
from himalia.log.sqlite.files import fsync_path

OTHERS = 0o077
"""The permissions of everyone but the owner."""
WRITERS = 0o022
"""The permissions of everyone but the owner to change a file, or to create one in a directory."""
BYTES_MAX = 16 << 20
"""Enough for tens of thousands of keys. A larger file was probably given by mistake."""


def write_private(path: Path, content: bytes) -> None:
    """Replace the file atomically: a reader, or a crash, sees the old content or the new one.

    Its owner stays the same, so that the server's user can read it after a command of root.
    """
    target = path.resolve()  # a symbolic link stays one
    owner = _owner_to_keep(target)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if owner is not None:
                os.fchown(descriptor, *owner)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_path(target.parent)


def _owner_to_keep(path: Path) -> tuple[int, int] | None:
    """The user and group of a file that is to be replaced; None if there is none, or if it is our own."""
    try:
        found, directory = os.stat(path), os.stat(path.parent)
    except FileNotFoundError:
        return None
    # Where others may make files, such as in /tmp, it could have been anybody who made this one.
    if found.st_uid == os.geteuid() or directory.st_mode & WRITERS:
        return None
    return found.st_uid, found.st_gid


def others_may_read(path: Path) -> bool:
    return bool(os.stat(path).st_mode & OTHERS)


def is_others(path: Path) -> bool:
    """Whether it belongs to another user, who may change it at any time; root may do that anyway."""
    return os.stat(path).st_uid not in (os.geteuid(), 0)


def check_writers(path: Path, what: str) -> None:
    """Raise ``ConfigurationError``, which names ``what`` it is, if others may change it; ``OSError`` if missing."""
    if is_others(path):
        raise ConfigurationError(f"{what} {path} belongs to another user; run: chown {_user()} {path}")
    if os.stat(path).st_mode & WRITERS:
        raise ConfigurationError(f"other users may change {what} {path}; run: chmod go-w {path}")


def read_trusted(path: Path, what: str) -> bytes:
    """As ``read_private``, for a server: ``ConfigurationError`` also if the file belongs to another user."""
    content = read_private(path, what)
    check_writers(path, what)
    return content


def read_own(path: Path) -> bytes | None:
    """Return the content of a file that only this user can have written and read; None for any other."""
    # Checked by descriptor: in a directory where others create files, the name may be another file a moment later.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid in (os.geteuid(), 0)
        return file.read() if is_own and not found.st_mode & OTHERS else None


def read_private(path: Path, what: str) -> bytes:
    """Return the content; ``ConfigurationError``, which names ``what`` it is, if others can read it, or we cannot."""
    try:
        if others_may_read(path):
            raise ConfigurationError(
                f"other users may read {what} {path}, which holds secrets; run: chmod 600 {path}"
            )
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except PermissionError:
        raise ConfigurationError(
            f"cannot read {what} {path}: it belongs to another user; run: chown {_user()} {path}"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {what} {path}: {error.strerror}") from None
    if len(content) > BYTES_MAX:
        raise ConfigurationError(f"{what} {path} has more than {BYTES_MAX} bytes; is it the right file?")
    return content


def _user() -> str:
    """Return the name of this process's user, or its number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


Stamp = tuple[int, int, int, int] | None
"""Identifies the state of a file; None if there is none."""


class FileWatch:
    """Notices that a file has changed since it was last read.

    A change counts when two successive checks see the same state, so that a file is not read while an editor writes
    it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = self._seen = self._stamp()

    def has_changed(self) -> bool:
        """Check once. True at most once for each change. Blocks."""
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
        # With the ctime: a corrected mode is a change too.
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
