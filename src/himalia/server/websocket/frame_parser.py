"""Parses WebSocket frames of a client, without I/O and in slices: bytes come in, complete messages go to a sink.

Every frame that a well-behaved client sends is handled here, except its close frame. The first frame of any other
kind (a close, a reserved bit, a missing mask, a frame out of order or over the limit) ends the connection, so it is
left to websockets' parser together with all that follows: ``FOREIGN``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

FIN, RESERVED, OPCODE = 0x80, 0x70, 0x0F
CONT, TEXT, BINARY, PING, PONG = 0x0, 0x1, 0x2, 0x9, 0xA
FIN_TEXT = FIN | TEXT
FIN_PONG = FIN | PONG
MASKED = 0x80
CONTROL = 0x8
CONTROL_BYTES_MAX = 125
FRAMES_PER_CHECK = 32
"""Frames that are parsed before the parser checks whether to stop; it always makes that much progress."""


class Sink(Protocol):
    """Receives messages."""

    def receive(self, data: bytes) -> None: ...

    def receive_binary(self) -> None: ...

    def receive_too_large(self, size: int) -> None: ...


class Parsed(Enum):
    """Why the parser stopped."""

    ALL = auto()  # every complete frame was handled
    STOPPED = auto()  # ``should_stop`` was true; there may be more
    FOREIGN = auto()  # the rest is for websockets' parser


class FrameParser:
    """``feed`` the input, then ``parse``, repeatedly while it returns ``STOPPED``.

    ``bytes_max`` is the largest message. A text frame beyond it is skipped and reported to the sink, which can reply
    to the client; a fragmented or binary message beyond it is foreign.
    """

    __slots__ = ("_at", "_bytes_max", "_data", "_kind", "_message", "_rest", "_skip", "_wanted", "pongs")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # The input that is being parsed, and up to where it is.
        self._data = b""
        self._at = 0
        # The beginning of an incomplete frame, and how long it must be before it is parsed again.
        self._rest = bytearray()
        self._wanted = 0
        # Bytes to skip that have not arrived yet.
        self._skip = 0
        # The fragments of a message so far, and its opcode.
        self._message = bytearray()
        self._kind: int | None = None
        # Replies to pings, to be written by the caller.
        self.pongs: list[bytes] = []

    def feed(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if self._at < len(self._data):
            self._data, self._at = self._data[self._at :] + data, 0
        elif self._rest:
            # A bytearray grows in place, however small the pieces are in which the rest arrives.
            self._rest += data
            if len(self._rest) >= self._wanted:
                self._data, self._at = bytes(self._rest), 0
                self._rest = bytearray()
        else:
            self._data, self._at = data, 0

    @property
    def has_input(self) -> bool:
        """Whether there may be complete frames to parse."""
        return self._at < len(self._data)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of this client's input in memory."""
        return len(self._data) - self._at + len(self._rest) + len(self._message)

    @property
    def current_size(self) -> int | None:
        """Bytes of the incomplete fragmented message; None between messages."""
        return None if self._kind is None else len(self._message)

    def pop_rest(self) -> bytes:
        """Remove and return the input that was not parsed."""
        rest = self._data[self._at :] or bytes(self._rest)
        self._data, self._at = b"", 0
        self._rest.clear()
        return rest

    def drop_partial(self) -> None:
        """Drop the incomplete message; the rest of its frame is skipped when it arrives."""
        if self._wanted > len(self._rest):
            self._skip, self._wanted = self._wanted - len(self._rest), 0
            self._rest = bytearray()
        self._message = bytearray()

    def parse(self, sink: Sink, should_stop: Callable[[], bool]) -> Parsed:
        data, at, size = self._data, self._at, len(self._data)
        wanted, frames, outcome = 0, 0, Parsed.ALL
        while size - at >= 2:
            first, second = data[at], data[at + 1]
            length, head = second & 0x7F, at + 2
            if length >= 126:
                wide = 2 if length == 126 else 8
                if size - head < wide:
                    # websockets refuses most foreign frames before it knows their length.
                    if self._is_foreign(first, second, 0):
                        outcome = Parsed.FOREIGN
                    break
                length, head = int.from_bytes(data[head : head + wide], "big"), head + wide
            end = head + 4 + length
            if first == FIN_TEXT and second & MASKED and self._kind is None:
                if length > self._bytes_max:
                    sink.receive_too_large(length)
                    self._skip, end = max(0, end - size), min(end, size)
                elif end > size:
                    wanted = end - at
                    break
                else:
                    sink.receive(apply_mask(data[head + 4 : end], data[head : head + 4]))
            elif self._is_foreign(first, second, length):
                outcome = Parsed.FOREIGN
                break
            elif end > size:
                wanted = end - at
                break
            else:
                payload = apply_mask(data[head + 4 : end], data[head : head + 4]) if length else b""
                self._handle(sink, first, payload)
            at = end
            frames += 1
            if not frames % FRAMES_PER_CHECK and should_stop():
                outcome = Parsed.STOPPED
                break
        if outcome is Parsed.ALL and at < size:
            self._rest += data[at:]
            self._wanted = wanted
            at = size
        self._data, self._at = (data, at) if at < size else (b"", 0)
        return outcome

    def _is_foreign(self, first: int, second: int, length: int) -> bool:
        """Whether websockets would end the connection because of such a frame, or it is a close frame."""
        opcode = first & OPCODE
        if first & RESERVED or not second & MASKED:
            return True
        room = self._bytes_max - len(self._message)
        if opcode in (PING, PONG):
            return not first & FIN or length > min(CONTROL_BYTES_MAX, room)
        if opcode == CONT:
            return self._kind is None or length > room
        return opcode not in (TEXT, BINARY) or self._kind is not None or length > room

    def _handle(self, sink: Sink, first: int, payload: bytes) -> None:
        """Handle any frame but a whole text message."""
        opcode = first & OPCODE
        if opcode == PING:
            self.pongs.append(bytes((FIN_PONG, len(payload))) + payload)
        elif opcode != PONG:
            if opcode != CONT:
                self._kind = opcode
            self._message += payload
            if first & FIN:
                message, kind = bytes(self._message), self._kind
                self._message, self._kind = bytearray(), None
                if kind == TEXT:
                    sink.receive(message)
                else:
                    sink.receive_binary()
