"""Records column by column, for callers that read whole topics and look at few fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from himalia.log.api import Chunk


class PackedColumn(msgspec.Struct, frozen=True):
    """The values of one column, concatenated, and the length of each in bytes."""

    data: bytes
    lengths: Sequence[int]


class ColumnChunk(msgspec.Struct, frozen=True):
    """A ``Chunk`` without an object for each record: consecutive records from offset ``start`` on."""

    start: int
    ts_us: Sequence[int]
    ids: PackedColumn
    headers: PackedColumn
    payloads: PackedColumn
    first: int
    end: int
    epoch: str

    def __len__(self) -> int:
        return len(self.ts_us)

    @property
    def stop(self) -> int:
        """The offset after the last one."""
        return self.start + len(self.ts_us)


def to_columns(chunk: Chunk, start: int) -> ColumnChunk:
    """Convert a chunk of records. ``start`` is the offset of an empty one."""
    records = chunk.records
    return ColumnChunk(
        records[0].offset if records else start,
        [record.ts_us for record in records],
        _pack([record.id.encode() for record in records]),
        _pack([record.headers for record in records]),
        _pack([record.payload for record in records]),
        chunk.first,
        chunk.end,
        chunk.epoch,
    )


def _pack(values: Sequence[bytes]) -> PackedColumn:
    return PackedColumn(b"".join(values), [len(value) for value in values])
