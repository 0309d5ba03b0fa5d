"""A topic as the log's writer knows it: offsets, sizes, times, and the eras of its records."""

from __future__ import annotations

import copy

import msgspec

from himalia.log.clock import Moment
from himalia.record import Retention, TopicInfo

PINNED_US = 3600 * 1_000_000
"""A topic whose last record is dated further in the future than this is pinned: until that time has come, its new
records get that date, because times never decrease."""
MARKS_PER_AGE = 64


class Era(msgspec.Struct, frozen=True):
    """Records that were stored before the clock was set: those before ``stop``, and after the previous era."""

    stop: int
    shift_us: int
    """By how much they are dated later than their ages say."""


class TopicState(msgspec.Struct):
    """One topic and epoch. A transaction changes a copy, which replaces the original after the commit."""

    id: int
    """The log's own number for this topic and epoch; never used again."""
    name: str
    epoch: str
    created_us: int
    retention: Retention
    first: int = 0
    end: int = 0
    bytes: int = 0
    last_ts_us: int = 0
    first_ts_us: int = 0
    """The time of the oldest record; undefined while there is none."""
    owner: str | None = None
    eras: tuple[Era, ...] = ()
    """Usually empty; see ``himalia.log.clock``."""

    def oldest_era(self) -> Era | None:
        """Return the era of the oldest record; None if that is the present one."""
        return next((era for era in self.eras if era.stop > self.first), None)

    def age_us(self, offset: int, ts_us: int, shift_us: int) -> int:
        """Return the age of a record with this offset and time; ``shift_us`` is that of the present era."""
        era = next((era for era in self.eras if era.stop > offset), None)
        return ts_us - (shift_us if era is None else era.shift_us)

    def end_era(self, shift_us: int) -> TopicState:
        """Return this topic with the present era ended: a copy, or itself if it has no record in that era."""
        if self.first == self.end or (self.eras and self.eras[-1].stop == self.end):
            return self
        ended = copy.copy(self)
        ended.eras = (*self.eras, Era(self.end, shift_us))
        return ended

    def is_pinned(self, now: Moment) -> bool:
        """Whether new records get a wrong date, because earlier ones are dated far in the future."""
        return self.last_ts_us > now.ts_us + PINNED_US

    def mark_pinned(self, now: Moment, age_limit_s: float) -> TopicState | None:
        """Return this topic with its wrongly dated records counted as stored now; None if it was marked recently.

        Their ages are then wrong by the time between two marks at most, and never too high.
        """
        if self.eras and self.eras[-1].stop >= self.end:
            return None
        marked_us = self.last_ts_us - self.eras[-1].shift_us if self.eras else 0
        # A mark that is later than now dates from before ages were reduced.
        if 0 <= now.age_us - marked_us < max(PINNED_US, age_limit_s * 1_000_000 / MARKS_PER_AGE):
            return None
        return self.end_era(self.last_ts_us - now.age_us)

    def info(self) -> TopicInfo:
        return TopicInfo(
            name=self.name,
            epoch=self.epoch,
            first=self.first,
            end=self.end,
            bytes=self.bytes,
            created_us=self.created_us,
            last_ts_us=self.last_ts_us,
            retention=self.retention,
            owner=self.owner,
        )
