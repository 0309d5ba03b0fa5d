"""The table ``messages``: every record of every topic, exactly once.

The other tables are computed by Spark's expressions. This one is built from the server's Arrow batches on the
executors (``pipeline/copy_task.py``), so that the largest table is copied without passing through the JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        ("epoch", pa.string()),
        ("offset", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("id", pa.string()),
        ("publisher", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("payload", pa.string()),
        ("bytes", pa.int64()),
        ("date", pa.date32()),
    ]
)
_ESCAPED = r'["\\\x00-\x1f]'


def messages(records: DataFrame) -> DataFrame:
    """Rows of ``messages``, of records as the connector gives them, with the column ``epoch`` beside."""
    return records.mapInArrow(_batches, from_arrow_schema(COLUMNS))


def _batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield rows_of(batch, batch.column("epoch"))


def rows_of(records: pa.RecordBatch, epochs: pa.Array) -> pa.RecordBatch:
    """The same, of one of Arrow's batches."""
    given = dict(zip(records.schema.names, records.columns, strict=True))
    columns = {
        "topic": given["topic"],
        "epoch": epochs,
        "offset": given["offset"],
        "ts": given["timestamp"],
        "id": given["id"],
        "publisher": pc.map_lookup(given["headers"], pa.scalar("publisher"), "first"),
        "headers": given["headers"],
        "payload": given["value"],
        "bytes": _size_bytes(given["id"], given["headers"], given["value"]),
        "date": given["timestamp"].cast(pa.date32()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in COLUMNS.names], schema=COLUMNS)


def _size_bytes(ids: pa.Array, headers: pa.MapArray, payloads: pa.Array) -> pa.Array:
    """As ``himalia.record.size_bytes`` counts; the headers as they are when written without spaces."""
    # Each with its quotes, a colon and a comma; the last of a record has no comma, but there are braces.
    each = pc.add(pc.add(_json_bytes(headers.keys), _json_bytes(headers.items)), len('"":"",'))
    upto = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(each)])
    ends = upto.take(headers.offsets)
    of_headers = pc.subtract(ends[1:], ends[:-1])
    braces = pc.if_else(pc.equal(of_headers, 0), len("{}"), len("{}") - len(","))
    texts = pc.add(pc.utf8_length(ids), pc.binary_length(payloads))
    return pc.add(pc.add(of_headers, braces), texts.cast(pa.int64())).cast(pa.int64())


def _json_bytes(texts: pa.Array) -> pa.Array:
    """What each text takes in JSON, between its quotes. They repeat, so that each is looked at once."""
    distinct = texts.dictionary_encode()
    sizes = pc.binary_length(distinct.dictionary).cast(pa.int64())
    is_escaped = pc.match_substring_regex(distinct.dictionary, _ESCAPED)
    if is_escaped.true_count:
        escaped = [
            len(json.dumps(text, ensure_ascii=False).encode()) - len('""')
            for text in distinct.dictionary.filter(is_escaped).to_pylist()
        ]
        sizes = pc.replace_with_mask(sizes, is_escaped, pa.array(escaped, pa.int64()))
    return sizes.take(distinct.indices)
