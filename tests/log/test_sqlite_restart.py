"""What the SQLite log still knows after it was closed, or killed, and opened again."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from himalia.log import Batch
from himalia.record import Draft, Retention

from .backends import Backend, add, drafts, enforce_retention, read_all, soon
from .processes import APPENDER, LIMITED, read_line, run


async def reopen(sqlite: Backend, log: Any, **options: Any) -> Any:
    await log.close()
    return await sqlite.open(**options)


async def test_topics_and_records_are_kept(sqlite: Backend) -> None:
    """After a restart topics, epochs, limits, counters and records are what they were."""
    log = await sqlite.open()
    await log.create("a", Retention(age_s=2.5, bytes=1 << 40, count=7))
    await log.create("b.c")
    await log.create("gone")
    await add(log, "a", 20)
    await add(log, "b.c", 3)
    await log.delete("gone")
    await enforce_retention(log)
    topics, records = await log.topics(), await read_all(log, "a")
    log = await reopen(sqlite, log)
    assert await log.topics() == topics
    assert await read_all(log, "a") == records
    assert list((await add(log, "a", 1, "new")).offsets) == [20]


async def test_a_closed_log_is_one_file(sqlite: Backend) -> None:
    """Closing leaves everything in the main file, so that a plain copy of it is whole."""
    log = await sqlite.open()
    await log.create("t")
    await add(log, "t", 10)
    assert log.stats().disk_bytes > sqlite.path.stat().st_size
    await log.close()
    assert sorted(path.name for path in sqlite.path.parent.glob("log.db*")) == ["log.db", "log.db.lock"]
    assert log.stats().disk_bytes == sqlite.path.stat().st_size


async def test_time_does_not_go_back(sqlite: Backend) -> None:
    """Times of a topic do not decrease over a restart with a clock that was set back."""
    log = await sqlite.open()
    await log.create("t")
    await add(log, "t", 1, "a")
    sqlite.clock.set_ahead(-1000)
    log = await reopen(sqlite, log)
    await add(log, "t", 1, "b")
    first, second = await read_all(log, "t")
    assert first.ts_us == second.ts_us


async def test_numbers_of_topics_are_not_used_again(sqlite: Backend) -> None:
    """A topic created after a restart has nothing of one that was deleted and erased before it."""
    log = await sqlite.open()
    await log.create("t", Retention(count=1))
    await add(log, "t", 3)
    await add(log, "t", 3, "p", producer="p", sequence=1)
    await enforce_retention(log)
    await log.delete("t")
    await enforce_retention(log)
    log = await reopen(sqlite, log)
    await log.create("t")
    # The ids that were kept aside for the old topic are read with this one.
    log = await reopen(sqlite, log)
    assert await read_all(log, "t") == []
    assert (await add(log, "t", 3)).duplicates == 0
    assert (await add(log, "t", 3, "p", producer="p", sequence=1)).duplicates == 0


async def test_ids_are_recognised(sqlite: Backend) -> None:
    """A repeat is recognised after a restart, for as long as without one."""
    log = await sqlite.open(dedup_window_s=60.0)
    await log.create("t")
    await add(log, "t", 1, "old")
    sqlite.clock.advance(30)
    await add(log, "t", 1, "new")
    sqlite.clock.advance(30)
    log = await reopen(sqlite, log, dedup_window_s=60.0)
    assert list((await add(log, "t", 1, "new")).offsets) == [1]
    assert list((await add(log, "t", 1, "old")).offsets) == [2]


async def test_ids_of_removed_records_are_recognised(sqlite: Backend) -> None:
    """Also if retention removed the records limit_bytes the window; the same ids age as without the restart."""
    log = await sqlite.open(dedup_window_s=60.0)
    await log.create("t", Retention(count=1))
    for n in range(30):
        await add(log, "t", 1, f"{n}-")
        sqlite.clock.advance(3)
        await enforce_retention(log)
    log = await reopen(sqlite, log, dedup_window_s=60.0)
    assert (await log.info("t")).first == 29
    for n in range(30):
        again = await add(log, "t", 1, f"{n}-")
        age_s = (30 - n) * 3
        assert (list(again.offsets) == [n]) is (age_s < 60)


async def test_the_newest_ids_are_recognised(sqlite: Backend) -> None:
    """Of more ids than ``dedup_ids_max``, the newest are known after a restart, over all topics."""
    log = await sqlite.open(dedup_ids_max=10)
    for topic in ("a", "b", "c"):
        await log.create(topic)
    for topic in ("a", "b", "c"):
        sqlite.clock.advance(1)
        await add(log, topic, 6)
    log = await reopen(sqlite, log, dedup_ids_max=10)
    assert (await add(log, "c", 6)).duplicates == 6
    assert list((await soon(log.append(Batch("b", drafts(6)[2:])))).offsets) == [2, 3, 4, 5]
    assert (await add(log, "a", 1)).duplicates == 0


async def test_ids_kept_aside_are_dropped(sqlite: Backend) -> None:
    """What is remembered of removed records does not pile up: it goes when it no longer counts."""
    log = await sqlite.open(dedup_window_s=60.0)
    await log.create("t", Retention(count=1))
    await add(log, "t", 500)
    await enforce_retention(log)
    sqlite.clock.advance(61)
    await enforce_retention(log)
    await log.close()
    assert sqlite.query("SELECT count(*) FROM trimmed_ids") == [(0,)]


async def test_ids_kept_aside_are_bounded(sqlite: Backend) -> None:
    """Of removed records no more ids are kept than can be recognised."""
    log = await sqlite.open(dedup_ids_max=100)
    await log.create("t", Retention(count=1))
    for n in range(20):
        sqlite.clock.advance(0.001)
        await add(log, "t", 50, f"{n}-")
        await enforce_retention(log)
    await log.close()
    ((kept,),) = sqlite.query("SELECT count(*) FROM trimmed_ids")
    assert kept <= 150


async def test_producers_are_recognised(sqlite: Backend) -> None:
    """A producer's last batch is known after a restart, with its offsets, whatever has happened since."""
    log = await sqlite.open()
    await log.create("t", Retention(count=1))
    await add(log, "t", 1, "other")
    await add(log, "t", 3, producer="p", sequence=8)
    await add(log, "t", 1, "more")
    await enforce_retention(log)
    sqlite.clock.advance(1e6)
    log = await reopen(sqlite, log)
    assert list((await add(log, "t", 3, producer="p", sequence=8)).offsets) == [1, 2, 3]
    assert list((await add(log, "t", 3, producer="p", sequence=7)).offsets) == [-1, -1, -1]
    assert list((await add(log, "t", 1, producer="p", sequence=9)).offsets) == [5]


