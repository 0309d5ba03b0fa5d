"""REST: signing in and out, the sessions there are, and the proof that this server knows a key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from himalia.errors import Forbidden, SessionNotFound, Unauthorized
from himalia.record import format_ts, now_us
from himalia.server.auth import SECURITY, Caller, TheBroker
from himalia.server.context import Broker
from himalia.server.identity import Principal, Right
from himalia.server.identity.cookie import set_cookie
from himalia.server.identity.sessions import Session
from himalia.server.rest.models import (
    ErrorResponse,
    ProofResponse,
    RevokedResponse,
    SessionList,
    SessionResponse,
    SessionSummary,
    SignedOutResponse,
)
from himalia.server.rest.topics import ERRORS
from himalia.token_proof import ID_LENGTH, NONCE_LENGTH
from himalia.token_proof import PATH as PROOF

CALLER = r"^(token|key:.+|jwt:.+)$"
CALLER_LENGTH_MAX = 1_000

router = APIRouter(responses=ERRORS, tags=["sessions"])


@router.post(
    "/session",
    dependencies=SECURITY,
    responses={429: {"model": ErrorResponse, "description": "The caller signs in too often"}},
)
async def sign_in(request: Request, response: Response, broker: TheBroker, caller: Caller) -> SessionResponse:
    """Sign in: exchange a key or JSON Web Token, in a header, for a session in a cookie that no script can read."""
    made = await broker.identity.sign_in(request.scope, request.headers.get("user-agent", ""))
    if made is None:
        return SessionResponse(caller=caller.name, expires=None)
    remember(request, response, *made)
    return _described(made[1])


@router.get("/session", dependencies=SECURITY)
async def show_session(request: Request, broker: TheBroker, caller: Caller) -> SessionResponse:
    """Who you are, and until when: of the session in the cookie, or of the key that you send."""
    expires_us = caller.credential.expires_us
    return SessionResponse(caller=caller.name, expires=None if expires_us is None else format_ts(expires_us))


@router.delete("/session", dependencies=SECURITY)
async def sign_out(
    request: Request, response: Response, broker: TheBroker, caller: Caller
) -> SignedOutResponse:
    """Sign out: the session ends, with all that it has opened, and the browser forgets its cookie."""
    session = broker.identity.session(request.scope)
    if session is None:
        raise Unauthorized("there is no session to end: the request carries no cookie of one")
    forget(request, response)
    await broker.identity.sign_out(session)
    return SignedOutResponse()


@router.get("/sessions", dependencies=SECURITY)
async def list_sessions(broker: TheBroker, caller: Caller) -> SessionList:
    """The sessions that you may end: your own, or all with the right `manage` on `>`."""
    return SessionList(sessions=[_summary(session) for session in _visible(broker, caller)])


@router.delete(
    "/sessions/{id}",
    dependencies=SECURITY,
    responses={404: {"model": ErrorResponse, "description": "No such session"}},
)
async def revoke_session(broker: TheBroker, caller: Caller, id: str) -> RevokedResponse:
    """End a session, with all that it has opened."""
    found = [session for session in _visible(broker, caller) if session.kept.id == id]
    if not found:
        raise SessionNotFound(id)
    await broker.identity.revoke(found, caller)
    return RevokedResponse(count=len(found))


@router.delete("/sessions", dependencies=SECURITY)
async def revoke_sessions(
    broker: TheBroker,
    caller: Caller,
    of: Annotated[
        str | None,
        Query(
            alias="caller",
            description="Those of this caller; else all that you may end.",
            pattern=CALLER,
            max_length=CALLER_LENGTH_MAX,
        ),
    ] = None,
) -> RevokedResponse:
    """End all sessions of a caller, or all that you may end."""
    if of is not None and of != caller.name and not caller.may_all(Right.MANAGE):
        raise Forbidden(f"{caller.name!r} may end its own sessions only: others take 'manage' on '>'")
    found = [session for session in _visible(broker, caller) if of in (None, session.kept.basis.caller)]
    await broker.identity.revoke(found, caller)
    return RevokedResponse(count=len(found))


@router.get(PROOF)
async def prove(
    request: Request,
    broker: TheBroker,
    key: Annotated[str, Query(description="The id of the key.", min_length=ID_LENGTH, max_length=ID_LENGTH)],
    nonce: Annotated[str, Query(description="Random.", min_length=NONCE_LENGTH, max_length=NONCE_LENGTH)],
) -> ProofResponse:
    """Prove that this server knows a key, to a client that has not sent it yet. Answers everybody."""
    return ProofResponse(proof=await broker.identity.prove(request.scope, key, nonce))


def remember(request: Request, response: Response, secret: str, session: Session) -> None:
    """Have the browser keep the session. The key itself is never in a cookie."""
    left_s = max(1, (session.kept.expires_us - now_us()) // 1_000_000)
    response.headers["Set-Cookie"] = set_cookie(request.scope, secret, left_s)
    response.headers["Cache-Control"] = "no-store"


def forget(request: Request, response: Response) -> None:
    response.headers["Set-Cookie"] = set_cookie(request.scope, "", 0)


def _visible(broker: Broker, caller: Principal) -> list[Session]:
    is_admin = caller.may_all(Right.MANAGE)
    return [
        session
        for session in broker.identity.sessions
        if is_admin or session.kept.basis.caller == caller.name
    ]


def _described(session: Session) -> SessionResponse:
    kept = session.kept
    return SessionResponse(caller=kept.basis.caller, expires=format_ts(kept.expires_us))


def _summary(session: Session) -> SessionSummary:
    kept = session.kept
    return SessionSummary(
        id=kept.id,
        caller=kept.basis.caller,
        created=format_ts(kept.created_us),
        expires=format_ts(kept.expires_us),
        agent=kept.agent,
    )
