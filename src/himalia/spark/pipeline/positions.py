"""How far the log has been read: the table ``state/positions``, committed last in every batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from himalia.record import Position
from himalia.spark.delta.table import Table
from himalia.spark.pipeline.plan import Plan
from himalia.tables.tables import read_positions

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("epoch", StringType()),
        StructField("offset", LongType()),
    ]
)


class PositionsTable:
    """One row for each topic and epoch: the next offset to read.

    A topic that is gone keeps its row: it may have been hidden only, from a token with fewer rights, and would
    otherwise be read twice.
    """

    def __init__(self, path: Path) -> None:
        self._table = Table(path, SCHEMA)
        self.next = self._read()

    def refresh(self) -> None:
        """After a failure: a commit may have been made that was not seen to succeed."""
        self._table.refresh()
        self.next = self._read()

    @property
    def batch(self) -> int:
        """The latest batch that is complete, in all tables."""
        return self._table.batch

    @property
    def id(self) -> str:
        """The warehouse's own name, which no other has."""
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
        self._table.commit(batch, self._table.stage_few(rows, batch), replacing_all=True)
        self.next = after

    def after(self, plan: Plan) -> dict[tuple[str, str], int]:
        """The positions as they are once a batch is complete."""
        return {**self.next, **{(each.topic, each.epoch): each.stop for each in plan.ranges}}

    def by_topic(self, epochs: dict[str, str]) -> dict[str, Position]:
        """The positions in topics as they are now; 0 where nothing was read."""
        return {topic: Position(self.next.get((topic, epoch), 0), epoch) for topic, epoch in epochs.items()}

    def _read(self) -> dict[tuple[str, str], int]:
        return read_positions(self._table.delta)
