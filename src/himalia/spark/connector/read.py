"""Batch reads: executors fetch ranges of topics as Arrow record batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from himalia.errors import BadRequest, EpochChanged, TopicNotFound
from himalia.retry import TRANSIENT_ERRORS, RetryTimer
from himalia.spark.connector.address import ServerAddress, resolve_address
from himalia.spark.connector.errors import LossHandler, hide_traceback, report_losses
from himalia.spark.connector.http import ServerConnection
from himalia.spark.connector.offset_ranges import (
    OffsetRange,
    PushedBounds,
    TopicExtent,
    extract_bounds,
    find_missing_topics,
    partition_ranges,
    resolve_batch_ranges,
    select_topics,
)
from himalia.spark.connector.options import ReadOptions, parse_read_options
from himalia.spark.connector.topics import fetch_offsets_at, list_topics, topic_path

READ_SCHEMA = (
    "topic string, offset bigint, timestamp timestamp, id string, headers map<string,string>, value string"
)
"""Named as in Spark's Kafka source; ``value`` is the payload's JSON text."""

# Spark requires the first batch of a task to have exactly this schema.
ARROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("id", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("value", pa.string()),
    ]
)
ARROW_MEDIA_TYPE = "application/vnd.apache.arrow.stream"

PUSHDOWN_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"
"""Spark's planner imports this module where it pushes filters down, which the session has to allow."""


def check_schema(schema: StructType) -> None:
    """Raise ``BadRequest`` if the user gave a schema other than that of the data source."""
    if schema.simpleString() != f"struct<{READ_SCHEMA.replace(', ', ',').replace(' ', ':')}>":
        raise BadRequest(f"the schema of a topic is {READ_SCHEMA}; remove schema(), and select columns")


