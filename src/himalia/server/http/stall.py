"""Peers that stop reading: how much of the output they have not read yet, and when to cut them off."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import sys
import termios

from himalia.throttle import WarningThrottle

logger = logging.getLogger("himalia.server")
warnings = WarningThrottle(logger)

CHECKS_PER_TIMEOUT = 10
_SO_NWRITE = 0x1024  # macOS


def unread_bytes_of(transport: asyncio.Transport) -> int:
    """Return the bytes that were written to a transport and that the peer's system has not acknowledged.

    The transport's own buffer is too coarse for a slow reader: it only shrinks when a third of the system's send
    buffer, which may be megabytes, is free again. Where the system does not report its part, only the transport's
    counts.
    """
    return int(transport.get_write_buffer_size()) + _unacknowledged_bytes(transport)


def _unacknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    try:
        if sys.platform == "darwin":
            return int(sock.getsockopt(0xFFFF, _SO_NWRITE))
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except (OSError, ValueError):
        return 0


class StallWatch:
    """Aborts the connection of a peer that has read nothing of its pending data for ``timeout_s``.

    A slow peer is kept. The timer only runs while the transport has data that it could not write at once.
    """

    __slots__ = ("_last_read_s", "_loop", "_peer", "_read", "_timeout_s", "_timer", "_transport", "_written")

    def __init__(self, transport: asyncio.Transport, peer: object, timeout_s: float) -> None:
        self._transport = transport
        self._peer = peer
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # Bytes written since the connection was made, how many of them the peer had read when it last read some, and
        # when that was.
        self._written = 0
        self._read = 0
        self._last_read_s = 0.0

    def count(self, size: int) -> None:
        """Count bytes that were written just now, and start watching if the transport could not pass them on."""
        self._written += size
        if self._timer is None and self._transport.get_write_buffer_size():
            self._last_read_s = self._loop.time()
            self._read = self._written - unread_bytes_of(self._transport)
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(self._timeout_s / CHECKS_PER_TIMEOUT, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._transport.get_write_buffer_size():
            return
        read, now_s = self._written - unread_bytes_of(self._transport), self._loop.time()
        if read > self._read:
            self._read, self._last_read_s = read, now_s
        elif now_s - self._last_read_s >= self._timeout_s:
            silent_s = now_s - self._last_read_s
            warnings.warn(
                "stalled", "closing %s: it read nothing of its response for %.0f s", self._peer, silent_s
            )
            self._transport.abort()
            return
        self._schedule()
