"""Writes rows to topics: encoded as messages, sent in bodies that are stored exactly once each."""

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
from himalia.spark.connector.errors import in_one_sentence, tell_superseded
from himalia.spark.connector.http import Address, Connection, address_of, topic_path, topic_states
from himalia.spark.connector.options import BODIES_MAX, WriteOptions, write_options
from himalia.topics import check_name

WRITTEN = ("topic", "id", "headers", "value")
PASSED_OVER = ("offset", "timestamp")
"""Columns that reading gives and the server makes anew, so that a topic can be copied as it is read."""
SHOWN_MAX = 60


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises ``BadRequest`` unless the columns are those of messages."""
    for field in schema.fields:
        if field.name not in (*WRITTEN, *PASSED_OVER):
            raise BadRequest(
                f"column {field.name!r} is not written to a topic; there are {', '.join(WRITTEN)}. "
                "to_json(struct(*)) makes one value of several columns"
            )
        if field.name == "headers" and not _is_text_map(field.dataType):
            raise BadRequest(f"column 'headers' is map<string,string>, not {field.dataType.simpleString()}")
        if field.name in ("topic", "id", "value") and not isinstance(field.dataType, StringType):
            raise BadRequest(
                f"column {field.name!r} is a string, not {field.dataType.simpleString()}; to_json or cast makes one"
            )
    if "value" not in schema.names:
        raise BadRequest("there is no column 'value'; it holds the messages, as JSON text")
    if options.topic is None and "topic" not in schema.names:
        raise BadRequest("say where to write: option topic, or a column 'topic'")


def _is_text_map(kind: DataType) -> bool:
    return (
        isinstance(kind, MapType)
        and isinstance(kind.keyType, StringType)
        and isinstance(kind.valueType, StringType)
    )


def lines(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[tuple[str, bytes]]:
    """For each row its topic and its line."""
    encoded = _as_json if options.is_json else _as_string
    for topic, id, headers, value in zip(*(_column(batch, name) for name in WRITTEN), strict=True):
        yield options.topic or _named(topic), _line(id, headers, encoded(value)).encode()


def _named(topic: str | None) -> str:
    """What the column says, if it can be the name of a topic."""
    if topic is None:
        raise BadRequest("a row has no topic; the column 'topic' must not be null, or use the option topic")
    try:
        return check_name(topic)
    except BadRequest as error:
        raise BadRequest(f"column 'topic': {error.message}") from None


def _column(batch: pa.RecordBatch, name: str) -> list[object]:
    at = batch.schema.get_field_index(name)
    found: list[object] = [None] * batch.num_rows if at < 0 else batch.column(at).to_pylist()
    return found


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
        json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        shown = value if len(value) <= SHOWN_MAX else value[: SHOWN_MAX - 3] + "..."
        raise BadRequest(
            f"a value is not JSON: {shown!r} ({error}); use to_json, or the option valueFormat=string"
        ) from None
    # In JSON, line breaks are only ever white space.
    return value.replace("\n", " ").replace("\r", " ")


def _as_string(value: str | None) -> str:
    return json.dumps(value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


NDJSON = "application/x-ndjson"


class Poster:
    """Sends what one task writes under a producer's name: a body for each topic, several if it would be too long.

    The server keeps the last sequence of each producer and topic beside the records, so that a body which is sent
    again, at once or much later, is recognised. A task that is repeated must cut its rows into the same bodies: one
    body's rows may come in any order, those of several only in the same.
    """

    def __init__(self, connection: Connection, options: WriteOptions, producer: str, batch: int) -> None:
        self._connection = connection
        self._options = options
        self._producer = producer
        self._first_sequence = batch * BODIES_MAX
        self._bodies: dict[str, bytearray] = {}
        self._sent: dict[str, int] = {}
        # Whether the topic's last body was. Those before it are, whenever a task is repeated.
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
                tell_superseded(topic, self._producer)

    def _post(self, topic: str) -> None:
        number = self._sent.get(topic, 0)
        if number >= BODIES_MAX:
            raise BadRequest(f"a task sends at most {BODIES_MAX} bodies to a topic; use more partitions")
        body = self._bodies[topic]
        query = {"producer": self._producer, "sequence": self._first_sequence + number}

        def send() -> bool:
            path, headers = topic_path(topic, "messages"), {"Content-Type": NDJSON}
            return self._connection.ask("POST", path, _is_superseded, query, bytes(body), headers)

        self._superseded[topic] = retry(send, self._options.retry_s)
        self._sent[topic] = number + 1
        body.clear()


def _is_superseded(told: Any) -> bool:
    """Whether a body was not stored, nor is the last that was: of a repeat of that one the place is known."""
    return int(told["duplicates"]) > 0 and "first" not in told


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
            with suppress(*TRANSIENT_ERRORS):
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
        with suppress(*BUSY_ERRORS):
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
