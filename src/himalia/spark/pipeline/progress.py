"""The progress of a run of the pipeline, and its summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from himalia.spark.pipeline.batch import BatchResult

DONE = "done"
WAITING = "waiting"


class Progress(msgspec.Struct, frozen=True):
    """The state of a run at a stage of a batch; the last stage of a batch is ``done``."""

    batch: int
    stage: str
    rows: int
    """Records in this batch."""
    total_rows: int
    """Records that this run has read, including this batch when it is done."""
    seconds: float
    """Since the beginning of the batch."""
    rows_per_s: float
    lag: int
    """Records that are unread after this batch, as of its beginning."""
    tables: dict[str, int]
    """The number of rows that this batch wrote, by table."""
    state_rows: int
    """Rows of the state: open requests, recently closed ones, and messages that wait for their request."""
    lost: int
    """Records that were deleted before this run could read them."""


class Summary(msgspec.Struct, frozen=True):
    """The totals of a run."""

    batches: int
    rows: int
    seconds: float
    rows_per_s: float
    tables: dict[str, int]
    lost: int
    lag: int


class ProgressReporter:
    """Counts what a run does, and calls ``on_progress`` at each stage, in the thread that runs."""

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

    def end(self, result: BatchResult) -> None:
        self._batches += 1
        self._rows += self._records
        self._tables.update(result.tables)
        self.lost += result.lost
        if result.state_rows is not None:
            self._state_rows = result.state_rows
        self.stage(DONE, result.tables)

    def idle(self, batch: int) -> None:
        """Report that there are no new records."""
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
