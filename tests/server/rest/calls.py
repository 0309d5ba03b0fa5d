"""Calls of the REST API and their checked results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from tests.servers import RunningServer

Serve = Callable[..., RunningServer]
JSON, NDJSON = "application/json", "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


def error_of(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"code", "message"}
    assert 0 < len(body["error"]["message"]) <= 1000
    return answer.status_code, body["error"]["code"]


def post(http: httpx.Client, body: Any, **params: Any) -> httpx.Response:
    """Publish: text and bytes as lines, anything else as JSON."""
    if isinstance(body, str | bytes):
        return http.post(
            "/topics/orders/messages", content=body, headers={"Content-Type": NDJSON}, params=params
        )
    return http.post("/topics/orders/messages", json=body, params=params)


def payloads(http: httpx.Client, **params: Any) -> list[Any]:
    answer = http.get("/topics/orders/messages", params=params)
    assert answer.status_code == 200, answer.text
    return [one["message"]["payload"] for one in answer.json()["messages"]]
