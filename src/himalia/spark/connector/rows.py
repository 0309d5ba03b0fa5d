"""Rows as messages: one line of NDJSON each."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import DataType, MapType, StringType, StructType

from himalia.errors import BadRequest
from himalia.spark.connector.options import WriteOptions
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
