"""Files and directories: made so that they survive a crash, and seen only by their owner."""

from __future__ import annotations

import os
from pathlib import Path

from himalia.local_server import make_private


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    make_private(path)
    for directory in missing:
        sync(directory.parent)


def create_private(path: Path) -> None:
    """Make an empty file, if there is none."""
    if not path.exists():
        # SQLite gives the files that it puts beside this one the same permissions.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        sync(path.parent)


def replace_private(path: Path, content: bytes) -> None:
    """Have a small file with this content, which survives a crash; nothing has changed if it cannot be written."""
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
    sync(path.parent)


def remove(path: Path) -> None:
    """Have no such file, also after a crash."""
    if path.exists():
        path.unlink()
        sync(path.parent)


def real_path(path: Path) -> Path:
    """Where symbolic links lead: SQLite puts its write-ahead log beside that file."""
    return Path(os.path.realpath(path))


def sync(path: Path) -> None:
    """Have what was written to the file, or the names in the directory, survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def length(path: str | Path) -> int:
    """Bytes in the file; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
