"""Publishing over a WebSocket, one message or many: retried with the same ids until the server acknowledges them."""

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

from himalia.client.connection import WebSocketConnection
from himalia.client.errors import make_error
from himalia.client.events import Outgoing, Published
from himalia.client.payload import encode_payload
from himalia.errors import ConnectionFailed, ErrorCode, HimaliaError, InternalError
from himalia.protocol import ClientMessage, Message, ServerMessage, encode
from himalia.retry import TRANSIENT_ERRORS, Backoff

logger = logging.getLogger("himalia.client")


class PendingPublish:
    """A submitted message that the server has not acknowledged yet."""

    __slots__ = ("backoff", "deadline", "frame", "id", "receipt", "refusal", "topic")

    def __init__(self, topic: str, id: str, frame: bytes, deadline: float) -> None:
        self.topic = topic
        self.id = id
        self.frame = frame
        self.deadline = deadline
        self.receipt: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        # The transient error of the last attempt, until the message is sent again.
        self.refusal: HimaliaError | None = None
        self.backoff = Backoff()


class Publisher:
    """Sends messages in the order of ``submit``. After a lost connection it sends the pending ones again in that order:
    the server has stored a prefix of them, and recognizes those by their ids."""

    def __init__(self, dial: Callable[[], Awaitable[WebSocketConnection]]) -> None:
        self._dial = dial
        self._pending: dict[str, PendingPublish] = {}
        self._unsent: deque[str] = deque()
        self._work = asyncio.Event()
        self._request_ids = itertools.count(1)
        self._running: asyncio.Task[None] | None = None
        self._connected_once = False
        self._backoff = Backoff()

    def submit(self, topic: str, outgoing: Outgoing, timeout_s: float) -> PendingPublish:
        """Queue a message for sending; ``wait`` returns its receipt."""
        message = _encode_message(outgoing)
        request_id = str(next(self._request_ids))
        frame = encode(ClientMessage("publish", topic=topic, message=message, request_id=request_id))
        deadline = asyncio.get_running_loop().time() + timeout_s
        pending = self._pending[request_id] = PendingPublish(topic, message.id, frame, deadline)
        pending.receipt.add_done_callback(lambda _: self._pending.pop(request_id, None))
        self._queue_send(request_id)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return pending

    async def wait(self, pending: PendingPublish) -> Published:
        """Wait until the message is stored. Raises the server's error, or the reason for the timeout."""
        if pending.receipt.done():
            return pending.receipt.result()
        try:
            async with asyncio.timeout_at(pending.deadline):
                return await pending.receipt
        except TimeoutError:
            raise pending.refusal or ConnectionFailed(
                f"the server did not acknowledge message {pending.id} in time, so it may or may not be stored; "
                "publish it again with the same id: it is stored once",
                id=pending.id,
                topic=pending.topic,
            ) from None
        finally:
            # Also if the caller was cancelled: a message that was not sent yet is then never sent.
            pending.receipt.cancel()

    async def close(self) -> None:
        """Close the connection. Pending publishes fail."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._fail_all(ConnectionFailed("the client was closed before the server acknowledged the message"))

    def _queue_send(self, request_id: str) -> None:
        self._unsent.append(request_id)
        self._work.set()

    # The connection

    async def _run(self) -> None:
        """Keep a connection open while messages are pending; one that is lost while idle is not reopened."""
        try:
            while True:
                await self._work.wait()
                try:
                    await self._run_connection()
                except TRANSIENT_ERRORS as error:
                    await self._retry(error)
                except HimaliaError as error:
                    self._fail_all(error)
        except Exception as error:
            logger.exception("the publisher failed")
            self._fail_all(InternalError(f"the client failed on a publish: {error!r}"))
            raise

    async def _run_connection(self) -> None:
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

    async def _retry(self, error: HimaliaError) -> None:
        logger.debug("publishing was interrupted: %s", error)
        if not self._connected_once:
            # Nothing was sent yet, and waiting does not correct a wrong URL.
            self._fail_all(error)
            return
        if not self._pending:
            self._clear_unsent()
            return
        await asyncio.sleep(self._backoff.next_s())
        self._clear_unsent()
        for request_id in self._pending:
            self._queue_send(request_id)

    def _clear_unsent(self) -> None:
        self._unsent.clear()
        self._work.clear()

    def _fail_all(self, error: HimaliaError) -> None:
        for pending in list(self._pending.values()):
            if not pending.receipt.done():
                _fail(pending, error)
        self._pending.clear()
        self._clear_unsent()

    async def _send(self, connection: WebSocketConnection) -> None:
        while True:
            await self._work.wait()
            while self._unsent:
                pending = self._pending.get(self._unsent.popleft())
                if pending is not None:
                    await connection.send(pending.frame)
            self._work.clear()

    async def _receive(self, connection: WebSocketConnection) -> None:
        while True:
            reply = await connection.receive()
            if reply.type == "ack":
                self._backoff.reset()
                self._on_ack(reply)
            elif reply.type == "error" and reply.error is not None:
                self._on_error(reply)

    # Replies

    def _on_ack(self, ack: ServerMessage) -> None:
        pending = self._pending.pop(ack.request_id or "", None)
        if pending is None or pending.receipt.done():
            return
        assert ack.offset is not None and ack.epoch is not None and ack.ts is not None
        pending.receipt.set_result(Published(pending.topic, ack.offset, ack.epoch, ack.ts, pending.id))

    def _on_error(self, reply: ServerMessage) -> None:
        assert reply.error is not None
        request_id = reply.request_id
        if request_id is None and reply.error.code == ErrorCode.MESSAGE_TOO_LARGE:
            request_id = self._find_largest()
        pending = self._pending.get(request_id or "")
        if request_id is None or pending is None or pending.receipt.done():
            logger.debug("ignoring an error of no pending publish: %s", reply.error.message)
            return
        error = make_error(reply.error, topic=pending.topic, id=pending.id)
        if not isinstance(error, TRANSIENT_ERRORS):
            # Now, not when the future's callback runs: the next error may be about size too, and ``_find_largest``
            # must not return this one again.
            del self._pending[request_id]
            _fail(pending, error)
            return
        pending.refusal = error
        delay_s = pending.backoff.next_s()
        asyncio.get_running_loop().call_later(delay_s, self._resend, request_id)

    def _resend(self, request_id: str) -> None:
        pending = self._pending.get(request_id)
        if pending is not None and pending.refusal is not None:
            pending.refusal = None
            self._queue_send(request_id)

    def _find_largest(self) -> str | None:
        """Return the request that an error about size belongs to. The server skips a frame that is too large without
        reading its id; but if any was too large, so was the largest."""
        unsent = set(self._unsent)
        sent = [request_id for request_id in self._pending if request_id not in unsent]
        return max(sent, key=lambda request_id: len(self._pending[request_id].frame), default=None)


def _fail(pending: PendingPublish, error: HimaliaError) -> None:
    pending.receipt.set_exception(error)
    # Retrieved here: a caller that was cancelled never does, and asyncio would log that.
    pending.receipt.exception()


def _encode_message(outgoing: Outgoing) -> Message:
    return Message(
        str(outgoing.id or uuid.uuid4()),
        msgspec.Raw(encode_payload(outgoing.payload)),
        dict(outgoing.headers) if outgoing.headers else None,
    )


IN_FLIGHT_MAX = 1024
IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024

Window = asyncio.Queue[PendingPublish | None]


class BulkPublish:
    """One call of ``publish_many``: one task submits the messages, another waits for the receipts in order."""

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
        """Publish all messages; returns their number. If ``source`` raises, what it yielded before is stored first."""
        feeding = asyncio.create_task(self._feed(source))
        collecting = asyncio.create_task(self._collect())
        try:
            await asyncio.wait({feeding, collecting}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                await self._window.put(None)
            # Awaited first: a message that was refused precedes an exception of the source.
            count = await collecting
            await feeding
            return count
        finally:
            await self._stop(feeding, collecting)

    async def _feed(self, source: Iterable[Any] | AsyncIterable[Any]) -> None:
        async for item in _iterate(source):
            outgoing = item if isinstance(item, Outgoing) else Outgoing(item)
            pending = self._publisher.submit(self._topic, outgoing, self._timeout_s)
            self._in_flight_bytes += len(pending.frame)
            await self._window.put(pending)
            if self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
                # When the newest is acknowledged, next to nothing is in flight.
                await asyncio.wait([pending.receipt])

    async def _collect(self) -> int:
        count = 0
        while (pending := await self._window.get()) is not None:
            try:
                published = await self._publisher.wait(pending)
            except HimaliaError as error:
                error.data["index"] = count
                raise
            count += 1
            self._in_flight_bytes -= len(pending.frame)
            if self._on_published is not None:
                self._on_published(published)
        return count

    async def _stop(self, *tasks: asyncio.Task[Any]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not self._window.empty():
            pending = self._window.get_nowait()
            if pending is not None:
                pending.receipt.cancel()


async def _iterate(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
    else:
        for item in source:
            yield item
