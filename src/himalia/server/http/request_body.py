"""The body of one request as it comes in: limited in bytes, in time, and by what all bodies together may take."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from himalia.errors import BodyTimeout, MessageTooLarge
from himalia.pubsub.time_slices import TimeSlices
from himalia.server.http.body_budget import BodyBudget

STATE_KEY = "body"
"""Where ``scope["state"]`` has the body of a request."""
STEP_BYTES = 1 << 20
"""By how much a body that does not say its length grows at first; then by what it has come to."""


SMALL_BYTES = 2 * 1024
"""A body up to this is decoded at once; more of them, in the same moment, one after the other in turns."""


class RequestBody:
    """Stands in front of the server's ``receive``.

    Takes its place in the budget with the first read, so that a body that is never read needs none. Time counts while
    the server waits for bytes, not while the peer waits for the server.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        budget: BodyBudget,
        caller: str,
        time_slices: TimeSlices,
        *,
        bytes_max: int,
        idle_s: float,
        total_s: float,
    ) -> None:
        self._receive = receive
        self._declared = _declared_bytes(scope)
        self._budget = budget
        self._hold = budget.hold(caller)
        self._time_slices = time_slices
        self._idle_s = idle_s
        self._total_s = total_s
        self._waited_s = 0.0
        self._received = 0
        self._complete = False
        self._bytes_max = bytes_max
        self._hint = ""
        self._streams = False

    def allow(self, bytes_max: int, hint: str = "") -> None:
        """Another limit for a body that is kept whole; ``hint`` says what to do if it is too small."""
        self._bytes_max = bytes_max
        self._hint = hint

    def stream(self, bytes_held: int) -> None:
        """The body is used up as it comes in: it may have any length, and holds at most so much at a time.

        It has all its time again whenever something of it was stored, see ``stored``.
        """
        self._streams = True
        self._bytes_max = bytes_held

    def stored(self) -> None:
        """Something of this body was stored."""
        self._waited_s = 0.0

    @property
    def should_store(self) -> bool:
        """Whether what has come should be stored, however little it is: half of the time for that has passed."""
        return self._streams and self._waited_s >= self._total_s / 2

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        await self._make_room()
        message = await self._next()
        self._complete = not message.get("more_body", False)
        self._received += len(message.get("body", b""))
        if self._received > self._bytes_max and not self._streams:
            raise self._too_large()
        if self._complete and self._received > SMALL_BYTES:
            # It is decoded and checked at one stroke when this returns.
            await self._time_slices.checkpoint()
        return message

    def keep(self, size: int) -> None:
        """What was made of the body takes so many bytes by now, which may be more than its text."""
        if size > self._hold.bytes:
            self._hold.extend(max(size - self._hold.bytes, min(STEP_BYTES, self._hold.share_bytes)))

    def release(self) -> None:
        """The request is answered: nothing of its body is needed any more."""
        self._hold.release()

    async def _make_room(self) -> None:
        if self._declared == 0:
            return
        held, wanted = self._hold.bytes, self._bytes_max
        if self._declared is not None:
            if self._declared > self._bytes_max and not self._streams:
                raise self._too_large()
            wanted = min(self._declared, self._bytes_max)
        elif not self._streams:
            if self._received + STEP_BYTES <= held:
                return
            wanted = min(self._bytes_max, max(2 * held, self._received + STEP_BYTES))
        if wanted > held:
            if wanted > self._budget.bytes_max:
                raise MessageTooLarge(f"bodies have at most {self._budget.bytes_max} bytes, all together")
            await self._hold.grow(wanted - held)

    async def _next(self) -> Message:
        if self._declared == 0:
            return await self._receive()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        left_s = min(self._idle_s, self._total_s - self._waited_s)
        try:
            async with asyncio.timeout(max(left_s, 0)):
                return await self._receive()
        except TimeoutError:
            raise self._too_slow(is_idle=left_s == self._idle_s) from None
        finally:
            self._waited_s += loop.time() - began_s

    def _too_slow(self, *, is_idle: bool) -> BodyTimeout:
        if is_idle:
            return BodyTimeout(f"nothing of the body came for {self._idle_s:g} s")
        if self._streams:
            return BodyTimeout(f"nothing of the body could be stored for {self._total_s:g} s")
        return BodyTimeout(f"the body was not there after {self._total_s:g} s")

    def _too_large(self) -> MessageTooLarge:
        return MessageTooLarge(f"a body has at most {self._bytes_max} bytes{self._hint}")


def body_of(scope: Scope) -> RequestBody:
    body: RequestBody = scope["state"][STATE_KEY]
    return body


def _declared_bytes(scope: Scope) -> int | None:
    """The length that the head names; None for a body that comes in chunks."""
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers:
        return None
    try:
        return int(headers.get("content-length", "0"))
    except ValueError:
        return None
