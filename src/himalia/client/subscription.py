"""A subscription that outlives its connections."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from msgspec.structs import replace

from himalia.client.connection import Connection
from himalia.client.errors import error_from
from himalia.client.events import Disconnected, Dropped, Event, Gap, Notice, Resumed, TopicDeleted
from himalia.client.subscription_state import Progress
from himalia.errors import BadRequest, ConnectionFailed, ErrorCode, HimaliaError, TopicNotFound
from himalia.protocol import ClientMessage, ServerMessage, encode
from himalia.record import Position
from himalia.retry import TRANSIENT_ERRORS, Backoff

logger = logging.getLogger("himalia.client")

JOIN_TIMEOUT_S = 30.0

Item = TypeVar("Item")
Dial = Callable[[], Awaitable[Connection]]


class Subscription(Generic[Item]):
    """The events of a topic or pattern: ``async with`` subscribes, ``async for`` reads. Made by ``Client.subscribe``.

    It has a connection of its own, so a slow reader of one subscription does not hold up another. Nothing is read
    ahead beyond a few frames: an application that is slow makes the server apply the subscription's policy.

    A lost connection is made again, for as long as it takes, and delivery goes on behind the last event that was
    yielded: nothing is lost, nothing comes twice, whatever the policy. The first connection is not retried, so a
    wrong URL is told at once. Iteration

    - ends after ``TopicDeleted`` of a subscription to one topic: there is nothing more to come;
    - raises ``SubscriptionReplaced`` when another connection takes over the ``client_id``, ``SlowConsumer`` when
      the server cuts it off under the policy ``disconnect`` (a reader that takes nothing at all for some seconds
      does not hear that, and resumes), ``Unauthorized`` if a resume is refused for good.

    One task may iterate at a time. Cancelling it, as by a timeout, loses nothing: iterate again to go on.
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
        self._progress = Progress(first)
        self._notices = notices
        self._on_notice = on_notice
        self._connection: Connection | None = None
        self._backoff = Backoff()
        self._ready: deque[Notice] = deque()
        self._failure: HimaliaError | None = None
        self._requests = 0
        self._iterating = False

    async def __aenter__(self) -> Self:
        self._connection = await self._join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.ended = True
        await self._disconnect()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if self._iterating:
            raise BadRequest("this subscription is being iterated elsewhere; give each task its own")
        self._iterating = True
        try:
            return await self._next()
        finally:
            self._iterating = False

    async def _next(self) -> Item:
        while True:
            if self._ready:
                item: Event | Notice | None = self._ready.popleft()
            elif self._failure is not None:
                raise self._failure
            elif self._progress.ended:
                raise StopAsyncIteration
            else:
                item = await self._receive()
            if item is None:
                continue
            if isinstance(item, Event) or self._tell(item):
                return cast(Item, item)

    @property
    def topic(self) -> str:
        return self._progress.topic

    @property
    def positions(self) -> Mapping[str, Position]:
        """For each topic, what comes after the last event yielded. Give it to ``subscribe(from_=...)`` to go on
        from there, in another process or on another day."""
        return dict(self._progress.positions)

    # Notices

    def _tell(self, notice: Notice) -> bool:
        """Pass a notice on; says whether it is to be yielded."""
        if self._on_notice is not None:
            self._on_notice(notice)
        elif not self._notices and isinstance(notice, Dropped | Gap):
            # Records that this subscriber does not get are never passed over in silence.
            logger.warning("%s", notice)
        return self._notices

    # The connection

    async def _receive(self) -> Event | Notice | None:
        try:
            if self._connection is None:
                await self._rejoin()
                return None
            return self._progress.received(await self._connection.receive())
        except ConnectionFailed as error:
            await self._disconnect()
            return Disconnected(error.message)
        except HimaliaError as error:
            self._failure = error
            await self._disconnect()
            raise

    async def _rejoin(self) -> None:
        """Connect and resume, trying until it works or the topic is gone."""
        while True:
            try:
                self._connection = await self._join()
            except TopicNotFound:
                self._progress.ended = True
                self._ready.append(TopicDeleted(self.topic))
                return
            except TRANSIENT_ERRORS as error:
                logger.debug("cannot resume %s yet: %s", self.topic, error)
            else:
                self._backoff.reset()
                self._ready.appendleft(Resumed(self._connection.url))
                return
            await asyncio.sleep(self._backoff.next_s())

    async def _join(self) -> Connection:
        """A connection on which the server has acknowledged where delivery begins."""
        connection = await self._dial()
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                while (told := self._progress.acknowledged(await self._ask(connection))) is None:
                    logger.debug("%s has new topics; asking for their first records", self.topic)
        except TimeoutError:
            await connection.close()
            raise ConnectionFailed(f"{connection.url} does not acknowledge the subscription") from None
        except BaseException:
            await connection.close()
            raise
        self._ready.extend(told)
        return connection

    async def _ask(self, connection: Connection) -> ServerMessage:
        """Subscribe, and wait for the answer to just this request."""
        self._requests += 1
        request = replace(self._progress.request(), request_id=f"subscribe-{self._requests}")
        await connection.send(encode(request))
        while True:
            answer = await connection.receive()
            if answer.error is not None and answer.error.code != ErrorCode.FILTER_FAILED:
                # Also one without our id: a request too large to be read at all has none.
                raise error_from(answer.error, topic=self.topic)
            if answer.request_id == request.request_id:
                return answer

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(HimaliaError):
                await connection.close()
