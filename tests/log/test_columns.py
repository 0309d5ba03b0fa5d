"""Reading by columns gives what reading by records gives, on every log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from himalia.errors import LogUnavailable, TopicNotFound
from himalia.log import Batch
from himalia.log.columnar import ColumnChunk, PackedColumn
from himalia.record import Draft, Retention

from .backends import Backend, add, enforce_retention, read_all, soon


def values(joined: PackedColumn) -> Iterator[bytes]:
    at = 0
    for length in joined.lengths:
        yield joined.data[at : at + length]
        at += length
    assert at == len(joined.data)


async def all_columns(log: Any, topic: str, *, bytes_max: int) -> list[ColumnChunk]:
    """A topic in pieces, from its first record to its end."""
    end = (await log.info(topic)).end
    pieces: list[ColumnChunk] = []
    at = 0
    while at < end:
        pieces.append(await log.read_columns(topic, at, end, bytes_max=bytes_max))
        assert len(pieces[-1])
        at = pieces[-1].stop
    return pieces


ODD = [
    Draft("plain", b'{"a": 1}', b'{"h":"x"}'),
    Draft("", b"", b""),
    Draft("ünï\0cödé ☄", b'"\xc3\xbc\x00\xff\n"', b"{}"),
]


@pytest.mark.parametrize("bytes_max", [1, 100, 5000, 1 << 20])
async def test_columns_are_records_turned_round(log: Any, bytes_max: int) -> None:
    """To the byte, whatever the records' sizes and wherever the pieces end."""
    await log.create("t")
    for n in range(30):
        sent = [*ODD, Draft(f"m{n}", b"x" * (n * 137 % 700)), Draft(f"l{n}", b"y" * (50_000 * (n == 17)))]
        await soon(log.append(Batch("t", sent)))
    expected = await read_all(log, "t")
    pieces = await all_columns(log, "t", bytes_max=bytes_max)
    assert [offset for each in pieces for offset in range(each.start, each.stop)] == [
        r.offset for r in expected
    ]
    assert [ts for each in pieces for ts in each.ts_us] == [record.ts_us for record in expected]
    assert [id.decode() for each in pieces for id in values(each.ids)] == [record.id for record in expected]
    assert [one for each in pieces for one in values(each.headers)] == [record.headers for record in expected]
    assert [one for each in pieces for one in values(each.payloads)] == [
        record.payload for record in expected
    ]


async def test_pieces_are_about_as_large_as_asked_for(log: Any) -> None:
    """Also where small records come before large ones, so that the average misleads; then all is as before."""
    await log.create("t")
    await soon(log.append(Batch("t", [Draft(f"s{i}", b"x" * 10) for i in range(3000)])))
    await soon(log.append(Batch("t", [Draft(f"l{i}", b"x" * 300_000) for i in range(40)])))
    pieces = await all_columns(log, "t", bytes_max=1 << 20)
    assert max(len(each.payloads.data) for each in pieces) <= 2 << 20
    assert len(pieces) < 40
    assert len((await log.read("t", 3000, limit=10, bytes_max=10 << 20)).records) == 10


async def test_columns_end_where_they_are_told_to(log: Any) -> None:
    await log.create("t")
    await add(log, "t", 10, "m")
    found = await log.read_columns("t", 3, 6)
    assert (found.start, found.stop, found.first, found.end) == (3, 6, 0, 10)
    for start, stop in ((6, 6), (8, 3), (10, 20), (50, 60)):
        assert len(await log.read_columns("t", start, stop)) == 0


async def test_columns_begin_at_the_first_record_kept(log: Any) -> None:
    """And still end where they are told to."""
    await log.create("t", Retention(count=4))
    await add(log, "t", 10, "m")
    await enforce_retention(log)
    found = await log.read_columns("t", 2, 8)
    assert (found.start, found.stop, found.first) == (6, 8, 6)
    assert len(await log.read_columns("t", 2, 5)) == 0


async def test_columns_of_what_is_not_there(log: Any, backend: Backend) -> None:
    with pytest.raises(TopicNotFound):
        await log.read_columns("no", 0, 1)
    await log.close()
    with pytest.raises(LogUnavailable):
        await log.read_columns("no", 0, 1)
