"""Work that is long and indivisible is done before the first request, or in a thread: the event loop stays free."""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastapi.dependencies.utils
import fastapi.openapi.utils
import httpx
import pyarrow as pa
import pytest

from himalia.log.columnar import ColumnChunk
from himalia.server import performance
from himalia.server.context import ENCODINGS_AT_ONCE
from himalia.server.rest.arrow import ArrowStream
from tests.servers import RunningServer

ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
READERS = 6


class Calls:
    """Which threads call a function, and how many are in it at a time."""

    def __init__(self, called: Callable[..., Any]) -> None:
        self._called = called
        self._lock = threading.Lock()
        self._now = 0
        self.threads: list[threading.Thread] = []
        self.most = 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        with self._lock:
            self.threads.append(threading.current_thread())
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            return self._called(*arguments, **options)
        finally:
            with self._lock:
                self._now -= 1


def test_a_request_builds_no_routes(
    serve: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What FastAPI finds out about an endpoint, it has found out when the server begins to listen."""
    server = serve(auth=False)
    inspected = Calls(fastapi.dependencies.utils.get_typed_signature)
    monkeypatch.setattr(fastapi.dependencies.utils, "get_typed_signature", inspected)
    with server.http() as http:
        for path in ("/health", "/topics", "/tables", "/api/kernels", "/"):
            http.get(path).raise_for_status()
    assert inspected.threads == []


def test_the_openapi_document_is_made_in_a_thread(
    serve: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, for whatever needs it first: the page, the document itself, or the methods that a path has."""
    server = serve(auth=False)
    made = Calls(fastapi.openapi.utils.get_openapi)
    monkeypatch.setattr("fastapi.applications.get_openapi", made)
    with server.http() as http:
        assert http.put("/topics").status_code == 405
        assert "/topics" in http.get("/openapi.json").raise_for_status().json()["paths"]
        http.get("/docs").raise_for_status()
    assert len(made.threads) == 1
    assert made.threads[0] is not server._thread


def test_arrow_is_imported_in_a_thread(
    serve: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first read that asks for it, and by no later one."""
    server = serve(auth=False)
    server.create("orders")
    imported = Calls(performance.import_module)
    monkeypatch.setattr(performance, "import_module", imported)
    with server.http() as http:
        for _ in range(2):
            http.get("/topics/orders/messages", headers=ARROW).raise_for_status()
    assert len(imported.threads) == 1
    assert imported.threads[0] is not server._thread
    assert gc.isenabled()


def test_arrow_is_made_in_few_threads(
    serve: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many read: every thread that encodes takes the interpreter from the event loop. Each gets everything."""
    server = serve(auth=False)
    server.create("orders")
    encode = ArrowStream.batch

    def slowly(stream: ArrowStream, topic: str, columns: ColumnChunk) -> memoryview:
        time.sleep(0.05)  # so that all of them would be here at once
        return encode(stream, topic, columns)

    encoded = Calls(slowly)
    monkeypatch.setattr(ArrowStream, "batch", lambda stream, topic, columns: encoded(stream, topic, columns))
    with server.http() as http:
        http.post("/topics/orders/messages", json=[{"payload": n} for n in range(10)]).raise_for_status()

    def read(_: int) -> list[str]:
        content = httpx.get(f"{server.url}/topics/orders/messages", headers=ARROW).raise_for_status().content
        payloads: list[str] = pa.ipc.open_stream(io.BytesIO(content)).read_all()["payload"].to_pylist()
        return payloads

    with ThreadPoolExecutor(READERS) as readers:
        answers = list(readers.map(read, range(READERS)))
    assert answers == [[str(n) for n in range(10)]] * READERS
    assert len(encoded.threads) == READERS
    assert encoded.most <= ENCODINGS_AT_ONCE
    assert server._thread not in encoded.threads
