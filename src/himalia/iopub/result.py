"""The result of code that a kernel ran."""

from __future__ import annotations

import msgspec

from himalia.iopub.channels import RequestChannels
from himalia.iopub.collector import ExecutionCollector
from himalia.protocol.models import Execution, ExecutionError, ExecutionStatus

__all__ = ["ExecutionError", "ExecutionResult", "ExecutionStatus", "Timings"]


class Timings(msgspec.Struct, frozen=True):
    """How long a request took, in seconds; None if that has not happened, or is not known."""

    waited_s: float | None
    """From the queue until the kernel began."""
    ran_s: float | None
    """While the kernel was busy with it, see ``duration``."""
    total_s: float | None


class ExecutionResult(Execution, frozen=True, kw_only=True):
    """A request and its result, as far as it was read. ``msgspec`` encodes it to JSON."""

    status: ExecutionStatus

    def without_content(self) -> ExecutionResult:
        """Return how it ended, without code, output and error."""
        return msgspec.structs.replace(self, code="", outputs=[], error=None, withheld=True)

    @property
    def timings(self) -> Timings:
        return Timings(
            waited_s=_seconds(self.queued_us, self.started_us),
            ran_s=None if self.run_us is None else self.run_us / 1_000_000,
            total_s=_seconds(self.queued_us, self.finished_us),
        )

    @staticmethod
    def create_channels() -> tuple[RequestChannels, ExecutionCollector]:
        """Create both ends of a new request: register the first with the broker, read the second."""
        channels = RequestChannels()
        return channels, ExecutionCollector(channels)


def _seconds(start_us: int | None, end_us: int | None) -> float | None:
    if start_us is None or end_us is None:
        return None
    # The times are not all of one clock, so a short span may be negative.
    return max(end_us - start_us, 0) / 1_000_000
