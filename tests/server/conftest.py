"""One server for all tests of a module that cannot harm it, and a client that watches that they do not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.server.raw_clients import RawWebSocket, Witness
from tests.servers import RunningServer, start_server


@pytest.fixture(scope="module")
def serve_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningServer]]:
    """Start servers that last for the whole module."""
    servers: list[RunningServer] = []

    def start(**settings: Any) -> RunningServer:
        directory = tmp_path_factory.mktemp("server")
        settings.setdefault("log", f"sqlite://{directory}/log.db")
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("HIMALIA_RUNTIME_DIR", str(directory / "runtime"))
            environment.setenv("HIMALIA_WAREHOUSE", str(directory / "warehouse"))
            servers.append(start_server(**settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def shared(serve_all: Callable[..., RunningServer]) -> RunningServer:
    """A server without authentication, for the whole module, with the topic ``orders``."""
    server = serve_all(auth=False, message_bytes_max=200_000, heartbeat_s=3600)
    server.create("orders")
    return server


@pytest.fixture
def emptied(shared: RunningServer) -> RunningServer:
    """The module's server without any topic."""
    with shared.http() as http:
        for topic in http.get("/topics").json()["topics"]:
            http.delete(f"/topics/{topic['name']}").raise_for_status()
    return shared


@pytest.fixture(scope="module")
def _watching(shared: RunningServer) -> Iterator[Witness]:
    witness = Witness(shared)
    yield witness
    witness.close()


@pytest.fixture
def witness(_watching: Witness) -> Iterator[Witness]:
    """Checks after the test that the server and its other clients go on."""
    _watching.check()
    yield _watching
    _watching.check()


@pytest.fixture
def raw(shared: RunningServer) -> Iterator[RawWebSocket]:
    with RawWebSocket(shared) as socket:
        yield socket


@pytest.fixture
def no_errors_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Checks after the test that nothing of what clients did looked like a bug of the server."""
    yield
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert not [record for record in records if record.levelno >= logging.ERROR]
