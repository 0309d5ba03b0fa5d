"""What raw frames say of a kernel's state: which messages are urgent, and whether the kernel is busy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

REQUESTS_MAX = 1000
"""Requests that a kernel can be busy with, as far as is remembered here."""
_DELIMITER = b"<IDS|MSG>"


def is_status(frames: Sequence[bytes]) -> bool:
    """Whether this is a message by which a kernel says that it begins or ends something."""
    return b'"status"' in _part(frames, 2)


def is_idle(frames: Sequence[bytes]) -> bool:
    """Whether this is the message by which a kernel says that it has ended something: somebody waits for it."""
    return is_status(frames) and b'"idle"' in _part(frames, 5)


class Busyness:
    """Whether a kernel works on some request, by the ``busy`` and ``idle`` that it says of each.

    The last of them alone would not tell: a kernel answers on its control channel while a cell runs, and is ``busy``
    and ``idle`` for that as well.
    """

    def __init__(self) -> None:
        self._begun: dict[str, None] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._begun)

    def take(self, frames: Sequence[bytes]) -> None:
        """Take a status message; anything else changes nothing."""
        state = _object(_part(frames, 5)).get("execution_state")
        request = str(_object(_part(frames, 3)).get("msg_id", ""))
        if state == "busy" and len(self._begun) < REQUESTS_MAX:
            self._begun[request] = None
        elif state == "idle":
            self._begun.pop(request, None)


def _object(part: bytes) -> dict[str, Any]:
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _part(frames: Sequence[bytes], number: int) -> bytes:
    """A part of the message, counted from the delimiter; empty if there is none."""
    try:
        return frames[frames.index(_DELIMITER) + number]
    except (ValueError, IndexError):
        return b""
