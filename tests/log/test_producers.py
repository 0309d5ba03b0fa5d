"""How long producers are remembered, and how many a caller may have."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from himalia.errors import ConfigurationError, HimaliaError, TooManyProducers
from himalia.log import Batch
from himalia.log.sqlite.database import MIGRATIONS
from himalia.record import Retention

from .backends import Backend, add, drafts, enforce_retention, soon

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


async def is_known(log: Any, producer: str = "p", scope: str | None = "key:a", topic: str = "t") -> bool:
    """Whether the sequence 1 of a producer is a repeat. Stores it if it is not."""
    stored = await add(log, topic, 1, producer=producer, sequence=1, scope=scope)
    return bool(stored.duplicates)


def counted(sqlite: Backend) -> list[tuple[Any, ...]]:
    """The counts in a closed file, after a check that they are those of its rows."""
    rows = sqlite.query(
        "SELECT substr(producer, 1, instr(producer, char(0)) - 1), count(*) FROM producers "
        "WHERE instr(producer, char(0)) > 0 GROUP BY 1 ORDER BY 1"
    )
    assert sqlite.query("SELECT caller, count FROM producer_counts ORDER BY caller") == rows
    return rows


class TestAge:
    @pytest.mark.parametrize("scope", ["key:a", None])
    async def test_a_producer_is_forgotten(self, backend: Backend, scope: str | None) -> None:
        """A producer is remembered for ``producer_age_s`` after its last stored batch, and no hour longer."""
        log = await backend.open(producer_age_s=10 * DAY)
        await log.create("t")
        assert not await is_known(log, scope=scope)
        for seconds in (9 * DAY, DAY - 1):
            backend.clock.advance(seconds)
            await enforce_retention(log)
            assert await is_known(log, scope=scope)
        backend.clock.advance(HOUR + 1)
        await enforce_retention(log)
        assert not await is_known(log, scope=scope)

    async def test_use_renews_it(self, backend: Backend) -> None:
        """A producer that stores now and then is not forgotten."""
        log = await backend.open(producer_age_s=10 * DAY)
        await log.create("t")
        for sequence in range(4):
            await add(log, "t", 1, producer="p", sequence=sequence, scope="key:a")
            backend.clock.advance(9 * DAY)
            await enforce_retention(log)
        assert (await add(log, "t", 1, producer="p", sequence=3, scope="key:a")).duplicates == 1

    async def test_0_is_for_ever(self, backend: Backend) -> None:
        """Without a limit of age, a producer's batch is recognised after any time."""
        log = await backend.open(producer_age_s=0.0)
        await log.create("t")
        await is_known(log)
        backend.clock.advance(1e8)
        await enforce_retention(log)
        assert await is_known(log)

    @pytest.mark.parametrize("days", [100, -100])
    async def test_a_jump_of_the_clock_forgets_nothing(self, backend: Backend, days: int) -> None:
        """A wall clock that jumps makes no producer older, used before or after: not while it is held, nor after it
        was confirmed, nor when retention has removed all records of before."""
        log = await backend.open(producer_age_s=10 * DAY)
        await log.create("t", Retention(count=1))
        await is_known(log)
        backend.clock.set_ahead(days * DAY)
        await enforce_retention(log)
        await log.confirm_clock()
        await log.create("later")
        await is_known(log, topic="later")
        await add(log, "t", 3, "later")
        for _ in range(3):
            backend.clock.advance(2 * HOUR)
            await enforce_retention(log)
        assert await is_known(log) and await is_known(log, topic="later")

    async def test_nothing_is_forgotten_while_the_clock_is_held(self, backend: Backend) -> None:
        """A producer whose time comes while the clock is held is forgotten after that."""
        log = await backend.open(producer_age_s=DAY)
        await log.create("t")
        await is_known(log)
        backend.clock.advance(DAY - MINUTE)
        backend.clock.set_ahead(-5 * DAY)
        backend.clock.advance(30 * MINUTE)
        await enforce_retention(log)
        assert await is_known(log)
        await log.confirm_clock()
        backend.clock.advance(HOUR)
        await enforce_retention(log)
        assert not await is_known(log)

    async def test_it_is_not_shorter_than_the_window_of_ids(self, backend: Backend) -> None:
        """A producer is remembered at least as long as a message id, or the setting is refused."""
        with pytest.raises(ConfigurationError, match="producer_age_s"):
            await backend.open(producer_age_s=119.0, dedup_window_s=120.0)
        await backend.open(producer_age_s=120.0, dedup_window_s=120.0)


