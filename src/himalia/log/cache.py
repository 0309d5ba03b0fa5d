"""Recent records in memory, found by offset without a search."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from himalia.record import Record


def limit_bytes(records: Sequence[Record], bytes_max: int) -> Sequence[Record]:
    """Return as many of these records as fit into ``bytes_max``, but at least one."""
    total = 0
    for count, record in enumerate(records):
        total += record.size_bytes
        if total > bytes_max and count:
            return records[:count]
    return records


class RecordRun:
    """Consecutive records of one topic, added at the back and dropped at the front."""

    __slots__ = ("_dropped", "_records")

    def __init__(self) -> None:
        self._records: list[Record] = []
        # Dropped records at the front of the list. Deleting them from the list at every drop would cost the whole
        # length each time; deleting them once they are half of it costs a constant per record.
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._records) - self._dropped

    @property
    def first(self) -> int:
        """The offset of the oldest record. Raises ``IndexError`` on an empty run."""
        return self._records[self._dropped].offset

    @property
    def oldest(self) -> Record:
        return self._records[self._dropped]

    def extend(self, records: Sequence[Record]) -> None:
        self._records.extend(records)

    def drop(self, count: int) -> None:
        """Drop the ``count`` oldest records."""
        self._dropped += count
        if self._dropped * 2 >= len(self._records):
            del self._records[: self._dropped]
            self._dropped = 0

    def read_from(self, offset: int, limit: int | None = None) -> list[Record]:
        """Return the records from ``offset`` on; none if the run is empty or does not contain that offset."""
        if not len(self) or offset < self.first:
            return []
        begin = self._dropped + offset - self.first
        return self._records[begin : None if limit is None else begin + limit]

    def at(self, index: int) -> Record:
        """Return the record at this index of the run, the oldest being 0."""
        return self._records[self._dropped + index]


class RecordCache:
    """The newest records of all topics together, bounded in bytes and in number. Used on the event loop.

    Topics are identified by epoch, so a topic that was deleted and created again shares nothing with its
    predecessor.
    """

    def __init__(self, *, bytes_max: int, count_max: int) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._bytes = 0
        self._count = 0
        self._runs: dict[str, RecordRun] = {}
        # Additions, oldest first: epoch, number of records, bytes. Whole additions are dropped.
        self._added: deque[tuple[str, int, int]] = deque()

    def add(self, epoch: str, records: Sequence[Record], size_bytes: int) -> None:
        """Add records that follow the last ones of this epoch."""
        self._runs.setdefault(epoch, RecordRun()).extend(records)
        self._added.append((epoch, len(records), size_bytes))
        self._bytes += size_bytes
        self._count += len(records)
        while self._added and (self._bytes > self._bytes_max or self._count > self._count_max):
            self._drop_oldest()

    def read_from(self, epoch: str, offset: int, limit: int | None = None) -> list[Record]:
        """Return the records of this epoch from ``offset`` to the last added; none if that offset is not cached."""
        run = self._runs.get(epoch)
        return [] if run is None else run.read_from(offset, limit)

    def remove(self, epoch: str) -> None:
        """Drop all records of an epoch that has ended."""
        # Its additions stay in the queue and are counted until they are dropped: an over-estimate for a short time.
        self._runs.pop(epoch, None)

    def _drop_oldest(self) -> None:
        epoch, count, size_bytes = self._added.popleft()
        self._bytes -= size_bytes
        self._count -= count
        run = self._runs.get(epoch)
        if run is not None:
            run.drop(count)
            if not len(run):
                del self._runs[epoch]
