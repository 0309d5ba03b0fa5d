"""How a run of the pipeline gets on, and what it did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from himalia.spark.pipeline.batch import Written

DONE = "done"
WAITING = "waiting"


class Progress(msgspec.Struct, frozen=True):
    """How a run gets on: told at each stage of a batch, and with the stage ``done`` after it."""

    batch: int
    stage: str
    rows: int
    """Records in this batch."""
    total_rows: int
    """Records that this run has taken in, this batch included when it is done."""
    seconds: float
    """Since the batch began."""
    rows_per_s: float
    lag: int
    """Records that are left after this batch, as of its beginning."""
    tables: dict[str, int]
    """Rows that this batch has written, by table."""
    state_rows: int
    """Requests that are carried on."""
    lost: int
    """Records that were gone before this run could read them."""


class Summary(msgspec.Struct, frozen=True):
    """What a run did."""

    batches: int
    rows: int
    seconds: float
    rows_per_s: float
    tables: dict[str, int]
    lost: int
    lag: int


class Meter:
    """Counts what a run does, and tells it on."""

    def __init__(self, on_progress: Callable[[Progress], None] | None) -> None:
        self.lost = 0
        self._on_progress = on_progress
        self._started_s = time.monotonic()
        self._began_s = self._started_s
        self._batch = self._records = self._lag = self._state_rows = 0
        self._batches = self._rows = 0
        self._tables: Counter[str] = Counter()

    def start(self) -> None:
        self._started_s = time.monotonic()

    def begin(self, batch: int, records: int, lag: int) -> None:
        self._batch, self._records, self._lag = batch, records, lag
        self._began_s = time.monotonic()
        self.stage("planned" if records else WAITING)

    def stage(self, name: str, tables: dict[str, int] | None = None) -> None:
        if self._on_progress is None:
            return
        seconds = time.monotonic() - self._began_s
        self._on_progress(
            Progress(
                batch=self._batch,
                stage=name,
                rows=self._records,
                total_rows=self._rows,
                seconds=seconds,
                rows_per_s=self._records / seconds if seconds and name == DONE else 0.0,
                lag=self._lag,
                tables=tables or {},
                state_rows=self._state_rows,
                lost=self.lost,
            )
        )

    def end(self, written: Written) -> None:
        self._batches += 1
        self._rows += self._records
        self._tables.update(written.tables)
        self.lost += written.lost
        if written.state_rows is not None:
            self._state_rows = written.state_rows
        self.stage(DONE, written.tables)

    def idle(self, batch: int) -> None:
        """Nothing is new."""
        self.begin(batch, 0, 0)

    def summary(self) -> Summary:
        seconds = time.monotonic() - self._started_s
        return Summary(
            batches=self._batches,
            rows=self._rows,
            seconds=seconds,
            rows_per_s=self._rows / seconds,
            tables=dict(self._tables),
            lost=self.lost,
            lag=self._lag,
        )
