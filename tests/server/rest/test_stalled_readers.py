"""Readers that never read: whatever they read, they are cut by the same rule, and hold no more than their share."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.server.raw_clients import Wire, until
from tests.servers import RunningServer

Serve = Callable[..., RunningServer]
STALL_S = 1.0
READS = {
    "sse": ("/topics/orders/events?from=0", "text/event-stream"),
    "json": ("/topics/orders/messages?limit=100000", "application/json"),
    "ndjson": ("/topics/orders/messages", "application/x-ndjson"),
    "arrow": ("/topics/orders/messages", "application/vnd.apache.arrow.stream"),
}


def request(path: str, accept: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode()


@pytest.fixture
def stocked(serve: Serve) -> RunningServer:
    """A server with 20 MB in a topic, which cuts readers that stall for a second."""
    server = serve(auth=False, stall_timeout_s=STALL_S)
    server.create("orders")
    line = b'{"payload":"' + b"x" * 10_000 + b'"}\n'
    with server.http() as http:
        for _ in range(4):
            http.post(
                "/topics/orders/messages",
                content=line * 500,
                headers={"Content-Type": "application/x-ndjson"},
            ).raise_for_status()
    return server


def reading(server: RunningServer) -> int:
    return server.on_loop(lambda: server.context.readers + len(server.context.streams))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", READS)
def test_a_reader_that_takes_nothing_is_cut(stocked: RunningServer, kind: str) -> None:
    """After ``stall_timeout_s`` without taking anything its connection ends, and its place is free again."""
    with Wire(stocked.port, receive_bytes=4096) as wire:
        wire.send(request(*READS[kind]))
        until(lambda: reading(stocked) == 1)
        until(lambda: reading(stocked) == 0)
        # What the socket held already, and then a reset or an end: not the whole answer.
        got = 0
        while data := wire.receive():
            got += len(data)
        assert got < 10_000_000


@pytest.mark.parametrize("kind", READS)
def test_a_slow_reader_that_takes_something_is_not_cut(stocked: RunningServer, kind: str) -> None:
    """One that takes a little, again and again, for several times as long is answered all the while."""
    with Wire(stocked.port, receive_bytes=4096) as wire:
        wire.send(request(*READS[kind]))
        until(lambda: reading(stocked) == 1)
        ends_at = time.monotonic() + 3 * STALL_S
        while time.monotonic() < ends_at:
            assert wire.receive()
            time.sleep(STALL_S / 100)
        assert reading(stocked) == 1
