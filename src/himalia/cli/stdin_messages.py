"""Messages from a pipe, one JSON a line, read without holding up the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping

import msgspec

from himalia.client.events import Outgoing
from himalia.errors import BadRequest
from himalia.ndjson import split_lines
from himalia.protocol.models import IncomingMessage

CHUNK_BYTES = 1 << 16
CHUNKS_AHEAD = 4


class Lines:
    """The messages of a stream. ``number`` of the oldest one that ``done`` was not called for yet is ``current``."""

    def __init__(
        self, descriptor: int, *, envelope: bool, headers: Mapping[str, str], text: bool = False
    ) -> None:
        self._descriptor = descriptor
        self._envelope = envelope
        self._text = text
        self._headers = headers
        self._numbers: deque[int] = deque()
        self.count = 0

    def done(self) -> None:
        """The oldest message under way is stored."""
        self._numbers.popleft()
        self.count += 1

    @property
    def current(self) -> int:
        return self._numbers[0] if self._numbers else 0

    async def messages(self) -> AsyncIterator[Outgoing]:
        """Each message. Raises ``BadRequest`` that names the line if one is not what it should be."""
        number = 0
        async for line in split_lines(_chunks(self._descriptor)):
            number += 1
            line = line.strip()
            if line:
                try:
                    outgoing = self._parse(line)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    raise BadRequest(
                        f"line {number} is not {self._expected} ({error}); "
                        "what stood before it is stored, nothing after it was sent",
                        line=number,
                    ) from None
                self._numbers.append(number)
                yield outgoing

    @property
    def _expected(self) -> str:
        if self._text:
            return "text in UTF-8"
        return 'an envelope {"id"?, "payload", "headers"?}' if self._envelope else "JSON"

    def _parse(self, line: bytes) -> Outgoing:
        if self._text:
            return Outgoing(line.decode(), headers=self._headers)
        # Decoded as a whole, though only the bytes are sent: this finds what is not JSON at the right line.
        msgspec.json.decode(line)
        if not self._envelope:
            return Outgoing(msgspec.Raw(line), headers=self._headers)
        found = msgspec.json.decode(line, type=IncomingMessage)
        return Outgoing(found.payload, found.id, {**(found.headers or {}), **self._headers})


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What a daemon thread reads: unlike asyncio's own threads it does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)

    def read() -> None:
        chunk: bytes | OSError = b"..."
        while chunk and not isinstance(chunk, OSError):
            room.acquire()
            try:
                chunk = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            except RuntimeError:  # the loop is closed; nobody listens any more
                return

    threading.Thread(target=read, name="himalia-stdin", daemon=True).start()
    while chunk := await queue.get():
        if isinstance(chunk, OSError):
            raise BadRequest(f"standard input cannot be read: {chunk.strerror}")
        room.release()
        yield chunk
