"""What raw frames say of a kernel's state, without decoding them: the keeper only wants to know what is urgent."""

from __future__ import annotations

from collections.abc import Sequence

_DELIMITER = b"<IDS|MSG>"


def is_status(frames: Sequence[bytes]) -> bool:
    """Whether this is a message by which a kernel says that it begins or ends something."""
    return b'"status"' in _part(frames, 2)


def is_idle(frames: Sequence[bytes]) -> bool:
    """Whether this is the message by which a kernel says that it has ended something: somebody waits for it."""
    return is_status(frames) and b'"idle"' in _part(frames, 5)


def _part(frames: Sequence[bytes], number: int) -> bytes:
    """A part of the message, counted from the delimiter; empty if there is none."""
    try:
        return frames[frames.index(_DELIMITER) + number]
    except (ValueError, IndexError):
        return b""
