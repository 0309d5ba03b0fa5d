"""TCP ports for kernels, which the operating system assigns to no other program.

A kernel binds its ports some time after they were chosen, and again after a restart. jupyter_client chooses them in the
range from which the operating system assigns free ports, so that another program may get one of them in between. Here
a kernel gets a block of consecutive ports below that range, and as long as the block is reserved no other Himalia of
the machine chooses it.
"""

from __future__ import annotations

import random
import socket
import sys
from pathlib import Path

KERNEL_PORTS = range(20_000, 30_000)
"""Above the usual ports of services, and below Linux's default range (from 32768) and Kubernetes' (from 30000)."""
BLOCK_SIZE = 5
TRIES_MAX = 100

_LINUX_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PortBlock:
    """The ports of one kernel, reserved until ``release`` or the end of this process."""

    def __init__(self, first: int, reservation: socket.socket | None) -> None:
        self.ports = range(first, first + BLOCK_SIZE)
        self._reservation = reservation

    def release(self) -> None:
        if self._reservation is not None:
            self._reservation.close()


def find_ports(ip: str, among: range | None = None) -> PortBlock | None:
    """Reserve a block whose ports are all free now; return None if some tries find none."""
    blocks = _blocks(_outside_of_system_range() if among is None else among)
    for first in random.sample(blocks, min(TRIES_MAX, len(blocks))):
        block = reserve(first)
        if block is not None and all(_is_free(ip, port) for port in block.ports):
            return block
        if block is not None:
            block.release()
    return None


def reserve(first: int) -> PortBlock | None:
    """Reserve the block that begins with this port, whether or not a kernel listens there; None if it is reserved.

    The reservation is the name of an abstract Unix socket: it ends with its process, and is valid in the same network
    namespace as the ports. Systems other than Linux have none; there the block is only chosen at random.
    """
    if sys.platform != "linux":
        return PortBlock(first, None)
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        reservation.bind(f"\0himalia-kernel-ports-{first}")
    except OSError:
        reservation.close()
        return None
    return PortBlock(first, reservation)


def _blocks(ports: range) -> range:
    return range(ports.start, ports.stop - BLOCK_SIZE + 1, BLOCK_SIZE)


def _outside_of_system_range() -> range:
    """Return those of ``KERNEL_PORTS`` that are below the range of the system, if that is known."""
    try:
        lowest = int(_LINUX_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return KERNEL_PORTS
    return range(KERNEL_PORTS.start, min(KERNEL_PORTS.stop, lowest))


def _is_free(ip: str, port: int) -> bool:
    with socket.socket() as probe:
        # As ZeroMQ binds: connections that a dead kernel has left do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError:
            return False
    return True
