from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from himalia.client import Client
from tests.client.faulty_relay import FaultyRelay
from tests.servers import RunningServer


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[Client]:
    """A client of a server that has a topic ``orders``."""
    server.create("orders")
    async with Client(server.url) as client:
        yield client


@pytest.fixture
async def relay(server: RunningServer) -> AsyncIterator[FaultyRelay]:
    async with FaultyRelay(server.port) as relay:
        yield relay
