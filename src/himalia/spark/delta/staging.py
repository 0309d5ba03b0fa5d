"""Write the files of a batch into the directory of a table, before a commit makes them part of the table."""

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
from deltalake.transaction import AddAction
from pyarrow import parquet

from himalia.record import now_us
from himalia.spark.delta.parquet_files import COMPRESSION, read_statistics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAGING = "_staging"


class StagedFiles(msgspec.Struct, frozen=True):
    """Files in the directory of the table that are not committed yet."""

    files: Sequence[AddAction]
    rows: int


class StagingArea:
    """Writes files into the directory of one table, where readers ignore them until they are committed."""

    def __init__(self, path: Path, partition_by: Sequence[str]) -> None:
        self._path = path
        self._partition_by = partition_by

    def clear(self) -> None:
        """Remove the files of an interrupted write that are not in their partitions yet."""
        shutil.rmtree(self._path / STAGING, ignore_errors=True)

    def write_frame(self, rows: DataFrame, batch: int) -> StagedFiles:
        """Write rows to files on the executors."""

        def write(directory: Path) -> Iterable[Path]:
            rows.write.option("compression", COMPRESSION).partitionBy(*self._partition_by).parquet(
                str(directory)
            )
            return filter(_has_rows, directory.rglob("part-*.parquet"))

        return self.write_files(write, batch)

    def write_files(self, write: Callable[[Path], Iterable[Path]], batch: int) -> StagedFiles:
        """Call ``write`` with a directory for files partitioned like the table, and stage those that it returns."""
        prefix = _file_prefix(batch)
        directory = self._path / STAGING / prefix
        staged = self._describe(
            self._move(file, file.parent.relative_to(directory), f"{prefix}-{number:04d}.parquet")
            for number, file in enumerate(sorted(write(directory)))
        )
        self.clear()
        return staged

    def write_rows(self, rows: pa.Table, batch: int) -> StagedFiles:
        """Write rows from the driver's memory, one file for each partition, without a job of Spark."""
        prefix = _file_prefix(batch)
        return self._describe(
            self._write(part, place, f"{prefix}-{number:04d}.parquet")
            for number, (place, part) in enumerate(_split_by_partition(rows, self._partition_by))
        )

    def _move(self, file: Path, place: Path, name: str) -> Path:
        target = self._make_directory(place) / name
        return file.rename(target)

    def _write(self, rows: pa.Table, place: Path, name: str) -> Path:
        target = self._make_directory(place) / name
        parquet.write_table(rows, target, compression=COMPRESSION)
        return target

    def _make_directory(self, place: Path) -> Path:
        directory = self._path / place
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _describe(self, files: Iterable[Path]) -> StagedFiles:
        """Flush files to disk, and describe each as a commit needs it, with its statistics."""
        actions, rows = [], 0
        for file in files:
            sync_file(file)
            statistics = read_statistics(file)
            rows += statistics["numRecords"]
            path = file.relative_to(self._path)
            values = dict(part.split("=", 1) for part in path.parent.parts)
            actions.append(
                AddAction(
                    path.as_posix(),
                    file.stat().st_size,
                    values,
                    now_us() // 1000,
                    True,
                    json.dumps(statistics),
                )
            )
        return StagedFiles(actions, rows)


def _file_prefix(batch: int) -> str:
    """Return how the names of a batch's files begin, by which a later run recognises uncommitted ones."""
    return f"batch-{batch:09d}-{uuid.uuid4().hex[:8]}"


def _has_rows(file: Path) -> bool:
    """Whether a file has rows: Spark writes an empty file rather than none."""
    return bool(parquet.read_metadata(file).num_rows)


def _split_by_partition(rows: pa.Table, partition_by: Sequence[str]) -> Iterable[tuple[Path, pa.Table]]:
    """Return the rows of each partition with its directory, without the partition columns."""
    if not rows.num_rows:
        return []
    if not partition_by:
        return [(Path(), rows)]
    keys = rows.select(partition_by).group_by(partition_by).aggregate([]).to_pylist()
    return [(_partition_directory(key), _select(rows, key).drop_columns(list(partition_by))) for key in keys]


def _select(rows: pa.Table, key: Mapping[str, Any]) -> pa.Table:
    for name, value in key.items():
        rows = rows.filter(pa.compute.equal(rows[name], pa.scalar(value, rows[name].type)))
    return rows


def _partition_directory(key: Mapping[str, Any]) -> Path:
    return Path(*(f"{name}={_partition_value(value)}" for name, value in key.items()))


def _partition_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def sync_file(file: Path) -> None:
    """Flush a file and its directory entry to disk: a commit must not survive a crash that its files do not."""
    for path in (file, file.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
