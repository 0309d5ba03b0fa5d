"""A factory for each implementation of the log, and the small things its tests share."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from himalia.log import Batch, Log, LogOptions, open_log
from himalia.log.memory import MemoryLog
from himalia.log.transaction import Transaction
from himalia.record import Draft, Record, Retention
from himalia.settings import LogSettings

T = TypeVar("T")

DEADLINE_S = 30
UNLIMITED = Retention(count=1_000_000_000)


class Clock:
    """The clocks of a machine, which stand still until they are moved; see ``himalia.log.clock.TimeSource``."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000
        self.up_us = 50_000_000
        self.boots = 1

    def wall_us(self) -> int:
        return self.now_us

    def steady_us(self) -> int:
        return self.up_us

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_us += round(seconds * 1_000_000)
        self.up_us += round(seconds * 1_000_000)

    def set_ahead(self, seconds: float) -> None:
        """Set the wall clock without that any time passes."""
        self.now_us += round(seconds * 1_000_000)

    def boot(self, off_s: float) -> None:
        """Boot the machine, which is off for so long; its wall clock counts that."""
        self.boots += 1
        self.now_us += round(off_s * 1_000_000)
        self.up_us = 20_000_000


class Backend:
    """Opens logs of one kind, and closes what is left open."""

    def __init__(self, kind: str, directory: Path, clock: Clock) -> None:
        self.kind = kind
        self.path = directory / "log.db"
        self.clock = clock
        self._opened: list[Log] = []

    @property
    def is_durable(self) -> bool:
        return self.kind != "memory"

    async def open(self, **options: Any) -> Any:
        log = self.make(**options)
        await log.open()
        self._opened.append(log)
        return log

    async def open_at(self, path: Path, **options: Any) -> Any:
        self.path = path
        return await self.open(**options)

    def make(self, **options: Any) -> Any:
        options = {"clock": self.clock, "retention": UNLIMITED, "retention_interval_s": 3600.0} | options
        if self.kind == "sqlite-cold":
            # Nothing recent in memory: every read comes from the file.
            options = {"cache_count_max": 0} | options
        scheme = self.kind.partition("-")[0]
        return open_log(
            "memory://" if scheme == "memory" else f"{scheme}://{self.path}", log_options(**options)
        )

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """RecordRun a statement on the file of a SQLite log that is closed."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            return db.execute(statement).fetchall()

    async def close(self) -> None:
        for log in self._opened:
            await log.close()


def log_options(retention: Retention | None = None, **given: Any) -> LogOptions:
    """Options of a log: settings by their names, limits as a ``Retention``, and the other fields of ``LogOptions``."""
    retention = retention or Retention()
    limits = {
        "retention_age_s": retention.age_s or 0,
        "retention_bytes": retention.bytes or 0,
        "retention_count": retention.count or 0,
    }
    settings = {name: given.pop(name) for name in LogSettings.model_fields if name in given}
    # Not validated: some numbers make sense for a log and not for a server.
    return LogOptions(LogSettings.model_construct(**limits, **settings), **given)


class _RunOnWriter:
    """A command that stores nothing and returns what ``work`` returns in the writer thread."""

    def __init__(self, future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
        self.future = future
        self._work = work

    def stage(self, _transaction: Transaction) -> Any:
        return self._work()


async def enforce_retention(log: Any) -> None:
    """Have the log delete now what retention does not keep, and erase deleted topics; return when that is done."""
    if isinstance(log, MemoryLog):
        log._enforce_limits()
        return
    writer = log._require_writer()
    maintenance = writer._storage.maintenance

    def tick() -> None:
        writer._next_check_s = maintenance._next_tick_s = 0.0

    # Each command is followed by a check of the clock and one step of maintenance.
    await log._submit(lambda future: _RunOnWriter(future, tick))
    while await log._submit(lambda future: _RunOnWriter(future, maintenance.is_due)):
        pass


KINDS = ("memory", "sqlite", "sqlite-cold")


def drafts(count: int, prefix: str = "m") -> list[Draft]:
    return [Draft(f"{prefix}{i}", b'{"n":%d}' % i) for i in range(count)]


async def add(log: Log, topic: str, count: int, prefix: str = "m", **batch: Any) -> Any:
    return await soon(log.append(Batch(topic, drafts(count, prefix), **batch)))


async def read_all(log: Log, topic: str, start: int = 0, **options: Any) -> list[Record]:
    """Everything from ``start`` on, as a cursor reads it."""
    records: list[Record] = []
    while True:
        chunk = await log.read(topic, start, **({"limit": 1000} | options))
        if not chunk.records:
            return records
        records += chunk.records
        start = chunk.records[-1].offset + 1


async def soon(awaitable: Awaitable[T]) -> T:
    """The result, or a failed test rather than one that hangs."""
    return await asyncio.wait_for(awaitable, DEADLINE_S)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that no event tells of, giving way to other tasks and threads meanwhile."""

    async def poll() -> None:
        while not await condition():
            await asyncio.sleep(0.005)

    await soon(poll())
