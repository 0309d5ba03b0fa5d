"""Backups of the SQLite log: taken while it is written to, and restored."""
# ruff: noqa: ASYNC240 - the files are small, and nobody else is on this loop

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from himalia.errors import ConfigurationError, LogCorrupt, LogLocked, LogTooNew, LogUnavailable
from himalia.log import Batch
from himalia.log.sqlite.backup import backup, restore
from himalia.log.sqlite.store import Store
from himalia.record import Retention

from .backends import Backend, add, drafts, read_all, soon
from .processes import BACKUP, run


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup.db"


async def a_log(sqlite: Backend) -> Any:
    log = await sqlite.open()
    await log.create("a", Retention(count=50))
    await log.create("b")
    await add(log, "a", 5)
    await add(log, "b", 3, producer="p", sequence=4)
    return log


class TestBackup:
    async def test_under_writes(self, sqlite: Backend, target: Path) -> None:
        """A backup taken while a server writes is the log as it was at one moment during it."""
        log = await a_log(sqlite)
        await log.create("twin")
        stop = asyncio.Event()
        before = (await log.info("a")).end

        async def write() -> None:
            n = 0
            while not stop.is_set():
                # Both in one commit: a backup that had one and not the other would be torn.
                pair = [log.append(Batch(topic, drafts(1, f"{n}-"))) for topic in ("b", "twin")]
                await soon(asyncio.gather(*pair))
                n += 1

        writing = asyncio.ensure_future(write())
        report = await asyncio.to_thread(backup, sqlite.path, target)
        stop.set()
        await writing
        assert report.path == target
        copy = await Backend("sqlite", target.parent, sqlite.clock).open_at(target)
        ends = {info.name: info.end for info in await copy.topics()}
        assert (ends["a"], ends["b"]) == (before, ends["twin"] + 3)
        for name in ends:
            there = await read_all(copy, name)
            assert there == (await read_all(log, name))[: len(there)]
        assert report.records == sum(ends.values())
        await copy.close()

    async def test_another_process_takes_nothing_away(
        self, sqlite: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A backup that another process takes leaves the owner's files alone, also after the owner had to open
        its file again: what is written afterwards is in the next backup."""
        log = await a_log(sqlite)
        assert len(await read_all(Fresh(log), "a")) == 5
        stored = []
        for n in range(3):
            process = run(BACKUP, sqlite.path, tmp_path / f"backup{n}.db")
            stored.append(int((await asyncio.to_thread(process.communicate))[0]))
            assert Path(f"{sqlite.path}-wal").exists()
            await add(log, "a", 1, f"{n}-")
            fail_once(monkeypatch)
            with pytest.raises(LogUnavailable):
                await add(log, "a", 1, f"lost{n}-")
        assert stored == [8, 9, 10]

    async def test_the_file_is_complete_and_private(self, sqlite: Backend, target: Path) -> None:
        """A backup is one file, readable by its owner only; nothing else is left behind."""
        await a_log(sqlite)
        before = set(target.parent.iterdir())
        report = backup(sqlite.path, target)
        assert set(target.parent.iterdir()) - before == {target}
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        assert (report.topics, report.records, report.bytes) == (2, 8, target.stat().st_size)

    async def test_it_does_not_overwrite(self, sqlite: Backend, target: Path) -> None:
        """A file that exists is not replaced."""
        await a_log(sqlite)
        target.write_text("precious")
        with pytest.raises(ConfigurationError, match="exists already"):
            backup(sqlite.path, target)
        assert target.read_text() == "precious"

    async def test_progress(self, sqlite: Backend, target: Path) -> None:
        """Of a long backup the progress is told, and reaches neither more than all nor less than nothing."""
        log = await sqlite.open()
        await log.create("t")
        await add(log, "t", 60_000)
        told: list[tuple[int, int]] = []
        backup(sqlite.path, target, progress=lambda done, total: told.append((done, total)))
        assert told
        assert all(0 <= done <= total for done, total in told)
        told.clear()
        restore(
            target, target.parent / "restored.db", progress=lambda done, total: told.append((done, total))
        )
        assert told[-1][0] == told[-1][1] > 0

    async def test_nothing_to_back_up(self, tmp_path: Path, target: Path) -> None:
        """A log that is not there, or is no log, gives an error and no file."""
        with pytest.raises(ConfigurationError, match="no log"):
            backup(tmp_path / "missing.db", target)
        (tmp_path / "noise.db").write_bytes(b"noise" * 1000)
        with pytest.raises(LogCorrupt):
            backup(tmp_path / "noise.db", target)
        assert not target.exists()

    async def test_a_damaged_log(self, sqlite: Backend, target: Path) -> None:
        """A log that is damaged is not backed up as if it were sound."""
        log = await sqlite.open()
        await log.create("t")
        await add(log, "t", 5000)
        await log.close()
        content = bytearray(sqlite.path.read_bytes())
        middle = len(content) // 2 // 4096 * 4096
        content[middle : middle + 8 * 4096] = b"\xff" * (8 * 4096)
        sqlite.path.write_bytes(content)
        with pytest.raises(LogCorrupt):
            backup(sqlite.path, target)
        assert not target.exists()


class TestRestore:
    async def test_everything_is_back_under_new_epochs(self, sqlite: Backend, target: Path) -> None:
        """A restored log has the records, limits, ids and producers of the backup, and new epochs."""
        log = await a_log(sqlite)
        old = {info.name: info for info in await log.topics()}
        records = await read_all(log, "a")
        backup(sqlite.path, target)
        await add(log, "a", 7)
        await log.close()
        restore(target, sqlite.path, force=True)
        log = await sqlite.open()
        for info in await log.topics():
            assert info.epoch != old[info.name].epoch
            assert info.end == old[info.name].end
            assert info.retention == old[info.name].retention
        assert await read_all(log, "a") == records
        assert (await add(log, "a", 5)).duplicates == 5
        assert (await add(log, "b", 3, producer="p", sequence=4)).duplicates == 3

    async def test_into_a_new_place(self, sqlite: Backend, target: Path, tmp_path: Path) -> None:
        """Restoring makes the directories it needs, and the backup can be used again."""
        await a_log(sqlite)
        backup(sqlite.path, target)
        content = target.read_bytes()
        for place in ("one", "two"):
            report = restore(target, tmp_path / place / "log.db")
            assert (report.path, report.records) == (tmp_path / place / "log.db", 8)
        assert target.read_bytes() == content

    async def test_a_log_in_use_is_safe(self, sqlite: Backend, target: Path) -> None:
        """While a server has the log open, not even force replaces it."""
        log = await a_log(sqlite)
        backup(sqlite.path, target)
        with pytest.raises(LogLocked):
            restore(target, sqlite.path, force=True)
        await add(log, "a", 1, "still here")

    async def test_an_existing_log_is_safe(self, sqlite: Backend, target: Path) -> None:
        """A log that exists is replaced only by force."""
        log = await a_log(sqlite)
        backup(sqlite.path, target)
        await log.close()
        content = sqlite.path.read_bytes()
        with pytest.raises(ConfigurationError, match="--force"):
            restore(target, sqlite.path)
        assert sqlite.path.read_bytes() == content
        assert not list(sqlite.path.parent.glob("*.partial*"))

    async def test_leftovers_of_the_old_log(self, sqlite: Backend, target: Path) -> None:
        """A write-ahead log left by a crash of the old log does not find its way into the restored one."""
        log = await a_log(sqlite)
        backup(sqlite.path, target)
        await add(log, "a", 1000, "lost")
        left = Path(f"{sqlite.path}-wal").read_bytes()
        await log.close()
        Path(f"{sqlite.path}-wal").write_bytes(left)
        restore(target, sqlite.path, force=True)
        log = await sqlite.open()
        assert (await log.info("a")).end == 5

    async def test_a_plain_copy_with_its_write_ahead_log(self, sqlite: Backend, tmp_path: Path) -> None:
        """A copy of both files of a log, as some people make it, restores whole."""
        log = await a_log(sqlite)
        copy = tmp_path / "copy.db"
        copy.write_bytes(sqlite.path.read_bytes())
        Path(f"{copy}-wal").write_bytes(Path(f"{sqlite.path}-wal").read_bytes())
        await log.close()
        assert restore(copy, tmp_path / "restored" / "log.db").records == 8

    @pytest.mark.parametrize("kind", ["missing", "noise", "empty", "foreign", "truncated", "newer"])
    async def test_what_is_no_backup(self, sqlite: Backend, target: Path, kind: str) -> None:
        """A file that is no sound log of a known version is refused, and the old log stays."""
        log = await a_log(sqlite)
        await add(log, "b", 2000)
        backup(sqlite.path, target)
        await log.close()
        content = target.read_bytes()
        target.unlink()
        if kind == "noise":
            target.write_bytes(b"noise" * 10_000)
        elif kind == "empty":
            target.touch()
        elif kind == "truncated":
            target.write_bytes(content[: len(content) // 2])
        elif kind == "newer":
            target.write_bytes(content)
            change(target, "PRAGMA user_version = 99")
        elif kind == "foreign":
            change(target, "CREATE TABLE precious (thing)")
        expected = {"noise": LogCorrupt, "truncated": LogCorrupt, "newer": LogTooNew}.get(
            kind, ConfigurationError
        )
        before = sqlite.path.read_bytes()
        with pytest.raises(expected):
            restore(target, sqlite.path, force=True)
        assert sqlite.path.read_bytes() == before


class Fresh:
    """A log as someone sees it who has nothing in memory: every read comes from the file."""

    def __init__(self, log: Any) -> None:
        self._reader = log._reader

    async def read(self, topic: str, start: int, *, limit: int) -> Any:
        return await self._reader.read(topic, start, limit, 1 << 20)


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next commit fail, so that the writer opens its file again."""

    def fail(_store: Store, _group: Any) -> None:
        monkeypatch.undo()
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Store, "write", fail)


def change(path: Path, statement: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(statement)
    db.close()
