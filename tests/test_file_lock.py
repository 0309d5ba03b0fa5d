from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from himalia.file_lock import hold_directory, lock_directory, lock_file, read_owner, unlock_file


def test_a_file_has_one_owner(tmp_path: Path) -> None:
    """The second one gets no lock, and can read who has it; after the first has unlocked, it can lock."""
    path = tmp_path / "lock"
    first = lock_file(path, b"first")
    assert first is not None
    assert lock_file(path, b"second") is None
    assert read_owner(path) == b"first"
    unlock_file(first)
    assert read_owner(path) == b""
    second = lock_file(path, b"second")
    assert second is not None
    unlock_file(second)


def test_a_directory_is_unlocked_with_its_descriptor(tmp_path: Path) -> None:
    """Closing the descriptor is enough."""
    first = lock_directory(tmp_path)
    assert first is not None
    assert lock_directory(tmp_path) is None
    os.close(first)
    second = lock_directory(tmp_path)
    assert second is not None
    os.close(second)


def test_a_dead_owner_has_no_lock(tmp_path: Path) -> None:
    """The operating system unlocks the file of a process that was killed; its name is still in the file."""
    path = tmp_path / "lock"
    code = (
        "import os, signal, sys; from himalia.file_lock import lock_file; lock_file(sys.argv[1], b'dead'); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert read_owner(path) == b"dead"
    descriptor = lock_file(path, b"alive")
    assert descriptor is not None
    unlock_file(descriptor)


def test_it_needs_the_standard_library_only() -> None:
    """The keeper imports it, which has to start quickly."""
    code = "import himalia.file_lock, sys; print([name for name in ('pydantic', 'msgspec') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_hold_directory(tmp_path: Path) -> None:
    """The directory is locked during the block, and only then."""
    with hold_directory(tmp_path):
        assert lock_directory(tmp_path) is None
    first = lock_directory(tmp_path)
    assert first is not None
    os.close(first)
