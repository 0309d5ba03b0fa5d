"""Producers: names under which clients number their batches, so that a repeat is recognised by its sequence.

The guarantee, in full:

- A batch whose sequence is not above that of the producer's last stored batch in the same topic and epoch is a repeat.
- The log remembers that for at least ``producer_age_s`` after the last stored batch, by a clock that cannot be set, and
  forgets the producer within the hour after that (later, if the age that it was stored at was reduced since).
  Nothing is forgotten while the clock is held. 0 remembers forever.
- A caller has at most ``producers_max`` producers, over all topics; another name is refused (``TooManyProducers``). So
  no caller can use up the room of another, and the rows of a log are bounded by its callers.
- The server's own producers, and those of earlier versions that no caller has used since, belong to no caller. They do
  not count, and are forgotten like the others. A caller that uses one of an earlier version is not refused for it.
- Deleting a topic forgets its producers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from himalia.errors import ConfigurationError, TooManyProducers

if TYPE_CHECKING:
    from himalia.settings import LogSettings

DAY_S = 86_400


class ProducerState(msgspec.Struct, frozen=True):
    """The last batch of a producer in a topic."""

    sequence: int
    first_offset: int
    count: int
    ts_us: int
    age_us: int
    """When it was stored, on the scale of ``LogClock`` that no jump moves."""


class Producers:
    """How many producers each caller has in the committed log, and the limits. Used by the writer only."""

    def __init__(self, settings: LogSettings) -> None:
        age_s, window_s = settings.producer_age_s, settings.dedup_window_s
        if 0 < age_s < window_s:
            raise ConfigurationError(
                f"producer_age_s is {age_s:g}, but must be at least dedup_window_s ({window_s:g}), or 0 to "
                "remember producers forever",
                producer_age_s=age_s,
            )
        self._count_max = settings.producers_max
        self._age_s = age_s
        self.age_us = round(age_s * 1_000_000)
        self.counts: dict[str, int] = {}
        """Number of producers by caller; callers without any are missing."""

    def check_room(self, caller: str, count: int) -> None:
        """Raise ``TooManyProducers`` if a caller with ``count`` producers may have no more."""
        if count < self._count_max:
            return
        wait = f"wait until some have been unused for {self._age_s / DAY_S:g} days, " if self._age_s else ""
        raise TooManyProducers(
            f"{caller!r} has {count} producers, the maximum per caller; use their names again, "
            f"{wait}delete topics or raise producers_max",
            limit=self._count_max,
        )

    def counts_without(self, removed: Iterable[str]) -> dict[str, int]:
        """Return the new counts of the callers of these producers (named as by ``scope_key``) without them."""
        by_caller = Counter(name.partition("\0")[0] for name in removed if "\0" in name)
        return {caller: max(0, self.counts.get(caller, 0) - count) for caller, count in by_caller.items()}

    def update(self, counts: Mapping[str, int]) -> None:
        """Replace the counts of some callers, after they were committed."""
        for caller, count in counts.items():
            if count:
                self.counts[caller] = count
            else:
                self.counts.pop(caller, None)
