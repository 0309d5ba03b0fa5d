"""The tables of a warehouse: their layout, and opening them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from himalia.spark.delta.table import Table
from himalia.spark.pipeline.positions import PositionsTable
from himalia.spark.transforms.requests import STATE_SCHEMA


class Layout(msgspec.Struct, frozen=True):
    """A table's columns, as SQL declares them, and those by which it is partitioned."""

    columns: str
    partition_by: tuple[str, ...] = ()


TABLES = {
    "messages": Layout(
        """
        topic string, epoch string, offset bigint, ts timestamp, id string, publisher string,
        headers map<string,string>, payload string, bytes bigint, date date
        """,
        ("date",),
    ),
    "iopub": Layout(
        """
        topic string, epoch string, offset bigint, ts timestamp, id string, kernel_id string, channel string,
        msg_type string, parent_id string, session string, username string, execution_state string,
        execution_count bigint, stream_name string, text string, code string, ename string, evalue string,
        traceback array<string>, mime_types array<string>, display_id string, comm_id string, event string,
        status string, reason string, malformed boolean, payload_bytes bigint, date date,
        parent_session string, parent_username string, header_ts timestamp
        """,
        ("date",),
    ),
    "executions": Layout(
        """
        kernel_id string, topic string, epoch string, request_id string, code string, status string,
        reason string, execution_count bigint, queued timestamp, started timestamp, finished timestamp,
        queue_ms double, run_ms double, messages bigint, status_messages bigint, execution_messages bigint,
        stream_messages bigint, display_messages bigint, comm_messages bigint, stdout string, stderr string,
        stdout_bytes bigint, stderr_bytes bigint, first_offset bigint, last_offset bigint,
        result_types array<string>, ename string, evalue string, username string, session string,
        is_foreign boolean, is_running boolean, date date
        """,
        ("is_running", "date"),
    ),
    "orphans": Layout(
        """
        topic string, epoch string, offset bigint, ts timestamp, id string, kernel_id string, channel string,
        msg_type string, parent_id string, date date
        """,
        ("date",),
    ),
    "topic_activity": Layout(
        """
        topic string, minute timestamp, messages bigint, bytes bigint, publishers int,
        publisher_names array<string>, hour string
        """,
        ("hour",),
    ),
    "kernel_health": Layout(
        """
        kernel_id string, window_start timestamp, executions bigint, failures bigint, error_rate double,
        busy_ms double, busy_share double, run_ms_p50 double, run_ms_p95 double, run_ms_p99 double,
        histogram map<int,bigint>, hour string
        """,
        ("hour",),
    ),
    "errors": Layout(
        """
        ename string, hour_start timestamp, count bigint, last_evalue string, last_kernel_id string,
        last_request_id string, last_ts timestamp, kernels array<string>, hour string
        """,
        ("hour",),
    ),
}
"""The tables that people read."""

REQUESTS = "state/requests"
POSITIONS = "state/positions"
"""What the pipeline itself goes on from."""


class Warehouse:
    """Every table, made where it is missing. What a killed run left behind is cleared away."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.tables = {
            name: Table(path / name, schema_of(layout.columns), layout.partition_by)
            for name, layout in TABLES.items()
        }
        self.requests = Table(path / REQUESTS, schema_of(STATE_SCHEMA))
        self.positions = PositionsTable(path / POSITIONS)

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    def refresh(self) -> None:
        """After a failure: see what was committed, and remove what was written and was not."""
        for table in (*self.tables.values(), self.requests):
            table.refresh()
        self.positions.refresh()

    @property
    def own(self) -> Iterator[Table]:
        """Tables that only the pipeline reads."""
        yield self.requests
        yield self.positions.table


def schema_of(columns: str) -> StructType:
    """Columns as SQL declares them. Spark has to be running."""
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return schema
