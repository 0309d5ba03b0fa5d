"""The body of one request while it is received: limited in bytes, in time, and by the budget of all bodies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from himalia.errors import BodyTimeout, MessageTooLarge
from himalia.pubsub.time_slices import TimeSlices
from himalia.server.http.body_budget import BodyBudget

STATE_KEY = "body"
"""Where ``scope["state"]`` has the body of a request."""
STEP_BYTES = 1 << 20
"""The first reservation for a body of unknown length; later ones double it."""
SMALL_BYTES = 2 * 1024
"""A body up to this size is decoded at once; larger ones, if several are complete, in one turn each."""


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """Limits of all bodies of a server: their budget, their time, and the time slices in which they are decoded."""

    budget: BodyBudget
    time_slices: TimeSlices
    idle_s: float
    total_s: float


class RequestBody:
    """Wraps the server's ``receive``.

    Reserves its share of the budget with the first read, so that a body that is never read needs none. Only the time in
    which the server waits for the peer counts, not the time in which the peer waits for the server.
    """

    def __init__(
        self, scope: Scope, receive: Receive, caller: str, options: BodyOptions, *, bytes_max: int
    ) -> None:
        self._receive = receive
        self._declared = _declared_bytes(scope)
        self._options = options
        self._reservation = options.budget.reservation(caller)
        self._waited_s = 0.0
        self._received = 0
        self._complete = False
        self._bytes_max = bytes_max
        self._hint = ""
        self._streams = False

    def set_limit(self, bytes_max: int, hint: str = "") -> None:
        """Set another limit for a body that is buffered whole; ``hint`` says what to do beyond it."""
        self._bytes_max = bytes_max
        self._hint = hint

    def set_streaming(self, buffered_bytes_max: int) -> None:
        """Allow a body of any length, of which at most so many bytes are buffered at a time.

        Its time limit applies to each part that is stored: the reader calls ``restart_timeout`` then.
        """
        self._streams = True
        self._bytes_max = buffered_bytes_max

    def restart_timeout(self) -> None:
        self._waited_s = 0.0

    @property
    def should_store(self) -> bool:
        """Whether the received part should be stored, however small: half of its time has passed."""
        return self._streams and self._waited_s >= self._options.total_s / 2

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        await self._reserve_next()
        message = await self._receive_in_time()
        self._complete = not message.get("more_body", False)
        self._received += len(message.get("body", b""))
        if self._received > self._bytes_max and not self._streams:
            raise self._too_large()
        if self._complete and self._received > SMALL_BYTES:
            # It is decoded and checked in one step when this returns.
            await self._options.time_slices.checkpoint()
        return message

    def reserve(self, size: int) -> None:
        """Reserve ``size`` bytes in all, for a body whose decoded form needs more memory than its text."""
        held = self._reservation
        if size > held.bytes:
            held.extend(max(size - held.bytes, min(STEP_BYTES, held.share_bytes)))

    def release(self) -> None:
        """Called when the request has its response and nothing of its body is needed any longer."""
        self._reservation.release()

    async def _reserve_next(self) -> None:
        if self._declared == 0:
            return
        held, wanted = self._reservation.bytes, self._bytes_max
        if self._declared is not None:
            if self._declared > self._bytes_max and not self._streams:
                raise self._too_large()
            wanted = min(self._declared, self._bytes_max)
        elif not self._streams:
            if self._received + STEP_BYTES <= held:
                return
            wanted = min(self._bytes_max, max(2 * held, self._received + STEP_BYTES))
        if wanted > held:
            if wanted > (budget := self._options.budget.bytes_max):
                raise MessageTooLarge(f"all bodies together have at most {budget} bytes")
            await self._reservation.grow(wanted - held)

    async def _receive_in_time(self) -> Message:
        if self._declared == 0:
            return await self._receive()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        left_s = min(self._options.idle_s, self._options.total_s - self._waited_s)
        try:
            async with asyncio.timeout(max(left_s, 0)):
                return await self._receive()
        except TimeoutError:
            raise self._timeout(is_idle=left_s == self._options.idle_s) from None
        finally:
            self._waited_s += loop.time() - began_s

    def _timeout(self, *, is_idle: bool) -> BodyTimeout:
        if is_idle:
            return BodyTimeout(f"no byte of the body arrived for {self._options.idle_s:g} s")
        if self._streams:
            return BodyTimeout(f"no message of the body could be stored for {self._options.total_s:g} s")
        return BodyTimeout(f"the body was not complete after {self._options.total_s:g} s")

    def _too_large(self) -> MessageTooLarge:
        return MessageTooLarge(f"a body has at most {self._bytes_max} bytes{self._hint}")


def body_of(scope: Scope) -> RequestBody:
    """Return the body that the middleware has put into the scope."""
    body: RequestBody = scope["state"][STATE_KEY]
    return body


def _declared_bytes(scope: Scope) -> int | None:
    """Return the length in the request's head; None for a chunked body."""
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers:
        return None
    try:
        return int(headers.get("content-length", "0"))
    except ValueError:
        return None
