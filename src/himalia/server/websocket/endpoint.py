"""The endpoint ``/ws``: checks the handshake and starts the session. Other paths are refused."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.websockets import WebSocket

from himalia.errors import HimaliaError
from himalia.server.context import ServerContext
from himalia.server.errors import error_response, not_found_response
from himalia.server.http import admission
from himalia.server.websocket import asgi_transport
from himalia.server.websocket.session import WebSocketSession
from himalia.server.websocket.uvicorn_protocol import EXTENSION, UvicornTransport, WebSocketProtocol


async def websocket_endpoint(websocket: WebSocket) -> None:
    context: ServerContext = websocket.app.state.context
    try:
        context.origin_check.check(Headers(scope=websocket.scope))
        principal = await context.authenticate(websocket.scope)
        admission.identify(websocket.scope, principal.name)
        slot = context.admit(principal)
    except HimaliaError as error:
        context.metrics.count_error(error.code)
        await _deny(websocket, error_response(error), error.code)
        return
    protocol = websocket.scope.get("extensions", {}).get(EXTENSION)
    await websocket.accept()
    if not isinstance(protocol, WebSocketProtocol):
        await asgi_transport.run_session(context, principal, websocket, slot)
        return
    protocol.attach(
        WebSocketSession(context, principal, UvicornTransport(protocol), slot),
        frame_bytes_max=context.frame_bytes_max,
        write_buffer_bytes=context.settings.write_buffer_bytes,
        time_slices=context.manager.time_slices,
    )


async def refuse_other_paths(websocket: WebSocket) -> None:
    """The endpoint of every other path: replies 404, where the framework's own reply is an empty 403."""
    await _deny(websocket, not_found_response(websocket.url.path), "NOT_FOUND")


async def _deny(websocket: WebSocket, response: Response, code: str) -> None:
    try:
        await websocket.send_denial_response(response)
    except RuntimeError:  # a server without that extension closes before accepting, which is a plain 403
        await websocket.close(1008, code)
