"""Being asked to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from himalia.spark.pipeline.stop_flag import StopFlag

DEADLINE_S = 10.0


@pytest.fixture
def overdue() -> threading.Event:
    return threading.Event()


@pytest.fixture
def flag(overdue: threading.Event) -> Iterator[StopFlag]:
    """One that would wait for ever."""
    flag = StopFlag()
    with flag.deadline(1e6, overdue.set):
        yield flag


def test_a_signal_cuts_a_wait_short(flag: StopFlag) -> None:
    """The handler runs in the middle of the wait itself, on the same thread, and must not block it."""
    before = signal.signal(signal.SIGALRM, lambda *_: flag.request())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        flag.wait(DEADLINE_S)
        assert time.monotonic() - began < DEADLINE_S / 2
    finally:
        signal.signal(signal.SIGALRM, before)
    assert flag.is_requested


def test_after_that_nothing_waits(flag: StopFlag) -> None:
    flag.request()
    for _ in range(3):
        flag.wait(1e6)


def test_work_that_does_not_end_is_overdue(overdue: threading.Event) -> None:
    flag = StopFlag()
    with flag.deadline(0.05, overdue.set):
        flag.request()
        assert overdue.wait(DEADLINE_S)


def test_asking_twice_is_impatient(flag: StopFlag, overdue: threading.Event) -> None:
    flag.request()
    flag.request()
    assert overdue.wait(DEADLINE_S)


def test_work_that_ends_in_time_is_not_overdue(overdue: threading.Event) -> None:
    called: list[str] = []
    flag = StopFlag()
    with flag.deadline(1e6, lambda: called.append("overdue")):
        [watcher] = [thread for thread in threading.enumerate() if thread.name == "himalia-stopping"]
        flag.request()
    watcher.join(DEADLINE_S)
    assert not watcher.is_alive() and not called
