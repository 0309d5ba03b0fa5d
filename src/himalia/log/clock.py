"""The log's clock: dates and ages of records that no jump of the wall clock moves.

There are two scales. **Log time** dates records: it is the wall clock, as long as that advances by the time that
really passed, give or take five minutes an hour. **Age** only counts the time that passed, by a clock of the machine
that cannot be set; the difference of two ages is how much older one record is than another.

When the wall clock jumps, log time continues by the time that passed and the clock is *held*: no record is deleted for
its age. The hold ends after an hour, or when an operator confirms the clock. Then log time follows the wall clock
again, and records that were dated before keep their ages by the ``shift_us`` that applied to them (``Era``).

The state of the clock is stored with the log (``SavedClock``), so that a start can tell a jump from time that passed.
After a reboot it cannot, and accepts the wall clock if it is within ``OFF_MAX_US``, but holds all the same: if the wall
clock is set back before the hold ends, the age that was added because of it is subtracted again (``assumed_us``). Time
that is not known to have passed makes no record older: records may be deleted too late, never too early.
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from himalia.record import format_ts

SECOND_US = 1_000_000
JUMP_US = 300 * SECOND_US
"""How much the wall clock may differ from the time that passed, per hour."""
HOLD_US = 3600 * SECOND_US
OFF_MAX_US = 30 * 86_400 * SECOND_US
"""How long a machine may plausibly have been switched off."""
SAVE_EVERY_US = 60 * SECOND_US
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


_read_steady_ns = time.clock_gettime_ns
# macOS has no BOOTTIME; its MONOTONIC counts sleep.
_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class TimeSource(Protocol):
    """The machine's clocks, in microseconds."""

    def wall_us(self) -> int:
        """Since 1970, as the machine believes."""
        ...

    def steady_us(self) -> int:
        """Cannot be set, and counts while the machine sleeps. Comparable within one boot."""
        ...

    def boot_id(self) -> str | None:
        """Different after each boot; None if unknown."""
        ...


