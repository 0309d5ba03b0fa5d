"""A write-ahead log that was damaged after a crash: noticed, named, and no offset used again."""
# ruff: noqa: ASYNC230, ASYNC240 - the files are small, and nothing else runs on this loop

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from himalia.errors import ConfigurationError, LogCorrupt
from himalia.log.sqlite import wal
from himalia.log.sqlite.backup import backup, restore
from himalia.log.sqlite.rename import rename_topic
from himalia.log.sqlite.wal import find_loss

from .backends import Backend, add, read_all
from .processes import read_line, run

# Appends ten records in commits of their own, says the topic's epoch, and waits to be killed.
CRASHER = """
import asyncio, sys
from himalia.log import Batch, LogOptions
from himalia.log.sqlite import SqliteLog
from himalia.record import Draft

async def main():
    log = SqliteLog(sys.argv[1], LogOptions(retention_interval_s=3600.0))
    await log.open()
    await log.create("t")
    for n in range(10):
        await log.append(Batch("t", [Draft(f"m{n}", b'"' + b"x" * 3000 + b'"')]))
    print((await log.info("t")).epoch, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
FRAME = 24 + 4096

# A first start that does not come so far as to renew the epochs: the disk is full then, or somebody kills it.
FIRST_START = """
import asyncio, os, signal, sqlite3, sys
from himalia.errors import LogUnavailable
from himalia.log.sqlite import SqliteLog
from himalia.log.sqlite.{place}

def full(*given):
    raise sqlite3.OperationalError("database or disk is full")

def killed(*given):
    os.kill(os.getpid(), signal.SIGKILL)

{name} = {end}
try:
    asyncio.run(SqliteLog(sys.argv[1]).open())
except LogUnavailable:
    print("refused")
"""
ENDS = ["full", "killed"]
RENEWING = "store import Store", "Store.renew_epochs"
CHECKING = "store import Store", "Store.check_integrity"
FINDING = "wal import Evidence", "Evidence.find_loss_in"

# A start on a disk on which nothing is left but for the number of the lock's owner.
NO_ROOM = """
import asyncio, resource, sys
from himalia.errors import LogFull
from himalia.log.sqlite import SqliteLog

resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    asyncio.run(SqliteLog(sys.argv[1]).open())
except LogFull as error:
    print(error.message)
