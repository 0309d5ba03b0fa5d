"""Ranges of offsets: from options and pushed filters to what each partition reads. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from himalia.errors import BadRequest
from himalia.spark.connector.options import EARLIEST, LATEST, OffsetSpec, ReadOptions
from himalia.topics import matches


@dataclass(frozen=True)
class TopicExtent:
    """Which records a topic held at one moment: offsets ``first`` to ``end - 1``, with ``bytes`` in total."""

    name: str
    epoch: str
    first: int
    end: int
    bytes: int = 0


def select_topics(options: ReadOptions, topics: Mapping[str, TopicExtent]) -> dict[str, TopicExtent]:
    """Return the topics that the options name or match, sorted by name."""
    return {name: topics[name] for name in sorted(topics) if is_selected(options, name)}


def is_selected(options: ReadOptions, name: str) -> bool:
    return name in options.names or any(matches(pattern, name) for pattern in options.patterns)


def find_missing_topics(options: ReadOptions, topics: Mapping[str, TopicExtent]) -> list[str]:
    """Return the topics that the options name, to read or with an offset, and that do not exist.

    Raises ``BadRequest`` for an offset of a topic that the options do not select.
    """
    named = dict.fromkeys(options.names)
    for option, offsets in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        for topic in offsets.by_topic if offsets else ():
            if not is_selected(options, topic):
                raise BadRequest(f"option {option} names topic {topic!r}, which is not selected for reading")
            named[topic] = None
    return [name for name in named if name not in topics]


def resolve_batch_ranges(
    options: ReadOptions, topics: Iterable[TopicExtent], since: Mapping[str, int], losses: list[str]
) -> list[OffsetRange]:
    """Return what a batch reads. ``since`` has the offsets of ``startingTimestamp``, by topic; empty without one."""
    ranges = []
    for topic in topics:
        start = options.starting.of(topic.name) if options.starting else EARLIEST
        if topic.name in since:
            start = OffsetSpec(since[topic.name])
        stop = options.ending.of(topic.name) if options.ending else LATEST
        ranges.append(resolve_range(topic, start, stop, losses))
    return ranges


def resolve_range(topic: TopicExtent, start: OffsetSpec, stop: OffsetSpec, losses: list[str]) -> OffsetRange:
    """Return the records between two offsets that the topic holds; an empty range at a ``start`` beyond its end.

    Appends a sentence to ``losses`` for records that are gone.
    """
    if stop.epoch not in (None, topic.epoch):
        losses.append(
            f"{describe_recreation(topic, stop.epoch)}: what it held before offset {stop.offset} is gone"
        )
        return OffsetRange(topic.name, topic.epoch, topic.first, topic.first)
    begin, until = _resolve_start(topic, start, losses), _resolve(topic, stop, losses)
    if begin > until and start.is_explicit and stop.is_explicit:
        raise BadRequest(
            f"topic {topic.name!r} would be read from offset {start.offset} to offset {stop.offset}, which is before it"
        )
    end = min(until, topic.end)
    if begin < min(topic.first, end):
        losses.append(describe_loss(topic.name, begin, min(topic.first, end)))
    begin = max(begin, topic.first)
    return OffsetRange(topic.name, topic.epoch, begin, max(begin, end))


def describe_loss(topic: str, start: int, stop: int) -> str:
    """Describe records that a topic held once."""
    if stop - start == 1:
        return f"topic {topic!r}: offset {start} is gone"
    return f"topic {topic!r}: offsets {start} to {stop - 1} are gone"


def describe_recreation(topic: TopicExtent, epoch: str | None) -> str:
    """Describe an offset in an epoch that the topic no longer has; the caller completes the sentence."""
    changed = f"its epoch is {topic.epoch}, not {epoch}"
    return f"topic {topic.name!r} was deleted and created again, or restored ({changed})"


def _resolve_start(topic: TopicExtent, start: OffsetSpec, losses: list[str]) -> int:
    if start.epoch not in (None, topic.epoch):
        losses.append(
            f"{describe_recreation(topic, start.epoch)}: what it held from offset {start.offset} on is gone"
        )
        return topic.first
    return _resolve(topic, start, losses)


def _resolve(topic: TopicExtent, offset: OffsetSpec, losses: list[str]) -> int:
    if not offset.is_explicit:
        return topic.first if offset == EARLIEST else topic.end
    if offset.offset > topic.end:
        losses.append(f"topic {topic.name!r} ends at offset {topic.end}, before offset {offset.offset}")
    return offset.offset


RANGE_COST = 250
"""The cost of requesting one more range, in records."""


@dataclass(frozen=True)
class OffsetRange:
    """The records of a topic from ``start`` up to, but not including, ``stop``."""

    topic: str
    epoch: str
    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


def partition_ranges(
    ranges: Iterable[OffsetRange], *, records_max: int, groups_min: int
) -> list[list[OffsetRange]]:
    """Group the ranges, one group for each task: split long ranges, and combine short ones.

    Groups have about as many records as each other, at most ``records_max``, and fewer where they have many ranges.
    There are at least ``groups_min`` groups if there are that many records.
    """
    nonempty = [each for each in ranges if len(each)]
    total = sum(len(each) for each in nonempty)
    count = max(min(groups_min, total), -(-total // records_max))
    groups: list[list[OffsetRange]] = []
    room = 0
    for each in nonempty:
        start = each.start
        while start < each.stop:
            if not room or len(groups[-1]) * RANGE_COST >= records_max:
                room = total * (len(groups) + 1) // count - total * len(groups) // count
                groups.append([])
            stop = min(each.stop, start + room)
            groups[-1].append(OffsetRange(each.topic, each.epoch, start, stop))
            room -= stop - start
            start = stop
    return groups


TICK = timedelta(microseconds=1)


@dataclass(frozen=True)
class PushedBounds:
    """The rows that pushed filters leave. Lower bounds are inclusive, upper ones exclusive; None is no bound."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    offset_min: int | None = None
    offset_stop: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    def has_topic(self, name: str) -> bool:
        return (self.topics is None or name in self.topics) and name.startswith(self.topic_prefix)


