"""From what was asked and what the topics hold to the ranges of a batch. Pure: no I/O.

Where records are gone, these functions say so in ``losses``, in sentences, and go on with what is there; whether that
is an error is for the caller to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from himalia.errors import BadRequest
from himalia.spark.connector.options import EARLIEST, LATEST, At, ReadOptions
from himalia.spark.connector.ranges import Range
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
