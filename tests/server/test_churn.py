"""What clients leave behind when they go is cleared away. Longer: ``python -m benchmarks --only churn``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from benchmarks.churn import Churn
from benchmarks.local_server import local_server
from benchmarks.measure_churn import run, sample, second_half, slope_per_min

SECONDS = 120
SETTLED_S = 30
GROWTH_MAX_MB = 40
DESCRIPTORS_SPARE = 8
"""Threads and helper processes that stay for a while: readers of the log, the worker for tables."""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_clients_that_come_and_go_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors return to what they were, and memory has stopped growing when the caches are full."""
    monkeypatch.setenv("HIMALIA_RUNTIME_DIR", str(tmp_path / "runtime"))
    with local_server(Path(sys.executable), tmp_path) as server:
        before = sample(server, time.monotonic())
        churn = Churn(server.port)
        late = second_half(run(server, churn, SECONDS))
        assert not churn.failed
        kinds = {"sockets", "topics", "event streams", "publishes", "sign-ins", "wrong keys", "reads"}
        assert kinds <= set(churn.done)
        deadline = time.monotonic() + SETTLED_S
        while (after := sample(server, 0.0)).descriptors > before.descriptors + DESCRIPTORS_SPARE:
            assert time.monotonic() < deadline, f"{before.descriptors} descriptors became {after.descriptors}"
            time.sleep(0.2)
        assert slope_per_min(late) * SECONDS / 120 < GROWTH_MAX_MB
