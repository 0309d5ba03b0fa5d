"""When messages are let gather: in a flood, and never when somebody may be waiting for the next one."""

from __future__ import annotations

import pytest

from himalia.jupyter.burst import BURST_PER_S, WINDOW_S, BurstDetector

START_S = 1000.0
PAUSE_S = 0.005


def pauses(burst: BurstDetector, times_s: list[float], count: int = 1) -> list[bool]:
    return [burst.add(count, time_s) for time_s in times_s]


def evenly(per_s: float, seconds: float, start_s: float = START_S) -> list[float]:
    return [start_s + number / per_s for number in range(int(seconds * per_s))]


def test_a_flood_is_noticed_soon_and_its_end_too() -> None:
    """Messages that keep coming are let gather after a moment; when they stop, the next one is taken at once."""
    burst = BurstDetector()
    assert not any(pauses(burst, evenly(2000, 0.9 * WINDOW_S)))
    assert all(pauses(burst, evenly(2000, 1.0, START_S + 1.1 * WINDOW_S)))
    assert not burst.add(1, START_S + 5)


def test_a_flood_goes_on_while_it_gathers() -> None:
    """The pauses do not hide it: then there are few turns, each with many messages."""
    burst = BurstDetector()
    pauses(burst, evenly(2000, 0.2))
    assert all(pauses(burst, evenly(1 / PAUSE_S, 1.0, START_S + 0.2), count=10))
    # Fewer are still a flood, so that it does not come and go.
    fewer = int(BURST_PER_S * 0.8 * PAUSE_S)
    assert all(pauses(burst, evenly(1 / PAUSE_S, 1.0, START_S + 1.2), count=fewer))
    assert not pauses(burst, evenly(100, 1.0, START_S + 2.2))[-1]


@pytest.mark.parametrize("per_s", [1, 10, 100, 450])
def test_a_cell_that_prints_now_and_then_is_not_delayed(per_s: int) -> None:
    """However long it goes on."""
    assert not any(pauses(BurstDetector(), evenly(per_s, 10)))


def test_a_burst_is_not_delayed() -> None:
    """A cell that says much in a moment, and then nothing, is passed on at once."""
    burst = BurstDetector()
    for second in range(10):
        assert not any(pauses(burst, evenly(5000, 0.9 * WINDOW_S, START_S + second)))


def test_cells_in_quick_succession_are_not_delayed() -> None:
    """Requests that wait for each other make as many messages as a flood, but each begins and ends with a status."""
    burst = BurstDetector()
    for number, now_s in enumerate(evenly(3000, 5)):
        if number % 6 in (0, 5):
            burst.reset(now_s)
        else:
            assert not burst.add(1, now_s)


def test_the_end_of_a_cell_ends_its_flood() -> None:
    """The next message belongs to something else."""
    burst = BurstDetector()
    assert pauses(burst, evenly(2000, 0.5))[-1]
    burst.reset(START_S + 0.5)
    assert not burst.add(1, START_S + 0.501)
