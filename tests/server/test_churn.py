"""What clients leave behind when they go is cleared away. Longer: ``python -m benchmarks --only churn``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.churn import Churn
from benchmarks.local_server import LocalServer, local_server
from benchmarks.measure_churn import EVERY_S, FLAT_MB, Sample, sample, slope_per_min

FLAT_FOR_S = 120
AT_MOST_S = 600
"""How long the caches may take to fill: three minutes on a quiet machine."""
SETTLED_S = 30
DESCRIPTORS_SPARE = 8
"""Threads and helper processes that stay for a while: readers of the log, the worker for tables."""


@pytest.mark.soak
@pytest.mark.timeout(AT_MOST_S + 180)
def test_clients_that_come_and_go_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors return to what they were, and memory stops growing: within ten minutes there are two in which it
    grows by less than 5 MB.

    How soon the caches are full depends on the machine, so it is waited for. A leak of more than 2.5 MB a minute is
    found; a slower one only by the benchmark, which runs for longer.
    """
    monkeypatch.setenv("HIMALIA_RUNTIME_DIR", str(tmp_path / "runtime"))
    with local_server(Path(sys.executable), tmp_path) as server:
        before = sample(server, time.monotonic())
        churn = Churn(server.port)
        samples = until_flat(server, churn)
        assert growth_mb(samples) < FLAT_MB, [round(each.memory_mb) for each in samples]
        assert not churn.failed
        kinds = {"sockets", "topics", "event streams", "publishes", "sign-ins", "wrong keys", "reads"}
        assert kinds <= set(churn.done)
        deadline = time.monotonic() + SETTLED_S
        while (after := sample(server, 0.0)).descriptors > before.descriptors + DESCRIPTORS_SPARE:
            assert time.monotonic() < deadline, f"{before.descriptors} descriptors became {after.descriptors}"
            time.sleep(0.2)


def until_flat(server: LocalServer, churn: Churn) -> list[Sample]:
    """Let clients come and go until memory has stopped growing, or for as long as that may take."""
    samples: list[Sample] = []
    began = time.monotonic()
    with churn.running():
        while growth_mb(samples) >= FLAT_MB and time.monotonic() - began < AT_MOST_S:
            time.sleep(EVERY_S)
            samples.append(sample(server, began))
    return samples


def growth_mb(samples: Sequence[Sample]) -> float:
    """By how much memory grew, by least squares, in the last two minutes; without bound before these are over."""
    late = [each for each in samples if each.seconds > samples[-1].seconds - FLAT_FOR_S - EVERY_S / 2]
    if not late or late[-1].seconds - late[0].seconds < FLAT_FOR_S - EVERY_S:
        return float("inf")
    return slope_per_min(late) * FLAT_FOR_S / 60


@pytest.mark.parametrize(("mb_per_min", "is_found"), [(0.5, False), (-3, False), (3, True), (20, True)])
def test_which_growth_is_found(mb_per_min: float, is_found: bool) -> None:
    """A leak of 3 MB a minute is, beside 2 MB that come and go; and nothing is said of less than two minutes."""
    samples = [
        Sample(second, 270 + mb_per_min * second / 60 + second // 5 % 2 * 2, 20)
        for second in range(5, 205, 5)
    ]
    assert (growth_mb(samples) >= FLAT_MB) == is_found
    assert growth_mb(samples[:20]) == growth_mb([]) == float("inf")
