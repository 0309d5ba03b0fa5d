"""Spark's daemon of Python workers, tuned (``spark.python.daemon.module``).

Spark and a worker talk over TCP, in several small pieces before and after each task. Neither asks the kernel to send
these at once, so that a task waits 40 ms, twice, for an acknowledgement which the other side puts off. After each
task a worker looks for garbage among all of its objects: up to 25 ms, mostly for modules, which stay. And while it
fetches records, a third of its time goes into memory that it gives back and asks for again.
"""

from __future__ import annotations

import gc
import socket
from typing import Protocol

from pyspark import daemon

from himalia.malloc import tune_malloc


class Worker(Protocol):
    """Does one task; returns 0 if it can do another."""

    def __call__(self, sock: socket.socket, authenticated: bool) -> int: ...


def better(worker: Worker) -> Worker:
    """The same worker; called for each of its tasks."""
    is_first = True

    def run(sock: socket.socket, authenticated: bool) -> int:
        nonlocal is_first
        if sock.family != socket.AF_UNIX:
            _hurry(sock)
        code = worker(sock, authenticated)
        if is_first:
            is_first = False
            gc.collect()
            gc.freeze()
        return code

    return run


def _hurry(sock: socket.socket) -> None:
    """Send and acknowledge at once. The kernel takes the second as advice for a while, so it is said for each task."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_QUICKACK"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


if __name__ == "__main__":
    tune_malloc()
    daemon.worker = better(daemon.worker)
    daemon.manager()
