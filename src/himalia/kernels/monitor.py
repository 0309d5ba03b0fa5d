"""The state that a kernel publishes, when it was last active, and its answers to our probes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from himalia.jupyter.wire import KernelMessage
from himalia.protocol.models import KernelState
from himalia.record import now_us

SILENCE_S = 0.15
"""Silence of an attached kernel that is gone, after which everything that it published has been received."""
SILENCE_AT_MOST_S = 5.0
PROBES_MAX = 16


class _Status(msgspec.Struct, gc=False):
    execution_state: str = ""


_decode_status = msgspec.json.Decoder(_Status).decode


class KernelMonitor:
    """Follows a kernel's messages as a subscriber of its broker.

    ``offer`` runs in the IOPub thread and is the only method that it calls; everything else belongs to the event loop.

    A probe is a ``kernel_info_request`` of the server: its status messages show that IOPub works and which requests
    the kernel has handled, and say nothing about whether the kernel is busy.
    """

    def __init__(self) -> None:
        self.reported_state = KernelState.IDLE
        """Idle or busy, as the kernel publishes it. Set by both threads: the loop sets it for each new process."""
        self.last_activity_us = now_us()
        self.received = asyncio.Event()
        """Set when the kernel published its welcome, or anything for a probe, since this was cleared."""
        self._received_s = 0.0
        self._requested_s = time.monotonic()
        self._probe_ids: deque[str] = deque(maxlen=PROBES_MAX)
        # Set when the kernel is idle after the probe with this id.
        self._idle_after: dict[str, asyncio.Event] = {}
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    @property
    def silent_s(self) -> float:
        """Seconds since the kernel published something or was sent a request, by a clock that cannot be set."""
        return time.monotonic() - max(self._received_s, self._requested_s)

    def note_request(self) -> None:
        """Note that the kernel is about to get a request."""
        self.last_activity_us = now_us()
        self._requested_s = time.monotonic()

    def expect(self, probe_id: str) -> None:
        """Recognise the answers to a probe that was sent."""
        self._probe_ids.append(probe_id)

    def expect_idle(self, probe_id: str) -> asyncio.Event:
        """Return an event that is set when the kernel is idle after this probe; ``forget_idle`` follows."""
        event = self._idle_after[probe_id] = asyncio.Event()
        return event

    def forget_idle(self, probe_id: str) -> None:
        """Stop waiting for idle after this probe."""
        del self._idle_after[probe_id]

    async def wait_for_silence(self) -> None:
        """Wait until nothing more is on its way from an attached kernel that is gone."""
        started_s = time.monotonic()
        self._received_s = max(self._received_s, started_s)
        while time.monotonic() - started_s < SILENCE_AT_MOST_S:
            left_s = self._received_s + SILENCE_S - time.monotonic()
            if left_s <= 0:
                return
            await asyncio.sleep(left_s)

    def close(self) -> None:
        """Follow no more messages."""
        self._is_closed = True

    # In the IOPub thread

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        """Follow messages of the kernel, as a subscriber of its broker. False once closed."""
        self._received_s = time.monotonic()
        self.last_activity_us = messages[-1].received_us
        for message in messages:
            if message.msg_type == "status":
                self._follow_status(message)
            elif message.msg_type == "iopub_welcome":
                self._loop.call_soon_threadsafe(self.received.set)
        return not self._is_closed

    def _follow_status(self, message: KernelMessage) -> None:
        try:
            state = _decode_status(message.content).execution_state
        except msgspec.MsgspecError:
            return
        if message.parent_id in self._probe_ids:
            # Kernels answer probes on the control channel while they run code.
            self._loop.call_soon_threadsafe(self._on_probe_status, message.parent_id, state)
        elif state in ("idle", "busy"):
            self.reported_state = KernelState(state)
        elif state == "starting":
            self.reported_state = KernelState.IDLE

    def _on_probe_status(self, probe_id: str, state: str) -> None:
        self.received.set()
        if state == "idle" and probe_id in self._idle_after:
            self._idle_after[probe_id].set()
