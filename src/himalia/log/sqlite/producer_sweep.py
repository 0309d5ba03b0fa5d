"""Forgetting producers that were not used for long: once an hour, in steps between two groups of appends."""

from __future__ import annotations

from himalia.log.clock import LogClock
from himalia.log.producers import Producers
from himalia.log.sqlite.store import Store

SWEEP_EVERY_US = 3600 * 1_000_000
ROWS_PER_STEP = 2000
START = (0, "")
"""Before the first producer: topics are numbered from 1."""


class ProducerSweep:
    """One pass over all producers at a time, in the order of the table. Belongs to the writer's thread.

    The table has no index by age: the index would be written with every batch, while a pass reads a million rows
    in a second or two, spread over steps.
    """

    def __init__(self, producers: Producers, clock: LogClock) -> None:
        self._producers = producers
        self._clock = clock
        self._began_us = -SWEEP_EVERY_US
        # The last row that this pass has looked at; None while there is no pass.
        self._after: tuple[int, str] | None = None

    @property
    def is_due(self) -> bool:
        return self._after is not None and not self._clock.is_held

    def tick(self) -> None:
        """Begin a pass if the last one began an hour ago, or later than now: ages can be taken back."""
        now_us = self._clock.last.age_us
        is_recent = self._began_us <= now_us < self._began_us + SWEEP_EVERY_US
        if self._producers.age_us and self._after is None and not is_recent:
            self._after = START
            self._began_us = now_us

    def step(self, store: Store) -> None:
        """Look at the next rows, and forget those that are too old."""
        assert self._after is not None
        cutoff_us = self._clock.last.age_us - self._producers.age_us
        rows = store.producers_after(*self._after, ROWS_PER_STEP)
        expired = [(topic, producer) for topic, producer, age_us in rows if age_us <= cutoff_us]
        if expired:
            counts = self._producers.counts_without(producer for _, producer in expired)
            with store.transaction():
                store.forget_producers(expired)
                store.save_producer_counts(counts)
            self._producers.update(counts)
        self._after = rows[-1][:2] if len(rows) == ROWS_PER_STEP else None
