"""When messages are let gather: in a flood, and never when somebody may be waiting for the next one."""

from __future__ import annotations

import pytest

from himalia.kernels.keeper.flood import FLOOD_PER_S, Flood
from himalia.kernels.keeper.process import GATHER_S
from himalia.kernels.keeper.status import is_idle, is_status
from himalia.kernels.wire import Wire

START_S = 1000.0


def pauses(flood: Flood, times_s: list[float], count: int = 1) -> list[bool]:
    return [flood.took(count, time_s) for time_s in times_s]


def evenly(per_s: float, seconds: float, start_s: float = START_S) -> list[float]:
    return [start_s + number / per_s for number in range(int(seconds * per_s))]


def test_a_flood_is_noticed_soon_and_its_end_too() -> None:
    """Messages that keep coming are let gather after a moment; when they stop, the next one is taken at once."""
    flood = Flood(GATHER_S)
    assert not any(pauses(flood, evenly(2000, 0.07)))
    assert all(pauses(flood, evenly(2000, 1.0, START_S + 0.1)))
    assert not flood.took(1, START_S + 5)


def test_a_flood_goes_on_while_it_gathers() -> None:
    """The pauses do not hide it: then there are few turns, each with many messages."""
    flood = Flood(GATHER_S)
    pauses(flood, evenly(2000, 0.2))
    assert all(pauses(flood, evenly(1 / GATHER_S, 1.0, START_S + 0.2), count=30))
    # Half as many are still a flood, so that it does not come and go.
    assert all(
        pauses(flood, evenly(1 / GATHER_S, 1.0, START_S + 1.2), count=int(FLOOD_PER_S * GATHER_S * 0.7))
    )
    assert not pauses(flood, evenly(1 / GATHER_S, 1.0, START_S + 2.2), count=1)[-1]


@pytest.mark.parametrize("per_s", [1, 10, 100, 450])
def test_a_cell_that_prints_now_and_then_is_not_delayed(per_s: int) -> None:
    """However long it goes on."""
    assert not any(pauses(Flood(GATHER_S), evenly(per_s, 10)))


def test_a_burst_is_not_delayed() -> None:
    """A cell that says much in a moment, and then nothing, is passed on at once."""
    flood = Flood(GATHER_S)
    for second in range(10):
        assert not any(pauses(flood, evenly(5000, 0.02, START_S + second)))


def test_cells_in_quick_succession_are_not_delayed() -> None:
    """Requests that wait for each other make as many messages as a flood, but each begins and ends with a status."""
    flood = Flood(GATHER_S)
    for number, now_s in enumerate(evenly(3000, 5)):
        if number % 6 in (0, 5):
            flood.end(now_s)
        else:
            assert not flood.took(1, now_s)


def test_the_end_of_a_cell_ends_its_flood() -> None:
    """The next message belongs to something else."""
    flood = Flood(GATHER_S)
    assert pauses(flood, evenly(2000, 0.5))[-1]
    flood.end(START_S + 0.5)
    assert not flood.took(1, START_S + 0.501)


def test_a_status_is_recognised() -> None:
    """By its header and content, whatever else is in the message, and whatever rubbish comes."""
    wire = Wire(b"key")
    _, idle = wire.encode("status", {"execution_state": "idle"}, identities=[b"topic"])
    _, busy = wire.encode("status", {"execution_state": "busy"}, identities=[b"topic"])
    _, stream = wire.encode("stream", {"text": '"status" "idle"'}, identities=[b'"status"'])
    assert [is_status(frames) for frames in (idle, busy, stream)] == [True, True, False]
    assert [is_idle(frames) for frames in (idle, busy, stream)] == [True, False, False]
    for rubbish in ([], [b"x"], [b"<IDS|MSG>"], [b"<IDS|MSG>", b'"status"', b'"idle"']):
        assert not is_status(rubbish) and not is_idle(rubbish)
