"""The choice of a kernel's ports."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from himalia.keeper.ports import BLOCK_SIZE, KERNEL_PORTS, find_ports, reserve
from tests.keeper.keepers import Nursery

IP = "127.0.0.1"
ONE_BLOCK = range(30_000, 30_000 + BLOCK_SIZE)

RESERVE = """
import sys
from himalia.keeper.ports import reserve
block = reserve(int(sys.argv[1]))
print("reserved" if block else "refused", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path / "kept")
    yield made
    made.end()


def test_ports_are_outside_of_the_range_of_the_system() -> None:
    """A program that asks for any free port is never given one of a kernel's."""
    block = find_ports(IP)
    assert block is not None
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert all(port in KERNEL_PORTS and port < lowest for port in block.ports)
    finally:
        block.release()


def test_a_block_is_found_once_until_it_is_released() -> None:
    """Two kernels that start at the same time do not get the same ports."""
    block = find_ports(IP, ONE_BLOCK)
    assert block is not None
    assert find_ports(IP, ONE_BLOCK) is None
    block.release()
    again = find_ports(IP, ONE_BLOCK)
    assert again is not None
    again.release()


def test_a_block_is_reserved_against_other_processes() -> None:
    """The reservation of another server counts, and ends with its process."""
    argv = [sys.executable, "-c", RESERVE, str(ONE_BLOCK.start)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "reserved\n"
        assert reserve(ONE_BLOCK.start) is None
        other.kill()
    block = reserve(ONE_BLOCK.start)
    assert block is not None
    block.release()


@pytest.mark.parametrize("taken", ONE_BLOCK)
def test_a_block_with_a_port_in_use_is_not_chosen(taken: int) -> None:
    """Whichever of the five another program listens on."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((IP, taken))
        other.listen()
        assert find_ports(IP, ONE_BLOCK) is None
    free = find_ports(IP, ONE_BLOCK)
    assert free is not None
    free.release()


async def test_a_kernel_gets_such_ports_and_returns_them(nursery: Nursery) -> None:
    """Its connection file names a block, which is reserved until the kernel is shut down."""
    manager = await nursery.start_kernel()
    first = manager.shell_port
    assert sorted(manager.ports) == list(range(first, first + BLOCK_SIZE))
    assert first in KERNEL_PORTS
    assert reserve(first) is None
    await manager.shutdown_kernel(now=True)
    block = reserve(first)
    assert block is not None
    block.release()
