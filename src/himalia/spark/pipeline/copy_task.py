"""Copy records from the log into Parquet files, one file per day, on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from himalia.spark.connector.address import ServerAddress
from himalia.spark.connector.errors import LossHandler, hide_traceback
from himalia.spark.connector.http import ServerConnection
from himalia.spark.connector.offset_ranges import OffsetRange
from himalia.spark.connector.options import RETRY_S
from himalia.spark.connector.read import fetch
from himalia.spark.delta.parquet_files import DailyFiles
from himalia.spark.transforms.messages import rows_of

DICTIONARY_COLUMNS = ["topic", "epoch", "publisher", "headers.key_value.key", "headers.key_value.value"]


@dataclass(frozen=True)
class CopyTask:
    """The work of one task: which records to copy, from which server, into which directory. Pickled for executors."""

    address: ServerAddress
    ranges: Sequence[OffsetRange]
    directory: Path
    fails_on_data_loss: bool

    def run(self) -> list[str]:
        """Return the names of the files in the directory. The driver ignores files of a task that failed."""
        with hide_traceback(), DailyFiles(self.directory, DICTIONARY_COLUMNS) as files:
            for rows in self._rows():
                files.write(rows)
        return files.names

    def _rows(self) -> Iterator[pa.RecordBatch]:
        on_loss = LossHandler(fails=self.fails_on_data_loss)
        with ServerConnection(self.address) as connection:
            for requested in self.ranges:
                for records in fetch(connection, requested, RETRY_S, on_loss):
                    yield rows_of(records, pa.repeat(requested.epoch, records.num_rows))
