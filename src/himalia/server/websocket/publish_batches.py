"""Publishes of one WebSocket client: gathered while a read is handled, appended as one batch per topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from himalia.errors import HimaliaError, InternalError, RateLimited, ShuttingDown
from himalia.log.api import Appended, Batch
from himalia.protocol import ClientMessage
from himalia.record import Draft
from himalia.server.caller_usage import CallerUsage, TokenBucket
from himalia.server.drafts import Drafter
from himalia.server.identity import Principal
from himalia.server.websocket.flow_control import FlowControl
from himalia.server.websocket.reply_writer import ReplyWriter

if TYPE_CHECKING:
    from himalia.server.context import ServerContext

logger = logging.getLogger("himalia.connection")


class TopicBatch:
    """Publishes to one topic that are appended together."""

    __slots__ = ("drafts", "request_ids")

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.request_ids: list[str | None] = []


class PublishBatches:
    """``add`` for each publish, ``submit`` at the end of a read and before a command. Belongs to the event loop.

    Acks and errors are sent when the log has committed or refused the batch; they are counted in ``flow.in_flight``
    until then, also when the client has disconnected meanwhile.
    """

    __slots__ = ("_batches", "_context", "_drafter", "_flow", "_principal", "_rate", "_replies", "_usage")

    def __init__(
        self,
        context: ServerContext,
        principal: Principal,
        usage: CallerUsage,
        flow: FlowControl,
        replies: ReplyWriter,
    ) -> None:
        settings = context.settings
        self._context = context
        self._principal = principal
        self._flow = flow
        self._replies = replies
        self._drafter = Drafter(settings, principal)
        self._usage = usage
        self._rate: TokenBucket | None = None
        if settings.publish_rate_max:
            self._rate = TokenBucket(settings.publish_rate_max, asyncio.get_running_loop().time())
        self._batches: dict[str, TopicBatch] = {}

    def add(self, message: ClientMessage) -> None:
        """Check a publish and keep it for ``submit``; raise the error that it is refused with."""
        if self._context.draining:
            raise ShuttingDown(
                "the server is shutting down and accepts no publishes; publish again after reconnecting"
            )
        if self._rate is not None:
            self._check_rate(self._rate)
        topic, body = message.topic, message.message
        assert topic is not None and body is not None  # checked when it was decoded
        draft = self._drafter.draft(topic, body, message.client_id)
        if self._usage.limits_publishing:
            self._usage.count_publish(1, draft.size_bytes)
        batch = self._batches.get(topic)
        if batch is None:
            batch = self._batches[topic] = TopicBatch()
        batch.drafts.append(draft)
        batch.request_ids.append(message.request_id)

    def submit(self) -> None:
        """Pass what was added to the log; pause reading if too many publishes are uncommitted then."""
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        for topic, batch in batches.items():
            self._flow.in_flight += len(batch.drafts)
            future = self._context.manager.publish(Batch(topic, batch.drafts, scope=self._principal.name))
            future.add_done_callback(partial(self._on_done, topic, batch.request_ids))
        if self._flow.in_flight >= self._context.settings.publishes_in_flight_max:
            self._flow.pause()

    def _check_rate(self, rate: TokenBucket) -> None:
        rate.refill(asyncio.get_running_loop().time())
        if rate.wait_s() != 0:
            limit = self._context.settings.publish_rate_max
            raise RateLimited(f"at most {limit:g} publishes a second; wait and publish again")
        rate.spend(1)

    def _on_done(
        self, topic: str, request_ids: Sequence[str | None], future: asyncio.Future[Appended]
    ) -> None:
        self._flow.in_flight -= len(request_ids)
        if not self._flow.is_reading:
            self._flow.resume()
        if self._replies.is_closed:
            return
        error = future.exception()
        if error is None:
            self._replies.acknowledge(topic, request_ids, future.result())
        else:
            self._refuse(topic, request_ids, error)
        self._replies.flush_soon()

    def _refuse(self, topic: str, request_ids: Sequence[str | None], error: BaseException) -> None:
        if not isinstance(error, HimaliaError):
            caller = self._principal.name
            logger.error(
                "publishing to %s by %s failed", topic, caller, exc_info=error, extra={"caller": caller}
            )
            error = InternalError("publishing failed in the server; its log says why")
        for request_id in request_ids:
            self._replies.refuse(error, request_id)