class TestNumber:
    async def test_a_caller_has_a_limit(self, backend: Backend) -> None:
        """One name more than ``producers_max``, over all topics, is refused and stores nothing; those that are known
        go on."""
        log = await backend.open(producers_max=2)
        for topic in ("t", "u"):
            await log.create(topic)
            await add(log, topic, 1, producer="p", sequence=1, scope="key:a")
        with pytest.raises(TooManyProducers, match=r"'key:a' has 2 producers"):
            await add(log, "t", 1, "new", producer="q", sequence=1, scope="key:a")
        assert (await log.info("t")).end == 1
        assert (await add(log, "t", 1, "n", producer="p", sequence=2, scope="key:a")).duplicates == 0
        assert (await add(log, "t", 1, "n", producer="p", sequence=2, scope="key:a")).duplicates == 1

    async def test_no_caller_takes_the_room_of_another(self, backend: Backend) -> None:
        """A caller at its limit keeps neither another caller nor the server itself from naming producers."""
        log = await backend.open(producers_max=2)
        await log.create("t")
        for scope in ("key:a", "key:b"):
            for name in ("p", "q"):
                assert not await is_known(log, name, scope)
            with pytest.raises(TooManyProducers):
                await is_known(log, "r", scope)
        for n in range(5):
            assert not await is_known(log, f"own-{n}", None)

    async def test_names_under_way_count(self, backend: Backend) -> None:
        """Of many new names sent at once, as many are stored as the limit allows, each refusal by itself."""
        log = await backend.open(producers_max=3)
        await log.create("t")
        futures = [log.append(Batch("t", drafts(1, f"{n}"), None, f"p{n}", 1, "key:a")) for n in range(20)]
        results = await soon(asyncio.gather(*futures, return_exceptions=True))
        refused = [result for result in results if isinstance(result, HimaliaError)]
        assert (len(refused), {type(error) for error in refused}) == (17, {TooManyProducers})
        assert (await log.info("t")).end == 3

    async def test_deleting_a_topic_makes_room(self, backend: Backend) -> None:
        """The producers of a deleted topic do not count any more."""
        log = await backend.open(producers_max=2)
        for topic in ("t", "u"):
            await log.create(topic)
            await add(log, topic, 1, producer="p", sequence=1, scope="key:a")
        await log.delete("u")
        await enforce_retention(log)
        assert not await is_known(log, "q")
        with pytest.raises(TooManyProducers):
            await is_known(log, "r")

    async def test_forgetting_makes_room(self, backend: Backend) -> None:
        """A producer that is forgotten does not count any more."""
        log = await backend.open(producers_max=1, producer_age_s=DAY)
        await log.create("t")
        await is_known(log)
        backend.clock.advance(DAY + HOUR)
        await enforce_retention(log)
        assert not await is_known(log, "q")
        with pytest.raises(TooManyProducers):
            await is_known(log)

    async def test_a_name_of_an_earlier_version_is_taken_over(self, backend: Backend) -> None:
        """A caller at its limit can still use the producers that it had before callers were told apart."""
        log = await backend.open(producers_max=1)
        await log.create("t")
        await is_known(log, "old", None)
        await is_known(log, "p")
        assert (await add(log, "t", 1, producer="old", sequence=2, scope="key:a")).duplicates == 0
        with pytest.raises(TooManyProducers, match="2 producers"):
            await is_known(log, "q")


