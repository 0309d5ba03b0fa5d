"""Publishes over a WebSocket, one message or many: retried with the same ids until the server has acknowledged them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from himalia.client.connection import Connection
from himalia.client.errors import error_from
from himalia.client.events import Outgoing, Published
from himalia.client.payload import encode_payload
from himalia.errors import ConnectionFailed, ErrorCode, HimaliaError, InternalError
from himalia.protocol import ClientMessage, Message, ServerMessage, encode
from himalia.retry import TRANSIENT_ERRORS, Backoff

logger = logging.getLogger("himalia.client")


class Unacknowledged:
    """A message that was handed over and not answered yet."""

    __slots__ = ("answer", "backoff", "deadline", "frame", "id", "refusal", "topic")

    def __init__(self, topic: str, id: str, frame: bytes, deadline: float) -> None:
        self.topic = topic
        self.id = id
        self.frame = frame
        self.deadline = deadline
        self.answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        # Why the server would not take it for the moment; it is sent again after a while.
        self.refusal: HimaliaError | None = None
        self.backoff = Backoff()


class Publisher:
    """Messages go out in the order of ``submit`` and, after a lost connection, again in that order: the server
    has stored a first part of them, and knows by their ids which."""

    def __init__(self, dial: Callable[[], Awaitable[Connection]]) -> None:
        self._dial = dial
        self._waiting: dict[str, Unacknowledged] = {}
        self._unsent: deque[str] = deque()
        self._work = asyncio.Event()
        self._request_ids = itertools.count(1)
        self._running: asyncio.Task[None] | None = None
        self._connected_once = False
        self._backoff = Backoff()

    def submit(self, topic: str, outgoing: Outgoing, timeout_s: float) -> Unacknowledged:
        """Hand a message over to be sent; ``settle`` waits for what becomes of it."""
        message = _message(outgoing)
        request_id = str(next(self._request_ids))
        frame = encode(ClientMessage("publish", topic=topic, message=message, request_id=request_id))
        deadline = asyncio.get_running_loop().time() + timeout_s
        waiting = self._waiting[request_id] = Unacknowledged(topic, message.id, frame, deadline)
        waiting.answer.add_done_callback(lambda answer: self._waiting.pop(request_id, None))
        self._send_soon(request_id)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return waiting

    async def settle(self, waiting: Unacknowledged) -> Published:
        """Where the message was stored. Raises the server's refusal, or what kept it from answering in time."""
        if waiting.answer.done():
            return waiting.answer.result()
        try:
            async with asyncio.timeout_at(waiting.deadline):
                return await waiting.answer
        except TimeoutError:
            raise waiting.refusal or ConnectionFailed(
                f"the server has not acknowledged message {waiting.id} in time, so it may be stored or not; "
                "publish it again with the same id, then it is stored once",
                id=waiting.id,
                topic=waiting.topic,
            ) from None
        finally:
            # Also when the caller was cancelled: what was not sent yet is not sent any more.
            waiting.answer.cancel()

    async def close(self) -> None:
        """End the connection. Whoever still waits is told."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._fail_all(ConnectionFailed("the client was closed before the server answered"))

    def _send_soon(self, request_id: str) -> None:
        self._unsent.append(request_id)
        self._work.set()

    # The connection

    async def _run(self) -> None:
        """Keep a connection for as long as there is something to send; one that breaks while idle is left alone."""
        try:
            while True:
                await self._work.wait()
                try:
                    await self._converse()
                except TRANSIENT_ERRORS as error:
                    await self._try_again(error)
                except HimaliaError as error:
                    self._fail_all(error)
        except Exception as error:
            logger.exception("the publisher failed")
            self._fail_all(InternalError(f"the client failed on a publish: {error!r}"))
            raise

    async def _converse(self) -> None:
        """Send and receive on one connection until it ends, which raises."""
        connection = await self._dial()
        self._connected_once = True
        halves = [asyncio.create_task(self._send(connection)), asyncio.create_task(self._receive(connection))]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            outcomes = await asyncio.gather(*halves, return_exceptions=True)
            with suppress(HimaliaError):
                await connection.close()
        raise next(outcome for outcome in outcomes if isinstance(outcome, Exception))

    async def _try_again(self, error: HimaliaError) -> None:
        logger.debug("publishing is interrupted: %s", error)
        if not self._connected_once:
            # Nothing was sent yet, and a wrong URL does not get better by waiting.
            self._fail_all(error)
            return
        if not self._waiting:
            self._forget_unsent()
            return
        await asyncio.sleep(self._backoff.next_s())
        self._forget_unsent()
        for request_id in self._waiting:
            self._send_soon(request_id)

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        self._work.clear()

    def _fail_all(self, error: HimaliaError) -> None:
        for waiting in list(self._waiting.values()):
            if not waiting.answer.done():
                _fail(waiting, error)
        self._waiting.clear()
        self._forget_unsent()

    async def _send(self, connection: Connection) -> None:
        while True:
            await self._work.wait()
            while self._unsent:
                waiting = self._waiting.get(self._unsent.popleft())
                if waiting is not None:
                    await connection.send(waiting.frame)
            self._work.clear()

    async def _receive(self, connection: Connection) -> None:
        while True:
            answer = await connection.receive()
            if answer.type == "ack":
                self._backoff.reset()
                self._acknowledged(answer)
            elif answer.type == "error" and answer.error is not None:
                self._refused(answer)

    # Answers

    def _acknowledged(self, ack: ServerMessage) -> None:
        waiting = self._waiting.pop(ack.request_id or "", None)
        if waiting is None or waiting.answer.done():
            return
        assert ack.offset is not None and ack.epoch is not None and ack.ts is not None
        waiting.answer.set_result(Published(waiting.topic, ack.offset, ack.epoch, ack.ts, waiting.id))

    def _refused(self, answer: ServerMessage) -> None:
        assert answer.error is not None
        request_id = answer.request_id
        if request_id is None and answer.error.code == ErrorCode.MESSAGE_TOO_LARGE:
            request_id = self._largest()
        waiting = self._waiting.get(request_id or "")
        if request_id is None or waiting is None or waiting.answer.done():
            logger.debug("an error that belongs to nothing: %s", answer.error.message)
            return
        error = error_from(answer.error, topic=waiting.topic, id=waiting.id)
        if not isinstance(error, TRANSIENT_ERRORS):
            # At once, not when the callback of the answer runs: the next error may be about size as well.
            del self._waiting[request_id]
            _fail(waiting, error)
            return
        waiting.refusal = error
        delay_s = waiting.backoff.next_s()
        asyncio.get_running_loop().call_later(delay_s, self._send_refused, request_id)

    def _send_refused(self, request_id: str) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None and waiting.refusal is not None:
            waiting.refusal = None
            self._send_soon(request_id)

    def _largest(self) -> str | None:
        """Whom an error about size is for. The server skips a frame that is too large and cannot tell its id; but
        if any was too large, then so was the largest."""
        unsent = set(self._unsent)
        sent = [request_id for request_id in self._waiting if request_id not in unsent]
        return max(sent, key=lambda request_id: len(self._waiting[request_id].frame), default=None)


def _fail(waiting: Unacknowledged, error: HimaliaError) -> None:
    waiting.answer.set_exception(error)
    # Looked at here: somebody who was cancelled meanwhile never does, and that is no accident to warn of.
    waiting.answer.exception()


def _message(outgoing: Outgoing) -> Message:
    return Message(
        str(outgoing.id or uuid.uuid4()),
        msgspec.Raw(encode_payload(outgoing.payload)),
        dict(outgoing.headers) if outgoing.headers else None,
    )


IN_FLIGHT_MAX = 1024
IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024

Window = asyncio.Queue[Unacknowledged | None]


class Bulk:
    """One call of ``publish_many``: a feeder hands over what the source gives, a settler takes the answers in order."""

    def __init__(
        self,
        publisher: Publisher,
        topic: str,
        timeout_s: float,
        on_published: Callable[[Published], None] | None,
    ) -> None:
        self._publisher = publisher
        self._topic = topic
        self._timeout_s = timeout_s
        self._on_published = on_published
        self._window: Window = asyncio.Queue(IN_FLIGHT_MAX)
        self._in_flight_bytes = 0

    async def publish(self, source: Iterable[Any] | AsyncIterable[Any]) -> int:
        """Publish all; returns how many. If the source fails, what it gave before is stored, then its error raised."""
        feeding = asyncio.create_task(self._feed(source))
        settling = asyncio.create_task(self._settle())
        try:
            await asyncio.wait({feeding, settling}, return_when=asyncio.FIRST_COMPLETED)
            if not settling.done():
                await self._window.put(None)
            # Comes first: a message that was refused came before whatever the source failed on.
            count = await settling
            await feeding
            return count
        finally:
            await self._stop(feeding, settling)

    async def _feed(self, source: Iterable[Any] | AsyncIterable[Any]) -> None:
        async for item in _each(source):
            outgoing = item if isinstance(item, Outgoing) else Outgoing(item)
            waiting = self._publisher.submit(self._topic, outgoing, self._timeout_s)
            self._in_flight_bytes += len(waiting.frame)
            await self._window.put(waiting)
            if self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
                # When the newest is answered, next to nothing is under way any more.
                await asyncio.wait([waiting.answer])

    async def _settle(self) -> int:
        count = 0
        while (waiting := await self._window.get()) is not None:
            try:
                published = await self._publisher.settle(waiting)
            except HimaliaError as error:
                error.data["index"] = count
                raise
            count += 1
            self._in_flight_bytes -= len(waiting.frame)
            if self._on_published is not None:
                self._on_published(published)
        return count

    async def _stop(self, *tasks: asyncio.Task[Any]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not self._window.empty():
            waiting = self._window.get_nowait()
            if waiting is not None:
                waiting.answer.cancel()


async def _each(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
    else:
        for item in source:
            yield item
