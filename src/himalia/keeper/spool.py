"""The spool of a kernel: what it published, in segment files, written by its keeper and read by the server meanwhile.

An entry is ``u32 length, u64 seq, u32 frames``, then for each frame ``u32 length`` and its bytes; the first length
counts what follows it. A segment is named after a seq at or below that of its first entry, and is complete when there
is a later one. Numbers are never used twice, so a jump shows how many messages are missing. Nothing is synced: the
spool guards against a crash of the server, not of the machine.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from himalia.keeper.kernel_directory import SPOOL_DIRECTORY
from himalia.keeper.server_protocol import SPOOL_BYTES_MAX

SEGMENT_BYTES = 8 << 20
UNWRITTEN_BYTES_MAX = 64 << 20
"""The most that waits in memory for a disk that is full."""
WRITE_BYTES = 1 << 20
"""Written at once, or a little more; while the disk is full, each retry writes this much in vain."""
READ_BYTES = 1 << 16
READ_MESSAGES_MAX = 1000
READ_BYTES_MAX = 8 << 20

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
    """The writer's side. Never fails: what the disk does not store waits in memory, in order, for the next try.

    At its bound, on disk or in memory, it drops the oldest messages for newer ones, and counts them in ``dropped``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int = SPOOL_BYTES_MAX,
        segment_bytes: int = SEGMENT_BYTES,
        unwritten_bytes_max: int = UNWRITTEN_BYTES_MAX,
    ) -> None:
        """Continue the spool in a kernel's directory, or create one. Raises OSError."""
        self.directory = directory / SPOOL_DIRECTORY
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self._bytes_max = bytes_max
        self._unwritten_bytes_max = unwritten_bytes_max
        # At least four segments, so that making room never removes everything.
        self._segment_bytes = max(min(segment_bytes, bytes_max // 4), 1)
        segments, self.end = _read_segments(self.directory)
        self._closed: deque[_Segment] = deque(segments)
        self._closed_bytes = sum(segment.size_bytes for segment in self._closed)
        self._open: _Segment | None = None
        self._descriptor = -1
        self._unwritten: deque[tuple[int, bytes]] = deque()
        self._unwritten_bytes = 0
        self.written = self.end
        """The seq behind the last one that a reader can see."""
        self.dropped = 0

    @property
    def first(self) -> int:
        """The first seq that can be read; ``end`` if there is none."""
        if self._closed:
            return self._closed[0].first
        return self._open.first if self._open is not None and self._open.entries else self.end

    @property
    def size_bytes(self) -> int:
        """Its size on disk."""
        return self._closed_bytes + (self._open.size_bytes if self._open else 0)

    @property
    def unwritten(self) -> int:
        """Messages that wait for the disk."""
        return len(self._unwritten)

    def append(self, messages: Sequence[Sequence[bytes]]) -> None:
        """Write messages, each a list of frames, behind those that wait; readers see what the disk has stored."""
        for frames in messages:
            self._put(_encode_entry(self.end, frames))
        while self._unwritten and self._write_batch():
            pass
        while self._unwritten_bytes > self._unwritten_bytes_max:
            self._pop_unwritten()
            self.dropped += 1

    def discard_unwritten(self) -> int:
        """Drop what waits for the disk; return how many of the last messages cannot be read."""
        self.dropped += len(self._unwritten)
        self._unwritten.clear()
        self._unwritten_bytes = 0
        return self.end - self.written

    def close(self) -> None:
        self._close_segment()

    def _put(self, entry: bytes) -> None:
        if len(entry) > self._bytes_max:
            self.dropped += 1
        else:
            self._unwritten.append((self.end, entry))
            self._unwritten_bytes += len(entry)
        self.end += 1

    def _pop_unwritten(self) -> tuple[int, bytes]:
        seq, entry = self._unwritten.popleft()
        self._unwritten_bytes -= len(entry)
        return seq, entry

    def _write_batch(self) -> bool:
        """Write the next entries that belong into one segment; return False if the disk did not store all of them.

        After a failure the file ends with the last whole entry.
        """
        entries = self._next_entries()
        self._make_room(sum(map(len, entries)))
        segment = self._open_segment(self._unwritten[0][0])
        if segment is None:
            return False
        written = _write(self._descriptor, b"".join(entries))
        for entry in entries:
            if written < len(entry):
                break
            written -= len(entry)
            seq, _ = self._pop_unwritten()
            self.written = seq + 1
            segment.entries += 1
            segment.size_bytes += len(entry)
        else:
            return True
        if written:
            self._truncate(segment)
        return False

    def _next_entries(self) -> list[bytes]:
        """Return what to write now: it fits into the open segment, or into the next one."""
        filled = self._open.size_bytes if self._open else 0
        if filled and filled + len(self._unwritten[0][1]) > self._segment_bytes:
            self._close_segment()
            filled = 0
        room = min(self._segment_bytes - filled, WRITE_BYTES)
        entries: list[bytes] = []
        for _, entry in self._unwritten:
            room -= len(entry)
            if entries and room < 0:
                break
            entries.append(entry)
        return entries

    def _make_room(self, size_bytes: int) -> None:
        while self._closed and self.size_bytes + size_bytes > self._bytes_max:
            segment = self._closed.popleft()
            self._closed_bytes -= segment.size_bytes
            self.dropped += segment.entries
            _remove(segment.path)

    def _truncate(self, segment: _Segment) -> None:
        try:
            os.ftruncate(self._descriptor, segment.size_bytes)
        except OSError:
            # The torn entry stays at the end of this file, where readers expect one.
            self._close_segment()

    def _open_segment(self, first: int) -> _Segment | None:
        """Return the segment that is written to, created if there is none; None if the disk has no room for another."""
        if self._open is None:
            path = self.directory / _name(first)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            try:
                self._descriptor = os.open(path, flags, 0o600)
            except OSError:
                return None
            self._open = _Segment(path, first)
        return self._open

    def _close_segment(self) -> None:
        """Close the segment that is written to."""
        segment, self._open = self._open, None
        if segment is None:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        if segment.entries:
            self._closed.append(segment)
            self._closed_bytes += segment.size_bytes
        else:
            # The next segment may have the same name.
            _remove(segment.path)


class SpoolReader:
    """Reads a spool while it grows: each ``read`` continues behind the one before.

    The segment that is read stays open, so what the keeper removes meanwhile is still read to its end. Segments that
    are removed before they were opened are skipped; the jump in seq shows that.
    """

    def __init__(self, directory: Path, after: int = -1) -> None:
        """Read the spool in a kernel's directory, which need not exist yet, behind a seq."""
        self._directory = os.fspath(directory / SPOOL_DIRECTORY)
        self._after = after
        self._first = -1
        self._descriptor = -1
        self._position = 0
        self.is_at_end = False
        """Whether the last ``read`` reached the end of the spool."""

    def read(self, messages_max: int = READ_MESSAGES_MAX, bytes_max: int = READ_BYTES_MAX) -> list[Spooled]:
        """Return the next whole messages, in order, not many more than ``bytes_max``. Raises OSError.

        An entry that is not whole is not written yet; in a segment that is complete it ends the segment.
        """
        entries: list[Spooled] = []
        self.is_at_end = False
        while len(entries) < messages_max and bytes_max > 0:
            read_bytes = self._read_segment(entries, messages_max)
            if not read_bytes:
                following = self._next_segment()
                if following is None:
                    self.is_at_end = True
                    if not self._position:
                        # The next keeper may begin another file of this name.
                        self.close()
                    break
                # The segment is complete now, but was perhaps not yet when it was read.
                read_bytes = self._read_segment(entries, messages_max)
                if not read_bytes:
                    self._open(following)
            bytes_max -= read_bytes
        return entries

    def close(self) -> None:
        """Close the file. The next ``read`` opens it again, at the same position."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read_segment(self, entries: list[Spooled], messages_max: int) -> int:
        """Read whole entries of the open segment; return how many bytes they are, skipped ones included."""
        read_bytes = 0
        for entry, end in _entries(self._next_bytes()):
            read_bytes = end
            if entry.seq > self._after:
                self._after = entry.seq
                entries.append(entry)
                if len(entries) == messages_max:
                    break
        self._position += read_bytes
        return read_bytes

    def _next_bytes(self) -> bytes:
        """Read from the position on: at least one entry, or less where the file ends."""
        if self._descriptor < 0:
            return b""
        data = os.pread(self._descriptor, READ_BYTES, self._position)
        if len(data) < READ_BYTES:
            return data
        needed = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        # A damaged length can be any number.
        if needed <= READ_BYTES or self._position + needed > os.fstat(self._descriptor).st_size:
            return data
        return os.pread(self._descriptor, needed, self._position)

    def _next_segment(self) -> int | None:
        """Return what the next segment is named after; None if there is none yet."""
        starts = _segment_starts(self._directory)
        if self._descriptor >= 0:
            return next((first for first in starts if first > self._first), None)
        reached = [first for first in starts if first <= self._after + 1]
        return reached[-1] if reached else next(iter(starts), None)

    def _open(self, first: int) -> None:
        try:
            descriptor = os.open(os.path.join(self._directory, _name(first)), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # removed just now; the next look skips it
        self.close()
        self._first, self._descriptor, self._position = first, descriptor, 0


def read_spool(directory: Path, after: int = -1) -> Iterator[Spooled]:
    """Read the messages in a kernel's spool with a seq above ``after``, in order, up to its present end."""
    with closing(SpoolReader(directory, after)) as reader:
        while not reader.is_at_end:
            yield from reader.read()


def _encode_entry(seq: int, frames: Sequence[bytes]) -> bytes:
    parts = [b"", _HEAD.pack(seq, len(frames))]
    for frame in frames:
        parts += (_LENGTH.pack(len(frame)), frame)
    parts[0] = _LENGTH.pack(sum(map(len, parts)))
    return b"".join(parts)


def _entries(data: bytes) -> Iterator[tuple[Spooled, int]]:
    """Decode the whole entries at the beginning of some bytes, each with the position where it ends."""
    start = 0
    while start + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if length < _HEAD.size or start + length > len(data):
            return
        entry = _decode_entry(data, start, start + length)
        if entry is None:
            return
        start += length
        yield entry, start


def _decode_entry(data: bytes, start: int, end: int) -> Spooled | None:
    """Decode the entry between two positions; None if its lengths do not add up."""
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


def _name(first: int) -> str:
    return f"{first:08d}.seg"


def _segment_starts(directory: str | Path) -> list[int]:
    """Return what the segments in a directory are named after, in order; none if it does not exist."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    stems = [name.removesuffix(".seg") for name in names if name.endswith(".seg")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _read_segments(directory: Path) -> tuple[list[_Segment], int]:
    """Return the segments that an earlier keeper of this kernel left, and the next seq."""
    segments: list[_Segment] = []
    for first in _segment_starts(directory):
        if segments:
            segments[-1].entries = first - segments[-1].first
        segments.append(_Segment(directory / _name(first), first))
        segments[-1].size_bytes = segments[-1].path.stat().st_size
    if not segments:
        return [], 0
    last = segments[-1]
    data = last.path.read_bytes()
    end, whole = last.first, 0
    for entry, whole_to in _entries(data):
        last.entries += 1
        end, whole = entry.seq + 1, whole_to
    if not last.entries:
        # The next segment may have the same name.
        segments.pop().path.unlink()
    # A message that was written in part is missing: the jump in seq shows that.
    return segments, end + (whole < len(data))


def _write(descriptor: int, data: bytes) -> int:
    """Write as much as the disk stores; return how much that was."""
    view, written = memoryview(data), 0
    try:
        while written < len(data):
            written += os.write(descriptor, view[written:])
    except OSError:
        pass
    return written


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass
