"""Records as a stream of Arrow record batches. Needs the extra ``himalia[arrow]``.

A whole log is read this way, beside everything else that the server does. So nothing here makes objects for each
record: columns come joined from the log, and Arrow's own functions, which leave the interpreter to others, do most of
the rest.
"""

from __future__ import annotations

from typing import Any

import msgspec

from himalia.errors import ConfigurationError
from himalia.log.columnar import ColumnChunk, PackedColumn

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:  # told to the caller of ArrowStream, not at import
    pa = None
else:
    # The C library's: Arrow's own keeps freed memory to itself.
    pa.set_memory_pool(pa.system_memory_pool())

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_decode_headers = msgspec.json.Decoder(list[dict[str, str]]).decode


class ArrowStream:
    """Turns columns into the bytes of one Arrow IPC stream: ``head``, ``batch``..., ``tail``. For any one thread."""

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
        """The schema."""
        return bytes(self._schema.serialize())

    def batch(self, topic: str, columns: ColumnChunk) -> memoryview:
        arrays = [
            pa.repeat(topic, len(columns)),
            pa.arange(columns.start, columns.stop),
            pa.array(columns.ts_us, pa.int64()).view(pa.timestamp("us", tz="UTC")),
            _texts(columns.ids),
            _maps(columns.headers),
            _texts(columns.payloads),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return memoryview(batch.serialize())

    def tail(self) -> bytes:
        """The end-of-stream mark."""
        return END_OF_STREAM


def _array(kind: Any, joined: PackedColumn) -> Any:
    """The array that these bytes are already, once it is known where each value ends."""
    ends = pc.cumulative_sum(pa.array([0, *joined.lengths], pa.int32()))
    return pa.Array.from_buffers(
        kind, len(joined.lengths), [None, ends.buffers()[1], pa.py_buffer(joined.data)]
    )


def _texts(joined: PackedColumn) -> Any:
    if joined.data.isascii():
        return _array(pa.string(), joined)
    found = _array(pa.binary(), joined)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        # Not UTF-8, which no client can publish; what a kernel says is kept as it came.
        return pa.array([value.decode(errors="replace") for value in found.to_pylist()], pa.string())


def _maps(headers: PackedColumn) -> Any:
    """Headers as maps. They repeat from record to record, so that each is looked at once."""
    distinct = _array(pa.binary(), headers).dictionary_encode()
    maps = None if b"\\" in headers.data else _split(distinct.dictionary)
    if maps is None:
        maps = _decoded(distinct.dictionary.to_pylist())
    return maps.take(distinct.indices)


def _split(headers: Any) -> Any | None:
    """Headers as maps without a JSON decoder, which would need the interpreter for as long as all the rest takes.

    Where nothing is escaped, quotes alone tell what is what: ``{``, name, ``:``, value, ``,``, name, and so on to
    ``}``. None for headers of another form, such as one with white space.
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
    # Before a header's pairs stand four texts for each pair before it, one for each header before it, and one brace.
    before = pc.list_parent_indices(pa.ListArray.from_arrays(ends, pa.nulls(count)))
    at = pc.add(pc.add(pa.arange(0, 4 * count, 4), before), 1)
    names, values = texts.take(at), texts.take(pc.add(at, 2))
    # All that is neither name, value nor quote has to be a brace, a colon or a comma.
    signs = 2 * len(headers) + 2 * count - pc.sum(pc.greater(counts, 0)).as_py()
    if _size(headers) != _size(names) + _size(values) + 4 * count + signs:
        return None
    return pa.MapArray.from_arrays(ends, names, values)


def _size(values: Any) -> int:
    return pc.sum(pc.binary_length(values)).as_py() or 0


def _decoded(headers: list[bytes]) -> Any:
    """Headers as maps, whatever their form."""
    joined = b"[" + b",".join(headers) + b"]"
    maps = _decode_headers(joined.decode(errors="replace"))
    return pa.array([list(each.items()) for each in maps], pa.map_(pa.string(), pa.string()))
