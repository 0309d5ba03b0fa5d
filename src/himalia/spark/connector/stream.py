"""Streaming reads. All positions are in Spark's checkpoint; the state kept here may be lost at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from himalia.errors import BadRequest, TopicNotFound
from himalia.retry import retry
from himalia.spark.connector import stream_offsets
from himalia.spark.connector.address import resolve_address
from himalia.spark.connector.errors import hide_traceback, report_losses
from himalia.spark.connector.http import ServerConnection
from himalia.spark.connector.offset_ranges import TopicExtent, find_missing_topics, select_topics
from himalia.spark.connector.options import ReadOptions, parse_read_options
from himalia.spark.connector.read import RangesPartition, make_partitions, read_partition
from himalia.spark.connector.stream_offsets import StreamPositions
from himalia.spark.connector.topics import fetch_offsets_at, list_topics

T = TypeVar("T")
Offset = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new records of topics, including topics that are created later and match a pattern.

    Spark keeps one reader on the driver for as long as a query runs, in a process of its own, and calls one method at a
    time. Copies on executors only ever ``read``.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._options = check_stream_options(parse_read_options(given))
        # Before the first response a failure means a wrong URL; after it, a server that restarts.
        self._has_answered = False
        # Where the topics ended when a query with the trigger availableNow started.
        self._bounds: dict[str, TopicExtent] | None = None
        self._latest: Offset | None = None
        self._reported_losses: list[str] = []

    @hide_traceback()
    def initialOffset(self) -> Offset:
        def resolve(connection: ServerConnection) -> StreamPositions:
            options, losses = self._options, list[str]()
            existing = list_topics(connection)
            for name in find_missing_topics(options, existing):
                raise TopicNotFound(name)
            topics = select_topics(options, existing)
            since = fetch_offsets_at(connection, topics.values(), options.since)
            positions = stream_offsets.resolve_initial_positions(options, topics, since, losses)
            report_losses(losses, fails=options.fails_on_data_loss)
            return positions

        return stream_offsets.encode(self._call_server(resolve))

    @hide_traceback()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        existing, positions = self._call_server(list_topics), stream_offsets.decode(start)
        topics = select_topics(self._options, existing)
        losses = [
            *self._find_missing(existing, positions),
            *stream_offsets.describe_departures(positions, topics, existing),
        ]
        ranges = stream_offsets.find_new_ranges(positions, topics, losses, self._bounds)
        self._report_new_losses(losses)
        self._latest = stream_offsets.encode(stream_offsets.advance(positions, ranges, topics))
        if isinstance(limit, ReadMaxRows):
            ranges = stream_offsets.limit_ranges(ranges, limit.max_rows)
        return stream_offsets.encode(stream_offsets.advance(positions, ranges, topics))

    def getDefaultReadLimit(self) -> ReadLimit:
        records = self._options.records_per_trigger
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    def reportLatestOffset(self) -> Offset | None:
        """Return where the topics end, regardless of the limit; Spark reports it as the query's backlog."""
        return self._latest

    @hide_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        self._bounds = select_topics(self._options, self._call_server(list_topics))

    @hide_traceback()
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        begin, stop = stream_offsets.decode(start), stream_offsets.decode(end)
        ranges = stream_offsets.resolve_ranges_between(begin, stop)
        return make_partitions(resolve_address(self._given), ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return read_partition(partition, self._options)

    def _find_missing(self, existing: Mapping[str, TopicExtent], positions: StreamPositions) -> list[str]:
        """Describe named topics that never existed: a query may be resumed with other names than before."""
        missing = [name for name in self._options.names if name not in existing and name not in positions]
        if missing and self._options.fails_on_data_loss:
            raise TopicNotFound(missing[0])
        return [f"topic {name!r} does not exist" for name in missing]

    def _report_new_losses(self, losses: list[str]) -> None:
        """Report losses, except those of the previous trigger: a topic that is gone is a loss at each one."""
        new = [loss for loss in losses if loss not in self._reported_losses]
        report_losses(new, fails=self._options.fails_on_data_loss)
        self._reported_losses = losses

    def _call_server(self, work: Callable[[ServerConnection], T]) -> T:
        """Run ``work`` on a new connection, with retries. The address is resolved each time: the server may move."""

        def attempt() -> T:
            with ServerConnection(resolve_address(self._given)) as connection:
                return work(connection)

        result = retry(attempt, self._options.retry_s if self._has_answered else 0.0)
        self._has_answered = True
        return result


def check_stream_options(options: ReadOptions) -> ReadOptions:
    if options.ending is not None:
        raise BadRequest("a stream has no endingOffsets; use a batch read, or trigger(availableNow=True)")
    return options
