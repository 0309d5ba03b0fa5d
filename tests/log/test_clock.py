"""A wall clock that jumps: what is kept, how records are dated, and what an operator is told."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from himalia.errors import LogUnavailable
from himalia.log.clock import SystemTime
from himalia.log.sqlite.store import Store
from himalia.record import Retention

from .backends import Backend, Clock, add, enforce_retention, read_all

MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86_400.0, 365 * 86_400.0
WEEK = Retention(age_s=7 * DAY)


async def filled(backend: Backend, **options: Any) -> Any:
    """A log with topics of three records each, kept for a week."""
    log = await backend.open(**options)
    for name in ("a", "b"):
        await log.create(name, WEEK)
        await add(log, name, 3)
    return log


async def kept(log: Any, topic: str = "a") -> int:
    await enforce_retention(log)
    info = await log.info(topic)
    return int(info.end - info.first)


async def warnings(log: Any) -> list[str]:
    await enforce_retention(log)
    health = await log.health()
    assert health.ok
    return list(health.warnings)


async def last_us(log: Any, topic: str = "a") -> int:
    return int((await read_all(log, topic))[-1].ts_us)


class TestJump:
    async def test_it_removes_nothing(self, backend: Backend) -> None:
        """A clock that is 8 days ahead for three seconds removes no record of 7 days."""
        log = await filled(backend)
        backend.clock.set_ahead(8 * DAY)
        for _ in range(3):
            backend.clock.advance(1)
            assert await kept(log) == await kept(log, "b") == 3
        backend.clock.set_ahead(-8 * DAY)
        assert await kept(log) == await kept(log, "b") == 3

    @pytest.mark.parametrize("seconds", [5 * MINUTE + 1, -5 * MINUTE - 1, 8 * DAY, -10 * YEAR])
    async def test_it_is_named(self, backend: Backend, seconds: float) -> None:
        """Health says of a clock that was set by more than five minutes how far, and how to confirm it; the log
        is well all the same."""
        log = await filled(backend)
        assert await warnings(log) == []
        backend.clock.set_ahead(seconds)
        [warning] = await warnings(log)
        assert ("ahead" if seconds > 0 else "back") in warning
        assert "himalia clock confirm" in warning

    async def test_five_minutes_are_followed(self, backend: Backend) -> None:
        """Five minutes are no jump: records are dated by the clock as it was set."""
        log = await filled(backend)
        backend.clock.set_ahead(5 * MINUTE)
        assert await warnings(log) == []
        await add(log, "a", 1, "new")
        assert await last_us(log) == backend.clock.now_us

    async def test_many_small_steps_are_a_jump(self, backend: Backend) -> None:
        """Within an hour the clock is followed by five minutes in all, however small the steps."""
        log = await filled(backend)
        for _ in range(4):
            backend.clock.advance(1)
            backend.clock.set_ahead(4 * MINUTE)
            await enforce_retention(log)
        assert len(await warnings(log)) == 1

    async def test_a_clock_that_drifts_is_followed(self, backend: Backend) -> None:
        """A clock that runs a minute an hour fast is no jump, for as long as it does."""
        log = await filled(backend)
        for n in range(24):
            for _ in range(60):
                backend.clock.advance(59)
                backend.clock.set_ahead(1)
                await enforce_retention(log)
            await add(log, "b", 1, f"{n}-")
            assert await last_us(log, "b") == backend.clock.now_us
        assert await warnings(log) == []

    async def test_after_an_hour_ages_count_again(self, backend: Backend) -> None:
        """After an hour records are removed again, by the time that passed since they were stored and not by the
        clock that jumped."""
        log = await filled(backend)
        backend.clock.advance(6 * DAY)
        await add(log, "a", 1, "later")
        backend.clock.set_ahead(30 * DAY)
        assert len(await warnings(log)) == 1
        backend.clock.advance(HOUR)
        assert await warnings(log) == []
        assert await kept(log) == 4
        backend.clock.advance(DAY - HOUR)
        assert await kept(log) == 4
        backend.clock.advance(1)
        assert await kept(log) == 1
        backend.clock.advance(6 * DAY - 1)
        assert await kept(log) == 1
        backend.clock.advance(0.000001)
        assert await kept(log) == 0

    async def test_nothing_goes_for_its_age_meanwhile(self, backend: Backend) -> None:
        """Within that hour not even what really is too old is removed for its age; other limits hold."""
        log = await filled(backend)
        await log.create("few", Retention(count=2))
        backend.clock.advance(7 * DAY - MINUTE)
        backend.clock.set_ahead(-DAY)
        await add(log, "few", 5)
        backend.clock.advance(HOUR - MINUTE)
        assert (await kept(log), await kept(log, "few")) == (3, 2)
        backend.clock.advance(MINUTE)
        assert await kept(log) == 0

    async def test_a_topic_that_is_cut_meanwhile(self, backend: Backend) -> None:
        """Within that hour a topic that exceeds its number loses what exceeds it, not what is too old as well."""
        log = await backend.open()
        await log.create("both", Retention(age_s=7 * DAY, count=6))
        await add(log, "both", 3)
        backend.clock.advance(7 * DAY - MINUTE)
        backend.clock.set_ahead(-DAY)
        await enforce_retention(log)
        backend.clock.advance(HOUR - MINUTE)
        await add(log, "both", 5, "new")
        assert await kept(log, "both") == 6

    async def test_confirming_ends_it(self, backend: Backend) -> None:
        """A confirmed clock is followed at once, and ages count again; what was doubted is the answer."""
        log = await filled(backend)
        backend.clock.advance(7 * DAY + MINUTE)
        backend.clock.set_ahead(HOUR)
        assert await kept(log) == 3
        [warning] = await warnings(log)
        assert await log.confirm_clock() == warning
        assert await warnings(log) == []
        assert await kept(log) == 0
        await add(log, "a", 1, "new")
        assert await last_us(log) == backend.clock.now_us
        assert await log.confirm_clock() is None

    async def test_the_hour_begins_again_with_each_jump(self, backend: Backend) -> None:
        """A clock that jumps back and forth is not trusted before it was steady for an hour."""
        log = await filled(backend)
        backend.clock.set_ahead(DAY)
        await enforce_retention(log)
        backend.clock.advance(50 * MINUTE)
        backend.clock.set_ahead(-DAY)
        await enforce_retention(log)
        backend.clock.advance(50 * MINUTE)
        [warning] = await warnings(log)
        assert "came back" in warning
        backend.clock.advance(10 * MINUTE)
        assert await warnings(log) == []


class TestDates:
    async def test_one_bad_minute_pins_nothing(self, backend: Backend) -> None:
        """What is published while the clock is ten years ahead is dated by the time that passed, and so is what
        comes after it."""
        log = await filled(backend)
        backend.clock.set_ahead(10 * YEAR)
        backend.clock.advance(MINUTE)
        await add(log, "a", 1, "bad")
        backend.clock.set_ahead(-10 * YEAR)
        assert await last_us(log) == backend.clock.now_us
        backend.clock.advance(2 * HOUR)
        await add(log, "a", 1, "good")
        assert await last_us(log) == backend.clock.now_us

    async def test_a_jump_back(self, backend: Backend) -> None:
        """While the clock is a day behind, records are dated by the time that passed; times never decrease."""
        log = await filled(backend)
        began_us = await last_us(log)
        backend.clock.set_ahead(-DAY)
        backend.clock.advance(MINUTE)
        await add(log, "a", 1, "b")
        assert await last_us(log) == began_us + 60_000_000
        await log.confirm_clock()
        await add(log, "a", 1, "c")
        assert await last_us(log) == began_us + 60_000_000

    async def test_a_topic_that_is_pinned_all_the_same(self, backend: Backend) -> None:
        """Records that were dated ten years ahead by a clock that was confirmed, and those that therefore have to
        be dated so too, are removed when they are as old as the limit says, give or take the marks."""
        log = await filled(backend)
        backend.clock.set_ahead(10 * YEAR)
        await enforce_retention(log)
        await log.confirm_clock()
        await add(log, "a", 1, "future")
        backend.clock.set_ahead(-10 * YEAR)
        await enforce_retention(log)
        await log.confirm_clock()
        await add(log, "a", 1, "pinned")
        assert await last_us(log) > backend.clock.now_us + 9 * YEAR * 1e6
        assert await kept(log) == 5
        backend.clock.advance(7 * DAY + 1)
        assert await kept(log) == 1  # When the last one was stored is known as of now.
        backend.clock.advance(7 * DAY + 1)
        assert await kept(log) == 0

    async def test_ids_go_by_what_passed(self, backend: Backend) -> None:
        """A repeat is recognised for ``dedup_window_s``, wherever the clock is set to meanwhile."""
        log = await backend.open(dedup_window_s=60.0)
        await log.create("t")
        await add(log, "t", 1)
        for seconds in (10 * YEAR, -20 * YEAR, 10 * YEAR):
            backend.clock.set_ahead(seconds)
            backend.clock.advance(15)
            assert (await add(log, "t", 1)).duplicates == 1
            await log.confirm_clock()
        backend.clock.advance(15)
        assert (await add(log, "t", 1)).duplicates == 0


class TestRestart:
    async def test_the_hour_goes_on(self, sqlite: Backend) -> None:
        """A restart neither ends the hour nor begins it again."""
        log = await filled(sqlite)
        sqlite.clock.set_ahead(8 * DAY)
        assert len(await warnings(log)) == 1
        for _ in range(3):
            await log.close()
            sqlite.clock.advance(15 * MINUTE)
            log = await sqlite.open()
            assert len(await warnings(log)) == 1
            assert await kept(log) == 3
        await log.close()
        sqlite.clock.advance(15 * MINUTE)
        log = await sqlite.open()
        assert await warnings(log) == []
        assert await kept(log) == 3

    async def test_set_while_it_was_closed(self, sqlite: Backend) -> None:
        """A clock that was set between two starts of one boot is noticed, and records go on being dated by what
        passed."""
        log = await filled(sqlite)
        began_us = await last_us(log)
        await log.close()
        sqlite.clock.set_ahead(8 * DAY)
        sqlite.clock.advance(10 * MINUTE)
        log = await sqlite.open()
        assert await kept(log) == 3
        assert len(await warnings(log)) == 1
        await add(log, "a", 1, "new")
        assert await last_us(log) == began_us + 600_000_000

    async def test_an_hour_behind_at_the_start(self, sqlite: Backend) -> None:
        """A log that was new while the clock was an hour behind keeps its records for as long as it should, and
        not an hour less, after the clock was set right."""
        log = await filled(sqlite)
        sqlite.clock.advance(MINUTE)
        await log.close()
        sqlite.clock.set_ahead(HOUR)
        log = await sqlite.open()
        assert len(await warnings(log)) == 1
        sqlite.clock.advance(7 * DAY - 2 * MINUTE)
        assert await warnings(log) == []
        for _ in range(2):
            assert await kept(log) == 3
            await log.close()
            log = await sqlite.open()
        sqlite.clock.advance(MINUTE + 1)
        assert await kept(log) == 0
        await log.close()
        assert sqlite.query("SELECT * FROM eras WHERE topic = 1") == []

    async def test_ids_over_a_restart(self, sqlite: Backend) -> None:
        """What passed counts for ids also over a restart with a clock that was set, and confirmed, meanwhile."""
        log = await sqlite.open(dedup_window_s=60.0)
        await log.create("t", Retention(count=1))
        await add(log, "t", 2)
        await enforce_retention(log)
        for seconds in (YEAR, -2 * YEAR):
            sqlite.clock.set_ahead(seconds)
            await enforce_retention(log)
            await log.confirm_clock()
            await log.close()
            sqlite.clock.advance(20)
            log = await sqlite.open(dedup_window_s=60.0)
            assert (await add(log, "t", 2)).duplicates == 2
        await log.close()
        sqlite.clock.advance(20)
        log = await sqlite.open(dedup_window_s=60.0)
        assert (await add(log, "t", 2)).duplicates == 0

    async def test_what_cannot_be_stored_is_not_followed(
        self, sqlite: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the disk does not take what has to be known of earlier records, the clock stays in doubt."""
        log = await filled(sqlite, probe_interval_s=0.01)
        sqlite.clock.set_ahead(8 * DAY)
        assert len(await warnings(log)) == 1

        def fail(_store: Store, _states: Any) -> None:
            monkeypatch.undo()
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(Store, "save_eras", fail)
        with pytest.raises(LogUnavailable):
            await log.confirm_clock()
        await add(log, "a", 1, "well again")
        assert len(await warnings(log)) == 1
        assert await log.confirm_clock() is not None
        assert await kept(log) == 4


