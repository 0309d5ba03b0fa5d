"""What a kernel published, in segment files: written by its keeper, read by the server while it grows.

An entry is ``u32 length, u64 seq, u32 frames``, then for each frame ``u32 length`` and its bytes; the first length
counts what follows it. A segment is named after a seq at or below that of its first entry, and is complete when there
is a later one. Numbers are never used twice, so a jump tells how many messages are missing. Nothing is synced: the
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

SPOOL_BYTES_MAX = 256 << 20
SEGMENT_BYTES = 8 << 20
UNWRITTEN_BYTES_MAX = 64 << 20
"""What may wait in memory for a disk that is full."""
WRITE_BYTES = 1 << 20
"""Written at once, or a little more: so much is tried in vain, again and again, while the disk is full."""
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
    """The writer's side. Never fails: what the disk does not take waits in memory, in order, for the next try.

    What is over its bound, on disk or in memory, makes room for what is newer, and is counted in ``dropped``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int = SPOOL_BYTES_MAX,
        segment_bytes: int = SEGMENT_BYTES,
        unwritten_bytes_max: int = UNWRITTEN_BYTES_MAX,
    ) -> None:
        """Go on with the spool in a kernel's directory, or begin one. Raises OSError if it cannot be made."""
        self.directory = directory / SPOOL_DIRECTORY
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self._bytes_max = bytes_max
        self._unwritten_bytes_max = unwritten_bytes_max
        # At least four segments, so that making room never takes all that is there.
        self._segment_bytes = max(min(segment_bytes, bytes_max // 4), 1)
        found, self.end = _found_segments(self.directory)
        self._closed: deque[_Segment] = deque(found)
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
        """The seq that a reader may begin with; ``end`` if there is nothing to read."""
        if self._closed:
            return self._closed[0].first
        return self._open.first if self._open is not None and self._open.entries else self.end

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        return self._closed_bytes + (self._open.size_bytes if self._open else 0)

    @property
    def unwritten(self) -> int:
        """Messages that wait for the disk."""
        return len(self._unwritten)

    def append(self, messages: Sequence[Sequence[bytes]]) -> None:
        """Write messages, each a list of frames, and what waits; a reader can see what the disk took."""
        for frames in messages:
            self._put(_encoded(self.end, frames))
        while self._unwritten and self._write_some():
            pass
        while self._unwritten_bytes > self._unwritten_bytes_max:
            self._take_unwritten()
            self.dropped += 1

    def give_up(self) -> int:
        """Drop what waits for the disk; says how many of the last messages nobody will read."""
        self.dropped += len(self._unwritten)
        self._unwritten.clear()
        self._unwritten_bytes = 0
        return self.end - self.written

    def close(self) -> None:
        self._roll()

    def _put(self, entry: bytes) -> None:
        if len(entry) > self._bytes_max:
            self.dropped += 1
        else:
            self._unwritten.append((self.end, entry))
            self._unwritten_bytes += len(entry)
        self.end += 1

    def _take_unwritten(self) -> tuple[int, bytes]:
        seq, entry = self._unwritten.popleft()
        self._unwritten_bytes -= len(entry)
        return seq, entry

    def _write_some(self) -> bool:
        """Write the next entries that belong into one segment; false if the disk does not take all of them.

        After a failure the file ends with the last whole entry that it took.
        """
        entries = self._next_entries()
        self._make_room(sum(map(len, entries)))
        segment = self._opened(self._unwritten[0][0])
        if segment is None:
            return False
        written = _write(self._descriptor, b"".join(entries))
        for entry in entries:
            if written < len(entry):
                break
            written -= len(entry)
            seq, _ = self._take_unwritten()
            self.written = seq + 1
            segment.entries += 1
            segment.size_bytes += len(entry)
        else:
            return True
        if written:
            self._cut(segment)
        return False

    def _next_entries(self) -> list[bytes]:
        """What to write now: it fits into the open segment, or into one that is to be opened."""
        filled = self._open.size_bytes if self._open else 0
        if filled and filled + len(self._unwritten[0][1]) > self._segment_bytes:
            self._roll()
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

    def _cut(self, segment: _Segment) -> None:
        try:
            os.ftruncate(self._descriptor, segment.size_bytes)
        except OSError:
            # The torn entry stays at the end of this file, where readers expect one.
            self._roll()

    def _opened(self, first: int) -> _Segment | None:
        """The segment that is written to, made if there is none; None if the disk has no room for another."""
        if self._open is None:
            path = self.directory / _name(first)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            try:
                self._descriptor = os.open(path, flags, 0o600)
            except OSError:
                return None
            self._open = _Segment(path, first)
        return self._open

    def _roll(self) -> None:
        """End the segment that is written to."""
        segment, self._open = self._open, None
        if segment is None:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        if segment.entries:
            self._closed.append(segment)
            self._closed_bytes += segment.size_bytes
        else:
            # The next one may have the same name.
            _remove(segment.path)


class SpoolReader:
    """Reads a spool while it grows: each ``read`` gives what came since the one before.

    The segment that is read stays open, so what the keeper removes meanwhile is still read to its end; segments that
    are gone before they were opened are passed over, and the jump in seq tells.
    """

    def __init__(self, directory: Path, after: int = -1) -> None:
        """Read the spool in a kernel's directory, where there need not be one yet, behind a seq."""
        self._directory = os.fspath(directory / SPOOL_DIRECTORY)
        self._after = after
        self._first = -1
        self._descriptor = -1
        self._position = 0
        self.is_at_end = False
        """Whether the last ``read`` came to the end of all that there was."""

    def read(self, messages_max: int = READ_MESSAGES_MAX, bytes_max: int = READ_BYTES_MAX) -> list[Spooled]:
        """What is new, in order, as far as it is whole; ends soon after ``bytes_max``. Raises OSError.

        An entry that is not whole is not written yet; in a segment that is complete it ends the segment.
        """
        found: list[Spooled] = []
        self.is_at_end = False
        while len(found) < messages_max and bytes_max > 0:
            taken_bytes = self._take(found, messages_max)
            if not taken_bytes:
                following = self._following()
                if following is None:
                    self.is_at_end = True
                    if not self._position:
                        # The next keeper may begin another file of this name.
                        self.close()
                    break
                # Complete it is now, but perhaps it was not when it was looked at.
                taken_bytes = self._take(found, messages_max)
                if not taken_bytes:
                    self._open(following)
            bytes_max -= taken_bytes
        return found

    def close(self) -> None:
        """Let the file go. To read on opens it again, at the same place."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, found: list[Spooled], messages_max: int) -> int:
        """Take whole entries of the open segment; says how many bytes they are, passed over or not."""
        taken_bytes = 0
        for entry, end in _entries(self._next_bytes()):
            taken_bytes = end
            if entry.seq > self._after:
                self._after = entry.seq
                found.append(entry)
                if len(found) == messages_max:
                    break
        self._position += taken_bytes
        return taken_bytes

    def _next_bytes(self) -> bytes:
        """From the position on: at least one entry, or less where the file ends."""
        if self._descriptor < 0:
            return b""
        data = os.pread(self._descriptor, READ_BYTES, self._position)
        if len(data) < READ_BYTES:
            return data
        needed = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        # A length that is damaged may ask for anything.
        if needed <= READ_BYTES or self._position + needed > os.fstat(self._descriptor).st_size:
            return data
        return os.pread(self._descriptor, needed, self._position)

    def _following(self) -> int | None:
        """What the segment to go on with is named after; None if there is none yet."""
        firsts = _firsts(self._directory)
        if self._descriptor >= 0:
            return next((first for first in firsts if first > self._first), None)
        reached = [first for first in firsts if first <= self._after + 1]
        return reached[-1] if reached else next(iter(firsts), None)

    def _open(self, first: int) -> None:
        try:
            descriptor = os.open(os.path.join(self._directory, _name(first)), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # removed just now: the next look does not find it
        self.close()
        self._first, self._descriptor, self._position = first, descriptor, 0


def read_spool(directory: Path, after: int = -1) -> Iterator[Spooled]:
    """The messages in a kernel's spool with a seq above ``after``, in order, up to its present end."""
    with closing(SpoolReader(directory, after)) as reader:
        while not reader.is_at_end:
            yield from reader.read()


def _encoded(seq: int, frames: Sequence[bytes]) -> bytes:
    parts = [b"", _HEAD.pack(seq, len(frames))]
    for frame in frames:
        parts += (_LENGTH.pack(len(frame)), frame)
    parts[0] = _LENGTH.pack(sum(map(len, parts)))
    return b"".join(parts)


def _entries(data: bytes) -> Iterator[tuple[Spooled, int]]:
    """The whole entries at the beginning of some bytes, each with the place where it ends."""
    start = 0
    while start + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if length < _HEAD.size or start + length > len(data):
            return
        entry = _decoded(data, start, start + length)
        if entry is None:
            return
        start += length
        yield entry, start


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


def _name(first: int) -> str:
    return f"{first:08d}.seg"


def _firsts(directory: str | Path) -> list[int]:
    """What the segments in a directory are named after, in order; none if it does not exist."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    stems = [name.removesuffix(".seg") for name in names if name.endswith(".seg")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _found_segments(directory: Path) -> tuple[list[_Segment], int]:
    """What an earlier keeper of this kernel left, and the seq to go on with."""
    found: list[_Segment] = []
    for first in _firsts(directory):
        if found:
            found[-1].entries = first - found[-1].first
        found.append(_Segment(directory / _name(first), first))
        found[-1].size_bytes = found[-1].path.stat().st_size
    if not found:
        return [], 0
    last = found[-1]
    data = last.path.read_bytes()
    end, whole = last.first, 0
    for entry, whole_to in _entries(data):
        last.entries += 1
        end, whole = entry.seq + 1, whole_to
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


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass
