"""How the SQLite log writes: many batches in one commit, and what can wait in small steps in between."""
# ruff: noqa: ASYNC240 - the files are small, and nothing else runs on this loop

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from himalia.log import Batch
from himalia.log.sqlite import maintenance, retention, storage, store, writer
from himalia.log.sqlite.commands import AppendCommand
from himalia.log.sqlite.multi_row_insert import ROWS_MAX, VARIABLES_MAX, MultiRowInsert
from himalia.record import Draft, Retention

from .backends import Backend, add, drafts, enforce_retention, read_all, soon

ROWS = 20_000


async def a_large_topic(sqlite: Backend, name: str = "t") -> None:
    log = await sqlite.open()
    await log.create(name)
    await add(log, name, ROWS)
    await log.close()
    # So old that no id of it counts any more.
    sqlite.clock.advance(1000)


class StepsWatch:
    """Counts the steps of maintenance that begin between an append's entry into the writer's queue and its commit.

    Looked at in the writer itself: what the loop is told comes later the busier the machine is. The entry is noted
    after it happened, so a pause of the test's own thread can make a count too small, never too large.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._steps = 0
        self._entered: list[int] = []
        self._written: list[int] = []
        step, write, submit = maintenance.Maintenance.step, store.Store.write, writer.Writer.submit

        def counted_step(maintenance: Any, *args: Any, **kwargs: Any) -> Any:
            self._steps += 1
            return step(maintenance, *args, **kwargs)

        def counted_write(its_store: Any, transaction: Any) -> None:
            self._written.append(self._steps)
            write(its_store, transaction)

        def counted_submit(its_writer: Any, command: Any) -> None:
            submit(its_writer, command)
            if isinstance(command, AppendCommand):
                self._entered.append(self._steps)

        monkeypatch.setattr(maintenance.Maintenance, "step", counted_step)
        monkeypatch.setattr(store.Store, "write", counted_write)
        monkeypatch.setattr(writer.Writer, "submit", counted_submit)

    async def append_while(self, log: Any, topic: str, is_going_on: Any) -> list[int]:
        """Append one record after the other; of each, how many steps began while it waited."""
        while await is_going_on():
            await add(log, topic, 1, f"w{len(self._written)}-")
        return [written - entered for entered, written in zip(self._entered, self._written, strict=True)]


class TestGrouping:
    async def test_waiting_batches_share_a_commit(self, sqlite: Backend) -> None:
        """Of appends that are under way together, far fewer commits are made than there are batches."""
        log = await sqlite.open()
        await log.create("t")
        before = log.stats().commits
        await soon(asyncio.gather(*[log.append(Batch("t", drafts(1, f"{n}-"))) for n in range(2000)]))
        stats = log.stats()
        assert stats.records == 2000
        assert stats.commits - before < 200
        assert len(stats.commit_seconds) == stats.commits - before
        assert log.stats().commit_seconds == []

    async def test_repeats_alone_cost_no_commit(self, sqlite: Backend) -> None:
        """A batch of which everything is known is answered without writing."""
        log = await sqlite.open()
        await log.create("t")
        await add(log, "t", 10)
        before = log.stats().commits
        await add(log, "t", 10)
        assert log.stats().commits == before

    def test_one_statement_takes_many_rows(self) -> None:
        """Every number of rows is inserted whole, in as few statements as SQLite's limits allow."""
        statements: list[str] = []
        db = sqlite3.connect(":memory:", isolation_level=None)
        db.execute("CREATE TABLE things (a, b)")
        db.set_trace_callback(lambda statement: statements.append(statement))
        insert = MultiRowInsert("things", 2)
        total = 0
        for rows in (0, 1, 2, 3, 5, 100, 1000, ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 1, 3 * ROWS_MAX):
            statements.clear()
            insert(db, [value for n in range(rows) for value in (total + n, None)])
            assert len(statements) == -(-rows // ROWS_MAX)
            total += rows
        assert db.execute("SELECT count(*), count(DISTINCT a) FROM things").fetchone() == (total, total)
        assert ROWS_MAX * 7 <= VARIABLES_MAX


class TestRetentionInSteps:
    async def test_publishing_does_not_wait_for_it(
        self, sqlite: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While very much is being removed, an append waits for one step, not for all of them."""
        await a_large_topic(sqlite)
        log = await sqlite.open(retention=Retention(count=10), retention_interval_s=0.0)
        await log.create("other")

        async def is_going_on() -> bool:
            return (await log.info("t")).first < ROWS - 10  # type: ignore[no-any-return]

        watch = StepsWatch(monkeypatch)
        waited = await watch.append_while(log, "other", is_going_on)
        # One may begin between the writer's last look at the queue and the append's arrival there.
        assert max(waited) <= 1
        assert log.stats().steps >= ROWS // maintenance.STEP_ROWS - 1
        assert [record.offset for record in await read_all(log, "t")] == list(range(ROWS - 10, ROWS))

    async def test_readers_see_no_hole_meanwhile(self, sqlite: Backend) -> None:
        """At every moment a read gives consecutive records from the first that is kept."""
        await a_large_topic(sqlite)
        log = await sqlite.open(retention=Retention(count=10), retention_interval_s=0.0)
        while True:
            chunk = await log.read("t", 0, limit=50)
            offsets = [record.offset for record in chunk.records]
            assert offsets == list(range(chunk.first, min(chunk.first + 50, ROWS)))
            if chunk.first == ROWS - 10:
                break

    async def test_it_keeps_pace(self, sqlite: Backend) -> None:
        """A topic that is written to without pause does not outgrow its limit by more than a few groups."""
        log = await sqlite.open(dedup_window_s=0.0)
        await log.create("t", Retention(count=100))
        largest = 0
        for n in range(30):
            await soon(asyncio.gather(*[log.append(Batch("t", drafts(500, f"{n}-{i}-"))) for i in range(8)]))
            info = await log.info("t")
            largest = max(largest, info.end - info.first)
        assert largest < 30_000
        await enforce_retention(log)
        assert (await log.info("t")).first == 120_000 - 100

    async def test_a_little_too_much_waits_for_the_tick(self, sqlite: Backend) -> None:
        """A topic slightly beyond its limit is not cut after every append."""
        log = await sqlite.open()
        await log.create("t", Retention(count=10))
        for n in range(100):
            await add(log, "t", 1, f"{n}-")
        assert (await log.info("t")).first == 0
        await enforce_retention(log)
        assert (await log.info("t")).first == 90

    async def test_large_records_make_small_steps(self, sqlite: Backend, monkeypatch: Any) -> None:
        """A step removes only so many bytes, however few records they are."""
        monkeypatch.setattr("himalia.log.sqlite.trim.STEP_BYTES", 10_000)
        log = await sqlite.open()
        await log.create("t", Retention(count=1))
        await soon(log.append(Batch("t", [Draft(f"{n}", b"x" * 4000) for n in range(50)])))
        before = log.stats().steps
        await enforce_retention(log)
        assert (await log.info("t")).first == 49
        assert log.stats().steps - before >= 49 // 3

    async def test_age_after_a_restart(self, sqlite: Backend) -> None:
        """Topics whose records grew old while the log was closed are cut after it is opened."""
        log = await sqlite.open()
        for n in range(50):
            await log.create(f"t{n}", Retention(age_s=60))
            await add(log, f"t{n}", 3)
            sqlite.clock.advance(2)
        await log.close()
        log = await sqlite.open()
        await enforce_retention(log)
        kept = [info.name for info in await log.topics() if info.first < info.end]
        # Ages are 100, 98, ..., 2 seconds.
        assert kept == sorted(f"t{n}" for n in range(20, 50))


class TestErasing:
    async def test_the_name_is_free_at_once(self, sqlite: Backend) -> None:
        """A topic with very many records can be deleted and created again without waiting for its erasing."""
        await a_large_topic(sqlite)
        log = await sqlite.open()
        before = log.stats().steps
        await log.delete("t")
        await log.create("t")
        assert list((await add(log, "t", 1)).offsets) == [0]
        assert log.stats().steps - before < ROWS // maintenance.STEP_ROWS
        await enforce_retention(log)
        await log.close()
        assert sqlite.query("SELECT count(*) FROM records") == [(1,)]
        assert sqlite.query("SELECT count(*) FROM topics") == [(1,)]
        assert sqlite.query("SELECT count(*) FROM topic_state") == [(1,)]

    async def test_publishing_does_not_wait_for_it(
        self, sqlite: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While a large topic is being erased, an append waits for one step."""
        await a_large_topic(sqlite)
        log = await sqlite.open()
        await log.create("other")
        await log.delete("t")
        settled = asyncio.ensure_future(enforce_retention(log))

        async def is_going_on() -> bool:
            return not settled.done()

        assert max(await StepsWatch(monkeypatch).append_while(log, "other", is_going_on)) <= 1
        await settled

    async def test_it_goes_on_after_a_restart(self, sqlite: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """What could not be erased in the time that closing has is erased when the log is open again."""
        monkeypatch.setattr(storage, "ERASE_AT_STOP_S", 0.0)
        await a_large_topic(sqlite)
        log = await sqlite.open()
        await log.delete("t")
        await log.close()
        ((left,),) = sqlite.query("SELECT count(*) FROM records")
        assert left > 0
        log = await sqlite.open()
        assert list(await log.topics()) == []
        await enforce_retention(log)
        await log.close()
        assert sqlite.query("SELECT count(*) FROM records") == [(0,)]
        assert sqlite.query("SELECT count(*) FROM topics") == [(0,)]

    @pytest.mark.parametrize("is_settled", [True, False])
    async def test_nothing_is_left_in_the_files(self, sqlite: Backend, is_settled: bool) -> None:
        """After a topic was deleted, none of its records' bytes is in the file or in the write-ahead log: while the
        log is open, when erasing is done; and after it was closed. (Of records of one size: SQLite may leave parts of
        others in pages that topics share, see docs/security.md.)"""
        log = await sqlite.open()
        await log.create("kept")
        await log.create("t")
        for n in range(20):
            secrets = [Draft(f"secret-id-{n}-{i}", b'"secret-payload-%d"' % i) for i in range(50)]
            await soon(log.append(Batch("t", secrets)))
            await add(log, "kept", 5, f"kept{n}-")
        await log.delete("t")
        if is_settled:
            await enforce_retention(log)
            await enforce_retention(log)
            left = sqlite.path.read_bytes() + Path(f"{sqlite.path}-wal").read_bytes()
            assert (left.count(b"secret-id"), left.count(b"secret-payload")) == (0, 0)
        await log.close()
        left = sqlite.path.read_bytes()
        assert (left.count(b"secret-id"), left.count(b"secret-payload")) == (0, 0)
        assert left.count(b"kept19-4")

    async def test_producers_go_too(self, sqlite: Backend) -> None:
        """What is known of a deleted topic's producers is erased with it, however many there are."""
        log = await sqlite.open()
        await log.create("t")
        await log.create("kept")
        futures = [log.append(Batch("t", [], None, f"p{n}", 1)) for n in range(1700)]
        futures.append(log.append(Batch("kept", [], None, "p", 1)))
        await soon(asyncio.gather(*futures))
        await log.delete("t")
        await enforce_retention(log)
        await log.close()
        assert sqlite.query("SELECT producer FROM producers") == [("p",)]

    async def test_deleted_topics_leave_nothing_in_memory(
        self, sqlite: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Topics that come and go do not wait in memory for the age at which their records would be removed."""
        monkeypatch.setattr(retention, "STALE_MAX", 10)
        log = await sqlite.open()
        for number in range(100):
            await log.create(f"t{number}", Retention(age_s=1000))
            await add(log, f"t{number}", 1)
            await log.delete(f"t{number}")
        assert len(log._writer._storage.maintenance._retention._by_age) <= 11
        await log.close()

    async def test_many_topics(self, sqlite: Backend) -> None:
        """Many deleted topics are erased, with and without records, while others are cut."""
        log = await sqlite.open()
        await log.create("cut", Retention(count=1))
        for n in range(100):
            await log.create(f"t{n}")
            await add(log, f"t{n}", n % 3)
        await add(log, "cut", 2000)
        await soon(asyncio.gather(*[log.delete(f"t{n}") for n in range(100)]))
        await enforce_retention(log)
        await log.close()
        assert sqlite.query("SELECT count(*) FROM records") == [(1,)]
        assert sqlite.query("SELECT count(*) FROM topics") == [(1,)]

    async def test_space_is_given_back(self, sqlite: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """When most of the file is free it shrinks."""
        monkeypatch.setattr(store, "SHRINK_PAGES_MIN", 16)
        await a_large_topic(sqlite)
        before = os.stat(sqlite.path).st_size
        log = await sqlite.open()
        await log.delete("t")
        await enforce_retention(log)
        await log.close()
        assert os.stat(sqlite.path).st_size < before / 4

    async def test_space_is_used_again(self, sqlite: Backend) -> None:
        """Records that come take the place of those that went: the file does not grow for ever."""
        log = await sqlite.open(dedup_window_s=0.0)
        await log.create("t", Retention(count=100))
        sizes = []
        for n in range(12):
            await add(log, "t", 3000, f"{n}-")
            await enforce_retention(log)
            sizes.append(sqlite.query("PRAGMA page_count")[0][0])
        assert sizes[-1] < sizes[2] * 1.5
