"""Spark's daemon of Python workers, with settings for speed (``spark.python.daemon.module``).

Spark and a worker exchange several small messages over TCP before and after each task. Neither sets ``TCP_NODELAY``,
so a task waits 40 ms for a delayed ACK, twice. After each task a worker collects garbage among all of its objects, most
of them of modules: up to 25 ms. And a third of its CPU while it fetches records goes into memory that is
returned to the system and requested again.
"""

from __future__ import annotations

import gc
import socket
from typing import Protocol

from pyspark import daemon

from himalia.malloc import tune_malloc


class Worker(Protocol):
    """Runs one task; returns 0 if the process can run another."""

    def __call__(self, sock: socket.socket, authenticated: bool) -> int: ...


def wrap_worker(worker: Worker) -> Worker:
    """Wrap Spark's function that runs one task; the daemon calls it for each task of a process."""
    is_first = True

    def run(sock: socket.socket, authenticated: bool) -> int:
        nonlocal is_first
        if sock.family != socket.AF_UNIX:
            _disable_tcp_delays(sock)
        code = worker(sock, authenticated)
        if is_first:
            is_first = False
            gc.collect()
            gc.freeze()
        return code

    return run


def _disable_tcp_delays(sock: socket.socket) -> None:
    """Send and acknowledge at once. Linux resets ``TCP_QUICKACK`` by itself, so it is set for each task."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_QUICKACK"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def main() -> None:
    tune_malloc()
    daemon.worker = wrap_worker(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
