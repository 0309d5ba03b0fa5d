"""Being asked to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from himalia.spark.pipeline.stop_flag import Stopping

DEADLINE_S = 10.0


@pytest.fixture
def overdue() -> threading.Event:
    return threading.Event()


@pytest.fixture
def patient(overdue: threading.Event) -> Iterator[Stopping]:
    """One that would wait for ever."""
    stopping = Stopping(1e6, overdue.set)
    stopping.watch()
    yield stopping
    stopping.over()


def test_a_signal_cuts_a_wait_short(patient: Stopping) -> None:
    """The handler runs in the middle of the wait itself, on the same thread, and must not block it."""
    before = signal.signal(signal.SIGALRM, lambda *_: patient.ask())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        patient.wait(DEADLINE_S)
        assert time.monotonic() - began < DEADLINE_S / 2
    finally:
        signal.signal(signal.SIGALRM, before)
    assert patient.is_asked


def test_after_that_nothing_waits(patient: Stopping) -> None:
    patient.ask()
    for _ in range(3):
        patient.wait(1e6)


def test_work_that_does_not_end_is_overdue(overdue: threading.Event) -> None:
    stopping = Stopping(0.05, overdue.set)
    stopping.watch()
    stopping.ask()
    assert overdue.wait(DEADLINE_S)


def test_asking_twice_is_impatient(patient: Stopping, overdue: threading.Event) -> None:
    patient.ask()
    patient.ask()
    assert overdue.wait(DEADLINE_S)


def test_work_that_ends_in_time_is_not_overdue(overdue: threading.Event) -> None:
    called: list[str] = []
    stopping = Stopping(1e6, lambda: called.append("overdue"))
    stopping.watch()
    [watcher] = [thread for thread in threading.enumerate() if thread.name == "himalia-stopping"]
    stopping.ask()
    stopping.over()
    watcher.join(DEADLINE_S)
    assert not watcher.is_alive() and not called
