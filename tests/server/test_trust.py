"""Who may do what: every way to show a key, every right, and what is never told."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from himalia.errors import ConfigurationError
from himalia.server import trust
from himalia.server.app import create_app
from himalia.server.broker import Broker
from himalia.server.trust import COOKIE, Keyring, Principal, everything, is_loopback, read_keys
from himalia.settings import Settings
from tests.server.process import ServerProcess, run_serve
from tests.server.raw import RawWebSocket, Wire, handshake
from tests.serving import RunningServer, ask, hear, hear_events, message, publish

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


@pytest.fixture(scope="module")
def locked(serve_all: Serve) -> RunningServer:
    server = serve_all(token=TOKEN)
    server.create("orders")
    return server


# The token


def test_a_token_is_made_unless_one_is_given(serve: Serve, tmp_path: Path) -> None:
    """Without settings a server is closed to everybody who was not told its token, which is never the same."""
    one, two = serve(), serve(log=f"sqlite://{tmp_path}/two.db")
    assert one.token and two.token and one.token != two.token
    assert len(one.token) >= 32
    with one.http() as http:
        answer = http.get("/topics")
        assert error_of(answer) == (401, "UNAUTHORIZED")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert one.token not in answer.text
        assert error_of(http.get("/topics", headers=two.headers)) == (401, "UNAUTHORIZED")
        assert http.get("/topics", headers=one.headers).status_code == 200


WAYS: dict[str, dict[str, Any]] = {
    "X-API-Key": {"headers": {"X-API-Key": TOKEN}},
    "Bearer": {"headers": {"Authorization": f"Bearer {TOKEN}"}},
    "bearer": {"headers": {"Authorization": f"bearer {TOKEN}"}},
    "query": {"params": {"token": TOKEN}},
    "cookie": {"headers": {"Cookie": f"other=1; {COOKIE}={TOKEN}"}},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
async def test_every_way_to_show_a_key_works_on_rest_and_websocket(
    locked: RunningServer, way: dict[str, Any]
) -> None:
    """A header, a bearer token, the query or the page's cookie: all the same, wherever a key is asked for."""
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


PUBLIC = {"/health", "/asyncapi.json"}


