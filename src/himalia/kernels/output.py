"""What a kernel publishes, on its way to the topic and to requests, with the server's own records about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from himalia.errors import LogUnavailable
from himalia.iopub.broker import BrokerConfig, IopubBroker
from himalia.jupyter.records import KernelEvent, event_draft, to_draft, too_large_draft
from himalia.jupyter.wire import Fault, FaultKind, KernelMessage
from himalia.keeper.spool_consumer import SPOOL_WAS_FULL, SpoolPosition
from himalia.kernels.context import KernelContext
from himalia.kernels.monitor import KernelMonitor
from himalia.kernels.topic_writer import KernelTopic, TopicWriter

logger = logging.getLogger("himalia.kernels")

NOT_RECEIVED = "the kernel could not be heard for a while: it was restarted, or the connection broke"


class KernelOutput:
    """The broker routes a kernel's messages to the topic writer, the monitor and requests. Outlives its processes.

    The IOPub thread calls it as the ``SpoolListener`` of its spool, and ``on_reconnect``; everything else belongs to
    the event loop.
    """

    def __init__(self, kernel_id: str, owner: str | None, context: KernelContext) -> None:
        settings = context.settings
        self.topic = KernelTopic(context.manager, kernel_id, owner)
        self.topic_writer = TopicWriter(self.topic, bytes_max=settings.kernel_buffer_bytes)
        self.monitor = KernelMonitor()
        self.position = SpoolPosition()
        """Where to resume reading the kernel's spool."""
        self.broker = IopubBroker(
            BrokerConfig(
                orphan_buffer_max=settings.kernel_orphans_max,
                orphan_max_age=settings.kernel_orphan_age_s,
                request_timeout=settings.kernel_silence_s,
                cleanup_interval=settings.kernel_cleanup_s,
            ),
            clock=context.clock,
        )
        # The topic writer first: a request receives its idle only when that is on its way to the log.
        self.broker.add_global_subscriber(self.topic_writer)
        self.broker.add_global_subscriber(self.monitor)
        self._message_bytes_max = settings.kernel_message_bytes_max
        self._loop = asyncio.get_running_loop()

    @property
    def kernel_id(self) -> str:
        return self.topic.kernel_id

    def append_event(self, event: KernelEvent, **data: Any) -> asyncio.Future[int]:
        """Append an event of the kernel; the future has its offset once it is committed."""
        return self.topic_writer.append(event_draft(self.kernel_id, event, **data))

    async def record_event(self, event: KernelEvent, **data: Any) -> None:
        """Append an event and wait for the commit, but not for a log that cannot store: it stores the event later."""
        try:
            await self.topic_writer.wait_committed(self.append_event(event, **data))
        except LogUnavailable as error:
            logger.info("%s: an event is stored later: %s", self.topic.name, error)

    def append_message(self, message: KernelMessage, port: str, *, is_urgent: bool = True) -> None:
        """Append a message that was sent or received on the shell or stdin socket."""
        self.topic_writer.append(to_draft(message, self.kernel_id, port), is_urgent=is_urgent)

    # In the IOPub thread

    @property
    def is_blocked(self) -> bool:
        """Whether the topic writer has no room."""
        return self.topic_writer.is_full

    def on_faults(self, faults: Sequence[Fault]) -> None:
        """Messages were refused: of those that are too large, the topic gets a record instead."""
        for fault in faults:
            if fault.kind is FaultKind.TOO_LARGE:
                self._loop.call_soon_threadsafe(self._append_too_large, fault)

    def on_spool_gap(self, count: int | None) -> None:
        """The spool dropped so many messages before they were read; None if the number is not known."""
        self.topic_writer.offer_draft(self.topic_writer.encode_gap(count, SPOOL_WAS_FULL))

    def on_reconnect(self) -> None:
        """The connection to an attached kernel broke: how much it published meanwhile is not known."""
        self._loop.call_soon_threadsafe(self.topic_writer.append_gap, None, NOT_RECEIVED)

    def _append_too_large(self, fault: Fault) -> None:
        self.topic_writer.append(too_large_draft(self.kernel_id, fault, self._message_bytes_max))
