"""Errors as HTTP responses, all of the shape ``{"error": {"code", "message"}}``.

Below ``/api`` they also have the fields that Jupyter's clients expect.
"""

from __future__ import annotations

import logging
import math
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import compile_path

from himalia.errors import BadRequest, ErrorCode, HimaliaError, InternalError
from himalia.protocol import ErrorBody, models, truncate_error
from himalia.server.http.security_headers import TRANSPORT_SECURITY, demands_tls, security_headers
from himalia.server.rest.api_reference import api_document
from himalia.server.rest.schema import json_response

logger = logging.getLogger("himalia.server")

PROBLEMS_MAX = 5
"""Invalid fields that are listed; a body may have thousands."""
STATUS = {
    ErrorCode.BAD_REQUEST: 422,
    ErrorCode.BAD_FILTER: 422,
    ErrorCode.BAD_QUERY: 422,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.BODY_TIMEOUT: 408,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.SESSION_NOT_FOUND: 404,
    ErrorCode.TOPIC_NOT_FOUND: 404,
    ErrorCode.TOPIC_EXISTS: 409,
    ErrorCode.EPOCH_CHANGED: 409,
    ErrorCode.TOO_MANY_CONNECTIONS: 503,
    ErrorCode.TOO_MANY_READERS: 503,
    ErrorCode.TOO_MANY_SUBSCRIPTIONS: 429,
    ErrorCode.TOO_MANY_TOPICS: 429,
    ErrorCode.TOO_MANY_PRODUCERS: 429,
    ErrorCode.TOO_MANY_BODIES: 503,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.TOO_MANY_KERNELS: 429,
    ErrorCode.TOO_MANY_REQUESTS: 429,
    ErrorCode.QUERY_TOO_LARGE: 422,
    ErrorCode.KERNEL_NOT_FOUND: 404,
    ErrorCode.EXECUTION_NOT_FOUND: 404,
    ErrorCode.TABLE_NOT_FOUND: 404,
    ErrorCode.KERNEL_UNAVAILABLE: 409,
    # The server is healthy; the kernel is not.
    ErrorCode.KERNEL_FAILED: 502,
    ErrorCode.SHUTTING_DOWN: 503,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.BAD_CONFIGURATION: 501,
}


def error_response(error: HimaliaError, path: str = "") -> Response:
    """Return the response to a request for ``path`` that failed."""
    status = STATUS.get(error.code, 500)
    headers = security_headers()  # here too, because the response to a bug passes no middleware
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, math.ceil(error.data.get("retry_after_s", 1))))
    return json_response(_body(path, error.code, error.message), status, headers)


def not_found_response(path: str) -> Response:
    """Return the response for a path where there is nothing."""
    return json_response(_body(path, "NOT_FOUND", f"there is nothing at {path}; see /docs"), 404)


def _body(path: str, code: str, message: str) -> models.ErrorResponse:
    message = truncate_error(message)
    error = ErrorBody(code, message)
    return models.KernelError(error, message) if path.startswith("/api/") else models.ErrorResponse(error)


def install_error_handlers(app: FastAPI) -> None:
    """Register handlers for every error of the application."""
    app.add_exception_handler(HimaliaError, _on_himalia_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)


async def _on_himalia_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HimaliaError)
    request.app.state.context.metrics.count_error(error.code)
    return error_response(error, request.url.path)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    shown = [
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
        for problem in problems[:PROBLEMS_MAX]
    ]
    if len(problems) > PROBLEMS_MAX:
        shown.append(f"and {len(problems) - PROBLEMS_MAX} more")
    return await _on_himalia_error(request, BadRequest("; ".join(shown)))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # FastAPI could not read the body, for a reason of ours or of the body's own
        cause = error.__cause__
        known = cause if isinstance(cause, HimaliaError) else BadRequest(f"{error.detail}: {cause}")
        return await _on_himalia_error(request, known)
    if error.status_code == 404:
        return not_found_response(request.url.path)
    body = _body(request.url.path, HTTPStatus(error.status_code).name, str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == 405 and (allowed := await _allowed_methods(request)):
        headers["Allow"] = allowed
    return json_response(body, error.status_code, headers)


async def _allowed_methods(request: Request) -> str:
    """Return all methods of this path; the router reports only those of the first matching route."""
    paths: dict[str, dict[str, object]] = (await api_document(request.app))["paths"]
    wanted = request.url.path
    # A path of its own, such as /api/kernels/attach, is not also a kernel with that id.
    found = [methods for path, methods in paths.items() if path == wanted] or [
        methods for path, methods in paths.items() if compile_path(path)[0].match(wanted)
    ]
    return ", ".join(sorted(method.upper() for methods in found for method in methods))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Handle a client that disconnected before the end of its body; the response reaches no one."""
    return error_response(BadRequest("the body ended too early"), request.url.path)


async def _on_bug(request: Request, error: Exception) -> Response:
    principal = request.scope.get("state", {}).get("principal")
    caller = principal.name if principal is not None else "unknown"
    what = request.method, request.url.path, caller
    logger.error("%s %s of %s failed", *what, exc_info=error, extra={"caller": caller})
    internal = InternalError("the server failed on this request; its log says why")
    response = error_response(internal, request.url.path)
    if demands_tls(request.scope):  # Starlette responds to a bug outside all middleware
        name, value = TRANSPORT_SECURITY
        response.headers[name] = value
    return response
