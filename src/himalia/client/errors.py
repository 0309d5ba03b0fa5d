"""Errors of the client: exceptions from the server's codes, and from the exceptions of other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from himalia.connection_errors import make_connection_error, make_unexpected_response_error
from himalia.errors import HimaliaError
from himalia.protocol import ErrorBody
from himalia.protocol.models import ErrorResponse


def make_error(body: ErrorBody, **data: Any) -> HimaliaError:
    """Make the exception of an error that the server sent; of an unknown code, a plain ``HimaliaError``."""
    return HimaliaError.from_code(body.code, body.message, **data)


def make_response_error(url: str, status: int, body: bytes, **data: Any) -> HimaliaError:
    """Make the exception of an HTTP response that is not a success."""
    try:
        return make_error(msgspec.json.decode(body, type=ErrorResponse).error, status=status, **data)
    except msgspec.MsgspecError:
        return make_unexpected_response_error(url, status)


@contextmanager
def translate_errors(url: str, *foreign: type[Exception]) -> Iterator[None]:
    """Raise ``ConnectionFailed``, whose message says what to do, in place of any of the ``foreign`` exceptions."""
    try:
        yield
    except HimaliaError:
        raise
    except foreign as error:
        raise make_connection_error(url, error) from error
