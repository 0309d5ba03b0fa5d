"""A bounded file for what a kernel and its keeper write to stdout and stderr."""

from __future__ import annotations

import os
from pathlib import Path

from himalia.keeper.kernel_directory import LOG_FILE, OLD_LOG_FILE

LOG_BYTES_MAX = 1 << 20


class LogFile:
    """``kernel.log``: at half the limit it becomes ``kernel.log.1`` and a new one begins."""

    def __init__(self, directory: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        self._path = directory / LOG_FILE
        self._old = directory / OLD_LOG_FILE
        self._half = bytes_max // 2
        self._descriptor = -1
        self._size = 0
        self._open()

    def write(self, data: bytes) -> None:
        """Append; what the disk does not store is lost, since the keeper can report it to no server."""
        try:
            while data:
                if self._size >= self._half:
                    self._rotate()
                written = os.write(self._descriptor, data[: max(self._half - self._size, 1)])
                self._size += written
                data = data[written:]
        except OSError:
            pass

    def _rotate(self) -> None:
        os.replace(self._path, self._old)
        os.close(self._descriptor)
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        # The keeper's own output goes to the newest file as well.
        os.dup2(self._descriptor, 1)
        os.dup2(self._descriptor, 2)


def log_tail(directory: Path, bytes_max: int = 16384) -> str:
    """Read the end of what the kernel and its keeper have written; empty if there is nothing."""
    parts = []
    for name in (OLD_LOG_FILE, LOG_FILE):
        try:
            parts.append((directory / name).read_bytes())
        except OSError:
            pass
    return b"".join(parts)[-bytes_max:].decode(errors="replace")
