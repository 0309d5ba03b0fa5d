"""Plans a read: from options and pushed filters to ranges of offsets, grouped into partitions."""

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
from himalia.spark.connector.options import EARLIEST, LATEST, At, ReadOptions
from himalia.topics import matches


@dataclass(frozen=True)
class TopicState:
    """A topic at one moment. Records kept are ``first`` to ``end - 1``."""

    name: str
    epoch: str
    first: int
    end: int


def chosen(options: ReadOptions, states: Mapping[str, TopicState]) -> dict[str, TopicState]:
    """The topics, of those that exist, which are named or match a pattern; by name."""
    return {name: states[name] for name in sorted(states) if is_chosen(options, name)}


def is_chosen(options: ReadOptions, name: str) -> bool:
    return name in options.names or any(matches(pattern, name) for pattern in options.patterns)


def unknown(options: ReadOptions, states: Mapping[str, TopicState]) -> list[str]:
    """Topics that the options name, to read or with an offset, and that do not exist.

    Raises ``BadRequest`` for an offset of a topic that is not to be read at all: that is a slip.
    """
    wanted = dict.fromkeys(options.names)
    for option, offsets in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        for topic in offsets.by_topic if offsets else ():
            if not is_chosen(options, topic):
                raise BadRequest(f"option {option} names topic {topic!r}, which is not among those to read")
            wanted[topic] = None
    return [name for name in wanted if name not in states]


def batch_ranges(
    options: ReadOptions, topics: Iterable[TopicState], since: Mapping[str, int], losses: list[str]
) -> list[Range]:
    """What a batch reads. ``since``: the offsets at which topics reach ``startingTimestamp``, if one was given."""
    ranges = []
    for state in topics:
        start = options.starting.of(state.name) if options.starting else EARLIEST
        if state.name in since:
            start = At(since[state.name])
        stop = options.ending.of(state.name) if options.ending else LATEST
        ranges.append(range_of(state, start, stop, losses))
    return ranges


def range_of(state: TopicState, start: At, stop: At, losses: list[str]) -> Range:
    """What there is of a topic between two places; nothing, at the place itself, from one that is beyond the end."""
    if stop.epoch not in (None, state.epoch):
        losses.append(f"{recreated(state, stop.epoch)}: what it held before offset {stop.offset} is gone")
        return Range(state.name, state.epoch, state.first, state.first)
    begin, until = _begin(state, start, losses), _placed(state, stop, losses)
    if begin > until and start.is_explicit and stop.is_explicit:
        raise BadRequest(
            f"topic {state.name!r} is to be read from offset {start.offset}, after offset {stop.offset} where it ends"
        )
    end = min(until, state.end)
    if begin < min(state.first, end):
        losses.append(lost(state.name, begin, min(state.first, end)))
    begin = max(begin, state.first)
    return Range(state.name, state.epoch, begin, max(begin, end))


def lost(topic: str, start: int, stop: int) -> str:
    """The sentence for records that were there once."""
    if stop - start == 1:
        return f"topic {topic!r}: offset {start} is gone"
    return f"topic {topic!r}: offsets {start} to {stop - 1} are gone"


def recreated(state: TopicState, epoch: str | None) -> str:
    """The beginning of a sentence for a place in a topic of that name, but of an epoch that is no more."""
    changed = f"its epoch is {state.epoch}, not {epoch}"
    return f"topic {state.name!r} was deleted and created again, or restored ({changed})"


def _begin(state: TopicState, at: At, losses: list[str]) -> int:
    if at.epoch not in (None, state.epoch):
        losses.append(f"{recreated(state, at.epoch)}: what it held from offset {at.offset} on is gone")
        return state.first
    return _placed(state, at, losses)


def _placed(state: TopicState, at: At, losses: list[str]) -> int:
    if not at.is_explicit:
        return state.first if at == EARLIEST else state.end
    if at.offset > state.end:
        losses.append(f"topic {state.name!r} ends at offset {state.end}, before offset {at.offset}")
    return at.offset


RANGE_COST = 250
"""What asking for one more range costs, in records."""


@dataclass(frozen=True)
class Range:
    """The records of a topic from ``start`` up to, but not including, ``stop``."""

    topic: str
    epoch: str
    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


def grouped(ranges: Iterable[Range], *, records_max: int, groups_min: int) -> list[list[Range]]:
    """The ranges in groups for one task each: long ranges are cut, short ones put together.

    Groups have about as many records as each other, and at most ``records_max``; fewer where there are many ranges.
    There are at least ``groups_min`` groups if there are that many records.
    """
    wanted = [each for each in ranges if len(each)]
    total = sum(len(each) for each in wanted)
    count = max(min(groups_min, total), -(-total // records_max))
    groups: list[list[Range]] = []
    room = 0
    for each in wanted:
        start = each.start
        while start < each.stop:
            if not room or len(groups[-1]) * RANGE_COST >= records_max:
                room = total * (len(groups) + 1) // count - total * len(groups) // count
                groups.append([])
            stop = min(each.stop, start + room)
            groups[-1].append(Range(each.topic, each.epoch, start, stop))
            room -= stop - start
            start = stop
    return groups


TICK = timedelta(microseconds=1)


@dataclass(frozen=True)
class Narrowed:
    """What the filters leave: each bound is inclusive below and exclusive above; None is no bound."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    offset_min: int | None = None
    offset_stop: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    def has_topic(self, name: str) -> bool:
        return (self.topics is None or name in self.topics) and name.startswith(self.topic_prefix)


def narrowed(filters: Sequence[Filter]) -> Narrowed:
    """What is left when all of the filters hold. Those that do not help are passed over."""
    found = Narrowed()
    for each in filters:
        column = getattr(each, "attribute", ())
        if column == ("topic",):
            found = _by_topic(found, each)
        elif column == ("offset",):
            low, stop = _bounds(each, int, 1)
            found = replace(
                found, offset_min=_higher(found.offset_min, low), offset_stop=_lower(found.offset_stop, stop)
            )
        elif column == ("timestamp",):
            low, stop = _bounds(each, datetime, TICK)
            found = replace(found, since=_higher(found.since, low), until=_lower(found.until, stop))
    return found


def _by_topic(found: Narrowed, each: Filter) -> Narrowed:
    match each:
        case EqualTo(value=str(name)) | EqualNullSafe(value=str(name)):
            names = frozenset([name])
        case In(value=listed):
            names = frozenset(name for name in listed if isinstance(name, str))
        case StringStartsWith(value=prefix) if prefix.startswith(found.topic_prefix):
            return replace(found, topic_prefix=prefix)
        case _:
            return found
    return replace(found, topics=names if found.topics is None else found.topics & names)


def _bounds(each: Filter, kind: type, tick: Any) -> tuple[Any, Any]:
    """The lowest value that a filter on one column lets through, and the first above all of them."""
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


def _higher(one: Any, other: Any) -> Any:
    return max((bound for bound in (one, other) if bound is not None), default=None)


def _lower(one: Any, other: Any) -> Any:
    return min((bound for bound in (one, other) if bound is not None), default=None)
