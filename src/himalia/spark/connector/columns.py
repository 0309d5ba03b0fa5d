"""The columns of a topic as a DataFrame, as Spark and as Arrow write them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructType

from himalia.errors import BadRequest

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
