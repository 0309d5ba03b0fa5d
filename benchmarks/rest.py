"""The REST calls that prepare Himalia and the FastAPI broker."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException

from benchmarks.server_process import PeerFailed

TIMEOUT_S = 60.0
CALLERS = 16
RECORDS_PER_CALL = 5_000


def is_healthy(port: int) -> bool:
    try:
        with closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False


def create_topic(port: int, name: str, *, token: str | None = None) -> None:
    """Create a topic unless it exists: a log may be served a second time."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)) as connection:
        body = json.dumps({"name": name}).encode()
        _post(connection, "/topics", "application/json", body, token=token, also=(409,))


def create_topics(port: int, names: Sequence[str], *, token: str | None = None) -> None:
    """Create many topics, on several connections at once so that the server can group its commits."""
    shares = [names[first::CALLERS] for first in range(CALLERS)]
    with ThreadPoolExecutor(CALLERS) as callers:
        for done in [callers.submit(_create_topics, port, share, token) for share in shares]:
            done.result()


def _create_topics(port: int, names: Sequence[str], token: str | None) -> None:
    with closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)) as connection:
        for name in names:
            _post(connection, "/topics", "application/json", json.dumps({"name": name}).encode(), token=token)


def fill_topic(port: int, name: str, records: int, payload_chars: int) -> None:
    """Append this many records by NDJSON, a bounded number per call."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)) as connection:
        for body in _bodies(records, payload_chars):
            _post(connection, f"/topics/{name}/messages", "application/x-ndjson", body)


def _bodies(records: int, payload_chars: int) -> Iterator[bytes]:
    line = json.dumps({"payload": {"pad": "x" * payload_chars}}).encode() + b"\n"
    for first in range(0, records, RECORDS_PER_CALL):
        yield line * min(RECORDS_PER_CALL, records - first)


def _post(
    connection: HTTPConnection,
    path: str,
    content_type: str,
    body: bytes,
    *,
    token: str | None = None,
    also: tuple[int, ...] = (),
) -> None:
    headers = {"Content-Type": content_type} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    if answer.status not in (200, 201, 202, *also):
        raise PeerFailed(f"POST {path} was answered with {answer.status}: {text[:200]}")
