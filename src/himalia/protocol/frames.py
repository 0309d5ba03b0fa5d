"""Server-to-client WebSocket text frames. They are unmasked, so all subscribers get the same bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_FIN_TEXT = 0x81
_pack_short = struct.Struct("!BBH").pack
_pack_long = struct.Struct("!BBQ").pack


def text_frame(payload: bytes) -> bytes:
    """Return one complete, final text frame."""
    size = len(payload)
    if size < 126:
        return bytes((_FIN_TEXT, size)) + payload
    if size < 65536:
        return _pack_short(_FIN_TEXT, 126, size) + payload
    return _pack_long(_FIN_TEXT, 127, size) + payload


def text_payloads(frames: bytes) -> Iterator[bytes]:
    """Yield the payloads of concatenated frames of ``text_frame``, for transports that do their own framing."""
    at = 0
    while at < len(frames):
        size, start = frames[at + 1], at + 2
        if size == 126:
            size, start = int.from_bytes(frames[at + 2 : at + 4], "big"), at + 4
        elif size == 127:
            size, start = int.from_bytes(frames[at + 2 : at + 10], "big"), at + 10
        yield frames[start : start + size]
        at = start + size
