"""Files that cannot be a log, and how the SQLite log says so."""
# ruff: noqa: ASYNC240 - the files are small, and nothing else runs on this loop

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import stat
from collections.abc import Callable
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
from himalia.log.sqlite import SqliteLog, lock
from himalia.log.sqlite.backup import backup, restore
from himalia.log.sqlite.database import MIGRATIONS

from .backends import Backend, add, enforce_retention, eventually, read_all, soon
from .processes import APPENDER, BACKUP, CONTENDER, FORKER, HOLDER, read_line, run


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


class TestOtherNames:
    """A log file has one owner, whatever it is called by."""

    @pytest.mark.parametrize("link", [os.symlink, os.link])
    async def test_another_process_owns_it_under_another_name(
        self, sqlite: Backend, tmp_path: Path, link: Callable[[Path, Path], None]
    ) -> None:
        """A log in use is refused through a symbolic link and through a hard link of its file, with a sentence."""
        await filled(sqlite, 1)
        (tmp_path / "elsewhere").mkdir()
        other = tmp_path / "elsewhere" / "other.db"
        link(sqlite.path, other)
        process = run(HOLDER, sqlite.path)
        try:
            assert read_line(process) == "ready"
            error = await refused(other)
            assert isinstance(error, LogLocked)
            assert str(other) in error.message
            assert "--log" in error.message
            assert not Path(f"{other}-wal").exists()
        finally:
            process.communicate("")
        log = await sqlite.open_at(other)
        assert [record.id for record in await read_all(log, "t")] == ["m0"]

    async def test_this_process_owns_it_under_another_name(self, sqlite: Backend, tmp_path: Path) -> None:
        """The refusal of a second name in the same process leaves SQLite's locks alone, so that another process
        that reads does not take the write-ahead log away."""
        log = await sqlite.open()
        await log.create("t")
        os.link(sqlite.path, tmp_path / "other.db")
        assert isinstance(await refused(tmp_path / "other.db"), LogLocked)
        process = run(BACKUP, sqlite.path, tmp_path / "backup.db")
        await asyncio.to_thread(process.communicate)
        assert Path(f"{sqlite.path}-wal").exists()
        await add(log, "t", 1)

    async def test_of_many_at_once_one_owns_it(self, sqlite: Backend, tmp_path: Path) -> None:
        """Of processes that open one log at the same moment under different names, one gets it."""
        await filled(sqlite, 1)
        names = [sqlite.path, tmp_path / "hard.db", tmp_path / "soft.db"]
        os.link(sqlite.path, names[1])
        names[2].symlink_to(sqlite.path)
        processes = [run(CONTENDER, name) for name in names * 2]
        try:
            for process in processes:
                assert read_line(process) == "waiting"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            assert sorted(read_line(process) for process in processes) == ["owner"] + ["refused"] * 5
        finally:
            for process in processes:
                process.communicate("")

    async def test_a_moved_file_is_still_owned(self, sqlite: Backend, tmp_path: Path) -> None:
        """A log that was moved while in use is refused under its new name, and a file put in its place under the
        old one, until the owner ends."""
        log = await sqlite.open(retention_interval_s=3600.0)
        os.rename(sqlite.path, tmp_path / "moved.db")
        assert isinstance(await refused(tmp_path / "moved.db"), LogLocked)
        sqlite.path.touch()
        assert isinstance(await refused(sqlite.path), LogLocked)
        await log.close()
        await sqlite.open()

    @pytest.mark.parametrize("rename", [os.link, os.rename])
    async def test_a_log_that_was_not_closed(
        self, sqlite: Backend, tmp_path: Path, rename: Callable[[Path, Path], None]
    ) -> None:
        """After a crash a log is refused by any name but that beside which its write-ahead log is, so that nothing
        acknowledged is missing; so is a backup by such a name. After a clean stop it can be opened by any name."""
        process = run(APPENDER, sqlite.path)
        acknowledged = max(int(read_line(process).split()[0]) for _ in range(20))
        process.kill()
        await asyncio.to_thread(process.communicate)
        other = tmp_path / "other.db"
        rename(sqlite.path, other)
        assert f"{sqlite.path}-wal" in (await refused(other)).message
        with pytest.raises(ConfigurationError, match="was not closed"):
            backup(other, tmp_path / "backup.db")
        if rename is os.rename:
            os.rename(other, sqlite.path)
        log = await sqlite.open()
        assert (await log.info("t")).end > acknowledged
        await log.close()
        log = await sqlite.open_at(other if other.exists() else sqlite.path)
        assert (await log.info("t")).end > acknowledged

    async def test_a_name_in_a_directory_that_cannot_be_read(
        self, sqlite: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A log that was moved out of a directory that this user may not read can be opened."""
        process = run(HOLDER, sqlite.path)
        assert read_line(process) == "ready"
        process.kill()
        await asyncio.to_thread(process.communicate)
        first, moved = sqlite.path, tmp_path / "moved.db"
        os.rename(first, moved)

        def unreadable(path: str | Path) -> int:
            if str(path).startswith(str(first)):
                raise PermissionError(13, "Permission denied")
            return length(path)

        length = lock.file_size
        monkeypatch.setattr(lock, "file_size", unreadable)
        await sqlite.open_at(moved)

    async def test_a_backup_is_not_in_use(self, sqlite: Backend, tmp_path: Path) -> None:
        """A backup that was taken while a server used the log can be opened itself, by any name."""
        log = await sqlite.open()
        await log.create("t")
        await add(log, "t", 3)
        await asyncio.to_thread(backup, sqlite.path, tmp_path / "backup.db")
        os.rename(sqlite.path, tmp_path / "gone.db")
        copy = await sqlite.open_at(tmp_path / "backup.db")
        assert (await copy.info("t")).end == 3
        await log.close()

    async def test_a_restored_log_is_owned(self, sqlite: Backend, tmp_path: Path) -> None:
        """Restoring through a symbolic link replaces the file, not the link; the new file is owned like the old."""
        await filled(sqlite, 3)
        backup(sqlite.path, tmp_path / "backup.db")
        link = tmp_path / "link.db"
        link.symlink_to(sqlite.path)
        restore(tmp_path / "backup.db", link, force=True)
        assert link.is_symlink()
        log = await sqlite.open()
        os.link(sqlite.path, tmp_path / "hard.db")
        for name in (link, tmp_path / "hard.db"):
            assert isinstance(await refused(name), LogLocked)
            with pytest.raises(LogLocked):
                restore(tmp_path / "backup.db", name, force=True)
        assert (await log.info("t")).end == 3

    async def test_a_system_without_locks_of_open_files(
        self, sqlite: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where files cannot be locked by themselves, one with several names is refused."""
        monkeypatch.setattr(lock, "_LOCK_OWN_DESCRIPTION", None)
        await filled(sqlite, 1)
        os.link(sqlite.path, tmp_path / "other.db")
        assert "several names" in (await refused(sqlite.path)).message


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
        await enforce_retention(log)
        assert (await log.info("old")).first == 3
        await soon(log.close())
        assert sqlite.query("PRAGMA user_version") == [(len(MIGRATIONS),)]
