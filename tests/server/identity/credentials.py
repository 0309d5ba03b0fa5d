"""What the tests of identity share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.servers import RunningServer

Serve = Callable[..., RunningServer]
TOKEN = "correct-horse-battery-staple"


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def denial(server: RunningServer, **options: Any) -> tuple[int, str]:
    """Status and code with which a WebSocket is refused."""
    options.setdefault("additional_headers", {})
    with pytest.raises(InvalidStatus) as refused:
        await server.connect(**options)
    response = refused.value.response
    return response.status_code, json.loads(response.body or b"")["error"]["code"]


def write_keys(path: Path, text: str | bytes) -> Path:
    """A keys file as a server takes it: readable by its owner only."""
    path.touch(mode=0o600)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
