"""Writing rows that come in batches into Parquet files, on executors: one file for each day."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from himalia.spark.warehouse.statistics import SKIPPED_BY

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
        for date in dates:
            own = rows if len(dates) == 1 else rows.filter(pc.equal(rows["date"], date))
            self._writer(date.as_py().isoformat()).write_table(own.drop_columns(["date"]))
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
