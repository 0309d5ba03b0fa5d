"""A Delta table of Parquet files: commit staged files, and read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.transaction import CommitProperties, Transaction

from himalia.errors import ConfigurationError
from himalia.record import now_us
from himalia.spark.delta.staging import StagedFiles, StagingArea, sync_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


APPLICATION = "himalia-pipeline"
CONFIGURATION = {
    # At one batch per second a reader replays the commits of at most two minutes.
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}

Filters = list[tuple[str, str, str | list[str]]]
"""Conditions on partition columns: column, ``=`` or ``in``, a value or several."""


class Table:
    """One table of the warehouse. For one thread at a time, and one process (see ``lock``)."""

    def __init__(
        self,
        path: Path,
        schema: StructType,
        partition_by: Sequence[str] = (),
        description: str | None = None,
    ) -> None:
        """Open the table, or create it. Raises ``ConfigurationError`` if it has columns that ``schema`` has not."""
        self.path = path
        self.schema = schema.toNullable()
        self.partition_by = list(partition_by)
        self.staging = StagingArea(path, self.partition_by)
        self._delta_schema = Schema.from_json(self.schema.json())
        self._table = self._open_or_create(description)
        self._remove_uncommitted()

    def _open_or_create(self, description: str | None) -> DeltaTable:
        if DeltaTable.is_deltatable(str(self.path)):
            table = DeltaTable(self.path)
            _evolve_schema(table, self._delta_schema)
            return table
        return DeltaTable.create(
            self.path,
            self._delta_schema,
            partition_by=self.partition_by,
            configuration=CONFIGURATION,
            description=description,
        )

    def refresh(self) -> None:
        """Read the latest commits, and remove files that no commit names."""
        self._table.update_incremental()
        self._remove_uncommitted()

    def _remove_uncommitted(self) -> None:
        self.staging.clear()
        for file in self.path.glob("**/batch-*.parquet"):
            if int(file.name.split("-")[1]) > self.batch:
                file.unlink()

    @property
    def batch(self) -> int:
        """The latest batch that was committed to this table; 0 before the first."""
        return self._table.transaction_version(APPLICATION) or 0

    @property
    def id(self) -> str:
        """A unique id, created with the table."""
        return str(self._table.metadata().id)

    @property
    def delta(self) -> DeltaTable:
        return self._table

    # Writing: ``staging`` writes files, ``commit`` makes them part of the table

    def cast_rows(self, rows: DataFrame) -> DataFrame:
        """Cast rows to the columns and types of the table, all of which are nullable."""
        from pyspark.sql import functions as F

        if _columns(rows.schema) == _columns(self.schema):
            return rows  # Spark's optimizer would find the casts needless too, but slowly
        return rows.select(*(F.col(field.name).cast(field.dataType) for field in self.schema))

    def commit(
        self,
        batch: int,
        staged: StagedFiles,
        *,
        replacing: Filters | None = None,
        replacing_all: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Add staged files to the table as those of a batch, atomically.

        The same commit removes the rows of the partitions that ``replacing`` selects, or all rows.
        """
        properties = CommitProperties(
            custom_metadata={**(metadata or {}), "batch": str(batch)},
            app_transactions=[Transaction(APPLICATION, batch, now_us() // 1000)],
        )
        self._table.create_write_transaction(
            [*staged.files],
            "overwrite" if replacing or replacing_all else "append",
            self._delta_schema,
            self.partition_by,
            replacing,
            commit_properties=properties,
        )
        self._table.update_incremental()
        sync_file(self.path / "_delta_log" / f"{self._table.version():020d}.json")

    def metadata_of(self, batch: int) -> dict[str, Any]:
        """Return the commit of a recent batch, which includes the ``metadata`` it was given."""
        for commit in self._table.history():
            if commit.get("batch") == str(batch):
                return commit
        raise LookupError(f"{self.path} has no commit of batch {batch}")

    # Reading

    def files(self, where: Filters | None = None) -> list[str]:
        """Return the files of the table, or those of some partitions."""
        return self._table.file_uris(file_pruning_predicate=where)

    def bytes_of(self, files: Iterable[str]) -> int:
        """Return the size of files on disk."""
        return sum(os.stat(file).st_size for file in files)

    def files_of(self, batch: int) -> list[str]:
        """Return the files that a batch added, and all later ones, into which compaction may have put its rows."""
        committed_ms = self.metadata_of(batch)["timestamp"]
        added = pa.table(self._table.get_add_actions()).select(["path", "modification_time"]).to_pylist()
        return [
            str(self.path / file["path"])
            for file in added
            if Path(file["path"]).name.startswith(f"batch-{batch:09d}-")
            or file["modification_time"] >= committed_ms
        ]

    def rows(self, spark: SparkSession, files: Sequence[str] | None = None) -> DataFrame:
        """Return the rows of the table, or of some of its files, with the partition columns."""
        paths = self.files() if files is None else files
        if not paths:
            return no_rows(spark, self.schema)
        return spark.read.schema(self.schema).option("basePath", str(self.path)).parquet(*paths)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame that the optimizer knows to be empty, so that it removes the operators behind it."""
    from pyspark.sql import functions as F

    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
    return spark.range(1).where(F.lit(False)).select(*columns)


def _columns(schema: StructType) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in schema]


def _evolve_schema(table: DeltaTable, wanted: Schema) -> None:
    """Add the columns that are new in this version. Raise if the table has columns that this version does not have."""
    known = {field.name: field.type for field in table.schema().fields}
    unknown = known.keys() - {field.name for field in wanted.fields}
    unknown |= {field.name for field in wanted.fields if known.get(field.name, field.type) != field.type}
    if unknown:
        raise ConfigurationError(
            f"the table {table.table_uri} has columns that this Himalia does not write: {', '.join(sorted(unknown))}. "
            "Use the Himalia that wrote it or a newer one, or another warehouse"
        )
    missing = [field for field in wanted.fields if field.name not in known]
    if missing:
        table.alter.add_columns(missing)
