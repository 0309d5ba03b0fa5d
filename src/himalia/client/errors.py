"""Errors of the client: exceptions from the server's codes, and from the exceptions of other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from himalia.errors import ConnectionFailed, HimaliaError
from himalia.protocol import ErrorBody
from himalia.protocol.models import ErrorResponse
from himalia.tls import hint_for


def error_from(body: ErrorBody, **data: Any) -> HimaliaError:
    """Make the exception of an error that the server sent; of an unknown code, a plain ``HimaliaError``."""
    return HimaliaError.from_code(body.code, body.message, **data)


def error_from_response(url: str, status: int, body: bytes, **data: Any) -> HimaliaError:
    """Make the exception of an HTTP response that is not a success."""
    try:
        return error_from(msgspec.json.decode(body, type=ErrorResponse).error, status=status, **data)
    except msgspec.MsgspecError:
        return not_himalia(url, status)


def not_himalia(url: str, status: int | None = None) -> ConnectionFailed:
    """Make the exception of a response that no Himalia server sends."""
    if status is None:
        return ConnectionFailed(f"{url} answers like no Himalia server does; check the URL")
    return ConnectionFailed(
        f"{url} answers {status} like no Himalia server does; check the URL", status=status
    )


@contextmanager
def translate_errors(url: str, *foreign: type[Exception]) -> Iterator[None]:
    """Raise ``ConnectionFailed``, whose message says what to do, in place of any of the ``foreign`` exceptions."""
    try:
        yield
    except HimaliaError:
        raise
    except foreign as error:
        raise ConnectionFailed(_describe(url, error), url=url) from error


def _describe(url: str, error: Exception) -> str:
    if _was_refused(error):
        return f"no server answers at {url}; start one with 'himalia serve', or check the URL"
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return f"{url} does not answer in time"
    reason = next((text for cause in _chain(error) if (text := " ".join(str(cause).split()))), None)
    reason = reason or type(error).__name__
    return f"the connection to {url} failed: {reason}{hint_for(url, reason)}"


def _was_refused(error: BaseException) -> bool:
    return any(
        isinstance(cause, ConnectionRefusedError) or "Connect call failed" in str(cause)
        for cause in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and its causes: libraries wrap them several deep, some without a message."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
