"""Which hosts and origins the server answers to."""

from __future__ import annotations

import pytest

from himalia.errors import ConfigurationError
from himalia.server.context import ServerContext
from himalia.server.identity import is_loopback
from himalia.settings import Settings
from tests.server.identity.credentials import Serve, denial, error_of
from tests.servers import RunningServer, ask


@pytest.mark.parametrize("auth", [True, False])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "[::1]:{port}"}, 200),
        ({"Host": "192.168.1.7"}, 200),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost:{port}"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": ""}, 403),
        # 127.0.0.1, as browsers would write it only after resolving it
        ({"Host": "2130706433:{port}"}, 403),
        ({"Host": "0x7f000001:{port}"}, 403),
        ({"Origin": "http://2130706433:{port}"}, 403),
        ({"Origin": "http://0x7f000001:{port}"}, 403),
        ({"Host": "127.0.0.1:{port}@evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:{port}@evil.example"}, 403),
        ({"Origin": "http://evil.example@127.0.0.1:{port}"}, 403),
        # What a proxy would say counts for nothing
        ({"X-Forwarded-Host": "evil.example"}, 200),
        ({"Host": "evil.example", "X-Forwarded-Host": "127.0.0.1:{port}"}, 403),
        ({"Origin": "http://evil.example", "X-Forwarded-Host": "evil.example"}, 403),
    ],
    ids=repr,
)
def test_host_and_origin_are_checked_with_and_without_auth(
    locked: RunningServer, shared: RunningServer, auth: bool, headers: dict[str, str], status: int
) -> None:
    """A browser that was tricked gets 403; programs, which send no Origin, are let in."""
    server = locked if auth else shared
    given = {name: value.format(port=server.port) for name, value in headers.items()}
    with server.http(headers=server.headers | given) as http:
        answer = http.get("/topics")
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["code"] == "FORBIDDEN"
            assert error_of(http.post("/topics", json={"name": "a"})) == (403, "FORBIDDEN")


async def test_allowed_origins_and_hosts_are_let_in(serve: Serve) -> None:
    """An operator may name other origins, which browsers are then told, and other hosts."""
    app = "https://app.example"
    server = serve(auth=False, allowed_origins=[app], allowed_hosts=["broker.example"])
    with server.http(headers={"Origin": app}) as http:
        answer = http.get("/topics")
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, app)
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
        answer = http.options("/topics", headers=preflight)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, app)
        assert http.get("/topics", headers={"Host": "broker.example"}).status_code == 200
        assert http.get("/topics", headers={"Origin": "https://app.example.evil"}).status_code == 403
    async with server.connect(origin=app) as ws:
        assert (await ask(ws, type="ping"))["type"] == "pong"
    assert await denial(server, origin="https://other.example") == (403, "FORBIDDEN")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "broker.example", ""])
def test_no_auth_beyond_loopback_is_refused(host: str) -> None:
    """A server that runs code for anybody on the network cannot be started by one flag."""
    with pytest.raises(ConfigurationError, match="loopback only"):
        ServerContext(Settings(auth=False, host=host, log="memory://"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "[::1]"])
def test_loopback_is_loopback(host: str) -> None:
    """All spellings of this machine alone."""
    assert is_loopback(host)
    assert ServerContext(Settings(auth=False, host=host, log="memory://")).token is None
