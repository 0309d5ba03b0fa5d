"""Errors of a client's connection to a server: what failed, and what to do.

Standard library only: Spark's executors import this module.
"""

from __future__ import annotations

from collections.abc import Iterator

from himalia.errors import ConnectionFailed
from himalia.tls import hint_for


def make_unexpected_response_error(url: str, status: int | None = None) -> ConnectionFailed:
    """Make the error for a response that no Himalia server sends."""
    if status is None:
        return ConnectionFailed(f"unexpected response from {url}: it is not a Himalia server; check the URL")
    return ConnectionFailed(
        f"unexpected response {status} from {url}: it is not a Himalia server; check the URL",
        url=url,
        status=status,
    )


def make_connection_error(url: str, error: Exception) -> ConnectionFailed:
    """Make the error for an exception of a socket or HTTP library."""
    return ConnectionFailed(_describe(url, error), url=url)


def _describe(url: str, error: Exception) -> str:
    if _was_refused(error):
        return f"no server answers at {url}; start one with 'himalia serve', or check the URL"
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return f"{url} did not respond in time"
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
