"""How far a stream has come and how far it goes next. Pure: no I/O.

Positions are what Spark's checkpoint holds: ``{"orders": {"offset": 23, "epoch": "..."}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from himalia.spark.connector.options import LATEST, At, ReadOptions
from himalia.spark.connector.planning import TopicState, lost, range_of, recreated
from himalia.spark.connector.ranges import Range

Positions = dict[str, At]


def decoded(checkpoint: Mapping[str, Any]) -> Positions:
    return {topic: At(place["offset"], place["epoch"]) for topic, place in checkpoint.items()}


def encoded(positions: Positions) -> dict[str, Any]:
    """In the order of names: Spark compares checkpoints as text."""
    return {
        topic: {"offset": positions[topic].offset, "epoch": positions[topic].epoch}
        for topic in sorted(positions)
    }


def beginning(
    options: ReadOptions, topics: Mapping[str, TopicState], since: Mapping[str, int], losses: list[str]
) -> Positions:
    """Where a new stream begins: at the end of each topic unless the options say otherwise."""
    found = {}
    for name, state in topics.items():
        at = options.starting.of(name) if options.starting else LATEST
        if name in since:
            at = At(since[name])
        found[name] = At(range_of(state, at, LATEST, losses).start, state.epoch)
    return found


def unread(
    positions: Positions,
    topics: Mapping[str, TopicState],
    losses: list[str],
    until: Mapping[str, TopicState] | None,
) -> list[Range]:
    """What there is beyond ``positions``, of topics that came meanwhile from their first record on.

    A topic that went or was created again is a loss. ``until``: how far to go at most, for a stream that ends there.
    """
    ranges = []
    for name, state in sorted(topics.items()):
        begin = _begin(positions.get(name), state, losses)
        end = state.end if until is None else _end(until.get(name), state)
        ranges.append(Range(name, state.epoch, begin, max(begin, end)))
    for name, at in positions.items():
        if name not in topics:
            losses.append(f"topic {name!r} was deleted: what it held from offset {at.offset} on is gone")
    return ranges


def _begin(at: At | None, state: TopicState, losses: list[str]) -> int:
    if at is None:
        return state.first
    if at.epoch != state.epoch:
        losses.append(f"{recreated(state, at)}: what it held from offset {at.offset} on is gone")
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
            reached[each.topic] = At(each.stop, each.epoch)
    return reached


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


def between(start: Positions, end: Positions, firsts: Mapping[str, int]) -> list[Range]:
    """What a micro-batch reads. ``firsts``: the first records of topics that are not in ``start``, if known."""
    ranges = []
    for name, stop in sorted(end.items()):
        at = start.get(name)
        begin = at.offset if at is not None and at.epoch == stop.epoch else firsts.get(name, 0)
        assert stop.epoch is not None
        ranges.append(Range(name, stop.epoch, begin, stop.offset))
    return ranges
