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

_ESCAPED = r'["\\\x00-\x1f]'


def messages(records: DataFrame) -> DataFrame:
    """Return rows of ``messages`` from records as the connector reads them, with an additional column ``epoch``."""
    # Imported here because executors, which import this module, may lack the packages that the catalog needs.
    from himalia.tables.catalog import MESSAGES

    return records.mapInArrow(_convert_batches, MESSAGES.ddl)


def _convert_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield rows_of(batch, batch.column("epoch"))


def rows_of(records: pa.RecordBatch, epochs: pa.Array) -> pa.RecordBatch:
    """Return rows of ``messages`` from an Arrow batch of records and their epochs. Runs on executors."""
    record = dict(zip(records.schema.names, records.columns, strict=True))
    columns = {
        "topic": record["topic"],
        "epoch": epochs,
        "offset": record["offset"],
        "ts": record["timestamp"],
        "id": record["id"],
        "publisher": pc.map_lookup(record["headers"], pa.scalar("publisher"), "first"),
        "headers": record["headers"],
        "payload": record["value"],
        "bytes": _size_bytes(record["id"], record["headers"], record["value"]),
        "date": record["timestamp"].cast(pa.date32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _size_bytes(ids: pa.Array, headers: pa.MapArray, payloads: pa.Array) -> pa.Array:
    """Compute the size as ``himalia.record.size_bytes`` does, with the headers as JSON without spaces."""
    # Each header has quotes, a colon and a comma; the last of a record has no comma, but the record has braces.
    each = pc.add(pc.add(_json_bytes(headers.keys), _json_bytes(headers.items)), len('"":"",'))
    upto = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(each)])
    ends = upto.take(headers.offsets)
    of_headers = pc.subtract(ends[1:], ends[:-1])
    braces = pc.if_else(pc.equal(of_headers, 0), len("{}"), len("{}") - len(","))
    texts = pc.add(pc.utf8_length(ids), pc.binary_length(payloads))
    return pc.add(pc.add(of_headers, braces), texts.cast(pa.int64())).cast(pa.int64())


def _json_bytes(texts: pa.Array) -> pa.Array:
    """Return the size of each text in JSON, without quotes. Most texts repeat, so each distinct one is encoded once."""
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
