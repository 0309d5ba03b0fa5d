"""Checks each request before the application: host, origin, credential. A request ends when its credential does."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from himalia.errors import HimaliaError, Unauthorized
from himalia.server import auth, errors
from himalia.server.context import ServerContext
from himalia.server.errors import error_response
from himalia.server.http import admission
from himalia.server.http.request_body import STATE_KEY as BODY_KEY
from himalia.server.http.request_body import BodyOptions, RequestBody
from himalia.server.http.security_headers import add_security_headers, demands_tls
from himalia.server.identity import Credential
from himalia.server.rest.kernels import is_of_code

FIELDS_BYTES_MAX = 64 * 1024
"""Largest body of a call with a few fields, which are checked in one step. Publishing sets its own limits."""
GRACE_S = 1.0
"""Time for a request to end in order: an event stream that sends the reason, a publish that is being committed."""


class RequestGuard:
    """Checks the head of a request before its body is read.

    Refuses foreign hosts and origins, and callers without a valid credential, and limits the body.
    """

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context
        settings = context.settings
        self._body_options = BodyOptions(
            context.bodies, context.manager.time_slices, settings.body_idle_timeout_s, settings.body_timeout_s
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        send = _with_security_headers(scope, send)
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        try:
            self._context.origin_check.check(Headers(scope=scope))
            caller = None if auth.is_open(scope) else await auth.identify(scope, self._context)
        except HimaliaError as error:
            self._context.metrics.count_error(error.code)
            await errors.error_response(error, scope["path"])(scope, receive, send)
            return
        if caller is None:
            await self._app(scope, _without_body(receive), send)
            return
        bytes_max = self._context.frame_bytes_max if is_of_code(scope["path"]) else FIELDS_BYTES_MAX
        body = RequestBody(scope, receive, caller.name, self._body_options, bytes_max=bytes_max)
        scope["state"][BODY_KEY] = body
        try:
            await run_until_end(self._app, scope, body.receive, send, caller.credential)
        finally:
            body.release()


def _with_security_headers(scope: Scope, send: Send) -> Send:
    is_strict = demands_tls(scope)

    async def send_secured(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            add_security_headers(message, demands_tls=is_strict)
        await send(message)

    return send_secured


def _without_body(receive: Receive) -> Receive:
    """Return an empty body for requests that need no credential; theirs is never read."""
    is_read = False

    async def receive_nothing() -> Message:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while (message := await receive())["type"] == "http.request":
            pass
        return message

    return receive_nothing


async def run_until_end(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, credential: Credential
) -> None:
    """Run the application for one request, at most until the credential ends.

    No more of the body is read then. Unless its response has begun, the request gets 401; otherwise the connection is
    aborted, so that the response is not mistaken for complete.
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
        if not request.has_response:
            await error_response(request.ended, scope["path"])(scope, receive, send)
        elif admission.abort(scope):
            # Until uvicorn has noticed, it would report an unfinished response as an error of the application.
            await asyncio.sleep(0.01)
        else:
            raise request.ended from None


class _Request:
    """``receive`` and ``send`` of a request: records whether its response has begun, and refuses further input."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.ended: Unauthorized | None = None
        self.has_response = False

    async def send(self, message: Message) -> None:
        self.has_response = True
        await self._send(message)

    async def receive(self) -> Message:
        if self.ended is not None and not self.has_response:
            raise self.ended
        return await self._receive()
