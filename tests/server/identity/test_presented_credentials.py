"""Every way to show a key, on REST and WebSocket, and what is answered without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from himalia.server.app import create_app
from tests.server.identity.credentials import TOKEN, denial, error_of
from tests.server.raw_clients import Wire, handshake
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer

WAYS: dict[str, dict[str, Any]] = {
    "X-API-Key": {"headers": {"X-API-Key": TOKEN}},
    "Bearer": {"headers": {"Authorization": f"Bearer {TOKEN}"}},
    "bearer": {"headers": {"Authorization": f"bearer {TOKEN}"}},
    "query": {"params": {"token": TOKEN}},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
async def test_every_way_to_show_a_key_works_on_rest_and_websocket(
    locked: RunningServer, way: dict[str, Any]
) -> None:
    """A header, a bearer token or the query: all the same, wherever a key is asked for."""
    server = locked
    with server.http(**way) as http:
        assert http.post("/topics/orders/messages", json={"payload": 1}).status_code == 200
        assert http.get("/topics/orders/messages").status_code == 200
        with http.stream("GET", "/topics/orders/events") as stream:
            assert stream.status_code == 200
    url = server.ws_url + (f"?token={TOKEN}" if "params" in way else "")
    with Wire(server.port) as wire:
        headers = {name.replace("-", "_"): value for name, value in way.get("headers", {}).items()}
        wire.send(handshake(server.port, url.partition(str(server.port))[2], **headers))
        assert wire.response()[0] == 101


PUBLIC = {"/health", "/asyncapi.json", "/proof"}


@pytest.mark.parametrize("key", [None, "wrong", TOKEN[:-1], TOKEN + "x", ""])
def test_every_route_asks_for_a_key(locked: RunningServer, key: str | None) -> None:
    """Only health (which then says little) and the documents of the interface are open to all."""
    server = locked
    headers = {} if key is None else {"X-API-Key": key}
    routes = [
        (method, path)
        for path, methods in create_app(context=server.context).openapi()["paths"].items()
        for method in methods
        if path not in PUBLIC
    ]
    assert len(routes) >= 8
    with server.http(headers=headers) as http:
        for method, path in routes:
            answer = http.request(method, path.replace("{name}", "orders"), json={"name": "x", "payload": 1})
            assert error_of(answer) == (401, "UNAUTHORIZED"), (method, path)


def test_health_without_a_key_says_only_whether_it_is_well(locked: RunningServer) -> None:
    """A load balancer needs no key, and a stranger learns nothing."""
    with locked.http() as http:
        assert http.get("/health").json() == {"status": "ok"}
        assert http.get("/health", headers={"X-API-Key": "wrong"}).json() == {"status": "ok"}
        told = http.get("/health", headers=locked.headers).json()
    assert {"uptime_sec", "topics", "subscribers", "version", "protocol"} <= set(told)


async def test_a_websocket_without_a_key_is_401(locked: RunningServer) -> None:
    """The handshake is refused before it is one, with the error as JSON."""
    assert await denial(locked) == (401, "UNAUTHORIZED")


@pytest.mark.slow
def test_logs_never_show_the_token(tmp_path: Path) -> None:
    """Not even at the level of debugging, not even when it is in the address; it is printed once, to stdout."""
    with ServerProcess(tmp_path, "--log-level", "debug") as server:
        token = server.token
        assert token
        server.create("orders")
        with server.http(headers={}) as http:
            http.get("/", params={"token": token})
            http.get("/topics", params={"token": token})
            http.get("/nothing", params={"token": token})
            http.get("/topics/orders/messages", params={"token": token, "since": "x"})
            http.get("/topics", headers={"X-API-Key": token})
        for path, headers in (
            (f"/ws?token={token}", {}),
            (f"/ws?a=b&token={token}&c=d", {}),
            (f"/nothing?token={token}", {}),
            ("/ws", {"X_API_Key": token}),
            ("/ws", {"Authorization": f"Bearer {token}"}),
            ("/ws", {"Cookie": f"himalia_session_{server.port}={token}"}),
            (f"/ws?api_key={token}", {}),
            (f"/ws?%74oken={token}", {}),
            (f"/ws?token={token}", {"Origin": "null"}),
            (f"/ws?token={token}", {"X_Long": "x" * 9000}),
        ):
            with Wire(server.port) as wire:
                wire.send(handshake(server.port, path, **headers))
                wire.response()
        assert server.stop() == 0
        log = server.stderr()
    assert "/ws?..." in log, "the addresses are logged, without the token"
    assert token not in log


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"/topics?token={TOKEN}&token={TOKEN}", {}),
        (f"/topics?token={TOKEN}&token=other", {}),
        (f"/?token={TOKEN}&token=other", {}),
        ("/topics", {"X-API-Key": [TOKEN, "other"]}),
        ("/topics", {"Authorization": [f"Bearer {TOKEN}", "Bearer other"]}),
    ],
)
def test_two_keys_in_one_place_are_refused(
    locked: RunningServer, path: str, headers: dict[str, list[str]]
) -> None:
    """What is checked is what is meant: a second key beside a valid one is an error, not ignored (C2)."""
    lines = [(name, value) for name, values in headers.items() for value in values]
    with locked.http() as http:
        answer = http.get(path, headers=httpx.Headers(lines))
    assert error_of(answer) == (422, "BAD_REQUEST")
    assert "set-cookie" not in answer.headers
    assert TOKEN not in answer.text


async def test_two_keys_in_the_address_of_a_websocket_are_refused(locked: RunningServer) -> None:
    """The handshake is held to the same rule."""
    with Wire(locked.port) as wire:
        wire.send(handshake(locked.port, f"/ws?token={TOKEN}&token=other"))
        assert wire.response()[0] == 422
