"""Dependencies of FastAPI routes: the context and the caller of a request; rights on a topic, with its owner's."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, APIKeyQuery, HTTPBearer
from starlette.types import Scope

from himalia.errors import IssuerUnavailable, TopicNotFound, Unauthorized
from himalia.log.api import Log
from himalia.server.context import ServerContext
from himalia.server.http import admission
from himalia.server.identity import Principal, Right
from himalia.token_proof import PATH as PROOF
from himalia.topics import is_reserved

# Only for the OpenAPI document: ``Authenticator`` reads the key itself, for REST and WebSocket.
_header = APIKeyHeader(name="X-API-Key", auto_error=False)
_bearer = HTTPBearer(auto_error=False)
_query = APIKeyQuery(name="token", auto_error=False)


OPEN_PATHS = frozenset({"/", "/health", PROOF, "/docs", "/openapi.json", "/asyncapi.json"})
"""Requests that need no key: the server's health, and documents that describe the program, not the data."""
OPEN_PREFIX = "/page/"


def is_open(scope: Scope) -> bool:
    """Whether a request needs no key; a route with a ``Caller`` requires one nevertheless."""
    path: str = scope["path"]
    if scope["method"] == "OPTIONS":  # a browser's preflight request has no credentials
        return True
    return scope["method"] in ("GET", "HEAD") and (path in OPEN_PATHS or path.startswith(OPEN_PREFIX))


async def identify(scope: Scope, context: ServerContext) -> Principal:
    """Return the caller of this request, authenticated once and then stored in the scope, or raise ``Unauthorized``."""
    state: dict[str, Any] = scope.setdefault("state", {})
    if (known := state.get("principal")) is None:
        known = await context.authenticate(scope)
        admission.identify(scope, known.name)
        state["principal"] = known
    principal: Principal = known
    return principal


# These are coroutines because FastAPI runs plain functions in a thread.


async def get_context(request: Request) -> ServerContext:
    context: ServerContext = request.app.state.context
    return context


async def get_principal(request: Request) -> Principal:
    return await identify(request.scope, request.app.state.context)


async def find_principal(request: Request) -> Principal | None:
    try:
        return await get_principal(request)
    except (Unauthorized, IssuerUnavailable):
        return None


Context = Annotated[ServerContext, Depends(get_context)]
Caller = Annotated[Principal, Depends(get_principal)]
MaybeCaller = Annotated[Principal | None, Depends(find_principal)]
SECURITY = [Security(_header), Security(_bearer), Security(_query)]


async def has_right(log: Log, caller: Principal, right: Right, topic: str) -> bool:
    """Whether the caller has this right on the topic, by a pattern or because it owns the topic's kernel."""
    return caller.may(right, topic, await _owner(log, caller, right, topic))


async def require_right(log: Log, caller: Principal, right: Right, topic: str) -> None:
    """``Forbidden`` unless ``has_right``."""
    caller.require(right, topic, await _owner(log, caller, right, topic))


async def _owner(log: Log, caller: Principal, right: Right, topic: str) -> str | None:
    if not is_reserved(topic) or not caller.owns(right):
        return None  # the owner does not matter
    try:
        return (await log.info(topic)).owner
    except TopicNotFound:
        return None
