"""The ASGI application. Runs on any ASGI server; ``himalia.server.run`` runs it on uvicorn, quickly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from himalia import __version__
from himalia.errors import HimaliaError, MessageTooLarge
from himalia.server import (
    events_api,
    failures,
    kernels_api,
    page,
    publish_api,
    read_api,
    tables_api,
    topics_api,
)
from himalia.server.asyncapi import asyncapi_document
from himalia.server.broker import Broker
from himalia.server.websocket import websocket_endpoint
from himalia.settings import Settings

DESCRIPTION = """A message broker on one durable log. Every message is appended once; everything that reads is a
cursor on the log. The WebSocket at `/ws` is described by `/asyncapi.json`. Every error is
`{"error": {"code", "message"}}`. Below `/api` are kernels, in the shape of Jupyter Server's API. Below `/tables` is
what the pipeline has made of the log."""


class Guard:
    """Refuses foreign hosts and origins before anything else looks at a request, and bodies without end."""

    def __init__(self, app: ASGIApp, broker: Broker) -> None:
        self._app = app
        self._broker = broker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._broker.frontier.check(Headers(scope=scope))
            except HimaliaError as error:
                self._broker.metrics.count_error(error.code)
                await failures.error_response(error, scope["path"])(scope, receive, send)
                return
            # Whoever publishes in bulk reads the body piece by piece and has limits of its own.
            if not scope["path"].endswith("/messages"):
                receive = _limited(receive, self._broker.frame_bytes_max)
        await self._app(scope, receive, send)


def _limited(receive: Receive, bytes_max: int) -> Receive:
    size = 0

    async def receive_some() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > bytes_max:
            raise MessageTooLarge(f"a body has at most {bytes_max} bytes")
        return message

    return receive_some


def create_app(settings: Settings | None = None, broker: Broker | None = None) -> FastAPI:
    """The application on a broker of its own, which its lifespan opens and closes, or on one that is open."""
    if broker is None:
        broker = Broker(settings or Settings())
    app = FastAPI(title="Himalia", version=__version__, description=DESCRIPTION, lifespan=_lifespan)
    app.state.broker = broker
    failures.install(app)
    for api in (topics_api, publish_api, read_api, events_api, tables_api, kernels_api, page):
        app.include_router(api.router)
    app.add_api_route(
        "/asyncapi.json", asyncapi_document, tags=["server"], responses={403: topics_api.ERRORS[403]}
    )
    app.router.routes.append(WebSocketRoute("/ws", websocket_endpoint))
    if broker.settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=broker.settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    app.add_middleware(Guard, broker=broker)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    broker: Broker = app.state.broker
    if broker.is_open:  # whoever opened it closes it
        yield
        return
    await broker.open()
    try:
        yield
    finally:
        await broker.close()
