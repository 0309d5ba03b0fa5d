"""Writing to topics, from batches and streams, each row exactly once."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from himalia.errors import BadRequest, InternalError, TopicNotFound
from himalia.spark.connector.asking import address_of, topic_states
from himalia.spark.connector.connection import Address, Connection
from himalia.spark.connector.failing import in_one_sentence
from himalia.spark.connector.options import WriteOptions, write_options
from himalia.spark.connector.patience import BUSY, MOMENTARY
from himalia.spark.connector.posting import Poster
from himalia.spark.connector.rows import check_columns, lines

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark's tasks know of the stream that they belong to."""
COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"
"""The module of Spark that makes a writer once more when a micro-batch has been written already."""


@dataclass
class Written(WriterCommitMessage):
    """What a task has done. The rows are in the topics already: there is nothing to commit."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. A task that is tried again repeats nothing; nor does a write whose ``producer`` and
    ``sequence`` were written before.

    Made on the driver, then pickled; ``write`` runs on executors.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = write_options(given)
        check_columns(schema, self._options)
        if overwrite:
            raise BadRequest("a topic cannot be overwritten; use mode('append')")
        if (self._options.producer is None) != (self._options.sequence is None):
            raise BadRequest("options producer and sequence go together: name the write, and number it")
        self._address = address_of(given)
        check_topic(self._address, self._options)
        self._producer = self._options.producer or f"spark-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        producer = f"{self._producer}-{_task().partitionId()}"
        return write_rows(iterator, self._address, self._options, producer, self._options.sequence or 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query. One that is run again, by a task or by the whole query, repeats nothing."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = write_options(given)
        check_columns(schema, self._options)
        if self._options.sequence is not None:
            raise BadRequest("a stream numbers its batches itself; the option sequence is for batch writes")
        self._address = address_of(given)
        if COMMITTING not in sys.modules:
            # Every micro-batch comes by here, so the server may just be restarting: tasks wait for it.
            with suppress(*MOMENTARY):
                check_topic(self._address, self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise InternalError("Spark does not tell this task its query and batch")
        if int(batch) == 0:
            self._look()
        producer = f"{self._options.producer or f'spark-{query}'}-{task.partitionId()}"
        return write_rows(iterator, self._address, self._options, producer, int(batch))

    @in_one_sentence()
    def _look(self) -> None:
        """See once whether a server answers: one that did not before this query's first batch is a wrong URL."""
        with suppress(*BUSY):
            check_topic(self._address, self._options)


def write_rows(
    batches: Iterator[pa.RecordBatch], address: Address, options: WriteOptions, producer: str, batch: int
) -> Written:
    """Send all rows of a task; returns when the server has stored them."""
    rows = 0
    with in_one_sentence(), Connection(address) as connection:
        poster = Poster(connection, options, producer, batch)
        for each in batches:
            for topic, line in lines(each, options):
                poster.add(topic, line)
            rows += each.num_rows
        poster.finish()
    return Written(rows)


def check_topic(address: Address, options: WriteOptions) -> None:
    """Whether the server is there, knows the token, and has the topic."""
    with Connection(address) as connection:
        states = topic_states(connection)
    if options.topic is not None and options.topic not in states:
        raise TopicNotFound(options.topic)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InternalError("rows are written by Spark's tasks only")
    return task
