"""Parquet files of a table: written one per day, and the statistics of a file that its commit carries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

SKIPPED_BY = frozenset(
    ("topic", "kernel_id", "offset", "ts", "finished", "minute", "window_start", "hour_start")
)
"""Columns that people select by."""
TEXT_LENGTH_MAX = 255
"""A longer text may stand shortened in a footer, and is then no bound."""


def statistics_of(file: Path) -> dict[str, Any]:
    """In Delta's form; read from the file's footer."""
    footer = parquet.read_metadata(file)
    least, greatest = {}, {}
    for name, low, high in _bounds(footer):
        least[name], greatest[name] = _told(low), _told(high)
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": {}}


def _bounds(footer: parquet.FileMetaData) -> Iterator[tuple[str, Any, Any]]:
    """The least and the greatest value of a column, where the footer knows them."""
    for number in range(footer.num_columns):
        name = footer.schema.column(number).path
        if name not in SKIPPED_BY:
            continue
        found = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if not found or not all(stats is not None and stats.has_min_max for stats in found):
            continue
        low, high = min(stats.min for stats in found), max(stats.max for stats in found)
        if not isinstance(high, str) or max(len(low), len(high)) <= TEXT_LENGTH_MAX:
            yield name, low, high


def _told(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value


COMPRESSION = "zstd"
GROUP_BYTES = 32 * 1024 * 1024
"""What is gathered in memory, to be written as one group of rows."""


class DailyFiles:
    """Files in a directory that is partitioned by the column ``date``. They are whole once the block ends."""

    def __init__(self, directory: Path, schema: pa.Schema, repeating: list[str]) -> None:
        """``repeating`` are columns in which values come again, so that a dictionary is worth its making."""
        self.names: list[str] = []
        self._directory = directory
        self._schema = pa.schema([field for field in schema if field.name != "date"])
        self._repeating = repeating
        self._writers: dict[str, parquet.ParquetWriter] = {}
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0

    def __enter__(self) -> DailyFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        for writer in self._writers.values():
            writer.close()

    def write(self, rows: pa.RecordBatch) -> None:
        self._gathered.append(rows)
        self._gathered_bytes += rows.get_total_buffer_size()
        if self._gathered_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._gathered:
            return
        rows = pa.Table.from_batches(self._gathered)
        dates = pc.unique(rows["date"])
        for day in dates:
            own = rows if len(dates) == 1 else rows.filter(pc.equal(rows["date"], day))
            self._writer(day.as_py().isoformat()).write_table(own.drop_columns(["date"]))
        self._gathered.clear()
        self._gathered_bytes = 0

    def _writer(self, date: str) -> parquet.ParquetWriter:
        if date not in self._writers:
            place = self._directory / f"date={date}"
            place.mkdir(parents=True, exist_ok=True)
            file = place / f"part-{uuid4().hex}.parquet"
            self._writers[date] = parquet.ParquetWriter(
                file,
                self._schema,
                compression=COMPRESSION,
                use_dictionary=self._repeating,
                write_statistics=[name for name in self._schema.names if name in SKIPPED_BY],
            )
            self.names.append(str(file.relative_to(self._directory)))
        return self._writers[date]
