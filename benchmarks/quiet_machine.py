"""Repeat disturbed runs when the machine is quiet, within a time limit."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.generator import QUIET_PERCENT

PROBE_S = 0.5
TICKS_PER_S = 100


class Disturbable(Protocol):
    @property
    def disturbed(self) -> bool:
        """Whether other programs used the machine during the run."""


Run = TypeVar("Run", bound=Disturbable)


class QuietMachine:
    def __init__(self, seconds: float) -> None:
        self._left_s = seconds

    def run_undisturbed(self, run: Callable[[], Run]) -> Run:
        """Call `run` until its outcome is undisturbed or the time limit is reached; return the last outcome."""
        outcome = run()
        while outcome.disturbed and self._left_s > 0:
            began = time.monotonic()
            self._wait_for_quiet()
            outcome = run()
            self._left_s -= time.monotonic() - began
        return outcome

    def _wait_for_quiet(self) -> None:
        deadline = time.monotonic() + self._left_s
        while _busy_percent() > QUIET_PERCENT and time.monotonic() < deadline:
            pass


def _busy_percent() -> float:
    """Return the CPU use of the whole machine over a moment, in percent of one core."""
    before = busy_ticks()
    time.sleep(PROBE_S)
    return 100 * (busy_ticks() - before) / TICKS_PER_S / PROBE_S


def busy_ticks() -> int:
    """Return the CPU time of the whole machine since its boot, in ticks."""
    user, nice, kernel = Path("/proc/stat").read_text().split()[1:4]
    return int(user) + int(nice) + int(kernel)


class OthersCpu:
    """Measures the CPU use of other programs since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = self._ticks()

    def percent(self) -> float:
        """Return the CPU use in percent of one core."""
        seconds = time.monotonic() - self._began
        return max(0.0, 100 * (self._ticks() - self._before) / TICKS_PER_S / seconds)

    @staticmethod
    def _ticks() -> int:
        return busy_ticks() - _own_ticks()


def _own_ticks() -> int:
    """Return the CPU time of this process and its descendants, including ended ones."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for pid, (parent, used) in _processes():
        parents[pid], ticks[pid] = parent, used
    return sum(used for pid, used in ticks.items() if _descends(pid, parents))


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid != os.getpid():
        if pid not in parents:
            return False
        pid = parents[pid]
    return True


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield every process's parent and CPU time, including that of its ended children."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        yield int(path.parent.name), (int(fields[1]), sum(map(int, fields[11:15])))
