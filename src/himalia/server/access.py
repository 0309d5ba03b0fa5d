"""Who calls, as FastAPI sees it: every REST route that needs a right says so in its signature."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, APIKeyQuery, HTTPBearer

from himalia.errors import Unauthorized
from himalia.server.broker import Broker
from himalia.server.trust import Principal

# Only for the OpenAPI document: the key itself is found by the keyring, for REST and WebSocket alike.
_header = APIKeyHeader(name="X-API-Key", auto_error=False)
_bearer = HTTPBearer(auto_error=False)
_query = APIKeyQuery(name="token", auto_error=False)


def broker_of(request: Request) -> Broker:
    broker: Broker = request.app.state.broker
    return broker


def principal_of(request: Request) -> Principal:
    return broker_of(request).keyring.identify(request.headers, request.url.query)


def maybe_principal(request: Request) -> Principal | None:
    try:
        return principal_of(request)
    except Unauthorized:
        return None


TheBroker = Annotated[Broker, Depends(broker_of)]
Caller = Annotated[Principal, Depends(principal_of)]
MaybeCaller = Annotated[Principal | None, Depends(maybe_principal)]
SECURITY = [Security(_header), Security(_bearer), Security(_query)]