@pytest.mark.parametrize("key", [None, "wrong", TOKEN[:-1], TOKEN + "x", ""])
def test_every_route_asks_for_a_key(locked: RunningServer, key: str | None) -> None:
    """Only health (which then says little) and the documents of the interface are open to all."""
    server = locked
    headers = {} if key is None else {"X-API-Key": key}
    routes = [
        (method, path)
        for path, methods in create_app(broker=server.broker).openapi()["paths"].items()
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


# The page


def test_opening_the_page_with_a_token_sets_a_cookie_and_redirects(locked: RunningServer) -> None:
    """The token leaves the address at once; no script can read it and no other site can use it."""
    server = locked
    with server.http() as http:
        answer = http.get("/", params={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert cookie.startswith(f"{COOKIE}={TOKEN};")
        assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in cookie.split(";")}
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        page = http.get("/")
        assert page.status_code == 200 and TOKEN not in page.text
        assert http.get("/topics").status_code == 200  # by the cookie
        with Wire(server.port) as wire:
            wire.send(handshake(server.port, Cookie=f"{COOKIE}={http.cookies[COOKIE]}"))
            assert wire.response()[0] == 101


def test_opening_the_page_with_a_wrong_token_sets_nothing(locked: RunningServer) -> None:
    """A guess is an error, not a cookie."""
    with locked.http() as http:
        answer = http.get("/", params={"token": "wrong"})
        assert error_of(answer) == (401, "UNAUTHORIZED")
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("token", ['a token; with=all "sorts" of, signs\\', "x" * 200, "100%25", "ключ"])
def test_a_token_of_any_signs_survives_the_cookie(serve: Serve, token: str) -> None:
    """Whatever an operator chose as the token comes back from the browser as it was."""
    with serve(token=token).http() as http:
        http.get("/", params={"token": token})
        assert http.get("/topics").status_code == 200


@pytest.mark.parametrize(
    "cookie", ["=", "himalia_token", ";;;", "himalia_token=\x80", 'himalia_token="', "a" * 5000]
)
def test_a_cookie_that_cannot_be_read_is_no_key(locked: RunningServer, cookie: str) -> None:
    """Foreign cookies, however odd, are no reason to fail."""
    with Wire(locked.port) as wire:
        request = f"GET /topics HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"
        wire.send(request.encode("latin-1"))
        assert wire.response()[0] == 401


# Hosts and origins


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


# Keys and rights

KEYS = """
[keys.shop]
key = "shop-key-0123456789"
publish = ["orders.>"]

[keys.viewer]
key = "viewer-key-0123456789"
subscribe = ["orders.*", "news"]

[keys.admin]
key = "admin-key-0123456789"
publish = [">"]
subscribe = [">"]
manage = [">"]

[keys.pipeline]
key = "pipeline-key-0123456789"
publish = [">"]
subscribe = [">"]

[keys.nobody]
key = "nobody-key-0123456789"
"""
SHOP, VIEWER, ADMIN, PIPELINE, NOBODY = (
    {"X-API-Key": f"{name}-key-0123456789"} for name in ("shop", "viewer", "admin", "pipeline", "nobody")
)


@pytest.fixture(scope="module")
def server_with_keys(serve_all: Serve, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(KEYS)
    return serve_all(keys_file=path)


@pytest.fixture
def keyed(server_with_keys: RunningServer) -> RunningServer:
    """With the same topics for every test, and nothing in them."""
    server = server_with_keys
    with server.http(headers=ADMIN) as http:
        for topic in http.get("/topics").json()["topics"]:
            http.delete(f"/topics/{topic['name']}").raise_for_status()
        for name in ("orders.eu", "orders.eu.paris", "news", "secret"):
            http.post("/topics", json={"name": name}).raise_for_status()
    return server


def test_keys_replace_the_token(keyed: RunningServer) -> None:
    """With a keys file there is no token, so none is printed or announced."""
    assert keyed.token is None
    with keyed.http() as http:
        assert error_of(http.get("/topics")) == (401, "UNAUTHORIZED")


ACTIONS: dict[str, tuple[str, str, Any]] = {
    "publish": ("POST", "/topics/{topic}/messages", {"payload": 1}),
    "publish lines": ("POST", "/topics/{topic}/messages", b'{"payload":1}\n'),
    "read": ("GET", "/topics/{topic}/messages", None),
    "delete": ("DELETE", "/topics/{topic}", None),
    "create": ("POST", "/topics", {"name": "{topic}"}),
}


@pytest.mark.parametrize(
    ("key", "action", "topic", "allowed"),
    [
        (SHOP, "publish", "orders.eu", True),
        (SHOP, "publish", "orders.eu.paris", True),
        (SHOP, "publish lines", "orders.eu", True),
        (SHOP, "publish", "news", False),
        (SHOP, "publish lines", "news", False),
        (SHOP, "read", "orders.eu", False),
        (SHOP, "delete", "orders.eu", False),
        (SHOP, "create", "orders.us", False),
        (VIEWER, "read", "orders.eu", True),
        (VIEWER, "read", "news", True),
        (VIEWER, "read", "orders.eu.paris", False),
        (VIEWER, "read", "secret", False),
        (VIEWER, "publish", "news", False),
        (ADMIN, "create", "orders.us", True),
        (ADMIN, "delete", "secret", True),
        (ADMIN, "read", "secret", True),
        (NOBODY, "publish", "news", False),
        (NOBODY, "read", "news", False),
        (NOBODY, "create", "x", False),
    ],
)
def test_a_key_may_what_its_patterns_say(
    keyed: RunningServer, key: dict[str, str], action: str, topic: str, allowed: bool
) -> None:
    """Rights are per topic pattern; what is not granted is 403 FORBIDDEN, not a hint of what is there."""
    method, path, body = ACTIONS[action]
    options: dict[str, Any] = {"headers": key}
    if isinstance(body, bytes):
        options |= {"content": body, "headers": {**key, "Content-Type": "application/x-ndjson"}}
    elif body is not None:
        options["json"] = json.loads(json.dumps(body).replace("{topic}", topic))
    with keyed.http() as http:
        answer = http.request(method, path.replace("{topic}", topic), **options)
        assert (answer.status_code < 300) is allowed
        if not allowed:
            assert error_of(answer) == (403, "FORBIDDEN")
            missing = http.request(method, path.replace("{topic}", "missing"), **options)
            assert missing.status_code == 403


async def test_rights_hold_on_the_websocket(keyed: RunningServer) -> None:
    """What REST refuses, the WebSocket refuses as well, and lives on."""
    async with keyed.connect(additional_headers=SHOP) as shop:
        assert await publish(shop, "orders.eu", 1) == [0]
        for fields in (
            {"type": "publish", "topic": "news", "message": message(1)},
            {"type": "subscribe", "topic": "orders.eu", "client_id": "v"},
            {"type": "subscribe", "topic": "orders.*", "client_id": "v"},
            {"type": "subscribe", "topic": ">", "client_id": "v"},
            {"type": "subscribe", "topic": "missing", "client_id": "v"},
        ):
            answer = await ask(shop, **fields)
            assert answer["error"]["code"] == "FORBIDDEN", fields
    async with keyed.connect(additional_headers=VIEWER) as viewer:
        assert (await ask(viewer, type="subscribe", topic="news", client_id="v"))["type"] == "ack"
        for topic in ("secret", "orders.eu.paris"):
            answer = await ask(viewer, type="subscribe", topic=topic, client_id="v")
            assert answer["error"]["code"] == "FORBIDDEN"


async def test_a_pattern_shows_only_what_the_key_may_see(keyed: RunningServer) -> None:
    """``>`` follows every topic with the right to it, also those made later, and tells of no other."""
    async with (
        keyed.connect(additional_headers=VIEWER) as viewer,
        keyed.connect(additional_headers=ADMIN) as admin,
    ):
        ack = await ask(viewer, type="subscribe", topic=">", client_id="v")
        assert set(ack["topics"]) == {"orders.eu", "news"}
        with keyed.http(headers=ADMIN) as http:
            for name in ("hidden", "orders.us"):
                http.post("/topics", json={"name": name}).raise_for_status()
        for topic in ("secret", "hidden", "orders.eu.paris", "orders.eu", "orders.us", "news"):
            await publish(admin, topic, topic)
        with keyed.http(headers=ADMIN) as http:
            for name in ("hidden", "orders.us"):
                http.delete(f"/topics/{name}").raise_for_status()
        await publish(admin, "news", "end")
        heard = []
        while not heard or heard[-1].get("message", {}).get("payload") != "end":
            heard.append(await hear(viewer))
        assert {one["topic"] for one in heard} == {"orders.eu", "orders.us", "news"}
        assert [one["msg"] for one in heard if one["type"] == "info"] == ["topic_created", "topic_deleted"]


def test_a_stream_of_a_pattern_shows_only_what_the_key_may_see(keyed: RunningServer) -> None:
    """Server-Sent Events keep the same rights."""
    with keyed.http(headers=ADMIN) as http:
        for topic in ("secret", "news"):
            http.post(f"/topics/{topic}/messages", json={"payload": topic}).raise_for_status()
    with keyed.http(headers=VIEWER) as http:
        with http.stream("GET", "/topics/%3E/events", params={"last_n": 1}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    assert json.loads(line[5:])["topic"] == "news"
                    break
        assert error_of(http.get("/topics/secret/events")) == (403, "FORBIDDEN")
    with keyed.http(headers=SHOP) as http:
        assert error_of(http.get("/topics/%3E/events")) == (403, "FORBIDDEN")


def test_lists_and_statistics_show_only_what_the_key_may_see(keyed: RunningServer) -> None:
    """A topic that a key has no right on does not exist for it."""
    expected = {
        "viewer": {"orders.eu", "news"},
        "shop": {"orders.eu", "orders.eu.paris"},
        "nobody": set(),
        "admin": {"orders.eu", "orders.eu.paris", "news", "secret"},
    }
    with keyed.http() as http, RawWebSocketOf(keyed, ADMIN) as admin:
        admin.ask(type="subscribe", topic="secret", client_id="spy")
        for name, topics in expected.items():
            key = {"X-API-Key": f"{name}-key-0123456789"}
            assert {one["name"] for one in http.get("/topics", headers=key).json()["topics"]} == topics
            stats = http.get("/stats", headers=key).json()
            assert set(stats["topics"]) == topics
            assert bool(stats["subscribers"]) == (name == "admin")


class RawWebSocketOf(RawWebSocket):
    """A WebSocket with a key of its own."""

    def __init__(self, server: RunningServer, key: dict[str, str]) -> None:
        Wire.__init__(self, server.port)
        self.send(handshake(server.port, X_API_Key=key["X-API-Key"]))
        assert self.response()[0] == 101


async def test_the_publisher_is_stamped_and_cannot_be_forged(keyed: RunningServer) -> None:
    """The header ``publisher`` is the key's name, whatever the client says of itself."""
    forged = message(1, headers={"publisher": "admin", "source": "x"})
    async with keyed.connect(additional_headers=SHOP) as shop:
        await ask(shop, type="publish", topic="orders.eu", message=forged, client_id="admin")
        await ask(shop, type="publish", topic="orders.eu", message=message(2), client_id="admin")
    with keyed.http() as http:
        http.post(
            "/topics/orders.eu/messages", json={"payload": 3, "headers": forged["headers"]}, headers=SHOP
        )
        found = http.get("/topics/orders.eu/messages", headers=ADMIN).json()["messages"]
    assert [one["message"]["headers"] for one in found] == [
        {"publisher": "shop", "source": "x"},
        {"publisher": "shop"},
        {"publisher": "shop", "source": "x"},
    ]


async def test_who_has_the_token_is_stamped_with_the_client_id(serve: Serve) -> None:
    """The token is everybody's, so the client id tells publishers apart where there is one."""
    server = serve(token=TOKEN)
    server.create("orders")
    async with server.connect() as ws:
        for client_id in ("me", None):
            await ask(ws, type="publish", topic="orders", message=message(1), client_id=client_id)
        ack = await ask(ws, type="subscribe", topic="orders", client_id="v", last_n=2)
        assert ack["type"] == "ack"
        events = await hear_events(ws, 2)
    assert [event["message"]["headers"]["publisher"] for event in events] == ["me", "token"]


async def test_client_ids_of_different_keys_do_not_collide(keyed: RunningServer) -> None:
    """Nobody can take another key's subscription over by guessing its client id."""
    async with (
        keyed.connect(additional_headers=VIEWER) as viewer,
        keyed.connect(additional_headers=ADMIN) as admin,
    ):
        for ws in (viewer, admin):
            await ask(ws, type="subscribe", topic="news", client_id="same")
        await publish(admin, "news", 1)
        assert (await hear(viewer))["type"] == "event"


# What is reserved


async def test_nobody_publishes_to_kernels(keyed: RunningServer) -> None:
    """A kernel's output cannot be forged, not even with every right there is."""
    with keyed.http(headers=ADMIN) as http:
        assert error_of(http.post("/topics", json={"name": "kernels.x.iopub"})) == (403, "FORBIDDEN")
        assert error_of(http.post("/topics", json={"name": "kernels"})) == (403, "FORBIDDEN")
        answer = http.post("/topics/kernels.x.iopub/messages", json={"payload": 1})
        assert error_of(answer) == (403, "FORBIDDEN")
    async with keyed.connect(additional_headers=ADMIN) as ws:
        answer = await ask(ws, type="publish", topic="kernels.x.iopub", message=message(1))
        assert answer["error"]["code"] == "FORBIDDEN"
        assert (await ask(ws, type="subscribe", topic="kernels.*.iopub", client_id="v"))["type"] == "ack"


async def test_publishing_to_pipeline_takes_the_right_to_manage_it(keyed: RunningServer) -> None:
    """Results of the pipeline come from the pipeline, or from who manages it."""
    with keyed.http(headers=ADMIN) as http:
        assert http.post("/topics", json={"name": "pipeline.errors"}).status_code == 201
        assert http.post("/topics/pipeline.errors/messages", json={"payload": 1}).status_code == 200
    async with keyed.connect(additional_headers=PIPELINE) as ws:
        answer = await ask(ws, type="publish", topic="pipeline.errors", message=message(1))
        assert answer["error"]["code"] == "FORBIDDEN"
    with keyed.http(headers=PIPELINE) as http:
        answer = http.post("/topics/pipeline.errors/messages", json={"payload": 1})
        assert error_of(answer) == (403, "FORBIDDEN")


# Settings that cannot be


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "broker.example", ""])
def test_no_auth_beyond_loopback_is_refused(host: str) -> None:
    """A server that runs code for anybody on the network cannot be started by one flag."""
    with pytest.raises(ConfigurationError, match="loopback only"):
        Broker(Settings(auth=False, host=host, log="memory://"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "[::1]"])
def test_loopback_is_loopback(host: str) -> None:
    """All spellings of this machine alone."""
    assert is_loopback(host)
    assert Broker(Settings(auth=False, host=host, log="memory://")).token is None


@pytest.mark.slow
def test_serve_says_why_it_does_not_start(tmp_path: Path) -> None:
    """Exit code 1 and one sentence that says what to do."""
    code, said = run_serve("--no-auth", "--host", "0.0.0.0", directory=tmp_path)
    assert code == 1 and "loopback" in said and "Traceback" not in said
    code, said = run_serve("--keys-file", str(tmp_path / "missing.toml"), directory=tmp_path)
    assert code == 1 and "missing.toml" in said and "Traceback" not in said


BAD_KEYS = {
    "not TOML": ("[keys", "is not TOML"),
    "not UTF-8": (b"\xff\xfe", "is not TOML"),
    "empty": ("", "has no keys"),
    "no keys": ("[other]\na = 1", "has no keys"),
    "keys is a value": ("keys = 1", "keys"),
    "keys is a list": ("keys = [1]", "keys"),
    "not a table": ("[keys]\nshop = 1", "is not a table"),
    "no key": ("[keys.shop]\npublish = []", "needs key"),
    "key of the wrong type": ("[keys.shop]\nkey = 1234567890123456", "needs key"),
    "short key": ('[keys.shop]\nkey = "short"', "at least 16"),
    "unknown right": ('[keys.shop]\nkey = "0123456789abcdef"\nwrite = [">"]', "'write'; rights are publish"),
    "patterns of the wrong type": ('[keys.shop]\nkey = "0123456789abcdef"\npublish = ">"', "not a list"),
    "pattern of the wrong type": ('[keys.shop]\nkey = "0123456789abcdef"\npublish = [1]', "not a list"),
    "bad pattern": ('[keys.shop]\nkey = "0123456789abcdef"\npublish = ["a.>.b"]', "not a topic pattern"),
    "same key twice": (
        '[keys.a]\nkey = "0123456789abcdef"\n[keys.b]\nkey = "0123456789abcdef"',
        "are the same: a and b",
    ),
}


@pytest.mark.parametrize(("text", "said"), BAD_KEYS.values(), ids=BAD_KEYS.keys())
def test_a_keys_file_that_is_wrong_is_explained(tmp_path: Path, text: str | bytes, said: str) -> None:
    """The message names the file and what is wrong in it, and never shows a key."""
    path = tmp_path / "keys.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError, match=re.escape(said)) as failed:
        read_keys(path)
    assert str(path) in failed.value.message
    assert "0123456789abcdef" not in failed.value.message


def test_a_keys_file_that_is_not_there_is_explained(tmp_path: Path) -> None:
    """A missing file, or a directory, is named with the reason."""
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigurationError, match=re.escape(str(path))):
            read_keys(path)


# What is never told


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key is compared, by ``hmac.compare_digest``, whether or not an earlier one was right."""
    compared: list[tuple[bytes, bytes]] = []
    compare = trust.hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(trust.hmac, "compare_digest", counting)
    keyring = Keyring({f"key-{i}": Principal(f"name-{i}", {}) for i in range(5)})
    for presented in ("key-0", "key-4", "key-9", "", "ключ"):
        compared.clear()
        try:
            keyring.identify({"x-api-key": presented or " "}, "")
        except trust.Unauthorized:
            pass
        assert [one for one, _ in compared] == [b"key-0", b"key-1", b"key-2", b"key-3", b"key-4"]


def test_everything_means_everything() -> None:
    """The token, and nobody's key on loopback, have every right on every topic."""
    principal = everything("token")
    assert all(principal.may(right, topic) for right in trust.Right for topic in ("a", "a.b.c"))


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
            ("/ws", {"Cookie": f"{COOKIE}={token}"}),
            (f"/ws?token={token}", {"Origin": "null"}),
            (f"/ws?token={token}", {"X_Long": "x" * 9000}),
        ):
            with Wire(server.port) as wire:
                wire.send(handshake(server.port, path, **headers))
                wire.response()
        assert server.stop() == 0
        log = server.stderr()
    assert "token=..." in log, "the addresses are logged, without the token"
    assert token not in log


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = "-subj /CN=himalia -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names.split(), *files], check=True, capture_output=True)
    return certificate, key


async def test_tls_serves_rest_and_websocket(serve: Serve, certificate: tuple[Path, Path]) -> None:
    """With a certificate the same interfaces are https and wss, and the cookie is for https alone."""
    server = serve(token=TOKEN, ssl_certfile=certificate[0], ssl_keyfile=certificate[1])
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    assert server.url.startswith("https://")
    with server.http(verify=trusting, headers=server.headers) as http:
        assert http.post("/topics", json={"name": "orders"}).status_code == 201
        assert "secure" in http.get("/", params={"token": TOKEN}).headers["set-cookie"].lower()
    async with server.connect(ssl=trusting) as publisher, server.connect(ssl=trusting) as viewer:
        await ask(viewer, type="subscribe", topic="orders", client_id="v")
        # More than one TLS record, in both directions.
        await publish(publisher, "orders", "x" * 500_000, 2)
        assert [len(str(e["message"]["payload"])) for e in await hear_events(viewer, 2)] == [500_000, 1]


@pytest.mark.parametrize("wrong", ["missing", "garbage", "swapped"])
def test_a_certificate_that_cannot_be_used_is_explained(
    serve: Serve, certificate: tuple[Path, Path], tmp_path: Path, wrong: str
) -> None:
    """Starting fails with a sentence, not with a traceback of the TLS library."""
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("hello")
    cert, key = certificate
    files = {"missing": (tmp_path / "no.pem", key), "garbage": (garbage, key), "swapped": (key, cert)}[wrong]
    with pytest.raises(ConfigurationError, match="certificate or key"):
        serve(token=TOKEN, ssl_certfile=files[0], ssl_keyfile=files[1])
