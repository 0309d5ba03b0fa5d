"""Encodes records as a stream of Arrow record batches. Needs the extra ``himalia[arrow]``.

Spark reads whole logs this way while the server does its other work. So no objects are created for each record: the log
returns packed columns, and most of the rest is done by functions of Arrow, which release the GIL.
"""

from __future__ import annotations

from typing import Any

import msgspec

from himalia.errors import ConfigurationError
from himalia.log.columnar import ColumnChunk, PackedColumn

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:  # raised by ArrowStream, not at import
    pa = None
else:
    # malloc's pool: Arrow's default pool does not return freed memory to the system.
    pa.set_memory_pool(pa.system_memory_pool())

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_decode_headers = msgspec.json.Decoder(list[dict[str, str]]).decode


class ArrowStream:
    """Encodes columns as one Arrow IPC stream: ``head``, ``batch``..., ``tail``. Not thread-safe."""

    def __init__(self) -> None:
        if pa is None:
            raise ConfigurationError("Arrow needs pyarrow on the server: pip install 'himalia[arrow]'")
        self._schema: Any = pa.schema(
            [
                pa.field("topic", pa.string(), nullable=False),
                pa.field("offset", pa.int64(), nullable=False),
                pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
                pa.field("id", pa.string(), nullable=False),
                pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
                pa.field("payload", pa.string(), nullable=False),
            ]
        )

    def head(self) -> bytes:
        """Return the schema message."""
        return bytes(self._schema.serialize())

    def batch(self, topic: str, columns: ColumnChunk) -> memoryview:
        arrays = [
            pa.repeat(topic, len(columns)),
            pa.arange(columns.start, columns.stop),
            pa.array(columns.ts_us, pa.int64()).view(pa.timestamp("us", tz="UTC")),
            _to_string_array(columns.ids),
            _to_header_maps(columns.headers),
            _to_string_array(columns.payloads),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return memoryview(batch.serialize())

    def tail(self) -> bytes:
        """Return the end-of-stream mark."""
        return END_OF_STREAM


def _to_array(kind: Any, joined: PackedColumn) -> Any:
    """Make an array of packed values without copying them: only their ends are computed."""
    ends = pc.cumulative_sum(pa.array([0, *joined.lengths], pa.int32()))
    return pa.Array.from_buffers(
        kind, len(joined.lengths), [None, ends.buffers()[1], pa.py_buffer(joined.data)]
    )


def _to_string_array(joined: PackedColumn) -> Any:
    if joined.data.isascii():
        return _to_array(pa.string(), joined)
    found = _to_array(pa.binary(), joined)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        # Not UTF-8: clients cannot publish that, but kernels' messages are stored unchanged.
        return pa.array([value.decode(errors="replace") for value in found.to_pylist()], pa.string())


def _to_header_maps(headers: PackedColumn) -> Any:
    """Make maps of headers. Headers repeat from record to record, so each distinct one is parsed once."""
    distinct = _to_array(pa.binary(), headers).dictionary_encode()
    maps = None if b"\\" in headers.data else _parse_headers_vectorized(distinct.dictionary)
    if maps is None:
        maps = _parse_headers_json(distinct.dictionary.to_pylist())
    return maps.take(distinct.indices)


def _parse_headers_vectorized(headers: Any) -> Any | None:
    """Parse headers without a JSON decoder, which would hold the GIL for as long as everything else here takes.

    Without escapes, splitting at the quotes yields ``{``, name, ``:``, value, ``,``, name, and so on to ``}``. Returns
    None for headers of another form, for example with white space.
    """
    pieces = pc.split_pattern(headers, b'"')
    try:
        texts = pieces.flatten().cast(pa.string())
    except pa.ArrowInvalid:
        return None
    counts = pc.shift_right(pieces.value_lengths(), pa.scalar(2, pa.int32()))
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
    count = ends[-1].as_py()
    if len(texts) != 4 * count + len(headers):
        return None
    # A pair's name is preceded by four texts for each earlier pair, one for each earlier header, and one brace.
    before = pc.list_parent_indices(pa.ListArray.from_arrays(ends, pa.nulls(count)))
    at = pc.add(pc.add(pa.arange(0, 4 * count, 4), before), 1)
    names, values = texts.take(at), texts.take(pc.add(at, 2))
    # Every other character must be a brace, a colon or a comma; otherwise the form is another one.
    signs = 2 * len(headers) + 2 * count - pc.sum(pc.greater(counts, 0)).as_py()
    if _count_bytes(headers) != _count_bytes(names) + _count_bytes(values) + 4 * count + signs:
        return None
    return pa.MapArray.from_arrays(ends, names, values)


def _count_bytes(values: Any) -> int:
    return pc.sum(pc.binary_length(values)).as_py() or 0


def _parse_headers_json(headers: list[bytes]) -> Any:
    """Parse headers of any form with a JSON decoder."""
    joined = b"[" + b",".join(headers) + b"]"
    maps = _decode_headers(joined.decode(errors="replace"))
    return pa.array([list(each.items()) for each in maps], pa.map_(pa.string(), pa.string()))
