"""Memory that peers took is given back to the operating system when they are gone."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from himalia.log.columnar import ColumnChunk
from tests.server.raw_clients import Wire, until
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer

MB = 1_000_000
BODIES, BODY_BYTES = 6, 30 * MB
MESSAGE = b'{"payload":"' + b"x" * 1000 + b'"}'
ARROW = (
    b"GET /topics/orders/messages HTTP/1.1\r\nHost: localhost\r\n"
    b"Accept: application/vnd.apache.arrow.stream\r\n\r\n"
)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc")
def test_memory_is_given_back(tmp_path: Path) -> None:
    """After bodies of 180 MB were given up, the process is within 64 MiB of what it was, in seconds."""
    head = (
        f"POST /topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY_BYTES + MB}\r\n"
    )
    body = b"[" + b",".join([MESSAGE] * (BODY_BYTES // len(MESSAGE)))
    with ServerProcess(tmp_path, "--no-auth", "--no-kernels") as server:
        server.create("orders")
        before = server.memory_bytes()
        wires = []
        for _ in range(BODIES):
            wires.append(wire := Wire(server.port))
            wire.send(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        until(lambda: server.memory_bytes() > before + 150 * MB, deadline_s=60)
        for wire in wires:
            wire.reset()
        until(lambda: server.memory_bytes() < before + (64 << 20), deadline_s=60)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Without the garbage collector, which would free what is held by mistake at any moment."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_an_arrow_reader_holds_two_pieces_and_then_nothing(serve: Callable[..., RunningServer]) -> None:
    """While a reader stalls, the server has the piece that is being sent and the next, and not what they were made of.
    When the reader is gone it has neither, without waiting for the garbage collector."""
    pa = pytest.importorskip("pyarrow")
    # Before the server does, which would switch the garbage collector on again.
    import_module("himalia.server.rest.arrow")
    server = serve(auth=False)
    server.create("orders")
    with server.http() as http:
        lines = (b'{"payload":"' + b"x" * 10_000 + b'"}\n') * 3000
        headers = {"Content-Type": "application/x-ndjson"}
        http.post("/topics/orders/messages", content=lines, headers=headers).raise_for_status()
    wires = [Wire(server.port, receive_bytes=4096) for _ in range(3)]
    for wire in wires:
        wire.send(ARROW)
    until(lambda: pa.total_allocated_bytes() > 3 * 8 * MB)
    until(lambda: not any(isinstance(found, ColumnChunk) for found in gc.get_objects()))
    assert pa.total_allocated_bytes() < 3 * 9 * MB
    for wire in wires:
        wire.reset()
    until(lambda: pa.total_allocated_bytes() == 0)
