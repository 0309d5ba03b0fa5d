"""The positions of a stream, and which offsets its next micro-batch reads. Pure: no I/O.

Spark's checkpoint holds the positions as JSON, ``{"orders": {"offset": 23, "epoch": "..."}}``, with a ``"begin"`` where
the checkpoint before had no position of the topic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from himalia.spark.connector.offset_ranges import (
    OffsetRange,
    TopicExtent,
    describe_loss,
    describe_recreation,
    resolve_range,
)
from himalia.spark.connector.options import LATEST, OffsetSpec, ReadOptions


@dataclass(frozen=True)
class StreamPosition:
    """The next offset of a topic to read."""

    offset: int
    epoch: str
    begin: int | None = None
    """The first offset that was read, if the position before has none: a micro-batch that is repeated starts there."""


StreamPositions = dict[str, StreamPosition]


def decode(checkpoint: Mapping[str, Any]) -> StreamPositions:
    return {
        topic: StreamPosition(position["offset"], position["epoch"], position.get("begin"))
        for topic, position in checkpoint.items()
    }


def encode(positions: StreamPositions) -> dict[str, Any]:
    """Encode positions, sorted by topic: Spark compares checkpoints as text."""
    return {topic: _encode_position(positions[topic]) for topic in sorted(positions)}


def _encode_position(position: StreamPosition) -> dict[str, Any]:
    encoded: dict[str, Any] = {"offset": position.offset, "epoch": position.epoch}
    return encoded if position.begin is None else {**encoded, "begin": position.begin}


def resolve_initial_positions(
    options: ReadOptions, topics: Mapping[str, TopicExtent], since: Mapping[str, int], losses: list[str]
) -> StreamPositions:
    """Return where a new stream starts: at the end of each topic unless the options say otherwise."""
    positions = {}
    for name, topic in topics.items():
        start = options.starting.of(name) if options.starting else LATEST
        if name in since:
            start = OffsetSpec(since[name])
        positions[name] = StreamPosition(resolve_range(topic, start, LATEST, losses).start, topic.epoch)
    return positions


def find_new_ranges(
    positions: StreamPositions,
    topics: Mapping[str, TopicExtent],
    losses: list[str],
    bounds: Mapping[str, TopicExtent] | None,
) -> list[OffsetRange]:
    """Return the records beyond ``positions``; a topic without a position is new, and starts at its first record.

    A topic that was created again counts as a loss. ``bounds``: where the topics ended when the query started, for a
    query that reads only what was available then.
    """
    ranges = []
    for name, topic in sorted(topics.items()):
        begin = _resolve_begin(positions.get(name), topic, losses)
        end = topic.end if bounds is None else _limit_end(bounds.get(name), topic)
        ranges.append(OffsetRange(name, topic.epoch, begin, max(begin, end)))
    return ranges


def describe_departures(
    positions: StreamPositions, topics: Collection[str], existing: Collection[str]
) -> list[str]:
    """Describe each topic that has a position and is not read any more: it was deleted, or is not selected."""
    losses = []
    for name, position in positions.items():
        if name not in existing:
            losses.append(
                f"topic {name!r} was deleted: what it held from offset {position.offset} on is gone"
            )
        elif name not in topics:
            losses.append(
                f"topic {name!r} is no longer selected: it is not read from offset {position.offset} on"
            )
    return losses


def _resolve_begin(position: StreamPosition | None, topic: TopicExtent, losses: list[str]) -> int:
    if position is None:
        return topic.first
    if position.epoch != topic.epoch:
        message = describe_recreation(topic, position.epoch)
        losses.append(f"{message}: what it held from offset {position.offset} on is gone")
        return topic.first
    if position.offset < topic.first:
        losses.append(describe_loss(topic.name, position.offset, topic.first))
    return max(position.offset, topic.first)


def _limit_end(bound: TopicExtent | None, topic: TopicExtent) -> int:
    """Return where to end within ``bound``: at the first record, if the topic or its epoch is newer than that."""
    return min(bound.end, topic.end) if bound is not None and bound.epoch == topic.epoch else topic.first


def advance(
    positions: StreamPositions, ranges: list[OffsetRange], topics: Mapping[str, TopicExtent]
) -> StreamPositions:
    """Return the positions after the ranges, without topics that are not read any more and new ones that are empty."""
    advanced = {name: position for name, position in positions.items() if name in topics}
    for each in ranges:
        if len(each):
            begin = None if _has_epoch(positions, each.topic, each.epoch) else each.start
            advanced[each.topic] = StreamPosition(each.stop, each.epoch, begin)
    return advanced


def _has_epoch(positions: StreamPositions, topic: str, epoch: str) -> bool:
    return topic in positions and positions[topic].epoch == epoch


def limit_ranges(ranges: list[OffsetRange], records_max: int) -> list[OffsetRange]:
    """Cut the ranges to ``records_max`` records in total, shared evenly.

    What a short range leaves of its share goes to longer ones. If there are more ranges than records, the longest,
    which have waited longest, come first, so that no topic is starved.
    """
    room, result = records_max, []
    waiting = sorted((each for each in ranges if len(each)), key=len, reverse=True)[:records_max]
    while waiting:
        each = waiting.pop()
        size = min(len(each), room // (len(waiting) + 1))
        room -= size
        result.append(OffsetRange(each.topic, each.epoch, each.start, each.start + size))
    return result


def resolve_ranges_between(start: StreamPositions, end: StreamPositions) -> list[OffsetRange]:
    """Return what a micro-batch reads: the same ranges however often it is run, and whatever retention deletes."""
    ranges = []
    for name, stop in sorted(end.items()):
        begin = start[name].offset if _has_epoch(start, name, stop.epoch) else stop.begin or 0
        ranges.append(OffsetRange(name, stop.epoch, begin, stop.offset))
    return ranges
