"""How far a stream has come and how far it goes next. Pure: no I/O.

Positions are what Spark's checkpoint holds: ``{"orders": {"offset": 23, "epoch": "..."}}``, and a ``"begin"``
where no position came before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from himalia.spark.connector.options import LATEST, At, ReadOptions
from himalia.spark.connector.planning import Range, TopicState, lost, range_of, recreated


@dataclass(frozen=True)
class Position:
    """How far a topic was read."""

    offset: int
    epoch: str
    begin: int | None = None
    """Where reading it began, if the position before says nothing of it: a batch that is run again begins there too."""


Positions = dict[str, Position]


def decoded(checkpoint: Mapping[str, Any]) -> Positions:
    return {
        topic: Position(place["offset"], place["epoch"], place.get("begin"))
        for topic, place in checkpoint.items()
    }


def encoded(positions: Positions) -> dict[str, Any]:
    """In the order of names: Spark compares checkpoints as text."""
    return {topic: _encoded(positions[topic]) for topic in sorted(positions)}


def _encoded(at: Position) -> dict[str, Any]:
    place: dict[str, Any] = {"offset": at.offset, "epoch": at.epoch}
    return place if at.begin is None else {**place, "begin": at.begin}


def beginning(
    options: ReadOptions, topics: Mapping[str, TopicState], since: Mapping[str, int], losses: list[str]
) -> Positions:
    """Where a new stream begins: at the end of each topic unless the options say otherwise."""
    found = {}
    for name, state in topics.items():
        at = options.starting.of(name) if options.starting else LATEST
        if name in since:
            at = At(since[name])
        found[name] = Position(range_of(state, at, LATEST, losses).start, state.epoch)
    return found


def unread(
    positions: Positions,
    topics: Mapping[str, TopicState],
    losses: list[str],
    until: Mapping[str, TopicState] | None,
) -> list[Range]:
    """What there is beyond ``positions``, of topics that came meanwhile from their first record on.

    A topic that was created again is a loss. ``until``: how far to go at most, for a stream that ends there.
    """
    ranges = []
    for name, state in sorted(topics.items()):
        begin = _begin(positions.get(name), state, losses)
        end = state.end if until is None else _end(until.get(name), state)
        ranges.append(Range(name, state.epoch, begin, max(begin, end)))
    return ranges


def left(positions: Positions, topics: Collection[str], existing: Collection[str]) -> list[str]:
    """A sentence for each topic that was read so far and is no longer, because it is gone or not asked for."""
    told = []
    for name, at in positions.items():
        if name not in existing:
            told.append(f"topic {name!r} was deleted: what it held from offset {at.offset} on is gone")
        elif name not in topics:
            told.append(
                f"topic {name!r} is not to be read any more: it is left out from offset {at.offset} on"
            )
    return told


def _begin(at: Position | None, state: TopicState, losses: list[str]) -> int:
    if at is None:
        return state.first
    if at.epoch != state.epoch:
        losses.append(f"{recreated(state, at.epoch)}: what it held from offset {at.offset} on is gone")
        return state.first
    if at.offset < state.first:
        losses.append(lost(state.name, at.offset, state.first))
    return max(at.offset, state.first)


def _end(bound: TopicState | None, state: TopicState) -> int:
    """Where a topic is to end; its beginning, if all that it holds came later."""
    return min(bound.end, state.end) if bound is not None and bound.epoch == state.epoch else state.first


def after(positions: Positions, ranges: list[Range], topics: Mapping[str, TopicState]) -> Positions:
    """The positions when the ranges have been read. Topics that are gone are forgotten; empty new ones come later."""
    reached = {name: at for name, at in positions.items() if name in topics}
    for each in ranges:
        if len(each):
            begin = None if _is_within(positions, each.topic, each.epoch) else each.start
            reached[each.topic] = Position(each.stop, each.epoch, begin)
    return reached


def _is_within(positions: Positions, topic: str, epoch: str) -> bool:
    return topic in positions and positions[topic].epoch == epoch


def limited(ranges: list[Range], records_max: int) -> list[Range]:
    """The beginnings of the ranges, ``records_max`` records in all, shared out evenly.

    What a short range leaves of its share goes to the longer ones. If there are more ranges than records, those
    that have waited longest, which are the longest, come first; so each gets its turn.
    """
    room, result = records_max, []
    waiting = sorted((each for each in ranges if len(each)), key=len, reverse=True)[:records_max]
    while waiting:
        each = waiting.pop()
        taken = min(len(each), room // (len(waiting) + 1))
        room -= taken
        result.append(Range(each.topic, each.epoch, each.start, each.start + taken))
    return result


def between(start: Positions, end: Positions) -> list[Range]:
    """What a micro-batch reads: the same whenever it is run, whatever retention took meanwhile."""
    ranges = []
    for name, stop in sorted(end.items()):
        begin = start[name].offset if _is_within(start, name, stop.epoch) else stop.begin or 0
        ranges.append(Range(name, stop.epoch, begin, stop.offset))
    return ranges
