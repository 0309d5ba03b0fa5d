"""The index of recent message ids, by which a repeated publish is recognised.

The guarantee, in full:

- A draft (of a batch without producer) whose id was stored in the same topic, in the same epoch, less than
  ``dedup_window_s`` ago is not stored again; the publisher gets the offset of that record. The time is counted from
  when the record was stored to when the repeat is handled, by a clock that cannot be set.
- Only the newest ``dedup_ids_max`` records of the whole log are considered, however young the older ones are.
- It makes no difference whether the first copy is still being committed (the repeat is then acknowledged with
  that commit and fails with it), whether it is in the same batch, whether retention has deleted the record
  meanwhile, or whether the server was restarted or crashed in between.
- An older id, or one beyond the newest ``dedup_ids_max``, is a new message.
- Ids of a batch with producer and sequence are indexed like any other, but not looked up: the sequence
  decides. Where an id was stored more than once in this way, its newest record counts.
- Ids belong to a caller (``Batch.scope``): the same id of another caller is another message. An id of a record that
  names no caller, as earlier versions stored them, belongs to the first caller that repeats it.
- Deleting a topic removes its ids. A window or a number of 0 switches deduplication off.

Cost: one look-up per draft, whatever the length of the history; about 250 bytes of memory per indexed id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from himalia.settings import LogSettings


def scope_key(scope: str | None, name: str) -> str:
    """Return the key of an id, or of a producer, among those of all callers."""
    return name if scope is None else f"{scope}\0{name}"


class DedupEntry(msgspec.Struct, frozen=True, gc=False):
    """Where a message id was stored. ``topic`` is the log's own number for the topic and epoch."""

    topic: int
    id: str
    offset: int
    ts_us: int
    age_us: int
    """When it was stored, on the scale of ``LogClock`` that no jump moves: the window is measured on it."""


class DedupIndex:
    """The newest ids of the log. Not thread-safe: only the thread that assigns offsets uses it."""

    def __init__(self, settings: LogSettings) -> None:
        self.ids_max = settings.dedup_ids_max
        self.window_us = round(settings.dedup_window_s * 1_000_000) if self.ids_max > 0 else 0
        self._by_topic: dict[int, dict[str, DedupEntry]] = {}
        self._oldest_first: deque[DedupEntry] = deque()
        # The caller that repeated an id first, for ids whose records name no caller.
        self._claims: dict[tuple[int, str], str] = {}

    @property
    def is_enabled(self) -> bool:
        return self.window_us > 0

    def __len__(self) -> int:
        return len(self._oldest_first)

    def get_topic(self, topic: int) -> dict[str, DedupEntry]:
        """Return the entries of a topic by id. Some may be older than the window."""
        return self._by_topic.get(topic, {})

    def claim(self, topic: int, id: str, scope: str) -> DedupEntry | None:
        """Return the entry of an id whose record names no caller, and assign it to this caller from now on.

        None if there is no such entry, or another caller has claimed it.
        """
        entry = self.get_topic(topic).get(id)
        if entry is None or self._claims.setdefault((topic, id), scope) != scope:
            return None
        return entry

    def expiry_cutoff_us(self, age_us: int) -> int:
        """Return the age before which no stored id can be recognised any more."""
        cutoff = age_us - self.window_us + 1
        if not self.is_enabled or len(self._oldest_first) < self.ids_max:
            return cutoff
        return max(cutoff, self._oldest_first[0].age_us)

    def add(self, entries: Iterable[DedupEntry], age_us: int) -> None:
        """Add entries, the newest last, and drop those that have expired."""
        if not self.is_enabled:
            return
        for entry in entries:
            self._by_topic.setdefault(entry.topic, {})[entry.id] = entry
            self._oldest_first.append(entry)
        self._expire(age_us - self.window_us)

    def add_topic(self, topic: int, entries: Mapping[str, DedupEntry], age_us: int) -> None:
        """Add entries of one topic by id; the same as ``add`` at a fraction of the cost."""
        if entries and self.is_enabled:
            self._by_topic.setdefault(topic, {}).update(entries)
            self._oldest_first.extend(entries.values())
            self._expire(age_us - self.window_us)

    def rewind(self, by_us: int, age_us: int) -> None:
        """Reduce the ages of entries that would be newer than now, after the log's age was reduced by ``by_us``."""
        entries = [
            msgspec.structs.replace(entry, age_us=entry.age_us - by_us) if entry.age_us > age_us else entry
            for entry in self._oldest_first
            if self.get_topic(entry.topic).get(entry.id) is entry
        ]
        self.clear()
        self.add(entries, age_us)

    def remove_topic(self, topic: int) -> None:
        # Its entries stay in the queue until they expire; they are no longer found.
        self._by_topic.pop(topic, None)

    def clear(self) -> None:
        self._by_topic.clear()
        self._oldest_first.clear()
        self._claims.clear()

    def _expire(self, cutoff_us: int) -> None:
        queue = self._oldest_first
        while queue and (len(queue) > self.ids_max or queue[0].age_us <= cutoff_us):
            entry = queue.popleft()
            self._claims.pop((entry.topic, entry.id), None)
            entries = self._by_topic.get(entry.topic)
            # A newer record with the same id has replaced the entry in the index: that one stays.
            if entries is not None and entries.get(entry.id) is entry:
                del entries[entry.id]
                if not entries:
                    del self._by_topic[entry.topic]
