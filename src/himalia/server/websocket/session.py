"""The session of one WebSocket client: dispatches its messages. Does no I/O: bytes come in, replies are buffered."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from himalia.errors import (
    BadRequest,
    HimaliaError,
    InternalError,
    MessageTooLarge,
    TooManySubscriptions,
    Unauthorized,
)
from himalia.protocol import ClientMessage, NoticeKind, ServerMessage, decode_client_message, request_id_of
from himalia.pubsub import Subscriber
from himalia.record import format_ts, now_us
from himalia.server.caller_usage import ConnectionSlot
from himalia.server.codecs import WEBSOCKET
from himalia.server.identity import Principal
from himalia.server.websocket.flow_control import FlowControl
from himalia.server.websocket.liveness import Liveness
from himalia.server.websocket.partial_message import PartialMessage
from himalia.server.websocket.publish_batches import PublishBatches
from himalia.server.websocket.reply_writer import ReplyWriter
from himalia.server.websocket.subscription_request import make_subscriber
from himalia.server.websocket.transport import ClientTransport
from himalia.topics import check_pattern

if TYPE_CHECKING:
    from himalia.server.context import ServerContext

logger = logging.getLogger("himalia.connection")

MESSAGES_WAITING_MAX = 64
WAITING_BYTES_LARGE = 16 * 1024


class WebSocketSession:
    """The server's half of one connection. ``receive`` for each message, ``end_of_input`` after each read.

    Publishes of one read are appended as one batch per topic. Other commands may have to wait for the log; messages
    that follow such a command wait behind it, so that a client gets its replies in the order of its requests.
    Belongs to the event loop.
    """

    __slots__ = (
        "_context",
        "_flow",
        "_liveness",
        "_partial",
        "_publishes",
        "_replies",
        "_slot",
        "_usage",
        "_waiting",
        "principal",
        "transport",
    )

    def __init__(
        self, context: ServerContext, principal: Principal, transport: ClientTransport, slot: ConnectionSlot
    ) -> None:
        self.principal = principal
        self.transport = transport
        self._context = context
        self._slot = slot
        slot.outlet = transport
        self._flow = FlowControl(context, transport)
        self._replies = ReplyWriter(context, transport, principal.name)
        self._usage = context.usages.of(principal)
        self._publishes = PublishBatches(context, principal, self._usage, self._flow, self._replies)
        self._partial = PartialMessage(context, self._replies)
        self._liveness = Liveness(context.settings, transport, self._flow, self._replies)
        # Messages behind a running command. Short, because reading is paused: an empty list is smaller than a deque.
        self._waiting: list[bytes] = []
        context.connections[self] = None
        principal.credential.watch(self._on_credential_end)

    # Input

    def receive(self, data: bytes) -> None:
        """Handle one text message. Every error is replied to; nothing is raised."""
        if self.principal.credential.ended is not None:
            return
        if self._flow.is_busy:
            self._waiting.append(data)
            if len(self._waiting) >= MESSAGES_WAITING_MAX or len(data) >= WAITING_BYTES_LARGE:
                self._flow.pause()
            return
        message: ClientMessage | None = None
        try:
            message = decode_client_message(data)
            if message.type == "publish":
                self._publishes.add(message)
            elif message.type == "ping":
                self._replies.send(
                    ServerMessage("pong", request_id=message.request_id, ts=format_ts(now_us()))
                )
            else:
                self._start_command(message)
        except HimaliaError as error:
            self._replies.refuse(error, message.request_id if message else request_id_of(data))
        except Exception:
            self._log_failure("message")
            self._replies.refuse(
                InternalError("the server failed on this message; its log says why"), request_id_of(data)
            )

    def receive_binary(self) -> None:
        self._replies.refuse(
            BadRequest("binary frames are not part of the protocol; send JSON as text"), None
        )

    def receive_too_large(self, size: int) -> None:
        limit = self._context.settings.message_bytes_max
        self._replies.refuse(
            MessageTooLarge(f"a message has at most {limit} bytes, this one has {size}"), None
        )

    def end_of_input(self) -> None:
        """Called when every message of a read was received: submits the publishes."""
        self._publishes.submit()
        # A client that does not read its replies is not read from either, so that they cannot pile up.
        if self.transport.buffered_bytes >= self._context.settings.write_buffer_bytes:
            self.transport.flush()
        if self._context.is_full or self.transport.paused:
            self._flow.pause()

    def reserve_input(self, size: int) -> bool:
        """Reserve memory for ``size`` bytes of an incomplete message; False if the connection was closed instead."""
        return self._partial.reserve(size)

    # Commands

    def _start_command(self, message: ClientMessage) -> None:
        # The log has the publishes before this command when the command looks at it.
        self._publishes.submit()
        self._flow.is_busy = True
        asyncio.get_running_loop().create_task(self._run_command(message))

    async def _run_command(self, message: ClientMessage) -> None:
        try:
            if message.type == "subscribe":
                await self._subscribe(message)
            else:
                self._unsubscribe(message)
        except HimaliaError as error:
            self._replies.refuse(error, message.request_id)
        except Exception:
            self._log_failure("command")
            self._replies.refuse(
                InternalError("the server failed on this command; its log says why"), message.request_id
            )
        finally:
            self._flow.is_busy = False
            self._receive_waiting()
            self.transport.flush()

    async def _subscribe(self, message: ClientMessage) -> None:
        context = self._context
        subscriber = await make_subscriber(
            message, context.settings, self.principal, self.transport, context.manager.time_slices
        )
        self._check_subscription_count(subscriber)
        with self._usage.reserve_subscription(subscriber.identity):
            result = await context.manager.subscribe(subscriber)
        ack = _ack(message)
        if subscriber.follows_pattern:
            ack.topics = result.positions
        elif position := result.positions.get(subscriber.pattern):
            ack.offset, ack.epoch = position.offset, position.epoch
        self._replies.send(ack)
        for gap in result.gaps:
            self.transport.buffer(
                WEBSOCKET.encode_gap(gap.topic, subscriber.client_id, gap.requested, gap.first, gap.end)
            )

    def _check_subscription_count(self, subscriber: Subscriber) -> None:
        limit = self._context.settings.subscriptions_max
        mine = self.transport.subscribers
        if len(mine) >= limit and all(other.identity != subscriber.identity for other in mine):
            raise TooManySubscriptions(
                f"a connection has at most {limit} subscriptions; unsubscribe or use a pattern"
            )

    def _unsubscribe(self, message: ClientMessage) -> None:
        assert message.topic is not None and message.client_id is not None  # checked when it was decoded
        pattern = check_pattern(message.topic, self._context.settings.topic_length_max)
        self._context.manager.unsubscribe(pattern, self.principal.name, message.client_id, self.transport)
        self._replies.send(_ack(message))

    def _receive_waiting(self) -> None:
        while self._waiting and not self._flow.is_busy:
            self.receive(self._waiting.pop(0))
        if not self._flow.is_busy:
            self.end_of_input()
            self._flow.resume()

    def _log_failure(self, what: str) -> None:
        caller = self.principal.name
        logger.exception("handling a %s of %s failed", what, caller, extra={"caller": caller})

    # Liveness and end

    def check_liveness(self, now: float) -> None:
        """Called often: pings the client when it is time, and closes the connection of one that is dead."""
        if self._liveness.is_dead(now):
            self.transport.abort()
        elif not self._partial.close_if_late(now):
            self._liveness.ping_if_due(now)

    def on_disconnect(self) -> None:
        """Called when the transport is closed; releases everything that the client had. Idempotent."""
        self.transport.closed = True
        self._partial.release()
        self._waiting.clear()
        self.principal.credential.unwatch(self._on_credential_end)
        self._slot.release()
        self._context.connections.pop(self, None)
        self._context.manager.disconnect(self.transport)

    def _on_credential_end(self, why: Unauthorized) -> None:
        """Called when the key, token or browser session that opened this connection is no longer valid."""
        self._waiting.clear()
        self._replies.close(why)

    def announce_shutdown(self) -> None:
        self._replies.notify(NoticeKind.SERVER_SHUTDOWN)

    @property
    def is_drained(self) -> bool:
        """Whether everything that is pending for this client was sent."""
        transport = self.transport
        if self._flow.in_flight or self._flow.is_busy or transport.buffered_bytes or transport.unsent_bytes:
            return False
        return all(
            not cursor.lag for subscriber in transport.subscribers for cursor in subscriber.cursors.values()
        )

    def close(self, code: int, reason: str) -> None:
        """Send a close frame and end the connection soon, whatever the client does."""
        self.transport.send_close(code, reason)

    def abort(self) -> None:
        """End the connection now."""
        self.transport.abort()


def _ack(message: ClientMessage) -> ServerMessage:
    return ServerMessage(
        "ack", request_id=message.request_id, topic=message.topic, status="ok", ts=format_ts(now_us())
    )
