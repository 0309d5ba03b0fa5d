from __future__ import annotations

import httpx
import pytest

from himalia import errors
from himalia.client.errors import make_error, make_response_error, translate_errors
from himalia.protocol import ErrorBody


@pytest.mark.parametrize("code", list(errors.ErrorCode))
def test_every_code_has_its_class(code: errors.ErrorCode) -> None:
    """An error that the server sends is raised as the class that has this code, with the server's sentence."""
    error = make_error(ErrorBody(code, "a sentence"), topic="orders")
    assert error.code == code
    assert (error.message, str(error), error.data["topic"]) == ("a sentence", "a sentence", "orders")


def test_a_code_of_a_newer_server_is_still_an_error() -> None:
    """A code that this client does not know is a HimaliaError that keeps it."""
    error = make_error(ErrorBody("TOO_NEW", "a sentence"))
    assert type(error) is errors.HimaliaError
    assert error.data["code"] == "TOO_NEW"


def test_the_topmost_class_of_a_code() -> None:
    """UNAVAILABLE is LogUnavailable: the client cannot know the reason below it."""
    assert type(make_error(ErrorBody("UNAVAILABLE", "x"))) is errors.LogUnavailable


def test_an_answer_of_something_else_is_a_failed_connection() -> None:
    """An HTTP error without our error in it is told as what it is."""
    error = make_response_error("http://h", 502, b"<html>Bad Gateway</html>")
    assert isinstance(error, errors.ConnectionFailed)
    assert "502" in error.message


def test_only_the_named_exceptions_are_translated() -> None:
    """A bug of ours stays what it is; a foreign exception becomes ConnectionFailed and keeps its cause."""
    with pytest.raises(ZeroDivisionError), translate_errors("http://h", OSError):
        raise ZeroDivisionError
    with (
        pytest.raises(errors.ConnectionFailed, match="himalia serve") as caught,
        translate_errors("http://h", OSError),
    ):
        raise ConnectionRefusedError(111, "refused")
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


def test_the_cause_of_an_error_without_words_is_named() -> None:
    """httpx raises an empty ``ReadError`` for a connection that was reset; the hint depends on why it ended."""
    with (
        pytest.raises(errors.ConnectionFailed, match="reset by peer; if the server requires a client"),
        translate_errors("https://h", httpx.ReadError),
    ):
        raise httpx.ReadError("") from ConnectionResetError(104, "Connection reset by peer")
