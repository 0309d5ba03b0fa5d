"""A disk that fails under the SQLite log, and comes back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from himalia.errors import InternalError, LogFull, LogLocked, LogReadOnly, LogUnavailable
from himalia.log import Batch, LogOptions
from himalia.log.sqlite import SqliteLog
from himalia.log.sqlite.commands import StopCommand
from himalia.log.sqlite.errors import translate
from himalia.log.sqlite.store import Store
from himalia.record import Draft, Retention
from tests.small_file_system import fill_up, mount, small_file_system

from .backends import Backend, add, drafts, enforce_retention, eventually, read_all, soon


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "disk", megabytes=8) as path:
        yield path


@contextmanager
def filled_up(disk: Path) -> Iterator[None]:
    """Not a byte is left on the disk meanwhile."""
    filler = fill_up(disk)
    try:
        yield
    finally:
        filler.unlink()


async def recovered(log: Any) -> None:
    async def is_well() -> bool:
        return (await log.health()).ok  # type: ignore[no-any-return]

    await eventually(is_well)


class TestFullDisk:
    async def test_no_room_for_the_shared_memory_file(self, sqlite: Backend, small_disk: Path) -> None:
        """SQLite calls it an I/O error; Himalia says that the disk is full all the same."""
        path = sqlite.path = small_disk / "log.db"
        log = await sqlite.open()
        await log.create("t")
        await log.close()
        with filled_up(small_disk):
            connection = sqlite3.connect(path)
            with pytest.raises(sqlite3.OperationalError) as caught:
                connection.execute("SELECT * FROM topics")
            connection.close()
            assert caught.value.sqlite_errorname == "SQLITE_IOERR_SHMSIZE"
            assert isinstance(translate(caught.value, path), LogFull)

    async def test_it_fails_and_recovers(self, sqlite: Backend, small_disk: Path) -> None:
        """On a full disk appends fail, health says what to do, reading goes on; with space all is well again,
        without anyone publishing, and what was acknowledged is there."""
        sqlite.path = small_disk / "log.db"
        log = await sqlite.open(probe_interval_s=0.01)
        await log.create("t")
        acknowledged = list((await add(log, "t", 100)).offsets)
        with filled_up(small_disk):
            with pytest.raises(LogFull):
                await fill(log)
            health = await log.health()
            assert not health.ok
            assert "free some" in health.problem
            assert str(sqlite.path) in health.problem
            assert [record.id for record in await read_all(log, "t")][:100] == [d.id for d in drafts(100)]
        await recovered(log)
        end = (await log.info("t")).end
        acknowledged += (await add(log, "t", 5, "after")).offsets
        assert acknowledged[-5:] == list(range(end, end + 5))
        stored = await read_all(log, "t")
        assert [record.offset for record in stored] == list(range(end + 5))
        await log.close()
        log = await sqlite.open()
        assert await read_all(log, "t") == stored

    async def test_a_failed_append_can_be_sent_again(self, sqlite: Backend, small_disk: Path) -> None:
        """What failed was not stored: sent again it is stored once; later batches did not take its place."""
        sqlite.path = small_disk / "log.db"
        log = await sqlite.open(probe_interval_s=0.01)
        await log.create("t")
        batch = Batch("t", [Draft(f"m{i}", b"x" * 1000) for i in range(500)])
        by_producer = Batch("t", [Draft(f"p{i}", b"x" * 1000) for i in range(500)], None, "p", 1)
        with filled_up(small_disk):
            for lost in (batch, by_producer):
                with pytest.raises(LogFull):
                    await soon(log.append(lost))
        await recovered(log)
        for again in (batch, by_producer):
            stored = await soon(log.append(again))
            assert (len(stored.offsets), stored.duplicates) == (500, 0)
            assert (await soon(log.append(again))).duplicates == 500
        assert (await log.info("t")).end == 1000

    async def test_nothing_can_be_created_or_deleted_by_halves(
        self, sqlite: Backend, small_disk: Path
    ) -> None:
        """Creating on a full disk fails and leaves no topic behind; afterwards it works."""
        sqlite.path = small_disk / "log.db"
        log = await sqlite.open(probe_interval_s=0.01)
        made: list[str] = []
        with filled_up(small_disk):
            with pytest.raises(LogFull):
                await create_many(log, made)
            assert sorted(info.name for info in await log.topics()) == sorted(made)
        await recovered(log)
        await log.create(f"t{len(made)}")

    async def test_opening_on_a_full_disk(self, sqlite: Backend, small_disk: Path) -> None:
        """A log that cannot be made for want of space says so."""
        with filled_up(small_disk), pytest.raises(LogFull):
            await SqliteLog(small_disk / "log.db").open()

    async def test_retention_fails_and_recovers(self, sqlite: Backend, small_disk: Path) -> None:
        """Retention that runs into a full disk goes on when there is space."""
        sqlite.path = small_disk / "log.db"
        log = await sqlite.open(probe_interval_s=0.01, cache_count_max=0)
        await log.create("t", Retention(count=10))
        await fill(log, until=400_000)
        with filled_up(small_disk):
            try:
                await enforce_retention(log)
            except LogFull:
                assert not (await log.health()).ok
        await recovered(log)
        await enforce_retention(log)
        records = await read_all(log, "t")
        assert len(records) == 10
        assert (await log.info("t")).bytes == sum(record.size_bytes for record in records)


async def create_many(log: Any, made: list[str]) -> None:
    """Create topics until there is an error."""
    while True:
        await log.create(f"t{len(made)}")
        made.append(f"t{len(made)}")


async def fill(log: Any, until: int = 1 << 60) -> None:
    """Append records of a kilobyte until so many bytes are stored, or there is an error."""
    n = 0
    while (await log.info("t")).bytes < until:
        await soon(log.append(Batch("t", [Draft(f"fill{n}-{i}", b"x" * 1000) for i in range(20)])))
        n += 1


class TestReadOnlyDisk:
    async def test_it_is_refused(self, sqlite: Backend, small_disk: Path) -> None:
        """A log on a disk that cannot be written is refused, with the reason; old or new."""
        sqlite.path = small_disk / "log.db"
        log = await sqlite.open()
        await log.close()
        assert mount("-o", "remount,ro", str(small_disk))
        for path in (sqlite.path, small_disk / "new.db"):
            with pytest.raises(LogReadOnly, match="writable"):
                await SqliteLog(path).open()

    async def test_the_lock_may_be_written_but_not_the_log(self, sqlite: Backend, small_disk: Path) -> None:
        """A log that only its directory allows to write is refused too."""
        (small_disk / "real.db").touch()
        link = sqlite.path
        link.symlink_to(small_disk / "real.db")
        assert mount("-o", "remount,ro", str(small_disk))
        with pytest.raises(LogReadOnly):
            await SqliteLog(link).open()


class TestUncertainCommits:
    async def test_reported_as_failed_but_stored(self, sqlite: Backend, monkeypatch: Any) -> None:
        """A commit that failed after it was stored is found in the file, and acknowledged."""
        log = await sqlite.open()
        await log.create("t")
        write = Store.write

        def write_and_fail(store: Store, transaction: Any) -> None:
            write(store, transaction)
            monkeypatch.undo()
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(Store, "write", write_and_fail)
        assert list((await add(log, "t", 3)).offsets) == [0, 1, 2]
        assert (await add(log, "t", 3)).duplicates == 3
        assert list((await add(log, "t", 1, "next")).offsets) == [3]
        assert (await log.health()).ok

    async def test_failed_before_it_was_stored(self, sqlite: Backend, monkeypatch: Any) -> None:
        """A commit that did not happen fails all of its transaction, and none of the next."""
        log = await sqlite.open(probe_interval_s=3600.0)
        await log.create("t")

        def fail(_store: Store, _group: Any) -> None:
            monkeypatch.undo()
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(Store, "write", fail)
        with pytest.raises(LogUnavailable):
            await add(log, "t", 3)
        assert not (await log.health()).ok
        assert log.stats().failures == 1
        stored = await add(log, "t", 3)
        assert (list(stored.offsets), stored.duplicates) == ([0, 1, 2], 0)
        assert (await log.health()).ok

    async def test_a_bug_is_not_the_end(self, sqlite: Backend, monkeypatch: Any) -> None:
        """An error that nobody foresaw is answered, and the log goes on from what is in the file."""
        log = await sqlite.open()
        await log.create("t")

        def fail(_store: Store, _group: Any) -> None:
            monkeypatch.undo()
            raise ZeroDivisionError

        monkeypatch.setattr(Store, "write", fail)
        with pytest.raises(InternalError):
            await add(log, "t", 1)
        assert list((await add(log, "t", 1)).offsets) == [0]


class TestPoison:
    async def test_what_cannot_be_stored_fails_alone(self, sqlite: Backend) -> None:
        """A batch that SQLite refuses takes no other of its transaction down with it."""
        log = await sqlite.open()
        await log.create("t")
        poison: Any = [Draft("a", "text"), Draft("a", 5), Draft("a", None)]  # type: ignore
        futures = []
        for n in range(12):
            bad = n % 4 and Batch("t", [poison[n % 4 - 1]])
            futures.append(log.append(bad or Batch("t", drafts(1, f"{n}-"))))
        results = await soon(asyncio.gather(*futures, return_exceptions=True))
        kinds = [type(result).__name__ for result in results]
        assert kinds == ["InternalError" if n % 4 else "Appended" for n in range(12)]
        assert [record.id for record in await read_all(log, "t")] == ["0-0", "4-0", "8-0"]


async def test_a_loop_that_is_gone(sqlite: Backend) -> None:
    """A log whose event loop ended without closing it stores what it was given, and can be stopped."""

    async def use() -> SqliteLog:
        log = SqliteLog(sqlite.path, LogOptions(retention_interval_s=0.001))
        await log.open()
        await log.create("t", Retention(count=1))
        log.append(Batch("t", drafts(2000)))
        return log

    log = await asyncio.to_thread(lambda: asyncio.run(use()))
    assert log._writer is not None
    log._writer.submit(StopCommand())

    async def is_free() -> bool:
        try:
            await sqlite.open()
        except LogLocked:
            return False
        return True

    await eventually(is_free)
    assert sqlite.query("SELECT end FROM topic_state") == [(2000,)]
