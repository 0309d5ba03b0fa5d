"""No HTML of ours names another host, and every answer has the headers that hold a browser back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import himalia
from himalia.server.app import create_app
from tests.server.raw_clients import Wire
from tests.servers import RunningServer

FOREIGN = re.compile(
    r"""(?:src|href|action)\s*=\s*["']?\s*(?:[a-z]+:)?//|url\(\s*["']?(?:[a-z]+:)?//""", re.I
)
REQUIRED = {
    "content-security-policy",
    "x-content-type-options",
    "x-frame-options",
    "referrer-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
}


@pytest.fixture(scope="module")
def locked(serve_all: Callable[..., RunningServer]) -> RunningServer:
    return serve_all(token="correct-horse-battery-staple")


def test_no_html_that_is_served_names_another_host(locked: RunningServer) -> None:
    """Every route that answers HTML without a key, and whatever those pages lead to."""
    seen, waiting = set[str](), ["/", "/docs", "/redoc", "/nothing", "/page/frame.html", "/page/plot.html"]
    with locked.http(follow_redirects=True, headers=locked.headers) as http:
        while waiting:
            path = waiting.pop()
            seen.add(path)
            answer = http.get(path)
            if "text/html" not in answer.headers["content-type"]:
                continue
            assert not FOREIGN.search(re.sub(r"<script>.*?</script>", "", answer.text, flags=re.S)), path
            waiting += set(re.findall(r'(?:href|src)="(/[^"#]*)"', answer.text)) - seen
    assert {"/", "/docs", "/openapi.json"} <= seen


def test_no_html_of_the_package_names_another_host() -> None:
    """Files that nothing links to are served as well."""
    pages = list(Path(himalia.__file__).parent.rglob("*.html"))
    assert pages
    for page in pages:
        assert not FOREIGN.search(page.read_text()), page


def test_the_reference_has_every_call_and_runs_nothing(locked: RunningServer) -> None:
    """It is made from the OpenAPI document, under a policy without scripts."""
    with locked.http() as http:
        answer = http.get("/docs")
    assert "script" not in answer.headers["content-security-policy"] and "<script" not in answer.text
    for path in create_app(context=locked.context).openapi()["paths"]:
        assert path in answer.text


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/health", "/nothing", "/topics", "/page/frame.html", "/page/no"]
)
def test_every_answer_has_security_headers(locked: RunningServer, path: str) -> None:
    """Pages, files, data and refusals, with a key and without."""
    with locked.http() as http:
        for headers in ({}, locked.headers, {"Host": "evil.example"}):
            assert set(http.get(path, headers=headers).headers) >= REQUIRED


@pytest.mark.parametrize(
    "data", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"]
)
def test_refusals_of_the_protocol_have_security_headers(locked: RunningServer, data: bytes) -> None:
    """Also where no application was asked."""
    with Wire(locked.port) as wire:
        wire.send(data)
        assert set(wire.response()[1]) >= REQUIRED


@pytest.mark.parametrize(("path", "status"), [("/ws", 401), ("/nowhere", 404), ("/topics", 404)])
async def test_a_handshake_that_is_refused_has_security_headers(
    locked: RunningServer, path: str, status: int
) -> None:
    """And says why, as every other answer does."""
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{locked.url.replace('http', 'ws', 1)}{path}")
    response = refused.value.response
    assert response.status_code == status and json.loads(response.body or b"")["error"]["message"]
    assert {name.lower() for name in response.headers} >= REQUIRED
