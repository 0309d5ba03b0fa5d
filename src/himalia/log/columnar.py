"""Records column by column, for those who read very many and look at few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from himalia.log.api import Chunk


class PackedColumn(msgspec.Struct, frozen=True):
    """Texts one after the other, and the length of each, in bytes."""

    data: bytes
    lengths: Sequence[int]


class ColumnChunk(msgspec.Struct, frozen=True):
    """What ``Chunk`` is, without an object for each record: the records from offset ``start`` on, none left out."""

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
    """For a log that has its records as objects. ``start`` is told where there are none."""
    records = chunk.records
    return ColumnChunk(
        records[0].offset if records else start,
        [record.ts_us for record in records],
        _joined([record.id.encode() for record in records]),
        _joined([record.headers for record in records]),
        _joined([record.payload for record in records]),
        chunk.first,
        chunk.end,
        chunk.epoch,
    )


def _joined(parts: Sequence[bytes]) -> PackedColumn:
    return PackedColumn(b"".join(parts), [len(part) for part in parts])
