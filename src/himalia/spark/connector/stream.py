"""Streaming reads. Spark's checkpoint holds the positions; nothing is kept here that would matter if it were lost."""

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
from himalia.spark.connector.errors import in_one_sentence, tell_losses
from himalia.spark.connector.http import Connection, address_of, offsets_at, topic_states
from himalia.spark.connector.options import ReadOptions, read_options
from himalia.spark.connector.planning import TopicState, chosen, unknown
from himalia.spark.connector.read import RangesPartition, partitions_of, read_partition

T = TypeVar("T")
Offset = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics, also those that appear later if they match a pattern.

    Spark keeps one of these on the driver for as long as a query runs, in a process of its own, and calls one
    method at a time. Other copies, which only ever ``read``, are on executors.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._options = checked_for_stream(read_options(given))
        # A server that never answered is a wrong URL; one that did, and does not now, is being restarted.
        self._has_answered = False
        self._until: dict[str, TopicState] | None = None
        self._latest: Offset | None = None
        self._told: list[str] = []

    @in_one_sentence()
    def initialOffset(self) -> Offset:
        def ask(connection: Connection) -> stream_offsets.Positions:
            options, losses = self._options, list[str]()
            states = topic_states(connection)
            for name in unknown(options, states):
                raise TopicNotFound(name)
            topics = chosen(options, states)
            since = offsets_at(connection, topics.values(), options.since)
            begin = stream_offsets.beginning(options, topics, since, losses)
            tell_losses(losses, fails=options.fails_on_data_loss)
            return begin

        return stream_offsets.encoded(self._asked(ask))

    @in_one_sentence()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        states, positions = self._asked(topic_states), stream_offsets.decoded(start)
        topics = chosen(self._options, states)
        losses = [*self._missing(states, positions), *stream_offsets.left(positions, topics, states)]
        ranges = stream_offsets.unread(positions, topics, losses, self._until)
        self._tell(losses)
        self._latest = stream_offsets.encoded(stream_offsets.after(positions, ranges, topics))
        if isinstance(limit, ReadMaxRows):
            ranges = stream_offsets.limited(ranges, limit.max_rows)
        return stream_offsets.encoded(stream_offsets.after(positions, ranges, topics))

    def getDefaultReadLimit(self) -> ReadLimit:
        records = self._options.records_per_trigger
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    def reportLatestOffset(self) -> Offset | None:
        """How far the topics reach, limit or not; Spark shows it beside how far the query has come."""
        return self._latest

    @in_one_sentence()
    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._topics()

    @in_one_sentence()
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        begin, stop = stream_offsets.decoded(start), stream_offsets.decoded(end)
        return partitions_of(address_of(self._given), stream_offsets.between(begin, stop), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return read_partition(partition, self._options)

    def _missing(self, states: Mapping[str, TopicState], positions: stream_offsets.Positions) -> list[str]:
        """Topics that are named and were never there: a query that goes on may have other names than before."""
        missing = [name for name in self._options.names if name not in states and name not in positions]
        if missing and self._options.fails_on_data_loss:
            raise TopicNotFound(missing[0])
        return [f"topic {name!r} does not exist" for name in missing]

    def _tell(self, losses: list[str]) -> None:
        """What was not told at the trigger before: of a topic that is lost and empty, the same is true at each."""
        tell_losses(
            [loss for loss in losses if loss not in self._told], fails=self._options.fails_on_data_loss
        )
        self._told = losses

    def _topics(self) -> dict[str, TopicState]:
        return chosen(self._options, self._asked(topic_states))

    def _asked(self, ask: Callable[[Connection], T]) -> T:
        """What a server answers, which may have moved: where it is, is looked up each time."""

        def attempt() -> T:
            with Connection(address_of(self._given)) as connection:
                return ask(connection)

        answer = retry(attempt, self._options.retry_s if self._has_answered else 0.0)
        self._has_answered = True
        return answer


def checked_for_stream(options: ReadOptions) -> ReadOptions:
    if options.ending is not None:
        raise BadRequest("a stream has no endingOffsets; use a batch read, or trigger(availableNow=True)")
    return options
