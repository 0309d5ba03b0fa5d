"""The lock of a warehouse: one pipeline at a time. The operating system releases it however its holder ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from himalia.errors import ConfigurationError, WarehouseLocked
from himalia.file_lock import lock_file, read_owner, unlock_file
from himalia.record import format_ts, now_us

NAME = "lock"


class Holder(msgspec.Struct, frozen=True):
    """The process that holds the lock, for the error message of another one."""

    pid: int
    host: str
    since: str


@contextmanager
def warehouse_lock(warehouse: Path) -> Iterator[None]:
    """Hold the lock during the block. Raises ``WarehouseLocked``, with the process that holds it."""
    holder = Holder(os.getpid(), socket.gethostname(), format_ts(now_us()))
    try:
        warehouse.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file(warehouse / NAME, msgspec.json.encode(holder))
    except OSError as error:
        raise ConfigurationError(
            f"the warehouse {warehouse} cannot be used: {error.strerror}; choose another one with --warehouse"
        ) from error
    if descriptor is None:
        raise WarehouseLocked(str(warehouse), _describe(read_owner(warehouse / NAME)))
    try:
        yield
    finally:
        unlock_file(descriptor)


def _describe(text: bytes) -> str:
    try:
        holder = msgspec.json.decode(text, type=Holder)
    except msgspec.MsgspecError:
        return "another process"
    return f"process {holder.pid} on {holder.host}, since {holder.since}"
