"""REST: signing in and out, listing and revoking sessions, and the proof that this server knows a key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from himalia.errors import Forbidden, SessionNotFound, Unauthorized
from himalia.protocol import models
from himalia.record import format_ts, now_us
from himalia.server.auth import SECURITY, Caller, Context
from himalia.server.context import ServerContext
from himalia.server.identity import Principal, Right
from himalia.server.identity.cookie import set_cookie
from himalia.server.identity.sessions import Session
from himalia.server.rest.schema import ERRORS, errors, json_response, model_of
from himalia.token_proof import ID_LENGTH, NONCE_LENGTH
from himalia.token_proof import PATH as PROOF

CALLER = r"^(token|key:.+|jwt:.+)$"
CALLER_LENGTH_MAX = 1_000

router = APIRouter(responses=ERRORS, tags=["sessions"])


@router.post(
    "/session",
    dependencies=SECURITY,
    response_model=model_of(models.SessionResponse),
    responses=errors({429: "The caller signs in too often"}),
)
async def sign_in(request: Request, context: Context, caller: Caller) -> Response:
    """Exchange a key or JSON Web Token, sent in a header, for a session in a cookie that scripts cannot read."""
    if not context.identity.requires_key:
        return json_response(models.SessionResponse(caller.name, expires=None))
    agent = request.headers.get("user-agent", "")
    secret, session = await context.identity.sessions.sign_in(request.scope, agent)
    response = json_response(_describe(session))
    set_session_cookie(request, response, secret, session)
    return response


@router.get("/session", dependencies=SECURITY, response_model=model_of(models.SessionResponse))
async def show_session(request: Request, context: Context, caller: Caller) -> Response:
    """Return who you are and until when, by the session in the cookie or by the key that you send."""
    expires_us = caller.credential.expires_us
    expires = None if expires_us is None else format_ts(expires_us)
    return json_response(models.SessionResponse(caller.name, expires))


@router.delete("/session", dependencies=SECURITY, response_model=model_of(models.SignedOutResponse))
async def sign_out(request: Request, context: Context, caller: Caller) -> Response:
    """Sign out: end the session and everything it opened, and delete the browser's cookie."""
    session = context.identity.sessions.of_request(request.scope)
    if session is None:
        raise Unauthorized("no session to end: the request has no session cookie")
    response = json_response(models.SignedOutResponse())
    delete_session_cookie(request, response)
    await context.identity.sessions.sign_out(session)
    return response


@router.get("/sessions", dependencies=SECURITY, response_model=model_of(models.SessionList))
async def list_sessions(context: Context, caller: Caller) -> Response:
    """List the sessions that you may end: your own, or all with the right `manage` on `>`."""
    return json_response(
        models.SessionList([_summarize(session) for session in _list_visible(context, caller)])
    )


@router.delete(
    "/sessions/{id}",
    dependencies=SECURITY,
    response_model=model_of(models.RevokedResponse),
    responses=errors({404: "No such session"}),
)
async def revoke_session(context: Context, caller: Caller, id: str) -> Response:
    """End a session and everything it opened."""
    found = [session for session in _list_visible(context, caller) if session.record.id == id]
    if not found:
        raise SessionNotFound(id)
    await context.identity.sessions.revoke(found, caller)
    return json_response(models.RevokedResponse(count=len(found)))


@router.delete("/sessions", dependencies=SECURITY, response_model=model_of(models.RevokedResponse))
async def revoke_sessions(
    context: Context,
    caller: Caller,
    of: Annotated[
        str | None,
        Query(
            alias="caller",
            description="End the sessions of this caller; otherwise all that you may end.",
            pattern=CALLER,
            max_length=CALLER_LENGTH_MAX,
        ),
    ] = None,
) -> Response:
    """End all sessions of a caller, or all that you may end."""
    if of is not None and of != caller.name and not caller.may_all(Right.MANAGE):
        raise Forbidden(f"{caller.name!r} may end only its own sessions: those of others take manage on '>'")
    found = [
        session for session in _list_visible(context, caller) if of in (None, session.record.basis.caller)
    ]
    await context.identity.sessions.revoke(found, caller)
    return json_response(models.RevokedResponse(count=len(found)))


@router.get(PROOF, response_model=model_of(models.ProofResponse))
async def prove(
    request: Request,
    context: Context,
    key: Annotated[str, Query(description="Id of the key.", min_length=ID_LENGTH, max_length=ID_LENGTH)],
    nonce: Annotated[str, Query(description="Random.", min_length=NONCE_LENGTH, max_length=NONCE_LENGTH)],
) -> Response:
    """Prove that this server knows a key, to a client that has not sent it yet. Needs no key."""
    return json_response(models.ProofResponse(await context.identity.prove(request.scope, key, nonce)))


def set_session_cookie(request: Request, response: Response, secret: str, session: Session) -> None:
    """Set the session's cookie. The key itself is never in a cookie."""
    left_s = max(1, (session.record.expires_us - now_us()) // 1_000_000)
    response.headers["Set-Cookie"] = set_cookie(request.scope, secret, left_s)
    response.headers["Cache-Control"] = "no-store"


def delete_session_cookie(request: Request, response: Response) -> None:
    """Delete the session's cookie."""
    response.headers["Set-Cookie"] = set_cookie(request.scope, "", 0)


def _list_visible(context: ServerContext, caller: Principal) -> list[Session]:
    is_admin = caller.may_all(Right.MANAGE)
    return [
        session
        for session in context.identity.sessions
        if is_admin or session.record.basis.caller == caller.name
    ]


def _describe(session: Session) -> models.SessionResponse:
    record = session.record
    return models.SessionResponse(record.basis.caller, format_ts(record.expires_us))


def _summarize(session: Session) -> models.SessionSummary:
    record = session.record
    return models.SessionSummary(
        id=record.id,
        caller=record.basis.caller,
        created=format_ts(record.created_us),
        expires=format_ts(record.expires_us),
        agent=record.agent,
    )
