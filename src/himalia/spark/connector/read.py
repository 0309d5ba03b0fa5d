"""Batch reads: ranges of a topic, fetched as Arrow on executors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from himalia.errors import BadRequest, EpochChanged, TopicNotFound
from himalia.retry import TRANSIENT_ERRORS, RetryTimer
from himalia.spark.connector.errors import LossRule, in_one_sentence, tell_losses
from himalia.spark.connector.http import Address, Connection, address_of, offsets_at, topic_path, topic_states
from himalia.spark.connector.options import ReadOptions, read_options
from himalia.spark.connector.planning import (
    Narrowed,
    Range,
    TopicState,
    batch_ranges,
    chosen,
    grouped,
    narrowed,
    unknown,
)

READ_SCHEMA = (
    "topic string, offset bigint, timestamp timestamp, id string, headers map<string,string>, value string"
)
"""Named as in Spark's Kafka source; ``value`` is the payload's JSON text."""

# Spark compares the first batch of a task with this to the letter.
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


def as_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch as the server sends it, under the names that Spark expects; nothing is copied."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=ARROW_SCHEMA)


def check_schema(schema: StructType) -> None:
    """Raises ``BadRequest`` for a schema that somebody gave and that is not the one there is."""
    if schema.simpleString() != f"struct<{READ_SCHEMA.replace(', ', ',').replace(' ', ':')}>":
        raise BadRequest(f"topics are read as {READ_SCHEMA}; leave out schema(), and select what you need")


ARROW = "application/vnd.apache.arrow.stream"


def fetched(
    connection: Connection, wanted: Range, retry_s: float, on_loss: Callable[[str, int, int], None]
) -> Iterator[pa.RecordBatch]:
    """The records of a range, each once and in order.

    A connection that breaks is made again, and reading goes on after the last record that came. ``on_loss(topic,
    start, stop)`` is told of records that are gone; if it returns, reading goes on with what is there.
    """
    at = wanted.start
    timer = RetryTimer(retry_s)
    while at < wanted.stop:
        rest = Range(wanted.topic, wanted.epoch, at, wanted.stop)
        came = False
        try:
            for batch in _asked(connection, rest):
                came = True
                first = batch.column(1)[0].as_py()
                if first > at:
                    on_loss(wanted.topic, at, min(first, wanted.stop))
                if first >= wanted.stop:
                    return
                # What was asked for by count can reach further than the range, if its beginning is gone.
                batch = batch.slice(0, wanted.stop - first)
                yield as_columns(batch)
                # Only now: what took long may have been whoever got the batch.
                timer.reset()
                at = first + batch.num_rows
        except (TopicNotFound, EpochChanged):
            on_loss(wanted.topic, at, wanted.stop)
            return
        except TRANSIENT_ERRORS as error:
            timer.wait(error)
        else:
            if not came:
                on_loss(wanted.topic, at, wanted.stop)
                return


def _asked(connection: Connection, wanted: Range) -> Iterator[pa.RecordBatch]:
    query = {"from": wanted.start, "limit": len(wanted), "epoch": wanted.epoch}
    path = topic_path(wanted.topic, "messages")
    with connection.open("GET", path, query, headers={"Accept": ARROW}) as response:
        try:
            with pa.ipc.open_stream(response) as stream:
                for batch in stream:
                    if batch.num_rows:
                        yield batch
        except pa.ArrowInvalid:
            raise connection.foreign(response.status) from None
        # The end of the body, so that the connection can be used again.
        response.read()


PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module of Spark's planner that hands filters down. It runs only where the session allows that."""


@dataclass(repr=False)
class RangesPartition(InputPartition):
    """What one task reads, and where from."""

    address: Address
    ranges: Sequence[Range]


class BatchReader(DataSourceReader):
    """Reads topics from one place to another. The ends are those of the moment at which the query is planned.

    Made and asked for its partitions on the driver, then pickled; ``read`` runs on executors.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._options = checked_for_batch(read_options(given))
        self._narrowed = Narrowed()

    @in_one_sentence()
    def partitions(self) -> list[InputPartition]:
        address = address_of(self._given)
        with Connection(address) as connection:
            ranges = self._ranges(connection)
        return partitions_of(address, ranges, self._options) or [RangesPartition(address, [])]

    def _ranges(self, connection: Connection) -> list[Range]:
        options, losses = self._options, list[str]()
        states = topic_states(connection)
        for name in unknown(options, states):
            if options.fails_on_data_loss:
                raise TopicNotFound(name)
            losses.append(f"topic {name!r} does not exist")
        found = chosen(options, states).values()
        topics = [state for state in found if self._narrowed.has_topic(state.name)]
        since = offsets_at(connection, topics, options.since)
        ranges = batch_ranges(options, topics, since, losses)
        tell_losses(losses, fails=options.fails_on_data_loss)
        return self._cut(connection, topics, ranges)

    def _cut(
        self, connection: Connection, topics: Sequence[TopicState], ranges: Sequence[Range]
    ) -> list[Range]:
        """The ranges without what the query's own filters leave out."""
        low, high = self._narrowed.offset_min or 0, self._narrowed.offset_stop
        since = offsets_at(connection, topics, self._narrowed.since)
        until = offsets_at(connection, topics, self._narrowed.until)
        return [
            Range(
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


class NarrowingReader(BatchReader):
    """A reader that is told the query's filters. Spark refuses it where the session does not allow that.

    Only for those who ask for it: what one query narrows, Spark 4.3 keeps for every later use of the same DataFrame
    (``PythonScanBuilder.pushFilters`` sets it on the table), which then lacks rows.
    """

    @in_one_sentence()
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._narrowed = narrowed(filters)
        # Spark applies all of them again, so that what was narrowed need not be exact.
        return filters


def batch_reader(given: Mapping[str, str]) -> BatchReader:
    narrows = PUSHING in sys.modules and read_options(given).pushes_filters
    return NarrowingReader(given) if narrows else BatchReader(given)


def checked_for_batch(options: ReadOptions) -> ReadOptions:
    if options.starting is not None and options.starting.is_latest:
        raise BadRequest(
            "a batch cannot start at latest, where it ends; use earliest or offsets, or a stream"
        )
    if options.ending is not None and options.ending.is_earliest:
        raise BadRequest("a batch cannot end at earliest, where it starts; use latest or offsets")
    return options


def partitions_of(address: Address, ranges: Sequence[Range], options: ReadOptions) -> list[InputPartition]:
    groups = grouped(ranges, records_max=options.records_per_partition, groups_min=options.partitions_min)
    return [RangesPartition(address, group) for group in groups]


def read_partition(partition: RangesPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """All records of a partition, over one connection."""
    rule = LossRule(fails=options.fails_on_data_loss)
    with in_one_sentence(), Connection(partition.address) as connection:
        for wanted in partition.ranges:
            yield from fetched(connection, wanted, options.retry_s, rule)
