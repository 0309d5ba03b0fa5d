"""The table ``state/positions``: how far the log is read, committed last in every batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from himalia.record import Position
from himalia.spark.delta.table import Table
from himalia.spark.pipeline.plan import Plan
from himalia.tables.delta_tables import read_positions

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("epoch", StringType()),
        StructField("offset", LongType()),
    ]
)


class PositionsTable:
    """One row for each topic and epoch: the next offset to read.

    A topic that is not listed any more keeps its row: perhaps only this token may not see it, and it would be read
    twice by the next one.
    """

    def __init__(self, path: Path) -> None:
        self._table = Table(path, SCHEMA)
        self.next = read_positions(self._table.delta)

    def refresh(self) -> None:
        """After a failure, which may have followed a successful commit."""
        self._table.refresh()
        self.next = read_positions(self._table.delta)

    @property
    def batch(self) -> int:
        """The latest batch that is complete in all tables."""
        return self._table.batch

    @property
    def id(self) -> str:
        """An id of the warehouse that no other has."""
        return self._table.id

    @property
    def table(self) -> Table:
        return self._table

    def advance(self, batch: int, plan: Plan) -> None:
        """Commit that a batch is complete."""
        after = self.after(plan)
        rows = pa.table(
            {
                "topic": [topic for topic, _ in after],
                "epoch": [epoch for _, epoch in after],
                "offset": pa.array(after.values(), pa.int64()),
            }
        )
        self._table.commit(batch, self._table.staging.write_rows(rows, batch), replacing_all=True)
        self.next = after

    def after(self, plan: Plan) -> dict[tuple[str, str], int]:
        """Return the positions after a batch."""
        return {**self.next, **{(each.topic, each.epoch): each.stop for each in plan.ranges}}

    def by_topic(self, epochs: dict[str, str]) -> dict[str, Position]:
        """Return the positions in the topics' current epochs; 0 where nothing is read yet."""
        return {topic: Position(self.next.get((topic, epoch), 0), epoch) for topic, epoch in epochs.items()}
