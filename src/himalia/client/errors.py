"""Errors of the client: the server's codes as exceptions, and foreign exceptions translated at the edge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from himalia.errors import ConnectionFailed, HimaliaError
from himalia.protocol import ErrorBody
from himalia.tls import hint_for


class _Answer(msgspec.Struct):
    error: ErrorBody


def error_from(body: ErrorBody, **data: Any) -> HimaliaError:
    """The exception for an error that the server sent. A code that this client does not know is a plain one."""
    return HimaliaError.from_code(body.code, body.message, **data)


def error_from_answer(url: str, status: int, body: bytes, **data: Any) -> HimaliaError:
    """The exception for an HTTP answer that is not a success."""
    try:
        return error_from(msgspec.json.decode(body, type=_Answer).error, status=status, **data)
    except msgspec.MsgspecError:
        return ConnectionFailed(
            f"{url} answers {status} like no Himalia server does; check the URL", status=status
        )


@contextmanager
def translating(url: str, *foreign: type[Exception]) -> Iterator[None]:
    """Raise ``ConnectionFailed`` with a sentence that says what to do, instead of any of the ``foreign`` exceptions."""
    try:
        yield
    except HimaliaError:
        raise
    except foreign as error:
        raise ConnectionFailed(_sentence(url, error), url=url) from error


def _sentence(url: str, error: Exception) -> str:
    if _was_refused(error):
        return f"no server answers at {url}; start one with 'himalia serve', or check the URL"
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return f"{url} does not answer in time"
    reason = next((told for cause in _chain(error) if (told := " ".join(str(cause).split()))), None)
    reason = reason or type(error).__name__
    return f"the connection to {url} failed: {reason}{hint_for(url, reason)}"


def _was_refused(error: BaseException) -> bool:
    return any(
        isinstance(cause, ConnectionRefusedError) or "Connect call failed" in str(cause)
        for cause in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and those that caused it: libraries wrap them several deep, some without a word."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
