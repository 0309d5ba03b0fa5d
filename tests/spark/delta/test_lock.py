"""One run at a time in a warehouse."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from himalia.errors import ConfigurationError, WarehouseLocked
from himalia.spark.delta.lock import warehouse_lock

HOLD = """
import sys
from pathlib import Path
from himalia.spark.delta.lock import warehouse_lock
with warehouse_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(warehouse: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(warehouse)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_is_told_who_was_first(warehouse: Path, holder: subprocess.Popen[str]) -> None:
    expected = rf"in use by process {holder.pid} on {socket.gethostname()}, since .* --warehouse"
    with holder, pytest.raises(WarehouseLocked, match=expected), warehouse_lock(warehouse):
        pass


def test_a_lock_ends_with_its_holder(warehouse: Path, holder: subprocess.Popen[str]) -> None:
    """However it ends: kill -9 leaves nothing to clear away."""
    holder.send_signal(signal.SIGKILL)
    with holder:
        holder.wait()
    with warehouse_lock(warehouse):
        assert str(os.getpid()) in (warehouse / "lock").read_text()


def test_a_lock_is_free_after_the_block(warehouse: Path) -> None:
    for _ in range(2):
        with warehouse_lock(warehouse), pytest.raises(WarehouseLocked), warehouse_lock(warehouse):
            pass


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigurationError, match="cannot be used: Not a directory"),
        warehouse_lock(tmp_path / "file" / "warehouse"),
    ):
        pass
