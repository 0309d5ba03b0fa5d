"""Records as a stream of Arrow record batches. Needs the extra ``himalia[arrow]``.

A whole log is read this way, beside everything else that the server does. So nothing here makes objects for each
record: columns come joined from the log, and Arrow's own functions, which leave the interpreter to others, do most of
the rest.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec

from himalia.errors import ConfigurationError
from himalia.log.columns import Columns, Joined

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:  # told to the caller of ArrowStream, not at import
    pa = None

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

    def batch(self, topic: str, columns: Columns) -> memoryview:
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


def _binary(joined: Joined) -> Any:
    """The array that these bytes are already, once it is known where each value ends."""
    ends = pc.cumulative_sum(pa.array([0, *joined.lengths], pa.int32()))
    return pa.Array.from_buffers(
        pa.binary(), len(joined.lengths), [None, ends.buffers()[1], pa.py_buffer(joined.data)]
    )


def _texts(joined: Joined) -> Any:
    found = _binary(joined)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        # Not UTF-8, which no client can publish; what a kernel says is kept as it came.
        return pa.array([value.decode(errors="replace") for value in found.to_pylist()], pa.string())


def _maps(headers: Joined) -> Any:
    """Headers as maps. They repeat from record to record, so each is decoded once, and all of them in one go."""
    distinct = _binary(headers).dictionary_encode()
    maps = _decoded(distinct.dictionary.to_pylist())
    ends = pa.array([0, *accumulate(map(len, maps))], pa.int32())
    names = pa.array([name for each in maps for name in each], pa.string())
    values = pa.array([value for each in maps for value in each.values()], pa.string())
    return pa.MapArray.from_arrays(ends, names, values).take(distinct.indices)


def _decoded(headers: list[bytes]) -> list[dict[str, str]]:
    joined = b"[" + b",".join(headers) + b"]"
    try:
        return _decode_headers(joined)
    except UnicodeDecodeError:
        return _decode_headers(joined.decode(errors="replace"))
