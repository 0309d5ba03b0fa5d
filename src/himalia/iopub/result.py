"""What became of a piece of code that a kernel was given."""

from __future__ import annotations

from typing import Any

import msgspec

from himalia.iopub.channels import RequestChannels
from himalia.iopub.collector import ExecutionCollector
from himalia.jupyter.lifecycle import ExecutionStatus


class ExecutionError(msgspec.Struct, frozen=True):
    """What the code raised, as the kernel tells it; the traceback's lines may be coloured by escape sequences."""

    ename: str
    evalue: str
    traceback: list[str]


class Timings(msgspec.Struct, frozen=True):
    """How long a request took, in seconds; ``None`` for what has not happened, or is not known."""

    waited_s: float | None
    """From being queued until the kernel began."""
    ran_s: float | None
    """While the kernel was busy with it, see ``duration``."""
    total_s: float | None


class ExecutionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A request and all that came of it, as far as it was read. Encodes to JSON by ``msgspec`` as it is.

    Times are microseconds since 1970, ``None`` for what has not happened.
    """

    request_id: str
    kernel_id: str
    topic: str
    status: ExecutionStatus
    reason: str = ""
    """Why it was closed with this status, in words, where there is more to say."""
    execution_count: int | None = None
    code: str = ""
    caller: str = ""
    """Who asked, by its qualified name; empty if the request did not come by way of this server."""
    outputs: list[dict[str, Any]] = []
    """In the form of nbformat 4."""
    error: ExecutionError | None = None
    queued_us: int | None = None
    sent_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    run_us: int | None = None
    """How long it ran, by the kernel's own clock where that can be trusted: see ``duration``."""
    counts: dict[str, int] = {}
    """Messages of the request by channel; events of our own are not among them."""
    offset: int | None = None
    """Where the request begins, with its ``request_queued`` or, if it did not wait here, its ``execute_request``;
    ``None`` if neither was among the records read."""
    end: int = 0
    """One past the last record of the request that was read: there one reads on."""
    truncated: bool = False
    """The outputs are not whole: they were cut at a limit, or the log no longer keeps their beginning."""
    dropped: int = 0
    """Messages known to be lost on their way to the log, of this request or at the time it ran."""
    malformed: int = 0
    """Messages that are in the log, but not in the outputs, as they are not what their type says."""
    withheld: bool = False
    """Code, outputs and error are left out, because the reader has no right to them."""

    def without_content(self) -> ExecutionResult:
        """How it ended, and nothing of what it said."""
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
        """Both ends of a new request: register the first with the broker, read the second."""
        channels = RequestChannels()
        return channels, ExecutionCollector(channels)


def _seconds(start_us: int | None, end_us: int | None) -> float | None:
    if start_us is None or end_us is None:
        return None
    # The times are not all of one clock, so a short span may come out below nothing.
    return max(end_us - start_us, 0) / 1_000_000
