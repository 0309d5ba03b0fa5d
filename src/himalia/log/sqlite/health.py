"""Whether the writer can store, and why not."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from himalia.errors import LogUnavailable
from himalia.log.api import Health
from himalia.throttle import LogThrottle

logger = logging.getLogger(__name__)

CLOCK_LINES_EVERY_S = 60.0


class HealthState:
    """The problem that keeps the log from storing, and warnings. Used by the writer thread."""

    def __init__(self, path: Path, probe_interval_s: float) -> None:
        self._path = path
        self._probe_interval_s = probe_interval_s
        self._next_probe_s = 0.0
        self._clock_warning: str | None = None
        self._clock_throttle = LogThrottle(CLOCK_LINES_EVERY_S)
        self.problem: LogUnavailable | None = None
        """Set while the log is in the failed state."""
        self.loss_warning: str | None = None

    @property
    def health(self) -> Health:
        problem = None if self.problem is None else self.problem.message
        warnings = [warning for warning in (self.loss_warning, self._clock_warning) if warning is not None]
        return Health(ok=problem is None, problem=problem, warnings=warnings)

    def enter_failed_state(self, error: LogUnavailable) -> Health:
        """Note that the file failed, and when to probe it next."""
        if self.problem is None or self.problem.message != error.message:
            logger.error("%s", error.message)
        self.problem = error
        self._next_probe_s = time.monotonic() + self._probe_interval_s
        return self.health

    def leave_failed_state(self) -> Health | None:
        """Note that the file works; return the new health, None if it worked before."""
        if self.problem is None:
            return None
        logger.info("the log %s works again", self._path)
        self.problem = None
        return self.health

    def probe_wait_s(self) -> float:
        """Return how long to wait until the next probe of a log that failed; 0 or less if it is due."""
        return self._next_probe_s - time.monotonic()

    def set_clock_warning(self, warning: str | None) -> Health | None:
        """Replace the warning about the clock; return the new health, None if nothing changed."""
        if warning == self._clock_warning:
            return None
        self._clock_warning = warning
        # Throttled: a clock that jumps all the time must not fill the disk with log lines.
        if self._clock_throttle.allow():
            logger.warning(
                "%s", warning or f"the log {self._path} dates records by this machine's clock again"
            )
        return self.health
