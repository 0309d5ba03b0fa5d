"""Ranges of offsets to read, and their grouping into partitions. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
