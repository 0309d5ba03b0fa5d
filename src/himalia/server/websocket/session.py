"""One WebSocket client: what it says, and what it is answered. No I/O: bytes come in, bytes are gathered."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from himalia.errors import (
    BadRequest,
    BodyTimeout,
    HimaliaError,
    InternalError,
    MessageTooLarge,
    RateLimited,
    ShuttingDown,
    TooManyBodies,
    TooManySubscriptions,
    Unauthorized,
)
from himalia.log.api import Appended, Batch
from himalia.protocol import (
    PROTOCOL_VERSION,
    ClientMessage,
    NoticeKind,
    ServerMessage,
    decode_client_message,
    encode,
    request_id_of,
    text_frame,
)
from himalia.pubsub import Subscriber
from himalia.record import Draft, format_ts, now_us
from himalia.server.caller_usage import Place
from himalia.server.codecs import WEBSOCKET, error_message
from himalia.server.drafts import Drafter
from himalia.server.http.body_budget import Hold
from himalia.server.identity import Principal
from himalia.server.websocket.subscribing import make_subscriber
from himalia.server.websocket.transport import Channel
from himalia.topics import check_pattern

if TYPE_CHECKING:
    from himalia.server.context import ServerContext

logger = logging.getLogger("himalia.connection")

INPUT_BYTES_FREE = 64 * 1024
"""What each connection may keep of a message that is not whole without a place in the budget of bodies."""
COMMANDS_WAITING_MAX = 64
WAITING_BYTES_LARGE = 16 * 1024
# Written out because a busy publisher gets thousands of these a second.
_ACK = b'{"type":"ack",%b%b"topic":"%b","status":"ok","offset":%d,"epoch":"%b","ts":"%b"}'


class Publishes:
    """Publishes to one topic that came in together and are stored together."""

    __slots__ = ("drafts", "request_ids")

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.request_ids: list[str | None] = []


class Connection:
    """The server's half of the conversation. ``receive`` for each message, ``end_of_input`` after each read.

    Publishes of one read go to the log as one batch for each topic. Other commands may have to wait for the
    log; what comes after such a command waits behind it, so that a client is answered in the order it spoke.
    """

    __slots__ = (
        "_allowance",
        "_busy",
        "_context",
        "_drafter",
        "_flushing",
        "_in_flight",
        "_input",
        "_input_since",
        "_next_ping",
        "_pinged_at",
        "_place",
        "_publishes",
        "_reading",
        "_refilled_at",
        "_spoke",
        "_unsent",
        "_usage",
        "_waiting",
        "channel",
        "principal",
    )

    def __init__(self, context: ServerContext, principal: Principal, channel: Channel, place: Place) -> None:
        self.channel = channel
        self.principal = principal
        self._context = context
        self._drafter = Drafter(context.settings, principal)
        self._place = place
        place.outlet = channel
        self._usage = context.usages.of(principal)
        self._publishes: dict[str, Publishes] = {}
        self._in_flight = 0
        self._reading = True
        self._busy = False
        self._waiting: deque[bytes] = deque()
        self._flushing = False
        self._spoke = False
        self._unsent = 0
        self._allowance = max(context.settings.publish_rate_max, 1.0)
        self._refilled_at = channel.last_seen
        self._next_ping = channel.last_seen + context.settings.heartbeat_s
        self._pinged_at: float | None = None
        # What a message that is not whole holds of the budget of bodies, and since when.
        self._input: Hold | None = None
        self._input_since = 0.0
        channel.on_writable = self._resume_reading
        context.connections[self] = None
        principal.credential.watch(self._credential_ended)

    # What comes in

    def receive(self, data: bytes) -> None:
        """One text message. Whatever is wrong with it is answered; nothing is raised."""
        if self.principal.credential.ended is not None:
            return
        if self._busy:
            self._waiting.append(data)
            if len(self._waiting) >= COMMANDS_WAITING_MAX or len(data) >= WAITING_BYTES_LARGE:
                self._hold_reading()
            return
        message: ClientMessage | None = None
        try:
            message = decode_client_message(data)
            if message.type == "publish":
                self._publish(message)
            elif message.type == "ping":
                self._reply(ServerMessage("pong", request_id=message.request_id, ts=format_ts(now_us())))
            else:
                self._start_command(message)
        except HimaliaError as error:
            self._refuse(error, message.request_id if message else request_id_of(data))
        except Exception:
            self._log_bug("a message")
            self._refuse(
                InternalError("the server failed on this message; its log says why"), request_id_of(data)
            )

    def receive_binary(self) -> None:
        self._refuse(BadRequest("binary frames are not part of the protocol; send JSON as text"), None)

    def receive_too_large(self, size: int) -> None:
        limit = self._context.settings.message_bytes_max
        self._refuse(MessageTooLarge(f"a message has at most {limit} bytes, this one has {size}"), None)

    def end_of_input(self) -> None:
        """Everything that was read has been received: hand the publishes over."""
        if self._publishes:
            self._submit()
        # A peer that does not take its answers is not read either, so that they cannot pile up.
        if self.channel.buffered_bytes >= self._context.settings.write_buffer_bytes:
            self.channel.flush()
        if self._context.is_full or self.channel.paused:
            self._hold_reading()

    def may_keep(self, size: int) -> bool:
        """Whether so many bytes of messages that are not whole may be kept; if not, the connection ends.

        Beyond a little they count as the bodies of requests do.
        """
        if size <= INPUT_BYTES_FREE:
            self._release_input()
            return True
        if self._input is None:
            self._input = self._context.bodies.hold(self.principal.name)
            self._input_since = asyncio.get_running_loop().time()
        try:
            self._input.extend(max(0, size - self._input.bytes))
        except TooManyBodies as error:
            self._end_input(error)
            return False
        return True

    def _end_input(self, error: HimaliaError) -> None:
        """A message is given up before it is whole, and the connection with it."""
        self._release_input()
        self._context.metrics.count_error(error.code)
        self.channel.buffer(WEBSOCKET.encode_error(error))
        self.channel.close(error)

    def _release_input(self) -> None:
        if self._input is not None:
            self._input.release()
            self._input = None

    def disconnected(self) -> None:
        """The peer is gone. Idempotent."""
        self.channel.closed = True
        self._release_input()
        self._waiting.clear()
        self.principal.credential.unwatch(self._credential_ended)
        self._place.release()
        self._context.connections.pop(self, None)
        self._context.manager.disconnect(self.channel)

    # Publishing

    def _publish(self, message: ClientMessage) -> None:
        if self._context.draining:
            raise ShuttingDown(
                "the server is shutting down and takes no more; publish again after reconnecting"
            )
        if self._context.settings.publish_rate_max:
            self._check_rate()
        topic, body = message.topic, message.message
        assert topic is not None and body is not None  # checked when it was decoded
        draft = self._drafter.draft(topic, body, message.client_id)
        if self._usage.limits_publishing:
            self._usage.publish(1, draft.size_bytes)
        publishes = self._publishes.get(topic)
        if publishes is None:
            publishes = self._publishes[topic] = Publishes()
        publishes.drafts.append(draft)
        publishes.request_ids.append(message.request_id)

    def _check_rate(self) -> None:
        rate = self._context.settings.publish_rate_max
        now = asyncio.get_running_loop().time()
        self._allowance = min(max(rate, 1.0), self._allowance + (now - self._refilled_at) * rate)
        self._refilled_at = now
        if self._allowance < 1:
            raise RateLimited(f"at most {rate:g} publishes a second; wait and publish again")
        self._allowance -= 1

    def _submit(self) -> None:
        gathered, self._publishes = self._publishes, {}
        for topic, publishes in gathered.items():
            self._in_flight += len(publishes.drafts)
            future = self._context.manager.publish(Batch(topic, publishes.drafts, scope=self.principal.name))
            future.add_done_callback(partial(self._published, topic, publishes.request_ids))
        if self._in_flight >= self._context.settings.publishes_in_flight_max:
            self._hold_reading()

    def _published(
        self, topic: str, request_ids: Sequence[str | None], future: asyncio.Future[Appended]
    ) -> None:
        self._in_flight -= len(request_ids)
        if not self._reading:
            self._resume_reading()
        if self.channel.closed:
            return
        error = future.exception()
        if error is None:
            self._acknowledge(topic, request_ids, future.result())
        else:
            known = (
                error if isinstance(error, HimaliaError) else InternalError("publishing failed in the server")
            )
            if known is not error:
                name = self.principal.name
                extra = {"caller": name}
                logger.error("publishing to %s of %s failed", topic, name, exc_info=error, extra=extra)
            for request_id in request_ids:
                self._refuse(known, request_id)
        self._flush_soon()

    def _acknowledge(self, topic: str, request_ids: Sequence[str | None], appended: Appended) -> None:
        name, epoch = topic.encode(), appended.epoch.encode()
        ts = format_ts(appended.ts_us).encode()
        frames = [
            text_frame(_ACK % (self._version(), _echo(request_id), name, offset, epoch, ts))
            for request_id, offset in zip(request_ids, appended.offsets, strict=True)
        ]
        self.channel.buffer(b"".join(frames))

    # Subscribing

    def _start_command(self, message: ClientMessage) -> None:
        # What was published before this command is with the log before the command looks at it.
        self._submit()
        self._busy = True
        asyncio.get_running_loop().create_task(self._command(message))

    async def _command(self, message: ClientMessage) -> None:
        try:
            if message.type == "subscribe":
                await self._subscribe(message)
            else:
                self._unsubscribe(message)
        except HimaliaError as error:
            self._refuse(error, message.request_id)
        except Exception:
            self._log_bug("a command")
            self._refuse(
                InternalError("the server failed on this command; its log says why"), message.request_id
            )
        finally:
            self._busy = False
            self._resume_waiting()
            self.channel.flush()

    async def _subscribe(self, message: ClientMessage) -> None:
        context = self._context
        subscriber = await make_subscriber(
            message, context.settings, self.principal, self.channel, context.manager.time_slices
        )
        self._check_subscriptions(subscriber)
        with self._usage.subscribing(subscriber.identity):
            result = await self._context.manager.subscribe(subscriber)
        ack = self._ack(message)
        if subscriber.follows_pattern:
            ack.topics = result.positions
        elif position := result.positions.get(subscriber.pattern):
            ack.offset, ack.epoch = position.offset, position.epoch
        self._reply(ack)
        for gap in result.gaps:
            self.channel.buffer(
                WEBSOCKET.encode_gap(gap.topic, subscriber.client_id, gap.requested, gap.first, gap.end)
            )

    def _check_subscriptions(self, subscriber: Subscriber) -> None:
        limit = self._context.settings.subscriptions_max
        mine = self.channel.subscribers
        if len(mine) >= limit and all(other.identity != subscriber.identity for other in mine):
            raise TooManySubscriptions(
                f"a connection has at most {limit} subscriptions; unsubscribe or use a pattern"
            )

    def _unsubscribe(self, message: ClientMessage) -> None:
        assert message.topic is not None and message.client_id is not None  # checked when it was decoded
        pattern = check_pattern(message.topic, self._context.settings.topic_length_max)
        self._context.manager.unsubscribe(pattern, self.principal.name, message.client_id, self.channel)
        self._reply(self._ack(message))

    def _resume_waiting(self) -> None:
        while self._waiting and not self._busy:
            self.receive(self._waiting.popleft())
        if not self._busy:
            self.end_of_input()
            self._resume_reading()

    # What goes out

    def _ack(self, message: ClientMessage) -> ServerMessage:
        return ServerMessage(
            "ack", request_id=message.request_id, topic=message.topic, status="ok", ts=format_ts(now_us())
        )

    def _reply(self, message: ServerMessage) -> None:
        if not self._spoke:
            self._spoke = True
            message.protocol = PROTOCOL_VERSION
        self.channel.buffer(text_frame(encode(message)))
        self._flush_soon()

    def _refuse(self, error: HimaliaError, request_id: str | None) -> None:
        logger.debug(
            "refused %s: %s %s",
            self.principal.name,
            error.code,
            error.message,
            extra={"caller": self.principal.name},
        )
        self._context.metrics.count_error(error.code)
        self._reply(error_message(error, request_id))

    def _log_bug(self, what: str) -> None:
        name = self.principal.name
        logger.exception("%s of %s could not be handled", what, name, extra={"caller": name})

    def _version(self) -> bytes:
        """The protocol version in the first answer, nothing in later ones."""
        if self._spoke:
            return b""
        self._spoke = True
        return b'"protocol":%d,' % PROTOCOL_VERSION

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self.channel.flush()

    # Flow

    def _hold_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.channel.pause_reading()
            if self._context.is_full:
                self._context.hold(self._resume_reading)

    def _resume_reading(self) -> None:
        if self._reading or self._busy or self.channel.paused:
            return
        if self._context.is_full:
            self._context.hold(self._resume_reading)
        elif self._in_flight <= self._context.settings.publishes_in_flight_max // 2:
            self._reading = True
            self.channel.resume_reading()

    # Life

    def beat(self, now: float) -> None:
        """Called often; pings when it is time and ends a connection whose peer shows no life."""
        settings, channel = self._context.settings, self.channel
        unsent = channel.untaken_bytes
        if unsent < self._unsent:
            channel.last_seen = now  # it takes what waits for it, however slowly
        self._unsent = unsent
        if self._pinged_at is not None:
            not_listening = not self._reading and not channel.paused
            if channel.last_seen >= self._pinged_at or not_listening:
                self._pinged_at = None
            elif now - self._pinged_at > self._patience_s():
                logger.info(
                    "a peer of %s showed no life for %.0f s and is dropped",
                    self.principal.name,
                    now - channel.last_seen,
                    extra={"caller": self.principal.name},
                )
                channel.abort()
                return
        if self._input is not None and now - self._input_since > settings.body_timeout_s:
            self._end_input(BodyTimeout(f"a message was not whole after {settings.body_timeout_s:g} s"))
            return
        if now >= self._next_ping:
            self._next_ping = now + settings.heartbeat_s
            if self._pinged_at is None:
                self._pinged_at = now
            channel.ping()
            if self._spoke and not channel.paused:
                channel.buffer(WEBSOCKET.info(NoticeKind.PING))
                channel.flush()

    def _patience_s(self) -> float:
        # The ping waits behind everything else for a peer that is slow to read, and so does its answer.
        settings = self._context.settings
        return settings.stall_timeout_s if self.channel.paused else settings.heartbeat_timeout_s

    def _credential_ended(self, why: Unauthorized) -> None:
        """The key, token or session that opened this connection is no longer valid: say so, and close."""
        self._waiting.clear()
        self._context.metrics.count_error(why.code)
        self.channel.buffer(WEBSOCKET.encode_error(why))
        self.channel.close(why)

    def announce_shutdown(self) -> None:
        if self._spoke:
            self.channel.buffer(WEBSOCKET.info(NoticeKind.SERVER_SHUTDOWN))
            self.channel.flush()

    @property
    def is_drained(self) -> bool:
        """Whether everything that this client has coming was sent."""
        channel = self.channel
        if self._in_flight or self._busy or channel.buffered_bytes or channel.unsent_bytes:
            return False
        return all(
            not cursor.lag for subscriber in channel.subscribers for cursor in subscriber.cursors.values()
        )

    def shut(self, code: int, reason: str) -> None:
        self.channel.shut(code, reason)

    def abort(self) -> None:
        self.channel.abort()


def _echo(request_id: str | None) -> bytes:
    return b"" if request_id is None else b'"request_id":%b,' % encode(request_id)
