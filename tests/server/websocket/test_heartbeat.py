"""Signs of life: the server gives them, and lets go of who does not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from himalia.protocol import PROTOCOL_VERSION
from tests.server.raw_clients import PING, PONG, TEXT, RawWebSocket, frame, until
from tests.servers import DEADLINE_S, RunningServer, ask, hear, message, say

Serve = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def lively(serve_all: Serve) -> RunningServer:
    """A server whose heart beats often."""
    server = serve_all(auth=False, heartbeat_s=0.1, heartbeat_timeout_s=0.4, stall_timeout_s=0.4)
    server.create("orders")
    return server


def next_of(raw: RawWebSocket, wanted: int, *, pong: bool = True) -> bytes:
    """The next frame of this kind, answering pings on the way."""
    while True:
        opcode, payload = raw.next_frame()
        if opcode == PING and pong:
            raw.send(frame(payload, PONG))
        if opcode == wanted:
            return payload


def test_who_has_spoken_gets_pings_of_both_kinds(lively: RunningServer) -> None:
    """A WebSocket ping for the library, and ``info ping`` for the application, again and again."""
    with RawWebSocket(lively) as raw:
        raw.say(type="ping")
        assert json.loads(next_of(raw, TEXT))["type"] == "pong"
        for _ in range(3):
            heard = json.loads(next_of(raw, TEXT))
            assert (heard["type"], heard["msg"]) == ("info", "ping")
            assert heard["ts"].endswith("Z")
            next_of(raw, PING)


def test_the_server_says_nothing_before_the_client_has_spoken(lively: RunningServer) -> None:
    """Until the first message of the client there are WebSocket pings at most, whatever happens meanwhile."""
    with RawWebSocket(lively) as raw, lively.http() as http:
        for i in range(8):
            http.post("/topics", json={"name": f"new-{i}"}).raise_for_status()
            http.delete(f"/topics/new-{i}").raise_for_status()
            opcode, payload = raw.next_frame()
            assert opcode == PING
            raw.send(frame(payload, PONG))
        raw.say(type="ping", request_id="1")
        answer = json.loads(next_of(raw, TEXT))
        assert (answer["type"], answer["request_id"], answer["protocol"]) == ("pong", "1", PROTOCOL_VERSION)


@pytest.mark.parametrize(
    "first",
    [
        {"type": "ping"},
        {"type": "subscribe", "topic": "orders", "client_id": "v"},
        {"type": "publish", "topic": "orders", "message": message(1)},
        {"type": "nonsense"},
    ],
    ids=lambda first: first["type"],
)
async def test_only_the_first_answer_carries_the_protocol_version(
    server: RunningServer, first: dict[str, Any]
) -> None:
    """Whatever is said first, its answer tells the version of the protocol, once."""
    server.create("orders")
    async with server.connect() as ws:
        await say(ws, **first)
        assert (await hear(ws))["protocol"] == PROTOCOL_VERSION
        assert "protocol" not in await ask(ws, type="ping")


@pytest.mark.parametrize("spoke", [True, False])
def test_a_peer_that_is_silent_is_dropped(lively: RunningServer, spoke: bool) -> None:
    """Who answers no ping for ``heartbeat_timeout_s`` is gone, and its subscriptions with it."""
    with RawWebSocket(lively) as raw:
        if spoke:
            raw.ask(type="subscribe", topic="orders", client_id="v")
        raw.until_end()
    until(lambda: lively.on_loop(lambda: lively.context.connection_count) == 0)
    assert lively.on_loop(lambda: lively.context.manager.subscriber_count) == 0


def test_a_peer_that_answers_pings_lives(lively: RunningServer) -> None:
    """A pong is enough, for as long as it comes."""
    with RawWebSocket(lively) as raw:
        end = time.monotonic() + 3 * lively.settings.heartbeat_timeout_s
        while time.monotonic() < end:
            next_of(raw, PING)
        raw.say(type="ping", request_id="1")
        assert json.loads(next_of(raw, TEXT))["request_id"] == "1"


def test_a_peer_that_speaks_lives_without_pongs(lively: RunningServer) -> None:
    """Anything that comes from a peer is a sign of life."""
    with RawWebSocket(lively) as raw:
        end = time.monotonic() + 3 * lively.settings.heartbeat_timeout_s
        while time.monotonic() < end:
            raw.say(type="ping")
            while json.loads(next_of(raw, TEXT, pong=False))["type"] != "pong":
                pass


def test_a_peer_that_speaks_and_never_listens_is_dropped(lively: RunningServer) -> None:
    """Sending alone is no life for ever: who takes none of its answers is not read, and then let go."""
    ping = frame(json.dumps({"type": "ping", "request_id": "x" * 200}).encode()) * 1000
    with RawWebSocket(lively, receive_bytes=4096) as raw:
        raw.socket.settimeout(0.1)
        end = time.monotonic() + DEADLINE_S
        while lively.on_loop(lambda: lively.context.connection_count):
            assert time.monotonic() < end
            try:
                raw.socket.send(ping)
            except (TimeoutError, ConnectionError):
                pass


def test_a_subscriber_that_is_far_behind_lives_while_it_takes_what_waits(lively: RunningServer) -> None:
    """A slow reader finds each ping behind all that waits for it; taking records is a sign of life as well."""
    lively.create("backlog")
    with lively.http() as http:
        line = json.dumps({"payload": "x" * 10_000}) + "\n"
        headers = {"Content-Type": "application/x-ndjson"}
        http.post("/topics/backlog/messages", content=line * 3000, headers=headers).raise_for_status()
    with RawWebSocket(lively, receive_bytes=4096) as raw:
        raw.ask(type="subscribe", topic="backlog", client_id="v", from_=0)
        offset = 0
        while offset < 3000:
            heard = json.loads(next_of(raw, TEXT))
            if heard["type"] == "event":
                assert heard["offset"] == offset
                offset += 1


async def test_a_usual_client_library_needs_to_do_nothing(lively: RunningServer) -> None:
    """Libraries answer pings by themselves; an idle subscriber stays subscribed."""
    async with lively.connect(ping_interval=None) as ws:
        await ask(ws, type="subscribe", topic="orders", client_id="v")
        for _ in range(10):
            assert (await hear(ws))["msg"] == "ping"
        await say(ws, type="publish", topic="orders", message=message(1), request_id="1")
        types = []
        while len(types) < 2:
            heard = await hear(ws)
            if heard["type"] != "info":
                types.append(heard["type"])
        assert sorted(types) == ["ack", "event"]
