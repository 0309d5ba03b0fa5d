"""What the operating system holds of a connection's output."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import sys
import termios

_SO_NWRITE = 0x1024  # macOS


def unacknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """Bytes that were given to the system and that the peer's system has not taken yet; 0 where that is unknown.

    A transport's own buffer says too little of a slow reader: it only moves when a third of the system's buffer,
    which may be megabytes, is free again.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    try:
        if sys.platform == "darwin":
            return int(sock.getsockopt(0xFFFF, _SO_NWRITE))
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except (OSError, ValueError):
        return 0
