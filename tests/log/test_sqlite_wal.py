"""A write-ahead log that was damaged after a crash: noticed, named, and no offset used again."""
# ruff: noqa: ASYNC230, ASYNC240 - the files are small, and nothing else runs on this loop

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from himalia.errors import LogCorrupt
from himalia.log.sqlite import wal
from himalia.log.sqlite.backup import backup
from himalia.log.sqlite.wal import find_loss

from .backends import Backend, add, read_all
from .processes import read_line, run

# Appends ten records in commits of their own, says the topic's epoch, and waits to be killed.
CRASHER = """
import asyncio, sys
from himalia.log import Batch
from himalia.log.sqlite import SqliteLog
from himalia.record import Draft

async def main():
    log = SqliteLog(sys.argv[1], retention_interval_s=3600.0)
    await log.open()
    await log.create("t")
    for n in range(10):
        await log.append(Batch("t", [Draft(f"m{n}", b'"' + b"x" * 3000 + b'"')]))
    print((await log.info("t")).epoch, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
FRAME = 24 + 4096


def crash(path: Path) -> str:
    """Leave a log behind whose server was killed; returns the topic's epoch."""
    process = run(CRASHER, path)
    epoch = read_line(process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return epoch


def damage(path: Path, position: int) -> None:
    """Flip one bit of the write-ahead log; a negative position counts from the end."""
    wal = Path(f"{path}-wal")
    content = bytearray(wal.read_bytes())
    content[position] ^= 1
    wal.write_bytes(content)


async def look(sqlite: Backend) -> tuple[Any, list[str]]:
    log = await sqlite.open()
    return log, list((await log.health()).warnings)


@pytest.mark.parametrize("index", [True, False], ids=["with index", "without index"])
async def test_a_crash_alone_is_no_damage(sqlite: Backend, index: bool) -> None:
    """After a kill nothing is missing and the epoch stays, also if the last write was torn."""
    epoch = crash(sqlite.path)
    if not index:
        Path(f"{sqlite.path}-shm").unlink()
    with Path(f"{sqlite.path}-wal").open("ab") as wal:
        wal.write(b"torn" * 700)
    log, warnings = await look(sqlite)
    assert [warning for warning in warnings if "missing" in warning] == []
    assert (await log.info("t")).epoch == epoch
    assert len(await read_all(log, "t")) == 10


@pytest.mark.parametrize("index", [True, False], ids=["with index", "without index"])
@pytest.mark.parametrize("where", ["middle", "header", "frame header"])
async def test_one_flipped_bit_is_noticed(sqlite: Backend, index: bool, where: str) -> None:
    """A log whose write-ahead log lost acknowledged records says so until the next start, and has new epochs."""
    epoch = crash(sqlite.path)
    frames = (Path(f"{sqlite.path}-wal").stat().st_size - 32) // FRAME
    damage(
        sqlite.path, {"middle": 32 + frames // 2 * FRAME + 100, "header": 25, "frame header": 32 + 17}[where]
    )
    if not index:
        Path(f"{sqlite.path}-shm").unlink()
    log, warnings = await look(sqlite)
    assert any("acknowledged records are missing" in warning for warning in warnings)
    assert (await log.health()).ok
    for info in await log.topics():
        assert info.epoch != epoch
    await log.close()
    log, warnings = await look(sqlite)
    assert not any("missing" in warning for warning in warnings)


async def test_the_last_commit(sqlite: Backend) -> None:
    """Also the last commit is known to be missing, by the index."""
    crash(sqlite.path)
    damage(sqlite.path, -100)
    log, warnings = await look(sqlite)
    assert any("acknowledged records are missing" in warning for warning in warnings)
    assert len(await read_all(log, "t")) == 9
    assert list((await add(log, "t", 1, "new")).offsets) == [9]


async def test_a_removed_write_ahead_log(sqlite: Backend) -> None:
    """A write-ahead log that somebody removed is missed, and so are its records."""
    crash(sqlite.path)
    Path(f"{sqlite.path}-wal").unlink()
    assert find_loss(sqlite.path) is not None


async def test_a_large_one_does_not_delay_the_start(sqlite: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start SQLite tells how much is whole: the frames are not summed up a second time, in Python."""
    epoch = crash(sqlite.path)
    sums = 0

    def checksum(data: bytes, *given: Any, **options: Any) -> tuple[int, int]:
        nonlocal sums
        sums += len(data)
        return wal_checksum(data, *given, **options)

    wal_checksum = wal._checksum
    monkeypatch.setattr(wal, "_checksum", checksum)
    log, warnings = await look(sqlite)
    assert (warnings, (await log.info("t")).epoch) == ([], epoch)
    assert sums < FRAME


@pytest.mark.parametrize("damaged", [False, True])
async def test_the_files_alone_tell_the_same(
    sqlite: Backend, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Where the disk has no room for what SQLite would move, the frames are summed up here, to the same result."""
    crash(sqlite.path)
    if damaged:
        damage(sqlite.path, 32 + 5 * FRAME + 100)
    found = find_loss(sqlite.path)
    assert (found is not None) == damaged
    monkeypatch.setattr(wal, "_recovered_frames", lambda db: None)
    _, warnings = await look(sqlite)
    assert (
        [f"(frames {found.kept + 1} to" in warning for warning in warnings] == [True]
        if found
        else not warnings
    )


async def test_no_backup_of_it(sqlite: Backend, tmp_path: Path) -> None:
    """A backup of a log whose write-ahead log is damaged is refused, and changes nothing of what can be told."""
    crash(sqlite.path)
    damage(sqlite.path, 32 + 5 * FRAME + 100)
    with pytest.raises(LogCorrupt, match="write-ahead log"):
        backup(sqlite.path, tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()
    _, warnings = await look(sqlite)
    assert any("missing" in warning for warning in warnings)


@pytest.mark.parametrize("change", ["payload = x'7b22'", "headers = x'00'", "size = size + 99"])
async def test_no_backup_of_damaged_records(sqlite: Backend, tmp_path: Path, change: str) -> None:
    """A record that is not JSON, or not as long as it was, is no part of a good backup."""
    log = await sqlite.open()
    await log.create("t")
    await add(log, "t", 5)
    await log.close()
    backup(sqlite.path, tmp_path / "good.db")
    sqlite.query(f"UPDATE records SET {change} WHERE offset = 3")
    with pytest.raises(LogCorrupt):
        backup(sqlite.path, tmp_path / "bad.db")
    assert not (tmp_path / "bad.db").exists()
