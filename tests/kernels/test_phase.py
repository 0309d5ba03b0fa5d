"""The phases of a kernel: the table in the documentation is the machine."""

from __future__ import annotations

from itertools import product

import pytest

from himalia.kernels.phase import KernelPhase, PhaseEvent, next_phase, public_state
from himalia.protocol.models import KernelState


def documented() -> dict[tuple[str, str], str]:
    """The transitions of the table in the docstring, by phase and event."""
    lines = [line for line in (next_phase.__doc__ or "").splitlines() if line.strip()]
    borders = [at for at, line in enumerate(lines) if line.strip().startswith("==")]
    begins = [
        at for at, char in enumerate(lines[borders[0]]) if char == "=" and lines[borders[0]][at - 1] == " "
    ]

    def cells(line: str) -> list[str]:
        ends = [*begins[1:], None]
        return [line[begin:end].strip() for begin, end in zip(begins, ends, strict=True)]

    events = cells(lines[borders[0] + 1])[1:]
    found = {}
    for line in lines[borders[1] + 1 : borders[2]]:
        phase, *following = cells(line)
        found.update({(phase, event): after for event, after in zip(events, following, strict=True) if after})
    return found


@pytest.mark.parametrize(("phase", "event"), list(product(KernelPhase, PhaseEvent)))
def test_transitions_are_those_of_the_table(phase: KernelPhase, event: PhaseEvent) -> None:
    """Each event in each phase has the documented effect, or is refused."""
    after = documented().get((phase.name, event.name))
    if after is None:
        with pytest.raises(RuntimeError, match=phase.value):
            next_phase(phase, event)
    else:
        assert next_phase(phase, event) is KernelPhase[after]


def test_state_that_clients_see() -> None:
    """A kernel that runs is idle or busy as it reported last; otherwise the phase decides."""
    assert public_state(KernelPhase.RUNNING, KernelState.BUSY) is KernelState.BUSY
    assert public_state(KernelPhase.DETACHED, KernelState.BUSY) is KernelState.BUSY
    for phase in (KernelPhase.STARTING, KernelPhase.RESTARTING, KernelPhase.DEAD):
        assert public_state(phase, KernelState.BUSY).value == phase.value