def extract_bounds(filters: Sequence[Filter]) -> PushedBounds:
    """Return bounds that hold where all filters hold; filters that give no bound are ignored."""
    bounds = PushedBounds()
    for each in filters:
        column = getattr(each, "attribute", ())
        if column == ("topic",):
            bounds = _apply_topic_filter(bounds, each)
        elif column == ("offset",):
            low, stop = _extract_bound(each, int, 1)
            bounds = replace(
                bounds,
                offset_min=_highest(bounds.offset_min, low),
                offset_stop=_lowest(bounds.offset_stop, stop),
            )
        elif column == ("timestamp",):
            low, stop = _extract_bound(each, datetime, TICK)
            bounds = replace(bounds, since=_highest(bounds.since, low), until=_lowest(bounds.until, stop))
    return bounds


def _apply_topic_filter(bounds: PushedBounds, each: Filter) -> PushedBounds:
    match each:
        case EqualTo(value=str(name)) | EqualNullSafe(value=str(name)):
            names = frozenset([name])
        case In(value=listed):
            names = frozenset(name for name in listed if isinstance(name, str))
        case StringStartsWith(value=prefix) if prefix.startswith(bounds.topic_prefix):
            return replace(bounds, topic_prefix=prefix)
        case _:
            return bounds
    return replace(bounds, topics=names if bounds.topics is None else bounds.topics & names)


def _extract_bound(each: Filter, kind: type, tick: Any) -> tuple[Any, Any]:
    """Return the lowest value that passes a filter on one column, and the first value above all that pass."""
    match each:
        case EqualTo(value=value) | EqualNullSafe(value=value) if isinstance(value, kind):
            return value, value + tick
        case In(value=listed):
            values: list[Any] = [value for value in listed if isinstance(value, kind)]
            return (min(values), max(values) + tick) if values else (None, None)
        case GreaterThan(value=value) if isinstance(value, kind):
            return value + tick, None
        case GreaterThanOrEqual(value=value) if isinstance(value, kind):
            return value, None
        case LessThan(value=value) if isinstance(value, kind):
            return None, value
        case LessThanOrEqual(value=value) if isinstance(value, kind):
            return None, value + tick
        case _:
            return None, None


def _highest(one: Any, other: Any) -> Any:
    return max((bound for bound in (one, other) if bound is not None), default=None)


def _lowest(one: Any, other: Any) -> Any:
    return min((bound for bound in (one, other) if bound is not None), default=None)
