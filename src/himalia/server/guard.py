"""What looks at a request before the application does, and at every answer after it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from himalia.errors import HimaliaError
from himalia.server import access, failures
from himalia.server.broker import Broker
from himalia.server.credential_end import run_until_end
from himalia.server.kernels_api import is_of_code
from himalia.server.request_body import STATE_KEY as BODY_KEY
from himalia.server.request_body import RequestBody
from himalia.server.security_headers import add_security_headers, demands_tls

FIELDS_BYTES_MAX = 64 * 1024
"""Largest body of a call that takes a few fields, which are checked at one stroke. Publishing has limits of its own."""


class Guard:
    """Looks at the head of a request before its body is read.

    Refuses foreign hosts and origins, callers without a valid key, and bodies without end.
    """

    def __init__(self, app: ASGIApp, broker: Broker) -> None:
        self._app = app
        self._broker = broker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        send = _secured(scope, send)
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        try:
            self._broker.frontier.check(Headers(scope=scope))
            caller = None if access.is_open(scope) else await access.identify(scope, self._broker)
        except HimaliaError as error:
            self._broker.metrics.count_error(error.code)
            await failures.error_response(error, scope["path"])(scope, receive, send)
            return
        if caller is None:
            await self._app(scope, _without_body(receive), send)
            return
        settings = self._broker.settings
        body = RequestBody(
            scope,
            receive,
            self._broker.bodies,
            caller.name,
            self._broker.manager.turns,
            bytes_max=self._broker.frame_bytes_max if is_of_code(scope["path"]) else FIELDS_BYTES_MAX,
            idle_s=settings.body_idle_timeout_s,
            total_s=settings.body_timeout_s,
        )
        scope["state"][BODY_KEY] = body
        try:
            await run_until_end(self._app, scope, body.receive, send, caller.credential)
        finally:
            body.release()


def _secured(scope: Scope, send: Send) -> Send:
    is_strict = demands_tls(scope)

    async def send_secured(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            add_security_headers(message, demands_tls=is_strict)
        await send(message)

    return send_secured


def _without_body(receive: Receive) -> Receive:
    """For what is answered without a key: nothing of a body is read."""
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