"""


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


def start(path: Path, place: str, name: str, end: str) -> None:
    """A start that ends at this call."""
    process = run(FIRST_START.format(place=place, name=name, end=end), path)
    said, _ = process.communicate()
    assert (process.returncode, said) == ((-signal.SIGKILL, "") if end == "killed" else (0, "refused\n"))


def marker(path: Path) -> Path:
    return Path(f"{path}.recovering")


async def look(sqlite: Backend) -> tuple[Any, list[str]]:
    """Open the log; with it comes what it says of losses."""
    log = await sqlite.open()
    return log, [warning for warning in (await log.health()).warnings if "missing" in warning]


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
    assert not marker(sqlite.path).exists()
    assert (await log.info("t")).epoch == epoch
    assert len(await read_all(log, "t")) == 10


@pytest.mark.parametrize("first", [None, *ENDS])
@pytest.mark.parametrize("index", [True, False], ids=["with index", "without index"])
@pytest.mark.parametrize("where", ["middle", "header", "frame header"])
async def test_one_flipped_bit_is_noticed(
    sqlite: Backend, index: bool, where: str, first: str | None
) -> None:
    """A log whose write-ahead log lost acknowledged records says so until the next start, and has new epochs; also if
    the first start could not renew them."""
    epoch = crash(sqlite.path)
    frames = (Path(f"{sqlite.path}-wal").stat().st_size - 32) // FRAME
    damage(
        sqlite.path, {"middle": 32 + frames // 2 * FRAME + 100, "header": 25, "frame header": 32 + 17}[where]
    )
    if not index:
        Path(f"{sqlite.path}-shm").unlink()
    if first is not None:
        start(sqlite.path, *RENEWING, first)
        assert marker(sqlite.path).stat().st_mode & 0o777 == 0o600
    log, warnings = await look(sqlite)
    assert any("acknowledged records are missing" in warning for warning in warnings)
    assert (await log.health()).ok
    assert not marker(sqlite.path).exists()
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


@pytest.mark.parametrize("first", [None, *ENDS])
async def test_a_removed_write_ahead_log(sqlite: Backend, first: str | None) -> None:
    """A write-ahead log that somebody removed is missed, and so are its records; topics get new epochs."""
    log = await sqlite.open()
    epochs = {(await log.create("older")).epoch}
    await log.close()
    epochs.add(crash(sqlite.path))
    Path(f"{sqlite.path}-wal").unlink()
    assert find_loss(sqlite.path) is not None
    if first is not None:
        start(sqlite.path, *RENEWING, first)
    log, warnings = await look(sqlite)
    assert any("acknowledged records are missing" in warning for warning in warnings)
    [older] = await log.topics()
    assert older.name == "older" and older.epoch not in epochs


async def test_a_first_start_that_is_killed_while_it_checks(sqlite: Backend) -> None:
    """The loss is told by the next one, too: who reads the log of a start that was killed?"""
    epoch = crash(sqlite.path)
    damage(sqlite.path, 32 + 5 * FRAME + 100)
    start(sqlite.path, *CHECKING, "killed")
    assert sqlite.query("SELECT epoch FROM topics") != [(epoch,)], "renewed first"
    _, warnings = await look(sqlite)
    assert any("acknowledged records are missing" in warning for warning in warnings)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("damaged", [False, True])
async def test_a_first_start_that_did_not_come_to_a_result(sqlite: Backend, damaged: bool, end: str) -> None:
    """What was seen before SQLite recovered is known to the next start. Where all is gone but the note that there was
    something, that is told as a loss: rather once too often."""
    epoch = crash(sqlite.path)
    if damaged:
        damage(sqlite.path, -100)
    start(sqlite.path, *FINDING, end)
    is_closed = not Path(f"{sqlite.path}-wal").exists()
    assert is_closed == (end == "full")
    log, warnings = await look(sqlite)
    assert [w.split(" missing")[0] for w in warnings] == (
        ["acknowledged records may be"] if is_closed else ["acknowledged records are"] if damaged else []
    )
    assert ((await log.info("t")).epoch == epoch) == (warnings == [])
    await log.close()
    assert (await look(sqlite))[1] == []


@pytest.mark.parametrize("content", [b"", b"torn", b'{"generation": 7}'])
async def test_a_note_that_cannot_be_read(sqlite: Backend, content: bytes) -> None:
    """It says that there was something to tell, and that is told."""
    log = await sqlite.open()
    epoch = (await log.create("t")).epoch
    await log.close()
    marker(sqlite.path).write_bytes(content)
    log, warnings = await look(sqlite)
    assert ["acknowledged records may be missing" in warning for warning in warnings] == [True]
    assert (await log.info("t")).epoch != epoch


async def test_no_room_for_the_note(sqlite: Backend) -> None:
    """A log is not opened before it is sure that a loss will be told of: the start says that the disk is full."""
    crash(sqlite.path)
    damage(sqlite.path, -100)
    before = {
        path: path.read_bytes() for path in sqlite.path.parent.glob("log.db*") if path.suffix != ".lock"
    }
    process = run(NO_ROOM, sqlite.path)
    said, _ = process.communicate()
    assert said.startswith("no space left for the log: free some on the disk of")
    after = {path: path.read_bytes() for path in sqlite.path.parent.glob("log.db*") if path.suffix != ".lock"}
    assert after == before
    _, warnings = await look(sqlite)
    assert any("acknowledged records are missing" in warning for warning in warnings)


@pytest.mark.parametrize("rename", [os.link, os.rename])
async def test_another_name_does_not_hide_a_loss(
    sqlite: Backend, tmp_path: Path, rename: Callable[[Path, Path], None]
) -> None:
    """After a first start that did not finish, the log is refused by a name beside which its note is not."""
    crash(sqlite.path)
    damage(sqlite.path, 32 + 5 * FRAME + 100)
    start(sqlite.path, *RENEWING, "full")
    assert not Path(f"{sqlite.path}-wal").exists()
    first, other = sqlite.path, tmp_path / "other.db"
    rename(first, other)
    with pytest.raises(ConfigurationError, match=r"log\.db\.recovering: use the name"):
        await sqlite.open_at(other)
    if not first.exists():
        os.rename(marker(first), marker(other))
    sqlite.path = first if first.exists() else other
    _, warnings = await look(sqlite)
    assert any("acknowledged records are missing" in warning for warning in warnings)


@pytest.mark.parametrize("is_tried", [False, True])
async def test_no_renaming_in_it(sqlite: Backend, is_tried: bool) -> None:
    """A topic of a log with a loss is not renamed before a start has told of it; no sign of it is taken away."""
    crash(sqlite.path)
    damage(sqlite.path, -100)
    if is_tried:
        start(sqlite.path, *RENEWING, "full")
    with pytest.raises(LogCorrupt, match="missing"):
        rename_topic(sqlite.path, "t", "new")
    log, warnings = await look(sqlite)
    assert any("acknowledged records are missing" in warning for warning in warnings)
    await log.close()
    assert rename_topic(sqlite.path, "t", "new") == 9


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
    monkeypatch.setattr(wal, "_recover_frames", lambda db: None)
    _, warnings = await look(sqlite)
    assert (
        [f"(frames {found.kept + 1} to" in warning for warning in warnings] == [True]
        if found
        else not warnings
    )


@pytest.mark.parametrize("is_tried", [False, True])
async def test_no_backup_of_it(sqlite: Backend, tmp_path: Path, is_tried: bool) -> None:
    """A backup of a log whose write-ahead log is damaged is refused, and changes nothing of what can be told."""
    crash(sqlite.path)
    damage(sqlite.path, 32 + 5 * FRAME + 100)
    if is_tried:
        start(sqlite.path, *RENEWING, "full")
    with pytest.raises(LogCorrupt, match="missing"):
        backup(sqlite.path, tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()
    _, warnings = await look(sqlite)
    assert any("missing" in warning for warning in warnings)


async def test_a_restored_log_has_nothing_to_tell(sqlite: Backend, tmp_path: Path) -> None:
    """A backup that takes the place of a log with a loss is not taken for that log."""
    log = await sqlite.open()
    await log.create("older")
    await log.close()
    backup(sqlite.path, tmp_path / "backup.db")
    crash(sqlite.path)
    damage(sqlite.path, 32 + 5 * FRAME + 100)
    start(sqlite.path, *RENEWING, "full")
    restore(tmp_path / "backup.db", sqlite.path, force=True)
    assert not marker(sqlite.path).exists()
    assert (await look(sqlite))[1] == []


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
