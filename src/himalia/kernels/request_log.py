"""The records of a kernel's requests in its topic: each is queued once, and closed once."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from himalia.errors import LogUnavailable
from himalia.jupyter.lifecycle import request_closed_draft
from himalia.jupyter.records import KernelEvent, event_draft
from himalia.kernels.request import Request
from himalia.kernels.topic_writer import TopicWriter
from himalia.record import Draft

logger = logging.getLogger("himalia.kernels.request_log")

REMEMBERED_MAX = 10_000


class RequestLog:
    """Belongs to the event loop.

    Each record names the offset of the oldest request that is open (``open_since``): a server that comes back reads
    the topic from there.
    """

    def __init__(self, topic_writer: TopicWriter) -> None:
        self._topic_writer = topic_writer
        # Offsets by request: of those that are open, and of the last that were queued.
        self._open: dict[str, int] = {}
        self._recent: OrderedDict[str, int] = OrderedDict()
        self._last_offset = 0
        self._closing: set[asyncio.Future[int]] = set()

    def offset_of(self, request_id: str) -> int | None:
        """Return where a recent request begins in the topic; None for any other."""
        return self._recent.get(request_id)

    def append_queued(self, request: Request) -> asyncio.Future[int]:
        """Write that a request is queued; the future, and then the request, has the offset once that is committed."""
        code = request.code
        committed = self._append(
            event_draft(
                self._topic_writer.kernel_id,
                KernelEvent.REQUEST_QUEUED,
                request_id=request.id,
                caller=code.caller,
                open_since=self._open_since(),
                code=code.code,
                priority=code.priority,
                timeout_s=code.timeout_s,
            )
        )
        committed.add_done_callback(lambda _: self._set_offset(request, committed))
        return committed

    def restore(self, request: Request) -> None:
        """Remember a request that an earlier server queued."""
        self._open[request.id] = self._recent[request.id] = request.offset

    def append_closed(self, request: Request, caller: str) -> None:
        """Write that a request is closed; ``request.closed`` resolves when that is committed."""
        self._open.pop(request.id, None)
        assert request.closed_state is not None
        committed = self._append(
            request_closed_draft(
                self._topic_writer.kernel_id,
                request.closed_state,
                caller=caller,
                open_since=self._open_since(),
            )
        )
        self._closing.add(committed)
        committed.add_done_callback(lambda _: self._resolve(request, committed))

    async def finish(self) -> None:
        """Wait until every close is committed, or cannot be."""
        if self._closing:
            await asyncio.wait(self._closing)

    def _append(self, draft: Draft) -> asyncio.Future[int]:
        committed = self._topic_writer.append(draft)
        committed.add_done_callback(self._note_last)
        return committed

    def _open_since(self) -> int:
        return min(self._open.values(), default=self._last_offset)

    def _set_offset(self, request: Request, committed: asyncio.Future[int]) -> None:
        if not _is_stored(committed):
            return
        request.offset = self._recent[request.id] = committed.result()
        if request.status is None:
            self._open[request.id] = request.offset
        if len(self._recent) > REMEMBERED_MAX:
            self._recent.popitem(last=False)

    def _note_last(self, committed: asyncio.Future[int]) -> None:
        if _is_stored(committed):
            self._last_offset = committed.result()

    def _resolve(self, request: Request, committed: asyncio.Future[int]) -> None:
        self._closing.discard(committed)
        if not committed.cancelled() and (error := committed.exception()) is not None:
            if isinstance(error, LogUnavailable):
                logger.warning("the end of request %s is not stored: %s", request.id, error)
            else:
                logger.error("the end of request %s is not stored", request.id, exc_info=error)
        # Also if it cannot be stored: callers must not wait without a limit.
        if not request.closed.done() and request.status is not None:
            request.closed.set_result(request.status)


def _is_stored(committed: asyncio.Future[int]) -> bool:
    return not committed.cancelled() and committed.exception() is None
