"""Examines a write-ahead log that a crash left behind, before SQLite recovers it.

SQLite treats the frames from a damaged one on as the torn end of the last commit, and drops them silently. Whether they
were acknowledged can be found out: the index next to the write-ahead log (``-shm``) has the number of frames that were
committed, and survives the process. If the index is missing, frames of at least two more commits of the same generation
behind the damage prove a loss: all but the last were synced before they were acknowledged.

Only while no connection is open: see ``database.check_length``. The formats are those of
https://sqlite.org/walformat.html.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from array import array
from pathlib import Path

import msgspec

_HEADER = struct.Struct(">IIII8sII")
_FRAME = struct.Struct(">II8sII")
_MAGIC = 0x377F0682
_INDEX_BYTES = 48
_MASK = 0xFFFFFFFF


class Loss(msgspec.Struct, frozen=True):
    """Committed frames that SQLite will not find: ``kept`` + 1 to ``committed``, at least; 0 if unknown."""

    kept: int = 0
    committed: int = 0


class _Index(msgspec.Struct, frozen=True):
    """The content of the ``-shm`` file."""

    frames: int
    salts: bytes
    moved: int
    """Frames that are in the main file already."""


class Evidence(msgspec.Struct, frozen=True):
    """The state of a write-ahead log and its index before SQLite opens them."""

    wal: Path
    index: _Index | None
    header: _Header | None
    commits: list[int]
    """The numbers of the frames that end a commit, intact or not."""

    @property
    def has_commits(self) -> bool:
        """Whether there is anything that could be lost."""
        return bool(self.commits) or (self.index is not None and self.index.frames > 0)

    @property
    def generation(self) -> str:
        """Identifies the write-ahead log; empty if there is none, or its beginning is damaged."""
        return "" if self.header is None else self.header.salts.hex()

    @property
    def frames(self) -> int | None:
        """How many frames were committed, by the index of this write-ahead log."""
        if self.header is None or self.index is None or self.index.salts != self.header.salts:
            return None
        return self.index.frames

    def with_frames(self, frames: int | None) -> Evidence:
        """Return the same evidence with the number of frames from before the index was rebuilt."""
        assert self.header is not None
        index = None if frames is None else _Index(frames, self.header.salts, 0)
        return msgspec.structs.replace(self, index=index)

    def find_loss_in(self, db: sqlite3.Connection) -> Loss | None:
        """Return what was committed and is missing. ``db`` is the first connection since, and has written nothing.

        It has read the frames already, and knows how many are intact; to find that out here takes far longer.
        """
        if self.header is None:
            return self._loss(0)
        kept = _recover_frames(db)
        return self._loss(self.header.last_commit(self.wal) if kept is None else kept)

    def find_loss(self) -> Loss | None:
        """Do the same as ``find_loss_in`` from the files alone, which stay unchanged."""
        return self._loss(0 if self.header is None else self.header.last_commit(self.wal))

    def _loss(self, kept: int) -> Loss | None:
        """Return the loss if the first ``kept`` frames are intact."""
        index = self.index
        if self.header is None:
            if index is not None and index.frames > index.moved:
                return Loss(index.moved, index.frames)
            return Loss(0, self.commits[-1]) if len(self.commits) > 1 else None
        if index is not None and index.salts == self.header.salts:
            return Loss(kept, index.frames) if kept < index.frames else None
        missing = [number for number in self.commits if number > kept]
        return Loss(kept, missing[-1]) if len(missing) > 1 else None


def examine(path: Path) -> Evidence:
    """Return the evidence that a crash left next to the log at ``path``. Reads only the headers of frames."""
    wal = Path(f"{path}-wal")
    index = _read_index(Path(f"{path}-shm"))
    try:
        with wal.open("rb") as file:
            header = _Header.parse(file.read(_HEADER.size))
            commits = (header or _guess_header(file.fileno())).commits(file.fileno())
    except FileNotFoundError:
        return Evidence(wal, index, None, [])
    return Evidence(wal, index, header, commits)


def find_loss(path: Path) -> Loss | None:
    """Return what was committed to the log at ``path`` and is missing, as far as its files show."""
    return examine(path).find_loss()


def _recover_frames(db: sqlite3.Connection) -> int | None:
    """Checkpoint, and return how many intact frames SQLite found; None if the disk is too full for that."""
    try:
        _busy, frames, _moved = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.OperationalError:
        return None
    return max(int(frames), 0)


def _guess_header(descriptor: int) -> _Header:
    """Return a substitute for a damaged header, with what is needed to find commits behind it."""
    page_bytes = int.from_bytes(os.pread(descriptor, 4, 8), "big")
    if page_bytes < 512 or page_bytes > 65_536:
        page_bytes = 4096
    return _Header(page_bytes, os.pread(descriptor, 8, _HEADER.size + 8), is_big=False, sums=(0, 0))


class _Header(msgspec.Struct, frozen=True):
    page_bytes: int
    salts: bytes
    is_big: bool
    sums: tuple[int, int]

    @classmethod
    def parse(cls, content: bytes) -> _Header | None:
        if len(content) < _HEADER.size:
            return None
        magic, _version, page_bytes, _number, salts, first, second = _HEADER.unpack_from(content)
        is_big = bool(magic & 1)
        sums = _checksum(content[:24], 0, 0, is_big=is_big)
        if magic & ~1 != _MAGIC or sums != (first, second) or not 512 <= page_bytes <= 65_536:
            return None
        return cls(page_bytes, salts, is_big, sums)

    def last_commit(self, path: Path) -> int:
        """Return the number of frames up to the end of the last intact commit. Reads the whole file."""
        frame_bytes = _FRAME.size + self.page_bytes
        first, second = self.sums
        committed = number = 0
        with path.open("rb") as file:
            file.seek(_HEADER.size)
            while len(frame := file.read(frame_bytes)) == frame_bytes:
                number += 1
                _page, size, salts, *expected = _FRAME.unpack_from(frame)
                if salts != self.salts:
                    break
                first, second = _checksum(frame[:8], first, second, is_big=self.is_big)
                first, second = _checksum(frame[_FRAME.size :], first, second, is_big=self.is_big)
                if [first, second] != expected:
                    break
                if size:
                    committed = number
        return committed

    def commits(self, descriptor: int) -> list[int]:
        """Return the numbers of the frames of this generation that end a commit."""
        frame_bytes = _FRAME.size + self.page_bytes
        frames = (os.fstat(descriptor).st_size - _HEADER.size) // frame_bytes
        found = []
        for number in range(1, frames + 1):
            head = os.pread(descriptor, _FRAME.size, _HEADER.size + (number - 1) * frame_bytes)
            _page, size, salts, *_ = _FRAME.unpack(head)
            if size and salts == self.salts:
                found.append(number)
        return found


def _read_index(path: Path) -> _Index | None:
    content = _read(path, _INDEX_BYTES * 2 + 4)
    first, second = content[:_INDEX_BYTES], content[_INDEX_BYTES : 2 * _INDEX_BYTES]
    if len(content) < 2 * _INDEX_BYTES + 4 or first != second or not first[12]:
        return None
    frames, _pages, _a, _b, salts, *sums = struct.unpack("=IIII8sII", first[16:])
    if _checksum(first[:40], 0, 0, is_big=sys.byteorder == "big") != tuple(sums):
        return None
    return _Index(frames, salts, int.from_bytes(content[2 * _INDEX_BYTES :], sys.byteorder))


def _read(path: Path, length: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(length)
    except FileNotFoundError:
        return b""


def _checksum(data: bytes, first: int, second: int, *, is_big: bool) -> tuple[int, int]:
    words = array("I", data)
    if is_big != (sys.byteorder == "big"):
        words.byteswap()
    for a, b in zip(words[::2], words[1::2], strict=True):
        first = (first + a + second) & _MASK
        second = (second + b + first) & _MASK
    return first, second
