"""The warehouse: which tables there are, and opening them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from pyspark.sql.types import StructType

from himalia.spark.delta.table import Table
from himalia.spark.pipeline.jobs import SparkJobs
from himalia.spark.pipeline.positions import PositionsTable
from himalia.spark.transforms.aggregate import AggregateTable
from himalia.spark.transforms.requests import STATE_SCHEMA
from himalia.tables.catalog import CATALOG, POSITIONS, REQUESTS, TableSchema

AGGREGATE_MODULES = (
    "himalia.spark.transforms.topic_activity",
    "himalia.spark.transforms.kernel_health",
    "himalia.spark.transforms.errors",
)
"""The modules of the tables of sums, each with its ``TABLE``. A new table is a module and a line here."""
AGGREGATES: tuple[AggregateTable, ...] = tuple(import_module(name).TABLE for name in AGGREGATE_MODULES)
TABLES = CATALOG | {table.schema.name: table.schema for table in AGGREGATES}
"""The schemas of all tables for users, by name."""


class Warehouse:
    """All tables of a directory, created where they are missing; uncommitted files of a killed run are removed."""

    def __init__(self, jobs: SparkJobs, path: Path) -> None:
        """``jobs`` run what reads and writes the tables."""
        self.jobs = jobs
        self.path = path
        self.aggregates = AGGREGATES
        self.tables = {name: _open(path / name, schema) for name, schema in TABLES.items()}
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
