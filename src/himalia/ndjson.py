r"""Splits a stream of bytes into the lines of NDJSON.

Only ``\n`` ends a line. The line iterators of many libraries also split at U+2028 and others, which JSON may contain.
Standard library only: the keeper imports this module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator


class LineSplitter:
    """Splits bytes that arrive in parts. A long line is joined once, when its end arrives, and not for each part."""

    __slots__ = ("_parts", "pending_bytes")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.pending_bytes = 0
        """Length of the line whose end has not arrived, for callers that limit it."""

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; return the lines that are complete now, without their ends."""
        *lines, rest = data.split(b"\n")
        if lines:
            if self._parts:
                lines[0] = b"".join((*self._parts, lines[0]))
                self._parts.clear()
            self.pending_bytes = 0
        if rest:
            self._parts.append(rest)
            self.pending_bytes += len(rest)
        return lines

    def finish(self) -> list[bytes]:
        r"""Return the last line if the stream ended without ``\n`` behind it, else nothing."""
        parts, self._parts = self._parts, []
        self.pending_bytes = 0
        return [b"".join(parts)] if parts else []


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, the last one also if it has no end."""
    splitter = LineSplitter()
    async for chunk in chunks:
        for line in splitter.feed(chunk):
            yield line
    for line in splitter.finish():
        yield line
