"""The tables of a warehouse, opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from himalia.spark.pipeline.requests import STATE_SCHEMA
from himalia.spark.warehouse.delta import Table
from himalia.spark.warehouse.layout import POSITIONS, REQUESTS, TABLES
from himalia.spark.warehouse.positions import PositionsTable


class Warehouse:
    """Every table, made where it is missing. What a killed run left behind is cleared away."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.tables = {
            name: Table(path / name, schema_of(layout.columns), layout.partition_by)
            for name, layout in TABLES.items()
        }
        self.requests = Table(path / REQUESTS, schema_of(STATE_SCHEMA))
        self.positions = PositionsTable(path / POSITIONS)

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    def refresh(self) -> None:
        """After a failure: see what was committed, and remove what was written and was not."""
        for table in (*self.tables.values(), self.requests):
            table.refresh()
        self.positions.refresh()

    @property
    def own(self) -> Iterator[Table]:
        """Tables that only the pipeline reads."""
        yield self.requests
        yield self.positions.table


def schema_of(columns: str) -> StructType:
    """Columns as SQL declares them. Spark has to be running."""
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return schema
