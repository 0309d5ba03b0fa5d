"""Files that cannot be a log, and how the SQLite log says so."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import stat
from pathlib import Path

import pytest

from himalia.errors import (
    ConfigurationError,
    HimaliaError,
    LogCorrupt,
    LogLocked,
    LogTooNew,
    LogUnavailable,
)
from himalia.log.sqlite import SqliteLog
from himalia.log.sqlite.schema import MIGRATIONS

from .backends import Backend, add, eventually, read_all, soon
from .processes import FORKER, HOLDER, read_line, run


async def refused(path: Path) -> HimaliaError:
    """The error that opening the file gives; and that another attempt gives, so nothing is left locked."""
    errors = []
    for _ in range(2):
        with pytest.raises(HimaliaError) as caught:
            await SqliteLog(path).open()
        errors.append(caught.value)
    assert type(errors[0]) is type(errors[1])
    return errors[0]


async def filled(sqlite: Backend, count: int = 2000) -> None:
    log = await sqlite.open()
    await log.create("t")
    await add(log, "t", count)
    await log.close()


class TestOwning:
    async def test_another_process_owns_it(self, sqlite: Backend) -> None:
        """A log in use by another process is refused, naming that process and what to do."""
        process = run(HOLDER, sqlite.path)
        try:
            assert read_line(process) == "ready"
            error = await refused(sqlite.path)
            assert isinstance(error, LogLocked)
            assert error.data["pid"] == process.pid
            assert str(process.pid) in error.message
            assert "--log" in error.message
        finally:
            process.communicate("")
        assert process.returncode == 0
        await sqlite.open()

    async def test_this_process_owns_it(self, sqlite: Backend) -> None:
        """A log that this process has open is refused too, and the open one is not disturbed."""
        log = await sqlite.open()
        error = await refused(sqlite.path)
        assert isinstance(error, LogLocked)
        assert error.data["pid"] == os.getpid()
        await log.create("t")
        await log.close()
        await sqlite.open()

    async def test_a_killed_owner_owns_nothing(self, sqlite: Backend) -> None:
        """After the owner was killed its log can be opened, even while a child that it forked lives on."""
        process = run(FORKER, sqlite.path)
        try:
            assert {read_line(process), read_line(process)} == {"child", "parent"}
            assert isinstance(await refused(sqlite.path), LogLocked)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            await sqlite.open()
        finally:
            process.kill()
            # Ends the child, which holds the other end of both pipes.
            process.communicate()

    async def test_giving_up_on_opening(self, sqlite: Backend) -> None:
        """A cancelled ``open`` does not keep the log."""
        opening = asyncio.ensure_future(sqlite.make().open())
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)

        async def can_open() -> bool:
            try:
                await sqlite.open()
            except LogLocked:
                return False
            return True

        await eventually(can_open)


class TestPlaces:
    async def test_missing_directories_are_made(self, sqlite: Backend, tmp_path: Path) -> None:
        """Directories that are missing are made, and what they hold is for their owner only."""
        sqlite.path = tmp_path / "a" / "b" / "log ?#%20é.db"
        await filled(sqlite)
        assert stat.S_IMODE(sqlite.path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(sqlite.path.stat().st_mode) == 0o600

    async def test_a_directory_is_no_log(self, tmp_path: Path) -> None:
        """A path that is a directory, or leads through a file, is a wrong setting."""
        (tmp_path / "file").write_text("")
        for path in (tmp_path, tmp_path / "file" / "log.db"):
            assert isinstance(await refused(path), ConfigurationError)

    async def test_an_empty_file_becomes_a_log(self, sqlite: Backend) -> None:
        """A file without content, as ``mktemp`` makes it, is as good as none."""
        sqlite.path.touch()
        await filled(sqlite)


class TestOtherFiles:
    async def test_random_bytes(self, sqlite: Backend) -> None:
        """What is no database is reported as damaged, with the way back, and left as it is."""
        content = random.Random(1).randbytes(100_000)
        sqlite.path.write_bytes(content)
        error = await refused(sqlite.path)
        assert isinstance(error, LogCorrupt)
        assert "himalia restore" in error.message
        assert str(sqlite.path) in error.message
        assert sqlite.path.read_bytes() == content

    @pytest.mark.parametrize("kept", [0.001, 0.3, 0.5, 0.999])
    async def test_a_truncated_file(self, sqlite: Backend, kept: float) -> None:
        """A file of which the end is missing is reported as damaged."""
        await filled(sqlite)
        content = sqlite.path.read_bytes()
        sqlite.path.write_bytes(content[: int(len(content) * kept)])
        assert isinstance(await refused(sqlite.path), LogCorrupt)

    async def test_a_database_of_another_program(self, sqlite: Backend) -> None:
        """Somebody else's database is left alone."""
        with sqlite3.connect(sqlite.path) as db:
            db.execute("CREATE TABLE precious (thing)")
        db.close()
        content = sqlite.path.read_bytes()
        assert isinstance(await refused(sqlite.path), ConfigurationError)
        assert sqlite.path.read_bytes() == content

    async def test_a_newer_version(self, sqlite: Backend) -> None:
        """A log of a newer Himalia is refused and left as it is."""
        await filled(sqlite)
        sqlite.query("PRAGMA user_version = 99")
        error = await refused(sqlite.path)
        assert isinstance(error, LogTooNew)
        assert error.data["version"] == 99
        assert sqlite.query("PRAGMA user_version") == [(99,)]

    async def test_damage_in_the_middle(self, sqlite: Backend) -> None:
        """Damaged records are reported when they are read; those that are sound can still be read."""
        await filled(sqlite, 5000)
        content = bytearray(sqlite.path.read_bytes())
        middle = len(content) // 2 // 4096 * 4096
        content[middle : middle + 20 * 4096] = b"\xff" * (20 * 4096)
        sqlite.path.write_bytes(content)
        sqlite.clock.advance(1000)
        log = await sqlite.open()
        assert (await log.read("t", 0, limit=10)).records[0].id == "m0"
        with pytest.raises(LogCorrupt):
            await read_all(log, "t")
        assert (await log.read("t", 4999, limit=10)).records[0].id == "m4999"

    async def test_a_missing_record(self, sqlite: Backend) -> None:
        """A hole in the offsets, which nothing of ours leaves, is damage and not an empty answer."""
        await filled(sqlite, 10)
        sqlite.query("DELETE FROM records WHERE offset = 4")
        sqlite.clock.advance(1000)
        log = await sqlite.open()
        for call in (log.read("t", 4, limit=1), log.read("t", 0, limit=10)):
            with pytest.raises(LogCorrupt):
                await call


