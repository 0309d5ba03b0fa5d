"""Plan a batch: a share of every topic that has new records. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from himalia.spark.connector.offset_ranges import OffsetRange, TopicExtent, describe_loss
from himalia.topics import matches

OWN = "pipeline"
"""First segment of the topics that the pipeline itself writes."""
OVERFILL_SHARE = 0.1
"""By this share a batch may exceed its limit if nothing is left then."""

NextOffsets = Mapping[tuple[str, str], int]
"""The next offset to read, by topic and epoch."""


class Plan(msgspec.Struct, frozen=True):
    """The ranges of one batch, at most one of a topic."""

    ranges: list[OffsetRange]
    bytes: int = 0
    """The size of the records, estimated from the average of each topic."""

    @property
    def records(self) -> int:
        return sum(map(len, self.ranges))

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return msgspec.json.decode(text, type=cls)


class Backlog(msgspec.Struct, frozen=True):
    """The records that are unread, and those that were deleted before they were read."""

    ranges: list[OffsetRange]
    bytes: int
    """Estimated from the average of each topic."""
    losses: list[str]
    """One sentence for each topic with losses."""
    lost: int
    """The number of lost records."""

    @property
    def records(self) -> int:
        return sum(map(len, self.ranges))


def is_selected(topic: str, patterns: Sequence[str]) -> bool:
    """Whether the pipeline reads a topic: its own topics only if a pattern names them, so that it causes no loop."""
    if topic.partition(".")[0] == OWN:
        patterns = [pattern for pattern in patterns if pattern.partition(".")[0] == OWN]
    return any(matches(pattern, topic) for pattern in patterns)


def compute_backlog(topics: Iterable[TopicExtent], positions: NextOffsets) -> Backlog:
    """Return what is unread. An epoch without a position starts at its first record, and has no losses."""
    ranges, losses, size_bytes, gone = [], [], 0, 0
    for topic in topics:
        start = positions.get((topic.name, topic.epoch), topic.first)
        if start < topic.first:
            losses.append(describe_loss(topic.name, start, topic.first))
            gone += topic.first - start
            start = topic.first
        if start < topic.end:
            ranges.append(OffsetRange(topic.name, topic.epoch, start, topic.end))
            size_bytes += topic.bytes * (topic.end - start) // (topic.end - topic.first)
    return Backlog(ranges, size_bytes, losses, gone)


def plan_batch(backlog: Backlog, *, records_max: int, bytes_max: int) -> Plan:
    """Return the part of the backlog for one batch, shared so that topics with many records do not starve others.

    A backlog that exceeds the limits by little is planned whole: another batch of few records would cost seconds too.
    """
    if backlog.bytes > bytes_max:
        records_max = min(records_max, max(1, backlog.records * bytes_max // backlog.bytes))
    if backlog.records <= records_max * (1 + OVERFILL_SHARE):
        records_max = max(records_max, backlog.records)
    room, ranges = records_max, []
    waiting = sorted(backlog.ranges, key=lambda each: (len(each), each.topic))
    for number, each in enumerate(waiting):
        # Topics with less than an equal share come first, and leave the rest of it to the others.
        share = -(-room // (len(waiting) - number))
        size = min(len(each), share)
        room -= size
        if size:
            ranges.append(OffsetRange(each.topic, each.epoch, each.start, each.start + size))
    records = records_max - room
    return Plan(ranges, backlog.bytes * records // max(1, backlog.records))


def cap_ends(topics: Iterable[TopicExtent], ends: NextOffsets) -> list[TopicExtent]:
    """Return the topics without the records that were published after ``ends`` were taken."""
    capped = []
    for topic in topics:
        end = ends.get((topic.name, topic.epoch), 0)
        if end > topic.first:
            capped.append(replace(topic, end=min(topic.end, end)))
    return capped
