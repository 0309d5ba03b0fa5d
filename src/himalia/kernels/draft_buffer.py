"""Drafts that wait for the log: in order, bounded in bytes, added by two threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence

from himalia.record import Draft

BATCH_RECORDS_MAX = 4096
BATCH_BYTES_MAX = 8 << 20


class PendingDraft:
    """A draft on its way to the log; ``committed``, if the caller wants it, gets its offset."""

    __slots__ = ("committed", "draft", "size_bytes")

    def __init__(self, draft: Draft, committed: asyncio.Future[int] | None = None) -> None:
        self.draft = draft
        self.committed = committed
        self.size_bytes = draft.size_bytes


class DraftBuffer:
    """Any thread may call any method.

    Messages are refused from the moment when more than ``bytes_max`` wait until half of that is stored. Records of
    the server (``add``) are never refused: callers wait for them, and they are few.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.is_full = False
        self._refused = 0
        self._lock = threading.Lock()
        self._pending: deque[PendingDraft] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def refuse_if_full(self, count: int) -> bool:
        """Return whether the buffer is full; if so, count that many messages as refused."""
        with self._lock:
            if self.is_full:
                self._refused += count
            return self.is_full

    def extend(self, pending: Sequence[PendingDraft]) -> None:
        """Append messages; the buffer may be full afterwards."""
        with self._lock:
            self._pending.extend(pending)
            self.size_bytes += sum([entry.size_bytes for entry in pending])
            self.is_full = self.size_bytes > self.bytes_max

    def add(self, entry: PendingDraft) -> None:
        """Append a record of the server, also when the buffer is full."""
        with self._lock:
            self._pending.append(entry)
            self.size_bytes += entry.size_bytes

    def pop_batch(self) -> list[PendingDraft]:
        """Remove and return what fits in one batch, the oldest first; empty if nothing waits."""
        batch: list[PendingDraft] = []
        size_bytes = 0
        with self._lock:
            while self._pending and len(batch) < BATCH_RECORDS_MAX and size_bytes < BATCH_BYTES_MAX:
                entry = self._pending.popleft()
                size_bytes += entry.size_bytes
                batch.append(entry)
            self.size_bytes -= size_bytes
        return batch

    def reopen(self) -> int:
        """Accept messages again if half of the room is free; returns how many were refused since it was full."""
        with self._lock:
            if not self.is_full or self.size_bytes > self.bytes_max // 2:
                return 0
            self.is_full = False
            refused, self._refused = self._refused, 0
            return refused

    def clear(self) -> list[PendingDraft]:
        """Remove and return everything."""
        with self._lock:
            pending, self._pending = list(self._pending), deque()
            self.size_bytes = 0
        return pending