class TestRemovedWhileInUse:
    async def test_removed(self, sqlite: Backend) -> None:
        """When the file disappears, the log says so instead of writing to what nobody will ever read."""
        log = await sqlite.open(retention_interval_s=0.01)
        await log.create("t")
        sqlite.path.unlink()

        async def is_unwell() -> bool:
            return not (await log.health()).ok

        await eventually(is_unwell)
        assert "removed" in (await log.health()).problem
        with pytest.raises(LogUnavailable):
            await add(log, "t", 1)

    async def test_replaced(self, sqlite: Backend, tmp_path: Path) -> None:
        """When another file takes its place, nothing is written to it."""
        log = await sqlite.open(retention_interval_s=0.01)
        await log.create("t")
        other = tmp_path / "other"
        other.write_bytes(b"")
        os.replace(other, sqlite.path)

        async def is_unwell() -> bool:
            return not (await log.health()).ok

        await eventually(is_unwell)
        with pytest.raises(LogUnavailable, match="replaced"):
            await add(log, "t", 1)
        await log.close()
        assert sqlite.path.read_bytes() == b""


class TestMigration:
    async def test_the_first_version(self, sqlite: Backend) -> None:
        """A log of version 1 is opened with all it holds, and is then of the newest version."""
        ts_us = sqlite.clock.now_us
        db = sqlite3.connect(sqlite.path, isolation_level=None)
        for statement in MIGRATIONS[0]:
            db.execute(statement)
        db.execute("PRAGMA user_version = 1")
        db.execute("INSERT INTO topics VALUES (7, 'old', 'e1', 5, NULL, NULL, 3)")
        db.execute("INSERT INTO topic_state VALUES (7, 2, 4, 12, ?, ?)", (ts_us, ts_us))
        for offset in (2, 3):
            row = (7, offset, ts_us, 6, b"id%d" % offset, b"{}", b"1")
            db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        db.execute("INSERT INTO producers VALUES (7, 'p', 9, 3, 1, ?)", (ts_us,))
        db.close()
        log = await sqlite.open()
        info = await log.info("old")
        assert (info.epoch, info.first, info.end, info.retention.count) == ("e1", 2, 4, 3)
        assert [record.id for record in await read_all(log, "old")] == ["id2", "id3"]
        assert list((await add(log, "old", 4, "id")).offsets) == [4, 5, 2, 3]
        assert list((await add(log, "old", 1, producer="p", sequence=9)).offsets) == [3]
        await log.enforce_retention()
        assert (await log.info("old")).first == 3
        await soon(log.close())
        assert sqlite.query("PRAGMA user_version") == [(len(MIGRATIONS),)]
