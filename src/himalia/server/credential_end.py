"""An HTTP request ends when the credential that let it in does: the key was removed, the token expired."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from himalia.errors import Unauthorized
from himalia.server import admission
from himalia.server.failures import error_response
from himalia.server.identity import Credential

GRACE_S = 1.0
"""Time for what can end in order: an event stream that tells why, a publish whose commit is under way."""


async def run_until_end(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, credential: Credential
) -> None:
    """Run the application for one request, at most until the credential ends.

    No more of a body is read then. What has not been answered is answered 401; an answer that is being sent is cut
    off, so that its reader cannot take it for whole.
    """
    request = _Request(receive, send)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as limit:

            def on_end(why: Unauthorized) -> None:
                request.ended = why
                limit.reschedule(loop.time() + GRACE_S)

            credential.watch(on_end)
            try:
                await app(scope, request.receive, request.send)
            finally:
                credential.unwatch(on_end)
    except TimeoutError:
        if not limit.expired() or request.ended is None:
            raise
        if not request.is_answered:
            await error_response(request.ended, scope["path"])(scope, receive, send)
        elif admission.abort(scope):
            # Until uvicorn knows of it, it takes an unfinished answer for a mistake of ours.
            await asyncio.sleep(0.01)
        else:
            raise request.ended from None


class _Request:
    """The two ends of a request, which know whether it may still be read and has begun to be answered."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.ended: Unauthorized | None = None
        self.is_answered = False

    async def send(self, message: Message) -> None:
        self.is_answered = True
        await self._send(message)

    async def receive(self) -> Message:
        if self.ended is not None and not self.is_answered:
            raise self.ended
        return await self._receive()
