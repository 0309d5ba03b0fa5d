"""The Python of docs/kernels.md runs as it stands, and prints what the page says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

from tests.docs.markdown import Block, blocks

GUIDE = Path(__file__).parents[2] / "docs" / "kernels.md"
TIMEOUT_S = 120


@pytest.fixture
def connection_file(tmp_path: Path) -> Iterator[str]:
    """A kernel that something else started."""
    manager = KernelManager(connection_file=str(tmp_path / "kernel-doc.json"))
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=TIMEOUT_S)
        yield manager.connection_file
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def examples() -> list[tuple[Block, Block]]:
    """Each piece of Python and the block behind it, which is what it prints."""
    found = blocks(GUIDE.read_text())
    return [(block, found[at + 1]) for at, block in enumerate(found) if block.kind == "python"]


@pytest.mark.slow
@pytest.mark.parametrize("example", range(2))
def test_the_python_runs(example: int, connection_file: str, tmp_path: Path) -> None:
    """A reader who copies an example gets what the page shows."""
    code, printed = examples()[example]
    script = tmp_path / "example.py"
    script.write_text(f"CONNECTION_FILE = {connection_file!r}\n{code.text}")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout.strip() == printed.text.strip(), done.stderr


def test_there_are_two() -> None:
    """No example escapes by being called something else."""
    assert len(examples()) == 2
