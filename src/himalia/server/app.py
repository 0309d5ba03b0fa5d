"""The ASGI application. Runs on any ASGI server; ``himalia.server.run`` runs it on uvicorn, with a fast path."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import WebSocketRoute

from himalia import __version__
from himalia.server import errors
from himalia.server.context import ServerContext
from himalia.server.http.middleware import RequestGuard
from himalia.server.rest import (
    api_reference,
    event_stream,
    kernels,
    messages,
    page,
    server_status,
    sessions,
    tables,
    topics,
)
from himalia.server.rest.asyncapi import asyncapi_document
from himalia.server.rest.schema import ERRORS
from himalia.server.websocket.endpoint import refuse_other_paths, websocket_endpoint
from himalia.settings import Settings

DESCRIPTION = """A message broker on one durable log. Every message is appended once; everything that reads is a
cursor on the log. The WebSocket at `/ws` is described by `/asyncapi.json`. Every error is
`{"error": {"code", "message"}}`. Below `/api` are kernels, in the shape of Jupyter Server's API. Below `/tables` is
what the pipeline has made of the log."""

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI's own spans have the query of the address, and so the key in ``?token=``. Ours are in ``tracing``."""


def create_app(settings: Settings | None = None, context: ServerContext | None = None) -> FastAPI:
    """Return the application, on an open context or on a new one that its lifespan opens and closes."""
    if context is None:
        context = ServerContext(settings or Settings())
    app = FastAPI(
        title="Himalia",
        version=__version__,
        description=DESCRIPTION,
        lifespan=_lifespan,
        # FastAPI's own pages run scripts of another host in the origin that holds the session.
        docs_url=None,
        redoc_url=None,
        telemetry=NO_TELEMETRY,
        openapi_url=None,  # in ``reference``
    )
    app.state.context = context
    errors.install_error_handlers(app)
    for api in (
        topics,
        server_status,
        messages,
        event_stream,
        tables,
        kernels,
        sessions,
        page,
        api_reference,
    ):
        app.include_router(api.router)
    app.add_api_route("/asyncapi.json", asyncapi_document, tags=["server"], responses={403: ERRORS[403]})
    app.router.routes.append(WebSocketRoute("/ws", websocket_endpoint))
    app.router.routes.append(WebSocketRoute("/{path:path}", refuse_other_paths))
    if context.settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=context.settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    app.add_middleware(RequestGuard, context=context)
    _build_routes(app)
    return app


def _build_routes(app: FastAPI) -> None:
    """Build all routes now: FastAPI would do it for the first request, which stops the server for 0.1 s."""
    nowhere = {"type": "http", "method": "GET", "path": "", "root_path": "", "headers": []}
    for route in app.router.routes:
        route.matches(nowhere)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    context: ServerContext = app.state.context
    if context.is_open:  # its owner closes it
        yield
        return
    await context.open()
    try:
        yield
    finally:
        await context.close()
