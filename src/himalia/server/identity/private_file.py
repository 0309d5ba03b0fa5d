"""Files that only their owner may read: written whole or not at all, and read again when they change."""

from __future__ import annotations

import os
import pwd
import secrets
import stat
from pathlib import Path

from himalia.errors import ConfigurationError
from himalia.log.sqlite.files import fsync_path

OTHERS = 0o077
"""The permissions of everybody but the owner."""
WRITERS = 0o022
"""The permissions to change a file, or to make one in a directory, of everybody but the owner."""
BYTES_MAX = 16 << 20
"""Room for tens of thousands of keys. A larger file is another one, given by mistake."""


def write_private(path: Path, content: bytes) -> None:
    """Replace the file in one step: a reader, or a crash, sees the old content or the new one.

    It stays its owner's: a command that root runs must not take it from the server's user.
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
    """``ConfigurationError``, which names ``what`` it is, if others may change it. ``OSError`` if it is not there."""
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
    """The content of a file that nobody else has written or read: None if it could be another user's."""
    # Looked at by what was opened: in a directory where others make files, the name may be another's a moment later.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid in (os.geteuid(), 0)
        return file.read() if is_own and not found.st_mode & OTHERS else None


def read_private(path: Path, what: str) -> bytes:
    """The content. ``ConfigurationError``, which names ``what`` it is, if it cannot be read or others can read it."""
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
    """The user of this process, by name where it has one."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


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