class TestBoot:
    async def test_after_a_weekend(self, sqlite: Backend) -> None:
        """After a boot the clock is believed, as time that passed; but for an hour nothing is removed, and that is
        told."""
        log = await filled(sqlite)
        await log.close()
        sqlite.clock.boot(8 * DAY)
        log = await sqlite.open()
        await add(log, "a", 1, "new")
        assert await last_us(log) == sqlite.clock.now_us
        assert await kept(log) == 4
        [warning] = await warnings(log)
        assert "8 days ahead of the last use" in warning
        sqlite.clock.advance(HOUR)
        assert await warnings(log) == []
        assert await kept(log) == 1

    async def test_a_short_one(self, sqlite: Backend) -> None:
        """A boot that took less than five minutes needs no word."""
        log = await filled(sqlite)
        await log.close()
        sqlite.clock.boot(4 * MINUTE)
        log = await sqlite.open()
        assert await warnings(log) == []
        await add(log, "a", 1, "new")
        assert await last_us(log) == sqlite.clock.now_us

    @pytest.mark.parametrize("off_s", [-HOUR, -30 * YEAR, 10 * YEAR])
    async def test_a_clock_that_cannot_be_right(self, sqlite: Backend, off_s: float) -> None:
        """A clock that after a boot is behind the last use, or ten years ahead, dates no record and makes none
        older, also after it was set right."""
        log = await filled(sqlite)
        began_us = await last_us(log)
        await log.close()
        sqlite.clock.boot(off_s)
        log = await sqlite.open()
        await add(log, "a", 1, "new")
        assert began_us < await last_us(log) <= began_us + 60_000_000
        assert len(await warnings(log)) == 1
        sqlite.clock.set_ahead(-off_s + DAY)
        await enforce_retention(log)
        await log.confirm_clock()
        await add(log, "a", 1, "right")
        assert await last_us(log) == sqlite.clock.now_us
        sqlite.clock.advance(7 * DAY - MINUTE)
        assert await kept(log) == 5
        sqlite.clock.advance(MINUTE + 1)
        assert await kept(log) == 0

    @pytest.mark.parametrize("restarts", ["", "same boot", "next boot"])
    async def test_a_clock_that_is_set_back_soon(self, sqlite: Backend, restarts: str) -> None:
        """A machine that boots with a clock eight days ahead, which is set right a minute later, removes no record
        early, recognises ids no longer than it should, and removes records in the end."""
        log = await filled(sqlite)
        await log.close()
        sqlite.clock.boot(8 * DAY)
        log = await sqlite.open()
        await add(log, "b", 1, "meanwhile")
        sqlite.clock.advance(MINUTE)
        if restarts == "next boot":
            await log.close()
            sqlite.clock.boot(-8 * DAY)
            log = await sqlite.open()
        else:
            sqlite.clock.set_ahead(-8 * DAY)
            await enforce_retention(log)
        if restarts == "same boot":
            await log.close()
            log = await sqlite.open()
        assert len(await warnings(log)) == 1
        sqlite.clock.advance(HOUR)
        assert await warnings(log) == []
        assert await kept(log) == 3
        assert await kept(log, "b") == 4
        assert (await add(log, "b", 1, "meanwhile")).duplicates == 0
        await add(log, "a", 1, "right")
        assert await last_us(log) == sqlite.clock.now_us
        sqlite.clock.advance(7 * DAY - 2 * HOUR)
        assert await kept(log) == 4
        sqlite.clock.advance(2 * HOUR + 1)
        assert await kept(log) == 0
        sqlite.clock.advance(15 * DAY + 2 * HOUR)
        assert await kept(log, "b") == 0

    async def test_ids_after_ages_were_taken_back(self, sqlite: Backend) -> None:
        """An id that was stored while a wrong clock was believed is recognised for ``dedup_window_s`` from then on,
        whether its record is kept or not."""
        log = await filled(sqlite)
        await log.create("few", Retention(count=1))
        await log.close()
        sqlite.clock.boot(8 * DAY)
        log = await sqlite.open()
        await add(log, "few", 2)
        sqlite.clock.set_ahead(-8 * DAY)
        await enforce_retention(log)
        await log.confirm_clock()
        await log.close()
        assert sqlite.query("SELECT * FROM trimmed_ids JOIN clock ON ts_us > age_us") == []
        log = await sqlite.open()
        sqlite.clock.advance(60)
        assert (await add(log, "few", 2)).duplicates == 2
        sqlite.clock.advance(60)
        assert (await add(log, "few", 2)).duplicates == 0

    async def test_a_clock_that_was_wrong_before_the_boot(self, sqlite: Backend) -> None:
        """A clock that jumped eight days ahead is not believed for the reason that the machine was booted since."""
        log = await filled(sqlite)
        sqlite.clock.set_ahead(8 * DAY)
        assert len(await warnings(log)) == 1
        await log.close()
        sqlite.clock.boot(MINUTE)
        log = await sqlite.open()
        assert len(await warnings(log)) == 1
        sqlite.clock.advance(HOUR)
        assert await warnings(log) == []
        assert await kept(log) == 3

    async def test_a_file_that_knows_no_last_look(self, sqlite: Backend) -> None:
        """A log of an earlier version whose records a clock dated ten years ahead: that is told, ids are forgotten
        in time, and the records are removed when they are as old as the limit says, counted from now."""
        log = await filled(sqlite)
        await log.close()
        sqlite.query("DELETE FROM clock")
        sqlite.clock.now_us -= round(10 * YEAR * 1e6)
        log = await sqlite.open()
        [warning] = await warnings(log)
        assert "3650 days ahead of this machine's clock" in warning
        sqlite.clock.advance(121)
        assert (await add(log, "a", 3)).duplicates == 0
        sqlite.clock.advance(7 * DAY + HOUR)
        assert await kept(log) <= 3
        sqlite.clock.advance(7 * DAY + HOUR)
        assert await kept(log) == await kept(log, "b") == 0


class TestSystemTime:
    async def test_this_machine(self, tmp_path: Any) -> None:
        """By the clocks of this machine, a restart is no jump."""
        backend = Backend("sqlite", tmp_path, Clock())
        for _ in range(2):
            log = await backend.open(clock=SystemTime())
            assert await warnings(log) == []
            await log.close()
