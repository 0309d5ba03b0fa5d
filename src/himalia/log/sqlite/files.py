"""Files and directories that survive a crash and are private to their owner."""

from __future__ import annotations

import os
from pathlib import Path

from himalia.local_server import make_private


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    make_private(path)
    for directory in missing:
        fsync_path(directory.parent)


def create_private(path: Path) -> None:
    """Create an empty file, if there is none."""
    if not path.exists():
        # SQLite gives the files that it creates next to this one the same permissions.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        fsync_path(path.parent)


def replace_private(path: Path, content: bytes) -> None:
    """Replace a small file durably; it is unchanged if the new content cannot be written."""
    partial = Path(f"{path}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


def remove_durably(path: Path) -> None:
    """Remove the file durably, if there is one."""
    if path.exists():
        path.unlink()
        fsync_path(path.parent)


def real_path(path: Path) -> Path:
    """Resolve symbolic links: SQLite puts its write-ahead log next to the file that they lead to."""
    return Path(os.path.realpath(path))


def fsync_path(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_size(path: str | Path) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
