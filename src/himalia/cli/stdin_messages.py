"""Messages from a pipe, one JSON document a line, read without blocking the event loop."""

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


class StdinMessages:
    """The messages of a pipe, and which of them are stored. Used on the event loop; a daemon thread reads the pipe."""

    def __init__(
        self, descriptor: int, *, envelope: bool, headers: Mapping[str, str], text: bool = False
    ) -> None:
        self._descriptor = descriptor
        self._envelope = envelope
        self._text = text
        self._headers = headers
        self._numbers: deque[int] = deque()
        self.count = 0

    def acknowledge(self) -> None:
        """Count the oldest message in flight as stored."""
        self._numbers.popleft()
        self.count += 1

    @property
    def current_line(self) -> int:
        """The number of the line of the oldest message that is not stored yet; 0 if there is none."""
        return self._numbers[0] if self._numbers else 0

    async def messages(self) -> AsyncIterator[Outgoing]:
        """Yield each message. Raise ``BadRequest``, which names the line, if one is malformed."""
        number = 0
        async for line in split_lines(_read_chunks(self._descriptor)):
            number += 1
            line = line.strip()
            if line:
                try:
                    outgoing = self._parse(line)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    raise BadRequest(
                        f"line {number} is not {self._expected} ({error}); "
                        "the lines before it are stored, none after it was sent",
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
        # Only the bytes are sent; decoding them here reports invalid JSON with the number of its line.
        msgspec.json.decode(line)
        if not self._envelope:
            return Outgoing(msgspec.Raw(line), headers=self._headers)
        found = msgspec.json.decode(line, type=IncomingMessage)
        return Outgoing(found.payload, found.id, {**(found.headers or {}), **self._headers})


async def _read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield what a daemon thread reads: unlike asyncio's own threads, it does not delay the end of the process."""
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
            except RuntimeError:  # the loop is closed: the command has ended
                return

    threading.Thread(target=read, name="himalia-stdin", daemon=True).start()
    while chunk := await queue.get():
        if isinstance(chunk, OSError):
            raise BadRequest(f"standard input cannot be read: {chunk.strerror}")
        room.release()
        yield chunk
