"""Writes what a kernel publishes on IOPub to its spool, and decides when followers of the spool are notified."""

from __future__ import annotations

import time
from collections.abc import Sequence

from himalia.jupyter.burst import BurstDetector
from himalia.keeper.iopub_socket import IopubSocket, KernelActivity, is_idle, is_status
from himalia.keeper.spool import Spool

NOTICE_S = 0.001
"""How long a notice may wait for the next messages: the few messages of a small cell then cost one or two notices."""
FLOOD_NOTICE_S = 0.02
"""The same in a flood: each notice costs the server a commit. The end of a request waits for neither."""
RETRY_S = 0.5
"""How long to wait before a disk that was full is tried again."""


class IopubRecorder:
    """From one IOPub socket to one spool. All times are those of ``time.monotonic``."""

    def __init__(self, socket: IopubSocket, spool: Spool) -> None:
        self._socket = socket
        self._spool = spool
        self._activity = KernelActivity()
        self._burst = BurstDetector()
        self._is_closed = False
        self._retry_at = 0.0
        self._notice_at: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the kernel is busy, as far as it has published."""
        return self._activity.is_busy

    @property
    def is_connected(self) -> bool:
        return not self._is_closed and self._socket.is_connected

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def receive(self) -> None:
        """Write what has come. Output may wait a moment for more before followers are notified; an idle does not."""
        messages = self._socket.receive()
        statuses = [frames for frames in messages if is_status(frames)]
        is_flood = self._is_flood(len(messages), has_status=bool(statuses))
        self._write(messages, FLOOD_NOTICE_S if is_flood else NOTICE_S)
        for frames in statuses:
            self._activity.apply(frames)
        if self._notice_at is not None and any(map(is_idle, statuses)):
            self._notice_at = 0.0

    def write_received(self) -> None:
        """Write what has come by now, so that the state of the spool has it."""
        if not self._is_closed:
            self._write(self._socket.receive())

    def drain_and_close(self) -> None:
        """Write the end of what the kernel published; it publishes nothing more."""
        while messages := self._socket.receive():
            self._write(messages)
        self.close()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._socket.close()

    def retry_if_due(self, now: float) -> None:
        """Write again what a full disk did not store, if it is time."""
        if self._spool.unwritten and now >= self._retry_at:
            self._write([])

    def clear_notice_if_due(self, now: float) -> bool:
        """Return whether followers have to be notified now."""
        if self._notice_at is None or now < self._notice_at:
            return False
        self._notice_at = None
        return True

    @property
    def due_at(self) -> list[float]:
        """When the two methods before have something to do."""
        due = [] if self._notice_at is None else [self._notice_at]
        return [*due, self._retry_at] if self._spool.unwritten else due

    def _is_flood(self, count: int, *, has_status: bool) -> bool:
        now = time.monotonic()
        if has_status:
            self._burst.reset(now)
            return False
        return self._burst.add(count, now)

    def _write(self, messages: Sequence[Sequence[bytes]], notice_s: float = NOTICE_S) -> None:
        """Write them behind what waits for the disk; followers are notified within a time."""
        written, now = self._spool.written, time.monotonic()
        self._spool.append(messages)
        if self._spool.unwritten:
            self._retry_at = now + RETRY_S
        if self._spool.written > written and self._notice_at is None:
            self._notice_at = now + notice_s
