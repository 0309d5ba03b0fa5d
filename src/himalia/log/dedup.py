"""Which message ids were stored of late, so that a repeated publish is recognised.

The guarantee, in full:

- A draft (of a batch without producer) whose id was stored in the same topic, in the same epoch, less than
  ``dedup_window_s`` ago is not stored again: it is answered with the offset of that record. The age counts from
  the moment the record was stored to that at which the repeat is looked at, by a clock that cannot be set.
- Only the newest ``dedup_ids_max`` records of the whole log are looked at, however young the older ones are.
- It makes no difference whether the first copy is still being committed (the repeat is then acknowledged with
  that commit and fails with it), whether it stands in the same batch, whether retention has removed the record
  meanwhile, or whether the server was restarted or crashed in between.
- An older id, or one beyond the newest ``dedup_ids_max``, is a new message.
- Ids of a batch with producer and sequence are remembered like any other, but not looked up: the sequence
  decides. Where an id was stored more than once in this way, its newest record counts.
- Ids belong to a caller (``Batch.scope``): the same id of another caller is another message. An id of a record that
  does not say whose it is, as those of earlier versions, is recognised from whichever caller repeats it first.
- Deleting a topic forgets its ids. A window or a number of 0 switches the recognition off.

Cost: one look-up per draft, whatever the length of the history; about 250 bytes of memory per remembered id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec


def scoped(scope: str | None, name: str) -> str:
    """The key of an id, or of a producer, among those of all callers."""
    return name if scope is None else f"{scope}\0{name}"


class StoredId(msgspec.Struct, frozen=True, gc=False):
    """Where a message id was stored. ``topic`` is the log's own number for the topic and epoch."""

    topic: int
    id: str
    offset: int
    ts_us: int
    age_us: int
    """When that was, on the scale of ``LogClock`` that no jump moves: the window goes by it."""


class RecentIds:
    """The newest ids of the log. Not safe for threads; it belongs to whoever assigns offsets."""

    def __init__(self, *, window_s: float, ids_max: int) -> None:
        self.window_us = round(window_s * 1_000_000) if ids_max > 0 else 0
        self.ids_max = ids_max
        self._by_topic: dict[int, dict[str, StoredId]] = {}
        self._oldest_first: deque[StoredId] = deque()
        # Whose an id is that does not say it itself, once a caller has repeated it.
        self._claims: dict[tuple[int, str], str] = {}

    @property
    def enabled(self) -> bool:
        return self.window_us > 0

    def __len__(self) -> int:
        return len(self._oldest_first)

    def of_topic(self, topic: int) -> dict[str, StoredId]:
        """What is remembered of a topic, to look ids up in. May hold ids that are too old by now."""
        return self._by_topic.get(topic, {})

    def claim(self, topic: int, id: str, scope: str) -> StoredId | None:
        """An id that does not say whose it is; from now on it is this caller's. None if it is another's already."""
        stored = self.of_topic(topic).get(id)
        if stored is None or self._claims.setdefault((topic, id), scope) != scope:
            return None
        return stored

    def oldest_counting_us(self, age_us: int) -> int:
        """The age before which no stored id can be recognised any more."""
        cutoff = age_us - self.window_us + 1
        if not self.enabled or len(self._oldest_first) < self.ids_max:
            return cutoff
        return max(cutoff, self._oldest_first[0].age_us)

    def remember(self, stored: Iterable[StoredId], age_us: int) -> None:
        """Add ids, the newest last, and drop those that no longer count."""
        if not self.enabled:
            return
        for entry in stored:
            self._by_topic.setdefault(entry.topic, {})[entry.id] = entry
            self._oldest_first.append(entry)
        self._expire(age_us - self.window_us)

    def remember_all(self, topic: int, ids: Mapping[str, StoredId], age_us: int) -> None:
        """The same for ids of one topic, at a fraction of the cost."""
        if ids and self.enabled:
            self._by_topic.setdefault(topic, {}).update(ids)
            self._oldest_first.extend(ids.values())
            self._expire(age_us - self.window_us)

    def take_back(self, taken_us: int, age_us: int) -> None:
        """Ages were taken back: have ids that would be newer than now count from when they were stored."""
        found = [
            msgspec.structs.replace(entry, age_us=entry.age_us - taken_us) if entry.age_us > age_us else entry
            for entry in self._oldest_first
            if self.of_topic(entry.topic).get(entry.id) is entry
        ]
        self.clear()
        self.remember(found, age_us)

    def forget_topic(self, topic: int) -> None:
        # Its entries stay in line until their turn comes; they no longer answer.
        self._by_topic.pop(topic, None)

    def clear(self) -> None:
        self._by_topic.clear()
        self._oldest_first.clear()
        self._claims.clear()

    def _expire(self, cutoff_us: int) -> None:
        line = self._oldest_first
        while line and (len(line) > self.ids_max or line[0].age_us <= cutoff_us):
            entry = line.popleft()
            self._claims.pop((entry.topic, entry.id), None)
            ids = self._by_topic.get(entry.topic)
            # A newer record with the same id has taken the entry's place: that one stays.
            if ids is not None and ids.get(entry.id) is entry:
                del ids[entry.id]
                if not ids:
                    del self._by_topic[entry.topic]
