"""The warehouse: which tables there are, and opening them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from himalia.spark.delta.table import Table
from himalia.spark.pipeline.positions import PositionsTable
from himalia.spark.transforms import errors, kernel_health, topic_activity
from himalia.spark.transforms.requests import STATE_SCHEMA
from himalia.tables.catalog import CATALOG, POSITIONS, REQUESTS, TableSchema

AGGREGATES = (
    topic_activity.TABLE,
    kernel_health.TABLE,
    errors.TABLE,
)
"""The tables of sums. A new one is a file in ``transforms``, which may declare its schema too, and a line here."""


def table_schemas() -> dict[str, TableSchema]:
    """Return the schemas of all tables for users, by name."""
    return CATALOG | {aggregate.schema.name: aggregate.schema for aggregate in AGGREGATES}


class Warehouse:
    """All tables of a directory, created where they are missing; uncommitted files of a killed run are removed."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.aggregates = AGGREGATES
        self.tables = {name: _open(path / name, schema) for name, schema in table_schemas().items()}
        self.requests = Table(path / REQUESTS, schema_of(STATE_SCHEMA))
        self.positions = PositionsTable(path / POSITIONS)

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    def refresh(self) -> None:
        """After a failed batch: read what was committed, and remove files that were not."""
        for table in (*self.tables.values(), self.requests):
            table.refresh()
        self.positions.refresh()

    @property
    def internal_tables(self) -> Iterator[Table]:
        """The tables that only the pipeline reads."""
        yield self.requests
        yield self.positions.table


def _open(path: Path, schema: TableSchema) -> Table:
    # Readers describe the tables of the catalog by it; any other table carries its meanings itself.
    is_known = schema.name in CATALOG
    columns = schema.ddl if is_known else schema.commented_ddl
    return Table(path, schema_of(columns), schema.partition_by, None if is_known else schema.description)


def schema_of(columns: str) -> StructType:
    """Parse columns as SQL declares them. Spark has to be running."""
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return schema
