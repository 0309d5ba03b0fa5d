"""What the next batch reads: a share of every topic that has something new. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from himalia.spark.connector.planning import Range, lost
from himalia.topics import matches

OWN = "pipeline"
"""First segment of the topics that the pipeline writes itself."""
REST_MAX = 0.1
"""A batch may be larger by this share, where nothing is then left."""


class TopicEnd(msgspec.Struct, frozen=True):
    """A topic at one moment. Records kept are ``first`` to ``end - 1``, and have ``bytes`` together."""

    name: str
    epoch: str
    first: int
    end: int
    bytes: int = 0


Positions = Mapping[tuple[str, str], int]
"""The next offset to read, by topic and epoch."""


class Plan(msgspec.Struct, frozen=True):
    """The ranges of one batch, at most one of a topic."""

    ranges: list[Range]
    bytes: int = 0
    """What the records have together, as far as can be told."""

    @property
    def records(self) -> int:
        return sum(map(len, self.ranges))

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return msgspec.json.decode(text, type=cls)


class Backlog(msgspec.Struct, frozen=True):
    """What has not been read yet, and what will not be because it is gone."""

    ranges: list[Range]
    bytes: int
    """As far as can be told: by the average of each topic."""
    losses: list[str]
    """In sentences."""
    lost: int

    @property
    def records(self) -> int:
        return sum(map(len, self.ranges))


def is_read(topic: str, patterns: Sequence[str]) -> bool:
    """Whether the pipeline reads a topic. Its own only if a pattern names them: it would feed on itself."""
    if topic.partition(".")[0] == OWN:
        patterns = [pattern for pattern in patterns if pattern.partition(".")[0] == OWN]
    return any(matches(pattern, topic) for pattern in patterns)


def backlog_of(topics: Iterable[TopicEnd], positions: Positions) -> Backlog:
    """What is unread. An epoch that is new begins at its first record."""
    ranges, losses, size_bytes, gone = [], [], 0, 0
    for topic in topics:
        # Of a topic that is new here, what went before it was first seen is not missed.
        start = positions.get((topic.name, topic.epoch), topic.first)
        if start < topic.first:
            losses.append(lost(topic.name, start, topic.first))
            gone += topic.first - start
            start = topic.first
        if start < topic.end:
            ranges.append(Range(topic.name, topic.epoch, start, topic.end))
            size_bytes += topic.bytes * (topic.end - start) // (topic.end - topic.first)
    return Backlog(ranges, size_bytes, losses, gone)


def planned(backlog: Backlog, *, records_max: int, bytes_max: int) -> Plan:
    """As much of the backlog as one batch should hold; a topic with much does not keep out those with little.

    If little more than that is there, it is all taken: a batch of few records costs seconds as well.
    """
    if backlog.bytes > bytes_max:
        records_max = min(records_max, max(1, backlog.records * bytes_max // backlog.bytes))
    if backlog.records <= records_max * (1 + REST_MAX):
        records_max = max(records_max, backlog.records)
    left, chosen = records_max, []
    waiting = sorted(backlog.ranges, key=lambda each: (len(each), each.topic))
    for number, each in enumerate(waiting):
        # Those with less than an equal share come first, and leave what they do not need to the others.
        share = -(-left // (len(waiting) - number))
        taken = min(len(each), share)
        left -= taken
        if taken:
            chosen.append(Range(each.topic, each.epoch, each.start, each.start + taken))
    records = records_max - left
    return Plan(chosen, backlog.bytes * records // max(1, backlog.records))


def until(topics: Iterable[TopicEnd], ends: Positions) -> list[TopicEnd]:
    """The topics as if nothing had been published since their ends were noted."""
    found = []
    for topic in topics:
        end = ends.get((topic.name, topic.epoch), 0)
        if end > topic.first:
            found.append(msgspec.structs.replace(topic, end=min(topic.end, end)))
    return found
