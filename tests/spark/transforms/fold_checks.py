"""Run the fold over batches as the pipeline does, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from himalia.spark import tuning
from himalia.spark.transforms import executions, orphans, requests
from himalia.spark.transforms.iopub import iopub
from tests.spark.traffic import Row, stored

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class FoldResult:
    """The tables after some batches, as lists of dictionaries in which times are microseconds."""

    state: DataFrame
    closed: list[dict[str, Any]] = field(default_factory=list)
    running: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[dict[str, Any]] = field(default_factory=list)
    merged: DataFrame | None = None
    """The last batch with the state before it."""

    @property
    def outcomes(self) -> list[str]:
        """What the rows of the last batch were found to be."""
        assert self.merged is not None, "nothing was folded"
        return [row.outcome for row in self.merged.select("outcome").collect()]


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Run as small batches do, which compile nothing."""
    conf = tuning.small_batch_conf()
    before = {name: spark.conf.get(name) for name in conf}
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def empty_state(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], requests.STATE_SCHEMA)


def fold(spark: SparkSession, batches: Iterable[Sequence[Row]]) -> FoldResult:
    """Fold batch after batch, the state of each going into the next."""
    folded = FoldResult(empty_state(spark))
    for batch in batches:
        fold_batch(folded, iopub(stored(spark, batch)).localCheckpoint())
    return folded


def fold_batch(folded: FoldResult, batch: DataFrame) -> None:
    merged = requests.fold_requests(folded.state, batch).localCheckpoint()
    rows = dicts(executions.executions(merged))
    folded.closed += [row for row in rows if not row["is_running"]]
    folded.running = [row for row in rows if row["is_running"]]
    folded.orphans += dicts(orphans.orphans(merged))
    folded.merged = merged
    folded.state = requests.next_state(merged)


def dicts(table: DataFrame) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in row.asDict().items()} for row in table.collect()]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    return value
