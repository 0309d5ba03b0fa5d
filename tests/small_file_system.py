"""A small file system to be filled up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


@contextmanager
def small_file_system(path: Path, *, megabytes: int = 2) -> Iterator[Path]:
    """Mounted on a new directory; the test is skipped where only root may do that."""
    path.mkdir()
    if not mount("-t", "tmpfs", "-o", f"size={megabytes}m", "himalia-test", str(path)):
        pytest.skip("mounting a small file system takes more rights than this user has")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill_up(path: Path) -> Path:
    """Take all the space that is left; returns the file that takes it."""
    ballast = path / "ballast"
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return ballast
