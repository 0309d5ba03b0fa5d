"""Parquet files as a Delta table: staging, committing with statistics, reading, compaction."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, CommitProperties, Transaction
from pyarrow import parquet

from himalia.errors import ConfigurationError
from himalia.record import now_us
from himalia.spark.delta.parquet_files import COMPRESSION, statistics_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


APPLICATION = "himalia-pipeline"
STAGING = "_staging"
CONFIGURATION = {
    # At a batch a second a reader has to replay the commits of the last two minutes at most.
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}

Filters = list[tuple[str, str, str | list[str]]]
"""Partitions: column, ``=`` or ``in``, a value or several."""


class Staged(msgspec.Struct, frozen=True):
    """Files in the table's directory that no commit names yet."""

    files: Sequence[AddAction]
    rows: int


class Table:
    """One table of the warehouse. Used by one thread at a time, and by one run (see ``lock``)."""

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
        shutil.rmtree(self.path / STAGING, ignore_errors=True)
        for file in self.path.glob("**/batch-*.parquet"):
            if int(file.name.split("-")[1]) > self.batch:
                file.unlink()

    @property
    def batch(self) -> int:
        """The latest batch that was committed here; 0 before the first."""
        return self._table.transaction_version(APPLICATION) or 0

    @property
    def id(self) -> str:
        """Made with the table, and no other's."""
        return str(self._table.metadata().id)

    @property
    def delta(self) -> DeltaTable:
        return self._table

    # Writing

    def fitted(self, rows: DataFrame) -> DataFrame:
        """The rows with the table's columns and types; what cannot be null may be null in a table."""
        from pyspark.sql import functions as F

        if _columns(rows.schema) == _columns(self.schema):
            return rows  # Spark would find out as much, but slowly
        return rows.select(*(F.col(field.name).cast(field.dataType) for field in self.schema))

    def stage(self, rows: DataFrame, batch: int) -> Staged:
        """Have executors write the rows; ``commit`` makes them part of the table."""

        def write(directory: Path) -> Iterable[Path]:
            rows.write.option("compression", COMPRESSION).partitionBy(*self.partition_by).parquet(
                str(directory)
            )
            return filter(_has_rows, directory.rglob("part-*.parquet"))

        return self.stage_files(write, batch)

    def stage_files(self, write: Callable[[Path], Iterable[Path]], batch: int) -> Staged:
        """Have ``write`` write files into a directory, partitioned as the table is. Those it names are taken."""
        attempt = _attempt(batch)
        directory = self.path / STAGING / attempt
        staged = self._staged(
            self._moved(file, file.parent.relative_to(directory), f"{attempt}-{number:04d}.parquet")
            for number, file in enumerate(sorted(write(directory)))
        )
        shutil.rmtree(self.path / STAGING, ignore_errors=True)
        return staged

    def stage_few(self, rows: pa.Table, batch: int) -> Staged:
        """Write rows that the driver has, in one file for each partition: sooner done than a job of Spark's."""
        attempt = _attempt(batch)
        return self._staged(
            self._written(part, place, f"{attempt}-{number:04d}.parquet")
            for number, (place, part) in enumerate(_partitioned(rows, self.partition_by))
        )

    def _moved(self, file: Path, place: Path, name: str) -> Path:
        target = self._place(place) / name
        return file.rename(target)

    def _written(self, rows: pa.Table, place: Path, name: str) -> Path:
        target = self._place(place) / name
        parquet.write_table(rows, target, compression=COMPRESSION)
        return target

    def _place(self, place: Path) -> Path:
        directory = self.path / place
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _staged(self, files: Iterable[Path]) -> Staged:
        actions, rows = [], 0
        for file in files:
            _sync(file)
            told = statistics_of(file)
            rows += told["numRecords"]
            path = file.relative_to(self.path)
            values = dict(part.split("=", 1) for part in path.parent.parts)
            actions.append(
                AddAction(
                    path.as_posix(), file.stat().st_size, values, now_us() // 1000, True, json.dumps(told)
                )
            )
        return Staged(actions, rows)

    def commit(
        self,
        batch: int,
        staged: Staged,
        *,
        replacing: Filters | None = None,
        replacing_all: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Make staged rows part of the table, in one step, as those of a batch.

        The rows of the partitions that ``replacing`` names, or all, go in the same step.
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
        _sync(self.path / "_delta_log" / f"{self._table.version():020d}.json")

    def metadata_of(self, batch: int) -> dict[str, Any]:
        """What the commit of a batch, one of the latest, was given as ``metadata``."""
        for commit in self._table.history():
            if commit.get("batch") == str(batch):
                return commit
        raise LookupError(f"{self.path} has no commit of batch {batch}")

    # Reading

    def files(self, where: Filters | None = None) -> list[str]:
        """The files that make up the table now, or those of some partitions."""
        return self._table.file_uris(file_pruning_predicate=where)

    def bytes_of(self, files: Iterable[str]) -> int:
        """What these files take on the disk."""
        return sum(os.stat(file).st_size for file in files)

    def files_of(self, batch: int) -> list[str]:
        """The files that a batch added, and any that came later: they may hold some of its rows, rewritten."""
        committed_ms = self.metadata_of(batch)["timestamp"]
        found = pa.table(self._table.get_add_actions()).select(["path", "modification_time"]).to_pylist()
        return [
            str(self.path / file["path"])
            for file in found
            if Path(file["path"]).name.startswith(f"batch-{batch:09d}-")
            or file["modification_time"] >= committed_ms
        ]

    def rows(self, spark: SparkSession, files: Sequence[str] | None = None) -> DataFrame:
        """The table as it is now, or some of its files, with the partition columns."""
        chosen = self.files() if files is None else files
        if not chosen:
            return no_rows(spark, self.schema)
        return spark.read.schema(self.schema).option("basePath", str(self.path)).parquet(*chosen)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows, in a form in which the optimizer sees that, and leaves out what they would have gone through."""
    from pyspark.sql import functions as F

    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
    return spark.range(1).where(F.lit(False)).select(*columns)


def _columns(schema: StructType) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in schema]


def _evolve_schema(table: DeltaTable, wanted: Schema) -> None:
    """Add the columns that a newer Himalia has. A table with others is not ours to write."""
    known = {field.name: field.type for field in table.schema().fields}
    odd = known.keys() - {field.name for field in wanted.fields}
    odd |= {field.name for field in wanted.fields if known.get(field.name, field.type) != field.type}
    if odd:
        raise ConfigurationError(
            f"the table {table.table_uri} has columns that this Himalia does not write: {', '.join(sorted(odd))}. "
            "Use the Himalia that wrote it or a newer one, or another warehouse"
        )
    missing = [field for field in wanted.fields if field.name not in known]
    if missing:
        table.alter.add_columns(missing)


def _attempt(batch: int) -> str:
    """The beginning of the names of files; by it a later run knows to which batch they belong."""
    return f"batch-{batch:09d}-{uuid.uuid4().hex[:8]}"


def _has_rows(file: Path) -> bool:
    """Spark writes a file without rows rather than none."""
    return bool(parquet.read_metadata(file).num_rows)


def _partitioned(rows: pa.Table, partition_by: Sequence[str]) -> Iterable[tuple[Path, pa.Table]]:
    """Rows by the directory that they belong into, without the columns that its name tells."""
    if not rows.num_rows:
        return []
    if not partition_by:
        return [(Path(), rows)]
    keys = rows.select(partition_by).group_by(partition_by).aggregate([]).to_pylist()
    return [(_directory(key), _matching(rows, key).drop_columns(list(partition_by))) for key in keys]


def _matching(rows: pa.Table, key: Mapping[str, Any]) -> pa.Table:
    for name, value in key.items():
        rows = rows.filter(pa.compute.equal(rows[name], pa.scalar(value, rows[name].type)))
    return rows


def _directory(key: Mapping[str, Any]) -> Path:
    return Path(*(f"{name}={_as_partition(value)}" for name, value in key.items()))


def _as_partition(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sync(file: Path) -> None:
    """Have the operating system put a file on the disk, and its name: a commit must not outlive what it names."""
    for path in (file, file.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
