"""What a kernel published, in segment files: written by its keeper, read by a server that comes back.

An entry is ``u32 length, u64 seq, u32 frames``, then for each frame ``u32 length`` and its bytes; the first length
counts what follows it. A segment is named after a seq at or below that of its first entry. Numbers are never used
twice, so a jump tells how many messages are missing. Nothing is synced: the spool guards against a crash of the
server, not of the machine.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from himalia.kernels.keeper.place import SPOOL_DIRECTORY

SPOOL_BYTES_MAX = 256 << 20
SEGMENT_BYTES = 8 << 20

_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<QI")


class Spooled(NamedTuple):
    seq: int
    frames: list[bytes]


class _Segment:
    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.first = first
        self.entries = 0
        self.size_bytes = 0


class Spool:
    """The writer's side. Never fails: what the disk does not take is counted in ``dropped``."""

    def __init__(
        self, directory: Path, *, bytes_max: int = SPOOL_BYTES_MAX, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Go on with the spool in a kernel's directory, or begin one. Raises OSError if it cannot be made."""
        self.directory = directory / SPOOL_DIRECTORY
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self._bytes_max = bytes_max
        # At least four segments, so that making room never takes all that is there.
        self._segment_bytes = max(min(segment_bytes, bytes_max // 4), 1)
        found, self.end = _found_segments(self.directory)
        self._closed: deque[_Segment] = deque(found)
        self._closed_bytes = sum(segment.size_bytes for segment in self._closed)
        self._open: _Segment | None = None
        self._descriptor = -1
        # Entries that are not written yet; between two calls there are none.
        self._pending: list[bytes] = []
        self._pending_first = self.end
        self._pending_bytes = 0
        self.dropped = 0

    @property
    def first(self) -> int:
        """The seq that a reader may begin with; ``end`` if there is nothing to read."""
        if self._closed:
            return self._closed[0].first
        return self._open.first if self._open is not None and self._open.entries else self.end

    @property
    def size_bytes(self) -> int:
        return self._closed_bytes + (self._open.size_bytes if self._open else 0) + self._pending_bytes

    def append(self, messages: Sequence[Sequence[bytes]]) -> None:
        """Write messages, each a list of frames; a reader can see them when this returns."""
        for frames in messages:
            self._put(_encoded(self.end, frames))
            self.end += 1
        self._flush()

    def close(self) -> None:
        self._roll()

    def _put(self, entry: bytes) -> None:
        if len(entry) > self._bytes_max:
            self.dropped += 1
            return
        filled = self._pending_bytes + (self._open.size_bytes if self._open else 0)
        if filled and filled + len(entry) > self._segment_bytes:
            self._flush()
            self._roll()
        while self._closed and self.size_bytes + len(entry) > self._bytes_max:
            self._drop_oldest()
        if not self._pending:
            self._pending_first = self.end
        self._pending.append(entry)
        self._pending_bytes += len(entry)

    def _drop_oldest(self) -> None:
        segment = self._closed.popleft()
        self._closed_bytes -= segment.size_bytes
        self.dropped += segment.entries
        try:
            segment.path.unlink(missing_ok=True)
        except OSError:
            pass

    def _flush(self) -> None:
        """Write what is pending. After a failure the file ends with the last whole entry that it took."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if not pending:
            return
        segment = self._opened(self._pending_first)
        if segment is None:
            self.dropped += len(pending)
            return
        written = _write(self._descriptor, b"".join(pending))
        taken = taken_bytes = 0
        for entry in pending:
            if taken_bytes + len(entry) > written:
                break
            taken += 1
            taken_bytes += len(entry)
        segment.entries += taken
        segment.size_bytes += taken_bytes
        self.dropped += len(pending) - taken
        if written > taken_bytes:
            self._cut(segment)

    def _cut(self, segment: _Segment) -> None:
        try:
            os.ftruncate(self._descriptor, segment.size_bytes)
        except OSError:
            # The torn entry stays at the end of this file, where readers expect one.
            self._roll()

    def _opened(self, first: int) -> _Segment | None:
        """The segment that is written to, made if there is none; None if the disk has no room for another."""
        if self._open is None:
            path = self.directory / f"{first:08d}.seg"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            try:
                self._descriptor = os.open(path, flags, 0o600)
            except OSError:
                return None
            self._open = _Segment(path, first)
        return self._open

    def _roll(self) -> None:
        """End the segment that is written to."""
        if self._open is None:
            return
        os.close(self._descriptor)
        self._closed.append(self._open)
        self._closed_bytes += self._open.size_bytes
        self._open, self._descriptor = None, -1


def read_spool(directory: Path, after: int = -1) -> Iterator[Spooled]:
    """The messages in a kernel's spool with a seq above ``after``, in order.

    May be called while the keeper writes, and again with the last seq that it gave, to go on. An entry that is not
    whole ends its segment; a segment that the keeper removed meanwhile is passed over, as the jump in seq tells.
    """
    segments = _segments(directory / SPOOL_DIRECTORY)
    for index, (_, path) in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1][0] <= after + 1:
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        for entry in _entries(data):
            if entry.seq > after:
                yield entry


def _encoded(seq: int, frames: Sequence[bytes]) -> bytes:
    parts = [b"", _HEAD.pack(seq, len(frames))]
    for frame in frames:
        parts += (_LENGTH.pack(len(frame)), frame)
    parts[0] = _LENGTH.pack(sum(map(len, parts)))
    return b"".join(parts)


def _encoded_bytes(entry: Spooled) -> int:
    frames = entry.frames
    return _LENGTH.size * (1 + len(frames)) + _HEAD.size + sum(map(len, frames))


def _entries(data: bytes) -> Iterator[Spooled]:
    start = 0
    while start + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if length < _HEAD.size or start + length > len(data):
            return
        entry = _decoded(data, start, start + length)
        if entry is None:
            return
        yield entry
        start += length


def _decoded(data: bytes, start: int, end: int) -> Spooled | None:
    """The entry between two places; None if its lengths do not add up."""
    seq, count = _HEAD.unpack_from(data, start)
    start += _HEAD.size
    frames = []
    for _ in range(count):
        if start + _LENGTH.size > end:
            return None
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if start + length > end:
            return None
        frames.append(data[start : start + length])
        start += length
    return Spooled(seq, frames) if start == end else None


def _segments(directory: Path) -> list[tuple[int, Path]]:
    """The segment files with the number each is named after, in order."""
    paths = directory.glob("*.seg")
    return sorted((int(path.stem), path) for path in paths if path.stem.isdecimal())


def _found_segments(directory: Path) -> tuple[list[_Segment], int]:
    """What an earlier keeper of this kernel left, and the seq to go on with."""
    found: list[_Segment] = []
    for first, path in _segments(directory):
        if found:
            found[-1].entries = first - found[-1].first
        found.append(_Segment(path, first))
        found[-1].size_bytes = path.stat().st_size
    if not found:
        return [], 0
    last = found[-1]
    data = last.path.read_bytes()
    end, whole = last.first, 0
    for entry in _entries(data):
        last.entries += 1
        whole += _encoded_bytes(entry)
        end = entry.seq + 1
    if not last.entries:
        # The next segment may have the same name.
        found.pop().path.unlink()
    # A message of which only a part was written is missing: the jump in seq tells.
    return found, end + (whole < len(data))


def _write(descriptor: int, data: bytes) -> int:
    """Write as much as the disk takes; says how much that was."""
    view, written = memoryview(data), 0
    try:
        while written < len(data):
            written += os.write(descriptor, view[written:])
    except OSError:
        pass
    return written
