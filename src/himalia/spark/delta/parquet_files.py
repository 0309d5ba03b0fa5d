"""Parquet files of a table: writing one per day, and the statistics of a file for its commit."""

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

STATISTICS_COLUMNS = frozenset(
    ("topic", "kernel_id", "offset", "ts", "finished", "minute", "window_start", "hour_start")
)
"""Columns with statistics, by which readers skip files."""
TEXT_LENGTH_MAX = 255
"""Parquet may truncate a longer text in the footer, which is then no bound."""


def read_statistics(file: Path) -> dict[str, Any]:
    """Read the statistics of a file from its footer, in the form of Delta's log."""
    footer = parquet.read_metadata(file)
    least, greatest = {}, {}
    for name, low, high in _read_bounds(footer):
        least[name], greatest[name] = _encode(low), _encode(high)
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": {}}


def _read_bounds(footer: parquet.FileMetaData) -> Iterator[tuple[str, Any, Any]]:
    """Yield the least and the greatest value of each column for which the footer has both."""
    for number in range(footer.num_columns):
        name = footer.schema.column(number).path
        if name not in STATISTICS_COLUMNS:
            continue
        found = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if not found or not all(stats is not None and stats.has_min_max for stats in found):
            continue
        low, high = min(stats.min for stats in found), max(stats.max for stats in found)
        if not isinstance(high, str) or max(len(low), len(high)) <= TEXT_LENGTH_MAX:
            yield name, low, high


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value


COMPRESSION = "zstd"
GROUP_BYTES = 32 * 1024 * 1024
"""How much is buffered in memory, to be written as one row group."""


class DailyFiles:
    """Writes files into a directory partitioned by the column ``date``. They are complete at the end of the block."""

    def __init__(self, directory: Path, dictionary_columns: list[str]) -> None:
        """``dictionary_columns`` have few distinct values, so that a dictionary saves space."""
        self.names: list[str] = []
        self._directory = directory
        self._dictionary_columns = dictionary_columns
        self._writers: dict[str, parquet.ParquetWriter] = {}
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0

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
        self._buffered.append(rows)
        self._buffered_bytes += rows.get_total_buffer_size()
        if self._buffered_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._buffered:
            return
        rows = pa.Table.from_batches(self._buffered)
        dates = pc.unique(rows["date"])
        for day in dates:
            of_day = rows if len(dates) == 1 else rows.filter(pc.equal(rows["date"], day))
            part = of_day.drop_columns(["date"])
            self._writer(day.as_py().isoformat(), part.schema).write_table(part)
        self._buffered.clear()
        self._buffered_bytes = 0

    def _writer(self, date: str, schema: pa.Schema) -> parquet.ParquetWriter:
        if date not in self._writers:
            place = self._directory / f"date={date}"
            place.mkdir(parents=True, exist_ok=True)
            file = place / f"part-{uuid4().hex}.parquet"
            self._writers[date] = parquet.ParquetWriter(
                file,
                schema,
                compression=COMPRESSION,
                use_dictionary=self._dictionary_columns,
                write_statistics=[name for name in schema.names if name in STATISTICS_COLUMNS],
            )
            self.names.append(str(file.relative_to(self._directory)))
        return self._writers[date]