def fetch(
    connection: ServerConnection,
    requested: OffsetRange,
    retry_s: float,
    on_loss: Callable[[str, int, int], None],
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, each once and in order.

    Reconnects after a transient error and resumes after the last record that was yielded. ``on_loss(topic, start,
    stop)`` is called for records that are gone; unless it raises, reading continues with those that are left.
    """
    offset = requested.start
    timer = RetryTimer(retry_s)
    while offset < requested.stop:
        remaining = OffsetRange(requested.topic, requested.epoch, offset, requested.stop)
        is_empty = True
        try:
            for batch in _request(connection, remaining):
                is_empty = False
                first = batch.column(1)[0].as_py()
                if first > offset:
                    on_loss(requested.topic, offset, min(first, requested.stop))
                if first >= requested.stop:
                    return
                # The request has a count: if its first records are gone, the response reaches beyond the range.
                batch = batch.slice(0, requested.stop - first)
                yield _rename_columns(batch)
                # Reset here, not before the yield: the consumer of a batch may take long.
                timer.reset()
                offset = first + batch.num_rows
        except (TopicNotFound, EpochChanged):
            on_loss(requested.topic, offset, requested.stop)
            return
        except TRANSIENT_ERRORS as error:
            timer.wait(error)
        else:
            if is_empty:
                on_loss(requested.topic, offset, requested.stop)
                return


def _request(connection: ServerConnection, requested: OffsetRange) -> Iterator[pa.RecordBatch]:
    query = {"from": requested.start, "limit": len(requested), "epoch": requested.epoch}
    path = topic_path(requested.topic, "messages")
    with connection.open("GET", path, query, headers={"Accept": ARROW_MEDIA_TYPE}) as response:
        try:
            with pa.ipc.open_stream(response) as stream:
                for batch in stream:
                    if batch.num_rows:
                        yield batch
        except pa.ArrowInvalid:
            raise connection.unexpected_response(response.status) from None
        # Reading to the end of the body lets the connection be used for the next request.
        response.read()


def _rename_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rename the server's columns to those that Spark expects, without copying."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=ARROW_SCHEMA)


@dataclass(repr=False)
class RangesPartition(InputPartition):
    """What one task reads, and from which server."""

    address: ServerAddress
    ranges: Sequence[OffsetRange]


class BatchReader(DataSourceReader):
    """Reads topics between two offsets. ``latest`` is where they end when the query is planned.

    Spark creates it and calls ``partitions`` on the driver, then pickles it; ``read`` runs on executors.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._options = check_batch_options(parse_read_options(given))
        self._bounds = PushedBounds()

    @hide_traceback()
    def partitions(self) -> list[InputPartition]:
        address = resolve_address(self._given)
        with ServerConnection(address) as connection:
            ranges = self._plan(connection)
        return make_partitions(address, ranges, self._options) or [RangesPartition(address, [])]

    def _plan(self, connection: ServerConnection) -> list[OffsetRange]:
        options, losses = self._options, list[str]()
        existing = list_topics(connection)
        for name in find_missing_topics(options, existing):
            if options.fails_on_data_loss:
                raise TopicNotFound(name)
            losses.append(f"topic {name!r} does not exist")
        selected = select_topics(options, existing).values()
        topics = [topic for topic in selected if self._bounds.has_topic(topic.name)]
        since = fetch_offsets_at(connection, topics, options.since)
        ranges = resolve_batch_ranges(options, topics, since, losses)
        report_losses(losses, fails=options.fails_on_data_loss)
        return self._apply_bounds(connection, topics, ranges)

    def _apply_bounds(
        self, connection: ServerConnection, topics: Sequence[TopicExtent], ranges: Sequence[OffsetRange]
    ) -> list[OffsetRange]:
        """Restrict the ranges to what the pushed filters leave."""
        low, high = self._bounds.offset_min or 0, self._bounds.offset_stop
        since = fetch_offsets_at(connection, topics, self._bounds.since)
        until = fetch_offsets_at(connection, topics, self._bounds.until)
        return [
            OffsetRange(
                each.topic,
                each.epoch,
                max(each.start, low, since.get(each.topic, 0)),
                min(each.stop, each.stop if high is None else high, until.get(each.topic, each.stop)),
            )
            for each in ranges
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return read_partition(partition, self._options)


class PushdownReader(BatchReader):
    """A reader to which Spark pushes the filters of the query. Spark rejects it unless the session allows that.

    Only on request (option ``pushFilters``): Spark 4.3 keeps the filters of one query for every later use of the same
    DataFrame (``PythonScanBuilder.pushFilters`` sets them on the table), which then lacks rows.
    """

    @hide_traceback()
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._bounds = extract_bounds(filters)
        # All filters are returned, so Spark applies them again: the bounds need not be exact.
        return filters


def make_batch_reader(given: Mapping[str, str]) -> BatchReader:
    is_pushdown = PUSHDOWN_MODULE in sys.modules and parse_read_options(given).pushes_filters
    return PushdownReader(given) if is_pushdown else BatchReader(given)


def check_batch_options(options: ReadOptions) -> ReadOptions:
    if options.starting is not None and options.starting.is_latest:
        raise BadRequest(
            "a batch cannot start at latest, where it ends; use earliest or offsets, or a stream"
        )
    if options.ending is not None and options.ending.is_earliest:
        raise BadRequest("a batch cannot end at earliest, where it starts; use latest or offsets")
    return options


def make_partitions(
    address: ServerAddress, ranges: Sequence[OffsetRange], options: ReadOptions
) -> list[InputPartition]:
    groups = partition_ranges(
        ranges, records_max=options.records_per_partition, groups_min=options.partitions_min
    )
    return [RangesPartition(address, group) for group in groups]


def read_partition(partition: RangesPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield all records of a partition, over one connection."""
    on_loss = LossHandler(fails=options.fails_on_data_loss)
    with hide_traceback(), ServerConnection(partition.address) as connection:
        for requested in partition.ranges:
            yield from fetch(connection, requested, options.retry_s, on_loss)
