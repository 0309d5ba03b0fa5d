"""Servers that ask for a key."""

from __future__ import annotations

import pytest

from tests.server.identity.credentials import TOKEN, Serve
from tests.servers import RunningServer


@pytest.fixture(scope="module")
def locked(serve_all: Serve) -> RunningServer:
    """With the token ``TOKEN`` and the topic ``orders``, for the tests of a module."""
    server = serve_all(token=TOKEN, refused_key_delay_s=0)
    server.create("orders")
    return server
