"""One run at a time: a lock in the warehouse, which the operating system frees however its holder ends."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from himalia.errors import ConfigurationError, WarehouseLocked
from himalia.record import format_ts, now_us

NAME = "lock"


class Holder(msgspec.Struct, frozen=True):
    """Who holds it, for the one who comes second."""

    pid: int
    host: str
    since: str


@contextmanager
def locked(warehouse: Path) -> Iterator[None]:
    """Hold the warehouse for the length of the block. Raises ``WarehouseLocked``, which says who has it."""
    descriptor = _opened(warehouse)
    try:
        _take(descriptor, warehouse)
        holder = Holder(os.getpid(), socket.gethostname(), format_ts(now_us()))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(holder), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        # A process that was forked meanwhile has the same descriptor; closing ours alone would not unlock it.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _opened(warehouse: Path) -> int:
    try:
        warehouse.mkdir(parents=True, exist_ok=True)
        return os.open(warehouse / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the warehouse {warehouse} cannot be used: {error.strerror}; name another with --warehouse"
        ) from error


def _take(descriptor: int, warehouse: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WarehouseLocked(str(warehouse), _told(os.pread(descriptor, 4096, 0))) from None


def _told(text: bytes) -> str:
    try:
        holder = msgspec.json.decode(text, type=Holder)
    except msgspec.MsgspecError:
        return "another process"
    return f"process {holder.pid} on {holder.host}, since {holder.since}"
