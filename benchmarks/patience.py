"""A disturbed run is repeated in a quieter moment, as long as the time set aside for that lasts."""

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.generator import QUIET_PERCENT, Outcome

PROBE_S = 0.5
TICKS_PER_S = 100


class Patience:
    def __init__(self, seconds: float) -> None:
        self._left_s = seconds

    def undisturbed(self, run: Callable[[], Outcome]) -> Outcome:
        """What `run` gives, again and again until nothing disturbs it or patience is at its end."""
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
    """CPU used by everything on this machine over a moment, in percent of one core."""
    before = busy_ticks()
    time.sleep(PROBE_S)
    return 100 * (busy_ticks() - before) / TICKS_PER_S / PROBE_S


def busy_ticks() -> int:
    """CPU used by everything on this machine since it was started."""
    user, nice, kernel = Path("/proc/stat").read_text().split()[1:4]
    return int(user) + int(nice) + int(kernel)
