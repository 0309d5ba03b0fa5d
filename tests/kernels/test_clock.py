"""Kernels on a machine whose wall clock jumps."""

from __future__ import annotations

import asyncio
import time

import pytest

from himalia.kernels.request import Code
from tests.kernels.hosts import Hosting, hosting, printed, until_recorded

__all__ = ["hosting"]

pytestmark = pytest.mark.slow


def set_clock_ahead(monkeypatch: pytest.MonkeyPatch, days: int = 8) -> None:
    """Set the wall clock of this process ahead."""
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + days * 86_400 * 10**9)


async def test_culling(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that jumps ahead ends no kernel: it was idle only for as long as really passed."""
    monkeypatch.setattr("himalia.kernels.host.CULL_LOOK_S", 0.02)
    await hosting.open(kernel_cull_s=3600)
    kernel = await hosting.start()
    assert (await hosting.run(kernel, "1 + 1")).status == "ok"
    set_clock_ahead(monkeypatch)
    await asyncio.sleep(0.5)  # some twenty looks
    assert (await hosting.run(kernel, "1 + 1")).status == "ok"


async def test_the_time_limit_of_code_that_runs(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that runs with a time limit is not interrupted by the next server because the clock jumped meanwhile."""
    await hosting.open(kernels_stay=True)
    kernel = await hosting.start()
    code = Code(code="import time\nprint('runs', flush=True)\ntime.sleep(600)", timeout_s=3600)
    request = await kernel.execute(code)
    await until_recorded(hosting, kernel.id, lambda found: printed(found, request.id))
    await hosting.close()
    set_clock_ahead(monkeypatch)
    host = await hosting.open()
    adopted = host.get(kernel.id).scheduler.active
    assert adopted is not None and adopted.timer is not None
    assert adopted.id == request.id
    assert 3000 < adopted.timer.when() - asyncio.get_running_loop().time() <= 3600
