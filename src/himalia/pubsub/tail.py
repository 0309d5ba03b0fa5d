"""The newest records of a followed topic, each encoded once for each codec."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any

from himalia.errors import FilterFailed
from himalia.pubsub.filters import Filter
from himalia.pubsub.outlet import Codec
from himalia.record import Record, total_bytes

TRIM_EVERY = 256
"""Records by which a tail may exceed its limit, so that trimming costs little per record."""
FILTERED_AT_ONCE = 16
"""Records that one filter is evaluated on before the next filter, so that a slow one delays no other."""
SLICES_MAX = 8
"""Slices cached per view. Live cursors share one or two; a cursor that catches up uses each once."""


class Slice:
    """Consecutive records as one buffer: what a cursor sends next, shared by all cursors at that offset."""

    __slots__ = ("data", "end", "failure", "matched")

    def __init__(self, data: bytes, end: int, matched: int, failure: FilterFailed | None) -> None:
        self.data = data
        self.end = end
        self.matched = matched
        self.failure = failure


class View:
    """A tail as seen through one codec and one filter: a frame for each record, empty if it is filtered out.

    So a filtered cursor moves like any other, and filtering costs nothing per subscriber. It holds the records from
    ``first`` to ``end - 1``; with a filter these may be fewer than the tail's, until the filter has been evaluated.
    """

    def __init__(self, encoded: EncodedEvents, filter: Filter | None, first: int) -> None:
        self.filter = filter
        self.first = self.end = first
        self._encoded = encoded
        self._frames: list[bytes] = []
        # Running total of bytes up to and including each frame, to find how many fit into a write.
        self._totals: list[int] = []
        self._failures: dict[int, tuple[str, dict[str, Any]]] = {}
        self._slices: dict[int, Slice] = {}

    @property
    def codec(self) -> Codec:
        return self._encoded.codec

    def extend(self, records: Sequence[Record], until: float | None = None) -> None:
        """Add the records from ``end`` on: all of them, or as many as there is time for, but at least one."""
        self._slices.clear()
        total = self._totals[-1] if self._totals else 0
        for record in records:
            frame = self._frame(record)
            total += len(frame)
            self._frames.append(frame)
            self._totals.append(total)
            self.end += 1
            if until is not None and perf_counter() >= until:
                return

    def trim(self, first: int) -> None:
        """Drop the frames before offset ``first``."""
        self._slices.clear()
        count = max(0, first - self.first)
        del self._frames[:count]
        del self._totals[:count]
        self.first = max(self.first, first)
        self.end = max(self.end, self.first)
        if self._failures:
            self._failures = {at: error for at, error in self._failures.items() if at >= first}

    def slice(self, start: int, bytes_max: int) -> Slice:
        """Return the slice from offset ``start`` with as many records as fit, but at least one."""
        found = self._slices.get(start)
        if found is None:
            if len(self._slices) >= SLICES_MAX:
                self._slices.clear()
            found = self._slices[start] = self._make_slice(start, bytes_max)
        return found

    def _make_slice(self, start: int, bytes_max: int) -> Slice:
        at = start - self.first
        before = self._totals[at - 1] if at else self._totals[0] - len(self._frames[0])
        until = max(bisect_right(self._totals, before + bytes_max), at + 1)
        frames = self._frames[at:until]
        end = self.first + until
        matched = len(frames) if self.filter is None else sum(1 for frame in frames if frame)
        return Slice(b"".join(frames), end, matched, self._failure(start, end))

    def _failure(self, start: int, end: int) -> FilterFailed | None:
        if not self._failures:
            return None
        failed = [at for at in self._failures if start <= at < end]
        if not failed:
            return None
        message, data = self._failures[min(failed)]
        return FilterFailed(
            f"{message} (offset {min(failed)}; {len(failed)} of {end - start} records)", **data
        )

    def _frame(self, record: Record) -> bytes:
        if self.filter is not None:
            try:
                if not self.filter.matches(record):
                    return b""
            except FilterFailed as error:
                # Not the error itself: its traceback references the whole decoded record.
                self._failures[record.offset] = (error.message, error.data)
                return b""
        return self._encoded.encode(record)


class EncodedEvents:
    """The records of a tail in one codec, each encoded once, however many filters it passes."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._events: dict[int, bytes] = {}

    def encode(self, record: Record) -> bytes:
        event = self._events.get(record.offset)
        if event is None:
            event = self._events[record.offset] = self.codec.encode_event(record)
        return event

    def trim(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._events.pop(offset, None)


class Tail:
    """Records ``first`` to ``end - 1`` of a topic, in memory. Bounded by count and bytes."""

    def __init__(self, end: int, count_max: int) -> None:
        self.first = end
        self.end = end
        self.bytes = 0
        self._count_max = count_max
        self._records: list[Record] = []
        self._views: dict[tuple[Codec, Filter | None], View] = {}
        self._encoded: dict[Codec, EncodedEvents] = {}
        # Views whose filter has not been evaluated on all records yet, in the order of their turn.
        self._unfiltered: dict[View, None] = {}

    def view(self, codec: Codec, filter: Filter | None, start: int) -> View:
        """Return the one view for this codec and filter. A new one with a filter begins where its first cursor does."""
        key = (codec, filter)
        view = self._views.get(key)
        if view is None:
            encoded = self._encoded.setdefault(codec, EncodedEvents(codec))
            first = self.first if filter is None else min(max(start, self.first), self.end)
            view = self._views[key] = View(encoded, filter, first)
            self._update_view(view)
        return view

    def remove_view(self, view: View) -> None:
        codec = view.codec
        self._views.pop((codec, view.filter), None)
        self._unfiltered.pop(view, None)
        if all(other is not codec for other, _ in self._views):
            self._encoded.pop(codec, None)

    def extend(self, records: Sequence[Record], bytes_max: int) -> None:
        """Add the records from ``end`` on.

        Records beyond the limits are dropped before that, the new ones at the next call at the earliest: every cursor
        at the end can be served from here, however large the commit was.
        """
        if len(self._records) > self._count_max + TRIM_EVERY or self.bytes > bytes_max:
            self._trim(bytes_max)
        self._records.extend(records)
        self.end += len(records)
        self.bytes += total_bytes(records)
        for view in self._views.values():
            self._update_view(view)

    @property
    def has_unfiltered(self) -> bool:
        """Whether there are records that a filter has not been evaluated on."""
        return bool(self._unfiltered)

    def evaluate_filters(self, until: float) -> None:
        """Evaluate filters, in turn, for as long as there is time."""
        while self._unfiltered:
            view = next(iter(self._unfiltered))
            del self._unfiltered[view]
            start = view.end - self.first
            view.extend(self._records[start : start + FILTERED_AT_ONCE], until)
            if view.end < self.end:
                self._unfiltered[view] = None
            if perf_counter() >= until:
                return

    def _update_view(self, view: View) -> None:
        """Encode what the view lacks; filters are evaluated later, because that takes time."""
        if view.end == self.end:
            return
        if view.filter is None:
            view.extend(self._records[view.end - self.first :])
        else:
            self._unfiltered[view] = None

    def skip_to(self, end: int) -> None:
        """Drop everything: the log has advanced by more than a tail may hold."""
        self._drop(len(self._records))
        self.first = self.end = end
        for view in self._views.values():
            view.trim(end)
        self._unfiltered.clear()

    def _trim(self, bytes_max: int) -> None:
        drop = max(0, len(self._records) - self._count_max)
        kept = self.bytes - total_bytes(self._records[:drop])
        while kept > bytes_max // 2 and drop < len(self._records):
            kept -= self._records[drop].size_bytes
            drop += 1
        self._drop(drop)

    def _drop(self, count: int) -> None:
        self.bytes -= total_bytes(self._records[:count])
        del self._records[:count]
        for encoded in self._encoded.values():
            encoded.trim(range(self.first, self.first + count))
        self.first += count
        for view in self._views.values():
            view.trim(self.first)
