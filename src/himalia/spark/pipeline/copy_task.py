"""Copies records from the log into Parquet files, one file per day, on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from himalia.spark.connector.errors import LossRule, in_one_sentence
from himalia.spark.connector.http import Address, Connection
from himalia.spark.connector.options import RETRY_S
from himalia.spark.connector.planning import Range
from himalia.spark.connector.read import fetched
from himalia.spark.delta.parquet_files import DailyFiles
from himalia.spark.transforms.messages import COLUMNS, rows_of

REPEATING = ["topic", "epoch", "publisher", "headers.key_value.key", "headers.key_value.value"]


@dataclass(frozen=True)
class Copying:
    """One task's work: which records, from where, into which directory. Pickled for executors."""

    address: Address
    ranges: Sequence[Range]
    directory: Path
    fails_on_data_loss: bool

    def run(self) -> list[str]:
        """Returns the names of the files in the directory. What a task that failed has written is named by nobody."""
        with in_one_sentence(), DailyFiles(self.directory, COLUMNS, REPEATING) as files:
            for rows in self._rows():
                files.write(rows)
        return files.names

    def _rows(self) -> Iterator[pa.RecordBatch]:
        rule = LossRule(fails=self.fails_on_data_loss)
        with Connection(self.address) as connection:
            for wanted in self.ranges:
                for records in fetched(connection, wanted, RETRY_S, rule):
                    yield rows_of(records, pa.repeat(wanted.epoch, records.num_rows))
