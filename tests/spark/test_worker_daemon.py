"""The daemon of Spark's Python workers."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many of the worker's objects the collector passes over."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()] * batch.num_rows})


def hurried(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of the worker's TCP connections, how many send at once, and how many there are."""
    flags = [_sends_at_once(int(name)) for name in os.listdir("/proc/self/fd")]
    sockets = [flag for flag in flags if flag is not None]
    for batch in batches:
        answer = {"hurried": [sum(sockets)] * batch.num_rows, "all": [len(sockets)] * batch.num_rows}
        yield pa.RecordBatch.from_pydict(answer)


def _sends_at_once(descriptor: int) -> bool | None:
    try:
        sock = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    with sock:
        if sock.family != socket.AF_INET:
            return None
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_the_collector_passes_over_what_the_first_task_left(spark: SparkSession) -> None:
    for _ in range(2):
        rows = spark.range(0, 2, 1, 2).mapInArrow(frozen, "objects long").collect()
    assert all(row.objects > 10_000 for row in rows)


def test_a_task_does_not_wait_for_acknowledgements(spark: SparkSession) -> None:
    """What a worker says to Spark is sent at once, however little it is."""
    row = spark.range(1).mapInArrow(hurried, "hurried long, all long").first()
    assert row is not None
    assert row.hurried == row["all"] > 0