@pytest.mark.parametrize("acknowledged_min", [1, 300, 3000])
async def test_kill_9_takes_nothing_back(sqlite: Backend, acknowledged_min: int) -> None:
    """After SIGKILL every acknowledged record is where it was said to be, and offsets have no holes."""
    process = run(APPENDER, sqlite.path)
    try:
        lines = [read_line(process) for _ in range(acknowledged_min)]
        os.kill(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        # What it had said before it was killed; the last line may be cut off.
        lines += process.stdout.read().split("\n")[:-1]
    finally:
        process.kill()
        process.communicate()
    acknowledged = [line.split() for line in lines if line]
    sqlite.clock.now_us = 1_700_000_000_000_000
    log = await sqlite.open()
    records = await read_all(log, "t")
    assert [record.offset for record in records] == list(range(len(records)))
    for offset, id in acknowledged:
        assert records[int(offset)].id == id
    info = await log.info("t")
    assert (info.first, info.end) == (0, len(records))
    assert info.bytes == sum(record.size_bytes for record in records)
    await enforce_retention(log)
    end = (await log.info("cut")).end
    assert [record.offset for record in await read_all(log, "cut")] == list(range(max(end - 5, 0), end))


async def test_a_limit_on_file_size(sqlite: Backend) -> None:
    """Where the system lets a file grow no further the log fails cleanly, and recovers when it may."""
    process = run(LIMITED, sqlite.path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    stored, offset, end = map(int, output.split())
    assert 10 < stored == offset == end - 1
    log = await sqlite.open()
    assert [record.id for record in await read_all(log, "t")] == [str(n) for n in range(stored + 1)]


async def test_large_groups(sqlite: Backend) -> None:
    """Batches beyond the size of one statement, and of one transaction, are stored like any other."""
    log = await sqlite.open()
    await log.create("t")
    sizes = (1, 4095, 4096, 4097, 10_000)
    futures = [log.append(Batch("t", drafts(size, f"{size}-"))) for size in sizes]
    for future in futures:
        await soon(future)
    futures = [log.append(Batch("t", [Draft(f"big{n}", b"x" * 3_000_000)])) for n in range(8)]
    for future in futures:
        await soon(future)
    log = await reopen(sqlite, log)
    assert (await log.info("t")).end == sum(sizes) + 8
    records = await read_all(log, "t", bytes_max=1 << 16)
    assert [record.offset for record in records] == list(range(sum(sizes) + 8))


async def test_a_reader_is_never_ahead_of_the_end(sqlite: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is committed and not yet reported to the loop is read with its topic's new end, not before it."""
    log = await sqlite.open()
    await log.create("t")
    await add(log, "t", 3)
    log = await reopen(sqlite, log)  # So that the records are read from the file.
    reported, apply_report = asyncio.Event(), log._apply_report
    reports: list[Any] = []
    loop = asyncio.get_running_loop()

    def hold_back(report: Any) -> None:
        reports.append(report)
        if report.added:
            reported.set()

    monkeypatch.setattr(log, "_apply_report", hold_back)
    appended = asyncio.ensure_future(add(log, "t", 2, "new"))
    await soon(reported.wait())
    chunk, info = await log.read("t", 0, limit=10), await log.info("t")
    assert (len(chunk.records), chunk.end, info.end) == (3, 3, 3)
    monkeypatch.setattr(log, "_apply_report", apply_report)
    for report in reports:
        loop.call_soon(apply_report, report)
    assert list((await soon(appended)).offsets) == [3, 4]
    assert len((await log.read("t", 0, limit=10)).records) == 5
