"""What each key may do: every right, on every way in, and names that are reserved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from himalia.server.identity import Principal, Right, everything
from tests.server.identity.credentials import TOKEN, Serve, error_of, write_keys
from tests.server.raw_clients import RawWebSocket, Wire, handshake
from tests.servers import RunningServer, ask, hear, hear_events, message, publish

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
    path = write_keys(tmp_path_factory.mktemp("keys") / "keys.toml", KEYS)
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


async def test_publisher_and_caller_are_stamped_and_cannot_be_forged(keyed: RunningServer) -> None:
    """``caller`` is the caller's qualified name and ``publisher`` the short one, whatever the client says of itself."""
    forged = message(1, headers={"publisher": "admin", "caller": "key:admin", "source": "x"})
    async with keyed.connect(additional_headers=SHOP) as shop:
        await ask(shop, type="publish", topic="orders.eu", message=forged, client_id="admin")
        await ask(shop, type="publish", topic="orders.eu", message=message(2), client_id="admin")
    with keyed.http() as http:
        http.post(
            "/topics/orders.eu/messages", json={"payload": 3, "headers": forged["headers"]}, headers=SHOP
        )
        line = json.dumps({"payload": 4, "headers": forged["headers"]})
        ndjson = {**SHOP, "Content-Type": "application/x-ndjson"}
        http.post("/topics/orders.eu/messages", content=line, headers=ndjson)
        found = http.get("/topics/orders.eu/messages", headers=ADMIN).json()["messages"]
    stamped = {"publisher": "shop", "caller": "key:shop"}
    assert [one["message"]["headers"] for one in found] == [
        {**stamped, "source": "x"},
        stamped,
        {**stamped, "source": "x"},
        {**stamped, "source": "x"},
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
    assert [event["message"]["headers"]["caller"] for event in events] == ["token", "token"]


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


def test_everything_means_everything() -> None:
    """The token, and nobody's key on loopback, have every right on every topic."""
    principal = everything("token")
    assert all(principal.may(right, topic) for right in Right for topic in ("a", "a.b.c"))


def test_own_is_not_a_topic() -> None:
    """The pattern ``own`` gives no right on the topic of that name: it stands for the caller's own kernels."""
    principal = Principal("key:ann", {Right.EXECUTE: ("own",), Right.SUBSCRIBE: ("own", "news")})
    assert principal.owns(Right.EXECUTE) and principal.owns(Right.SUBSCRIBE)
    assert not principal.owns(Right.PUBLISH)
    assert not principal.may(Right.EXECUTE, "own") and not principal.may(Right.SUBSCRIBE, "own")
    assert principal.may(Right.SUBSCRIBE, "news")
    assert everything("token").may(Right.EXECUTE, "own") and not everything("token").owns(Right.EXECUTE)