class TestFile:
    async def test_the_counts_survive_a_restart(self, sqlite: Backend) -> None:
        """A restart makes no room for more names."""
        log = await sqlite.open(producers_max=2)
        await log.create("t")
        for name, scope in (("p", "key:a"), ("q", "key:a"), ("p", "key:b"), ("own", None)):
            await is_known(log, name, scope)
        await log.close()
        assert counted(sqlite) == [("key:a", 2), ("key:b", 1)]
        log = await sqlite.open(producers_max=2)
        with pytest.raises(TooManyProducers):
            await is_known(log, "r")
        assert not await is_known(log, "q", "key:b")

    async def test_a_wrong_clock_at_boot_delays_nothing(self, sqlite: Backend) -> None:
        """When the time that a wrong clock claimed at boot is taken back, producers are forgotten in time again."""
        log = await sqlite.open(producer_age_s=DAY)
        await log.create("t")
        await is_known(log)
        await log.close()
        sqlite.clock.boot(8 * DAY)
        log = await sqlite.open(producer_age_s=DAY)
        await enforce_retention(log)
        sqlite.clock.set_ahead(-8 * DAY)
        await log.confirm_clock()
        await enforce_retention(log)
        assert await is_known(log)
        sqlite.clock.advance(DAY + HOUR)
        await enforce_retention(log)
        assert not await is_known(log)

    async def test_many_are_forgotten_in_steps(self, sqlite: Backend) -> None:
        """Thousands of old producers go in small transactions; those that are young, and their counts, stay."""
        log = await sqlite.open(producer_age_s=DAY)
        for topic in ("t", "u"):
            await log.create(topic)
            futures = [log.append(Batch(topic, [], None, f"p{n}", 1, f"key:{n % 3}")) for n in range(3000)]
            await soon(asyncio.gather(*futures))
        sqlite.clock.advance(DAY + HOUR)
        await add(log, "t", 1, producer="p7", sequence=2, scope="key:1")
        steps = log.stats().steps
        await enforce_retention(log)
        assert log.stats().steps - steps >= 4
        await log.close()
        assert counted(sqlite) == [("key:1", 1)]
        assert sqlite.query("SELECT producer, sequence FROM producers") == [("key:1\0p7", 2)]

    async def test_erasing_many_keeps_the_counts(self, sqlite: Backend) -> None:
        """Counts are those of the rows, also when a deleted topic has more producers than one step erases."""
        log = await sqlite.open()
        for topic in ("t", "u"):
            await log.create(topic)
            futures = [log.append(Batch(topic, [], None, f"p{n}", 1, f"key:{n % 2}")) for n in range(1300)]
            await soon(asyncio.gather(*futures))
        await log.delete("t")
        await enforce_retention(log)
        await log.close()
        assert counted(sqlite) == [("key:0", 650), ("key:1", 650)]

    async def test_a_log_of_version_5(self, sqlite: Backend) -> None:
        """Producers of an older file are counted for their callers, and count as used when it was upgraded."""
        db = sqlite3.connect(sqlite.path, isolation_level=None)
        for statements in MIGRATIONS[:5]:
            for statement in statements:
                db.execute(statement)
        db.execute("PRAGMA user_version = 5")
        now_us = sqlite.clock.now_us
        db.execute("INSERT INTO topics VALUES (1, 't', 'e1', 5, NULL, NULL, NULL, NULL)")
        db.execute("INSERT INTO topic_state VALUES (1, 0, 0, 0, 0, 0)")
        clock = (sqlite.clock.boot_id(), sqlite.clock.up_us, now_us, now_us)
        db.execute("INSERT INTO clock VALUES (1, ?, ?, ?, ?, NULL, NULL, 0)", clock)
        for name in ("key:a\0p", "key:a\0q", "key:b\0p", "r"):
            db.execute("INSERT INTO producers VALUES (1, ?, 1, 0, 1, 5)", (name,))
        db.close()
        log = await sqlite.open(producers_max=2, producer_age_s=DAY)
        sqlite.clock.advance(DAY - 1)
        await enforce_retention(log)
        assert await is_known(log) and await is_known(log, "r")
        with pytest.raises(TooManyProducers):
            await is_known(log, "new")
        sqlite.clock.advance(HOUR + 1)
        await enforce_retention(log)
        await log.close()
        assert counted(sqlite) == []
        assert sqlite.query("SELECT count(*) FROM producers") == [(0,)]