class SystemTime:
    """The clocks of this machine."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def steady_us(self) -> int:
        return _read_steady_ns(_STEADY) // 1000

    def boot_id(self) -> str | None:
        try:
            return BOOT_ID.read_text().strip() or None
        except OSError:
            return None


class Moment(msgspec.Struct, frozen=True):
    """The same moment on both scales."""

    ts_us: int
    age_us: int


class Doubt(StrEnum):
    """Why the clock is held."""

    JUMPED = "jumped"
    """The wall clock was set."""
    UNKNOWN = "unknown"
    """The machine was booted since the last use, and its clock cannot be right."""
    BOOTED = "booted"
    """The machine was booted since the last use, and its clock may be right."""
    FUTURE = "future"
    """No saved clock was found, and there are records that are dated in the future."""


class SavedClock(msgspec.Struct, frozen=True):
    """The clock as it is stored with the log."""

    boot_id: str | None
    steady_us: int
    log_us: int
    age_us: int
    held_until_us: int | None = None
    doubt: str | None = None
    jump_us: int = 0
    assumed_us: int = 0
    """How much of the age rests on the wall clock alone, after a boot, and can be subtracted during the hold."""


class LogClock:
    """See the module. Only the thread that assigns offsets uses it."""

    def __init__(self, source: TimeSource) -> None:
        self._source = source
        self._boot_id = source.boot_id()
        # To be added to the steady clock to get log time, age, and the expected wall clock.
        self._log_offset_us = self._age_offset_us = self._wall_offset_us = 0
        self._compared_us = 0
        self._saved_us: int | None = None
        self._held_until_us: int | None = None
        self._doubt: Doubt | None = None
        self._jump_us = 0
        self._assumed_us = 0
        self.last = Moment(0, 0)
        """The result of the latest ``now``."""
        self.restore(None, 0)

    # Reading

    def now(self) -> Moment:
        """Read the clocks; hold if the wall clock has jumped."""
        # Without calls of ``_read`` and ``_set_last``: every commit calls this.
        steady_us = self._source.steady_us()
        offset_us = self._source.wall_us() - steady_us
        if not -JUMP_US <= offset_us - self._wall_offset_us <= JUMP_US:
            self._hold(Doubt.JUMPED, steady_us, offset_us - self._log_offset_us)
            self._compare_with(steady_us, offset_us)
        elif steady_us - self._compared_us >= HOLD_US:
            self._compare_with(steady_us, offset_us)
        if self._doubt is None or self._doubt in _ACCEPTED:
            self._log_offset_us = offset_us
        self.last = now = Moment(steady_us + self._log_offset_us, steady_us + self._age_offset_us)
        return now

    @property
    def shift_us(self) -> int:
        """By how much a record that is stored now is dated later than its age says."""
        return self._log_offset_us - self._age_offset_us

    @property
    def is_held(self) -> bool:
        """Whether no record may be deleted for its age. True until ``follow_wall_clock`` is called, however late."""
        return self._doubt is not None

    @property
    def is_hold_over(self) -> bool:
        """Whether the clock is still held although its hour is over."""
        return self._held_until_us is not None and self.last.age_us >= self._held_until_us

    @property
    def warning(self) -> str | None:
        """What is wrong with the clock and what to do; None unless it is held."""
        if self._doubt is None or self._held_until_us is None:
            return None
        until = format_ts(self._held_until_us + self.shift_us)
        consequence = f"no record is removed for its age before {until}, or `himalia clock confirm`"
        amount = _format_duration(abs(self._jump_us))
        if self._doubt is not Doubt.JUMPED:
            difference = f"{amount} {'ahead of' if self._jump_us > 0 else 'behind'}"
        elif abs(self._jump_us) > JUMP_US:
            difference = f"{amount} {'ahead' if self._jump_us > 0 else 'back'}"
        else:
            difference = "and came back"
        return f"{_WHAT[self._doubt].format(difference)}; {consequence}"

    # Restoring and following

    def restore(self, saved: SavedClock | None, newest_us: int) -> None:
        """Continue from the saved clock; ``newest_us`` is the time of the newest record."""
        steady_us, offset_us = self._read()
        wall_us = steady_us + offset_us
        self._held_until_us = self._doubt = None
        self._jump_us = 0
        self._assumed_us = 0 if saved is None else saved.assumed_us
        if saved is None:
            self._set(steady_us, wall_us, wall_us)
            if newest_us > wall_us + JUMP_US:
                self._hold(Doubt.FUTURE, steady_us, newest_us - wall_us)
        elif saved.boot_id is not None and saved.boot_id == self._boot_id and steady_us >= saved.steady_us:
            self._resume(saved, steady_us, wall_us)
        else:
            self._resume_after_boot(saved, steady_us, wall_us)
        self._compare_with(steady_us, offset_us)
        self._saved_us = None
        self._set_last(steady_us)

    def _resume(self, saved: SavedClock, steady_us: int, wall_us: int) -> None:
        passed_us = steady_us - saved.steady_us
        log_us = saved.log_us + passed_us
        self._set(steady_us, log_us, saved.age_us + passed_us)
        self._restore_hold(saved)
        jump_us = wall_us - log_us
        if abs(jump_us) <= JUMP_US:
            self._log_offset_us = wall_us - steady_us
        elif self._doubt is None or abs(jump_us - self._jump_us) > JUMP_US:
            self._hold(Doubt.JUMPED, steady_us, jump_us)

    def _resume_after_boot(self, saved: SavedClock, steady_us: int, wall_us: int) -> None:
        apart_us = wall_us - saved.log_us
        # A clock that was wrong before the boot is not accepted because of the boot.
        apart_max_us = JUMP_US if saved.doubt in (Doubt.JUMPED, Doubt.UNKNOWN) else OFF_MAX_US
        if -JUMP_US <= apart_us <= apart_max_us:
            self._set(steady_us, wall_us, saved.age_us + max(apart_us, 0))
            self._restore_hold(saved)
            if apart_us > JUMP_US:
                self._assumed_us += max(apart_us - steady_us, 0)
                self._hold(Doubt.BOOTED, steady_us, apart_us)
            return
        # At least the time since the boot has passed: the steady clock counts from there.
        passed_us = steady_us if self._boot_id is not None else 0
        self._set(steady_us, saved.log_us + passed_us, saved.age_us + passed_us)
        self._hold(Doubt.UNKNOWN, steady_us, apart_us - passed_us)

    def follow_wall_clock(self) -> int | None:
        """End the hold: date records by the wall clock again.

        Returns the shift of the records that are stored already, if it differs from that of later ones.
        """
        steady_us, offset_us = self._read()
        before_us, moved_us = self.shift_us, offset_us - self._log_offset_us
        if moved_us < -JUMP_US:
            # The wall clock that was accepted after a boot was ahead, and has been set back.
            self._age_offset_us -= min(-moved_us, self._assumed_us)
        self._assumed_us = 0
        self._log_offset_us = offset_us
        self._held_until_us = self._doubt = None
        self._jump_us = 0
        self._compare_with(steady_us, offset_us)
        self._saved_us = None
        self._set_last(steady_us)
        return before_us if abs(moved_us) > JUMP_US else None

    # Saving

    @property
    def needs_saving(self) -> bool:
        """Whether the clock should be stored: after a change, and every minute."""
        steady_us = self.last.age_us - self._age_offset_us
        return self._saved_us is None or steady_us - self._saved_us >= SAVE_EVERY_US

    @property
    def has_changed(self) -> bool:
        """Whether the clock should be stored at once."""
        return self._saved_us is None

    def snapshot(self) -> SavedClock:
        """Return what to store. Call ``mark_saved`` after the commit."""
        steady_us = self.last.age_us - self._age_offset_us
        return SavedClock(
            boot_id=self._boot_id,
            steady_us=steady_us,
            log_us=self.last.ts_us,
            age_us=self.last.age_us,
            held_until_us=self._held_until_us,
            doubt=self._doubt,
            jump_us=self._jump_us,
            assumed_us=self._assumed_us,
        )

    def mark_saved(self, clock: SavedClock) -> None:
        self._saved_us = clock.steady_us

    def _read(self) -> tuple[int, int]:
        """Return the steady clock, and by how much the wall clock is ahead of it."""
        steady_us = self._source.steady_us()
        return steady_us, self._source.wall_us() - steady_us

    def _set_last(self, steady_us: int) -> None:
        self.last = Moment(steady_us + self._log_offset_us, steady_us + self._age_offset_us)

    def _set(self, steady_us: int, log_us: int, age_us: int) -> None:
        self._log_offset_us = log_us - steady_us
        self._age_offset_us = age_us - steady_us

    def _compare_with(self, steady_us: int, offset_us: int) -> None:
        self._wall_offset_us = offset_us
        self._compared_us = steady_us

    def _hold(self, doubt: Doubt, steady_us: int, jump_us: int) -> None:
        self._doubt = doubt
        self._jump_us = jump_us
        self._held_until_us = steady_us + self._age_offset_us + HOLD_US
        self._saved_us = None

    def _restore_hold(self, saved: SavedClock) -> None:
        if saved.held_until_us is not None and saved.doubt is not None:
            self._held_until_us = saved.held_until_us
            self._doubt = Doubt(saved.doubt)
            self._jump_us = saved.jump_us


_ACCEPTED = {Doubt.BOOTED, Doubt.FUTURE}
"""Reasons for which records are dated by the wall clock all the same."""

_WHAT = {
    Doubt.JUMPED: "this machine's clock jumped {}, so records are dated by the time that passed since",
    Doubt.UNKNOWN: "this machine was booted and its clock is {} the last use of this log, so records are dated by "
    "the time that is known to have passed since",
    Doubt.BOOTED: "this machine was booted and its clock is {} the last use of this log, which may be right",
    Doubt.FUTURE: "the newest record is dated {} this machine's clock",
}


def _format_duration(microseconds: int) -> str:
    seconds = microseconds // SECOND_US
    for unit, length in (("days", 86_400), ("hours", 3_600)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds // 60} minutes"
