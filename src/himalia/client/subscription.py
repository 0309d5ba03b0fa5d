"""A subscription, which reconnects and resumes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from msgspec.structs import replace

from himalia.client.connection import WebSocketConnection
from himalia.client.errors import make_error
from himalia.client.events import Disconnected, Dropped, Event, Gap, Notice, Resumed, TopicDeleted
from himalia.client.subscription_state import SubscriptionState
from himalia.errors import BadRequest, ConnectionFailed, ErrorCode, HimaliaError, TopicNotFound
from himalia.protocol import ClientMessage, ServerMessage, encode
from himalia.record import Position
from himalia.retry import TRANSIENT_ERRORS, Backoff

logger = logging.getLogger("himalia.client")

SUBSCRIBE_TIMEOUT_S = 30.0

Item = TypeVar("Item")
Dial = Callable[[], Awaitable[WebSocketConnection]]


class Subscription(Generic[Item]):
    """The events of a topic or pattern, made by ``Client.subscribe``: enter it to subscribe, iterate to read.

    Each subscription has its own connection, so a slow reader delays only itself. Only a few frames are read ahead: if
    the application is slow, the server applies the subscription's policy.

    A lost connection is reopened, however long that takes, and delivery resumes after the last yielded event: no event
    is lost or delivered twice, whatever the policy. The first connection is not retried, so a wrong URL raises at
    once. The iteration

    - ends after ``TopicDeleted`` of a subscription to one topic;
    - raises ``SubscriptionReplaced`` when another connection subscribes with the same ``client_id``, ``SlowConsumer``
      when the server disconnects it under the policy ``disconnect`` (a reader that stalls for some seconds does not
      receive that error, and resumes), and ``Unauthorized`` if the server refuses a resume.

    One task may iterate at a time. Cancelling it, for example by a timeout, loses no event: iterate again to resume.
    """

    def __init__(
        self,
        dial: Dial,
        first: ClientMessage,
        *,
        notices: bool,
        on_notice: Callable[[Notice], None] | None,
    ) -> None:
        self._dial = dial
        self._state = SubscriptionState(first)
        self._notices = notices
        self._on_notice = on_notice
        self._connection: WebSocketConnection | None = None
        self._backoff = Backoff()
        self._ready: deque[Notice] = deque()
        self._failure: HimaliaError | None = None
        self._requests = 0
        self._is_iterating = False

    async def __aenter__(self) -> Self:
        self._connection = await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._state.ended = True
        await self._disconnect()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if self._is_iterating:
            raise BadRequest("another task iterates over this subscription; give each task its own")
        self._is_iterating = True
        try:
            return await self._next_item()
        finally:
            self._is_iterating = False

    async def _next_item(self) -> Item:
        while True:
            if self._ready:
                item: Event | Notice | None = self._ready.popleft()
            elif self._failure is not None:
                raise self._failure
            elif self._state.ended:
                raise StopAsyncIteration
            else:
                item = await self._receive()
            if item is None:
                continue
            if isinstance(item, Event) or self._deliver_notice(item):
                return cast(Item, item)

    @property
    def topic(self) -> str:
        return self._state.topic

    @property
    def positions(self) -> Mapping[str, Position]:
        """The position after the last yielded event, by topic. Pass it to ``subscribe(from_=...)`` to resume there,
        also in another process."""
        return dict(self._state.positions)

    # Notices

    def _deliver_notice(self, notice: Notice) -> bool:
        """Call ``on_notice``, or log a loss. Returns whether the iteration yields the notice."""
        if self._on_notice is not None:
            self._on_notice(notice)
        elif not self._notices and isinstance(notice, Dropped | Gap):
            # A loss that the application does not handle is at least logged.
            logger.warning("%s", notice)
        return self._notices

    # The connection

    async def _receive(self) -> Event | Notice | None:
        try:
            if self._connection is None:
                await self._reconnect()
                return None
            return self._state.on_message(await self._connection.receive())
        except ConnectionFailed as error:
            await self._disconnect()
            return Disconnected(error.message)
        except HimaliaError as error:
            self._failure = error
            await self._disconnect()
            raise

    async def _reconnect(self) -> None:
        """Connect and resume, with retries until that succeeds or the topic is deleted."""
        while True:
            try:
                self._connection = await self._connect()
            except TopicNotFound:
                self._state.ended = True
                self._ready.append(TopicDeleted(self.topic))
                return
            except TRANSIENT_ERRORS as error:
                logger.debug("cannot resume %s yet: %s", self.topic, error)
            else:
                self._backoff.reset()
                self._ready.appendleft(Resumed(self._connection.url))
                return
            await asyncio.sleep(self._backoff.next_s())

    async def _connect(self) -> WebSocketConnection:
        """Open a connection and subscribe. The server has then acknowledged where delivery begins."""
        connection = await self._dial()
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                while (notices := self._state.on_ack(await self._subscribe(connection))) is None:
                    logger.debug("%s has new topics; requesting their first records", self.topic)
        except TimeoutError:
            await connection.close()
            raise ConnectionFailed(f"{connection.url} did not acknowledge the subscription in time") from None
        except BaseException:
            await connection.close()
            raise
        self._ready.extend(notices)
        return connection

    async def _subscribe(self, connection: WebSocketConnection) -> ServerMessage:
        """Send the subscribe request and return its ack. Raises the server's error."""
        self._requests += 1
        request = replace(self._state.request(), request_id=f"subscribe-{self._requests}")
        await connection.send(encode(request))
        while True:
            reply = await connection.receive()
            if reply.error is not None and reply.error.code != ErrorCode.FILTER_FAILED:
                # Also an error without a request id: the server cannot read the id of a request that is too large.
                raise make_error(reply.error, topic=self.topic)
            if reply.request_id == request.request_id:
                return reply

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(HimaliaError):
                await connection.close()
