"""Records as a stream of Arrow record batches. Needs the extra ``himalia[arrow]``."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from himalia.errors import ConfigurationError
from himalia.record import Record

try:
    import pyarrow as pa
except ImportError:  # told to the caller of ArrowStream, not at import
    pa = None


@lru_cache(maxsize=4096)
def _pairs(headers: bytes) -> tuple[tuple[str, str], ...]:
    """Headers repeat from record to record, so most are decoded once."""
    return tuple(msgspec.json.decode(headers, type=dict[str, str]).items())


class ArrowStream:
    """Turns batches of records into the bytes of one Arrow IPC stream: ``head``, ``batch``..., ``tail``."""

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
        self._sink = io.BytesIO()
        self._writer: Any = pa.ipc.new_stream(self._sink, self._schema)

    def head(self) -> bytes:
        """The schema."""
        return self._taken()

    def batch(self, records: Sequence[Record]) -> bytes:
        columns = [
            pa.array([record.topic for record in records], pa.string()),
            pa.array([record.offset for record in records], pa.int64()),
            pa.array([record.ts_us for record in records], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array([record.id for record in records], pa.string()),
            pa.array([_pairs(record.headers) for record in records], pa.map_(pa.string(), pa.string())),
            pa.array([record.payload for record in records], pa.binary()).cast(pa.string()),
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return self._taken()

    def tail(self) -> bytes:
        """The end-of-stream mark."""
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data
