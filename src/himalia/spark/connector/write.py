"""Writes: executors encode rows as messages and send them in bodies; each body is stored exactly once."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import DataType, MapType, StringType, StructType

from himalia.errors import BadRequest, InternalError, TopicNotFound
from himalia.retry import BUSY_ERRORS, TRANSIENT_ERRORS, retry
from himalia.spark.connector.address import ServerAddress, resolve_address
from himalia.spark.connector.errors import hide_traceback, warn_superseded
from himalia.spark.connector.http import ServerConnection
from himalia.spark.connector.options import BODIES_MAX, WriteOptions, parse_write_options
from himalia.spark.connector.topics import list_topics, topic_path
from himalia.topics import check_name

MESSAGE_COLUMNS = ("topic", "id", "headers", "value")
IGNORED_COLUMNS = ("offset", "timestamp")
"""Columns of a read that the server assigns itself. They are accepted, so that a topic can be copied as it is read."""
EXCERPT_LENGTH_MAX = 60
NDJSON = "application/x-ndjson"

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties in which Spark's tasks have the query and the micro-batch that they belong to."""
COMMIT_MODULE = "pyspark.sql.worker.python_streaming_sink_runner"
"""Spark imports this module where it creates a writer only to commit a micro-batch."""


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise ``BadRequest`` unless the columns are those of messages."""
    for field in schema.fields:
        if field.name not in (*MESSAGE_COLUMNS, *IGNORED_COLUMNS):
            raise BadRequest(
                f"column {field.name!r} cannot be written to a topic; allowed are {', '.join(MESSAGE_COLUMNS)}. "
                "to_json(struct(*)) combines several columns into one value"
            )
        if field.name == "headers" and not _is_text_map(field.dataType):
            raise BadRequest(
                f"column 'headers' must be map<string,string>, not {field.dataType.simpleString()}"
            )
        if field.name in ("topic", "id", "value") and not isinstance(field.dataType, StringType):
            raise BadRequest(
                f"column {field.name!r} must be a string, not {field.dataType.simpleString()}; use to_json or cast"
            )
    if "value" not in schema.names:
        raise BadRequest("the column 'value' is missing; it holds the messages, as JSON text")
    if options.topic is None and "topic" not in schema.names:
        raise BadRequest("no topic to write to; set the option topic, or add a column 'topic'")


def _is_text_map(kind: DataType) -> bool:
    return (
        isinstance(kind, MapType)
        and isinstance(kind.keyType, StringType)
        and isinstance(kind.valueType, StringType)
    )


def encode_rows(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[tuple[str, bytes]]:
    """Yield the topic and the line of NDJSON of each row."""
    encoded = _as_json if options.is_json else _as_string
    for topic, id, headers, value in zip(*(_column(batch, name) for name in MESSAGE_COLUMNS), strict=True):
        yield options.topic or _topic_name(topic), _line(id, headers, encoded(value)).encode()


def _topic_name(topic: str | None) -> str:
    """Check the value of the column ``topic``."""
    if topic is None:
        raise BadRequest("a row has no topic; the column 'topic' must not be null, or use the option topic")
    try:
        return check_name(topic)
    except BadRequest as error:
        raise BadRequest(f"column 'topic': {error.message}") from None


def _column(batch: pa.RecordBatch, name: str) -> list[object]:
    index = batch.schema.get_field_index(name)
    values: list[object] = [None] * batch.num_rows if index < 0 else batch.column(index).to_pylist()
    return values


def _line(id: str | None, headers: list[tuple[str, str | None]] | None, payload: str) -> str:
    line = '{"payload":' + payload
    if id is not None:
        line += ',"id":' + json.dumps(id)
    if headers:
        line += ',"headers":' + json.dumps({name: value for name, value in headers if value is not None})
    return line + "}\n"


def _as_json(value: str | None) -> str:
    if value is None:
        return "null"
    try:
        json.loads(value, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        excerpt = value if len(value) <= EXCERPT_LENGTH_MAX else value[: EXCERPT_LENGTH_MAX - 3] + "..."
        raise BadRequest(
            f"a value is not JSON: {excerpt!r} ({error}); use to_json, or the option valueFormat=string"
        ) from None
    # Valid JSON has line breaks only between tokens.
    return value.replace("\n", " ").replace("\r", " ")


def _as_string(value: str | None) -> str:
    return json.dumps(value)


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


class BodyWriter:
    """Sends the rows of one task under a producer's name: one body for each topic, or several of a limited size.

    The server stores the last sequence of each producer and topic with the records, so it recognises a body that is
    sent again, at once or much later. A task that is repeated has to split its rows into the same bodies: the rows of
    one body may come in any order, those of several only in the same order.
    """

    def __init__(
        self, connection: ServerConnection, options: WriteOptions, producer: str, batch: int
    ) -> None:
        self._connection = connection
        self._options = options
        self._producer = producer
        self._first_sequence = batch * BODIES_MAX
        self._bodies: dict[str, bytearray] = {}
        self._sent: dict[str, int] = {}
        # Only of the last body of each topic: of a repeated task, the server always finds the earlier ones superseded.
        self._superseded: dict[str, bool] = {}

    def add(self, topic: str, line: bytes) -> None:
        body = self._bodies.setdefault(topic, bytearray())
        if body and len(body) + len(line) > self._options.bytes_per_post:
            self._post(topic)
        body += line

    def finish(self) -> None:
        for topic, body in self._bodies.items():
            if body:
                self._post(topic)
        for topic, superseded in self._superseded.items():
            if superseded:
                warn_superseded(topic, self._producer)

    def _post(self, topic: str) -> None:
        number = self._sent.get(topic, 0)
        if number >= BODIES_MAX:
            raise BadRequest(f"a task sends at most {BODIES_MAX} bodies to a topic; use more partitions")
        body = self._bodies[topic]
        query = {"producer": self._producer, "sequence": self._first_sequence + number}

        def send() -> bool:
            path, headers = topic_path(topic, "messages"), {"Content-Type": NDJSON}
            return self._connection.request("POST", path, _is_superseded, query, bytes(body), headers)

        self._superseded[topic] = retry(send, self._options.retry_s)
        self._sent[topic] = number + 1
        body.clear()


def _is_superseded(answer: Any) -> bool:
    """Whether a body was rejected as a repeat although it is not the last one stored: of that, the offset is known."""
    return int(answer["duplicates"]) > 0 and "first" not in answer


@dataclass
class CommitMessage(WriterCommitMessage):
    """The result of a task. Its rows are in the topics already: there is nothing to commit."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. A task that Spark retries stores nothing twice; nor does a write with the ``producer`` and
    ``sequence`` of an earlier one.

    Created on the driver, then pickled; ``write`` runs on executors.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = parse_write_options(given)
        check_columns(schema, self._options)
        if overwrite:
            raise BadRequest("a topic cannot be overwritten; use mode('append')")
        if (self._options.producer is None) != (self._options.sequence is None):
            raise BadRequest("the options producer and sequence go together: set both, or none")
        self._address = resolve_address(given)
        check_topic(self._address, self._options)
        self._producer = self._options.producer or f"spark-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        producer = f"{self._producer}-{_task().partitionId()}"
        return write_rows(iterator, self._address, self._options, producer, self._options.sequence or 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query. A micro-batch that is repeated stores nothing twice."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_write_options(given)
        check_columns(schema, self._options)
        if self._options.sequence is not None:
            raise BadRequest("the option sequence is for batch writes; a stream numbers its batches itself")
        self._address = resolve_address(given)
        if COMMIT_MODULE not in sys.modules:
            # Created for every micro-batch: a server that restarts right now is not an error here, the tasks retry.
            with suppress(*TRANSIENT_ERRORS):
                check_topic(self._address, self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise InternalError("Spark set no query and batch for this task")
        if int(batch) == 0:
            self._check_reachable()
        producer = f"{self._options.producer or f'spark-{query}'}-{task.partitionId()}"
        return write_rows(iterator, self._address, self._options, producer, int(batch))

    @hide_traceback()
    def _check_reachable(self) -> None:
        """Fail at once if no server answers: before the first batch of a query that means a wrong URL."""
        with suppress(*BUSY_ERRORS):
            check_topic(self._address, self._options)


def write_rows(
    batches: Iterator[pa.RecordBatch],
    address: ServerAddress,
    options: WriteOptions,
    producer: str,
    batch: int,
) -> CommitMessage:
    """Send all rows of a task; return when the server has stored them."""
    rows = 0
    with hide_traceback(), ServerConnection(address) as connection:
        writer = BodyWriter(connection, options, producer, batch)
        for each in batches:
            for topic, line in encode_rows(each, options):
                writer.add(topic, line)
            rows += each.num_rows
        writer.finish()
    return CommitMessage(rows)


def check_topic(address: ServerAddress, options: WriteOptions) -> None:
    """Raise unless the server is reachable, accepts the token, and has the topic."""
    with ServerConnection(address) as connection:
        topics = list_topics(connection)
    if options.topic is not None and options.topic not in topics:
        raise TopicNotFound(options.topic)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InternalError("rows can be written only inside a task of Spark")
    return task
