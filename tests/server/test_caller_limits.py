"""Limits of one caller, over all its connections: what happens at each, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from himalia.errors import RateLimited, TooManyConnections, TooManySubscriptions
from himalia.server.caller_usage import CallerUsages
from himalia.server.identity import CallerLimits, Principal
from tests.server.raw_clients import until
from tests.servers import RunningServer, ask, message

Serve = Callable[..., RunningServer]
NDJSON = {"Content-Type": "application/x-ndjson"}

KEYS = {
    "slow": "publishes_per_s = 0.001",
    "thin": "bytes_per_s = 2000",
    "scanty": "bytes_per_s = 1000",
    "brisk": "publishes_per_s = 2000",
    "mute": "publishes_per_s = 0",
    "steady": "publishes_per_s = 100",
    "few": "connections = 2",
    "narrow": "subscriptions = 2",
    "small": "kernels = 1",
    "free": "",
}


def secret(name: str) -> str:
    return f"{name}-0123456789-0123456789"


def headers_of(name: str) -> dict[str, str]:
    return {"X-API-Key": secret(name)}


def write_keys(path: Path) -> Path:
    path.write_text(
        "\n".join(
            f'[keys.{name}]\nkey = "{secret(name)}"\npublish = [">"]\nsubscribe = [">"]\nexecute = [">"]\n'
            f'manage = [">"]\n[keys.{name}.limits]\n{limit}\n'
            for name, limit in KEYS.items()
        )
    )
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def shared(serve_all: Serve, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    server = serve_all(keys_file=write_keys(tmp_path_factory.mktemp("keys") / "keys.toml"))
    with server.http(headers=headers_of("free")) as http:
        for name in ("orders", "news", "more"):
            http.post("/topics", json={"name": name}).raise_for_status()
    return server


@pytest.fixture
def http(shared: RunningServer) -> Iterator[httpx.Client]:
    with shared.http() as http:
        yield http


def end_of(http: httpx.Client, topic: str = "orders") -> int:
    topics = http.get("/topics", headers=headers_of("free")).json()["topics"]
    return next(int(one["end"]) for one in topics if one["name"] == topic)


# Publishing


async def test_all_ways_to_publish_share_one_rate(shared: RunningServer) -> None:
    """What one connection has published counts for the caller's others, REST and NDJSON, and for no other caller."""
    with shared.http() as http:
        before = end_of(http)
        async with (
            shared.connect(additional_headers=headers_of("slow")) as one,
            shared.connect(additional_headers=headers_of("slow")) as two,
        ):
            answer = await ask(one, type="publish", topic="orders", message=message(1))
            assert answer["type"] == "ack"
            for ws in (one, two):
                refused = await ask(ws, type="publish", topic="orders", message=message(2))
                assert refused["error"]["code"] == "RATE_LIMITED"
        for body in ({"json": {"payload": 3}}, {"content": '{"payload":4}\n', "headers": NDJSON}):
            given = {**headers_of("slow"), **body.pop("headers", {})}
            answer = http.post("/topics/orders/messages", headers=given, **body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "RATE_LIMITED")
            assert "'key:slow' may publish 0.001 messages a second" in answer.json()["error"]["message"]
            assert 900 <= int(answer.headers["retry-after"]) <= 1000
        assert (
            http.post("/topics/orders/messages", headers=headers_of("free"), json={"payload": 5}).status_code
            == 200
        )
        assert end_of(http) == before + 2


def test_bytes_are_limited_and_a_large_message_passes(http: httpx.Client) -> None:
    """A body of more than a second's worth is stored; what follows waits until the rate holds again."""
    publish = {"url": "/topics/orders/messages", "headers": headers_of("thin")}
    assert http.post(**publish, json={"payload": "x" * 20_000}).status_code == 200
    answer = http.post(**publish, json={"payload": 1})
    assert answer.json()["error"]["code"] == "RATE_LIMITED"
    assert 7 <= int(answer.headers["retry-after"]) <= 10


async def test_bytes_count_on_a_websocket_too(shared: RunningServer) -> None:
    """What a WebSocket has published delays what follows over REST, and the other way round."""
    async with shared.connect(additional_headers=headers_of("scanty")) as ws:
        large = {"id": str(uuid4()), "payload": "x" * 20_000}
        assert (await ask(ws, type="publish", topic="orders", message=large))["type"] == "ack"
        refused = await ask(ws, type="publish", topic="orders", message=message(1))
        assert refused["error"]["code"] == "RATE_LIMITED"
        with shared.http(headers=headers_of("scanty")) as http:
            answer = http.post("/topics/orders/messages", json={"payload": 1})
            assert answer.json()["error"]["code"] == "RATE_LIMITED"


async def test_bodies_that_are_received_together_share_one_rate(shared: RunningServer) -> None:
    """However far apart they began, and although a caller that does nothing else is forgotten in between."""
    headers = {**headers_of("steady"), **NDJSON}
    go = asyncio.Event()
    begun = 0

    async def lines() -> AsyncIterator[bytes]:
        nonlocal begun
        yield b"\n"
        begun += 1
        await go.wait()
        for number in range(150):
            yield b'{"payload":%d}\n' % number

    usages = shared.context.usages
    async with httpx.AsyncClient(base_url=shared.url, headers=headers, timeout=60) as http:
        bodies = []
        for count in range(3):
            bodies.append(asyncio.create_task(http.post("/topics/more/messages", content=lines())))
            await asyncio.to_thread(until, lambda count=count: begun == count + 1)
            await asyncio.to_thread(shared.on_loop, usages.sweep)
        began_s = time.monotonic()
        go.set()
        await asyncio.gather(*bodies, return_exceptions=True)
        took_s = time.monotonic() - began_s
    stored = [answer.result().json().get("count", 0) for answer in bodies]
    # A second's worth at once, and one that may be larger than what was left.
    assert 150 <= sum(stored) <= 100 * took_s + 100 + 150


def test_a_limit_of_zero_publishes_nothing(http: httpx.Client) -> None:
    """Zero is a limit, not the absence of one."""
    answer = http.post("/topics/orders/messages", headers=headers_of("mute"), json={"payload": 1})
    assert answer.json()["error"]["code"] == "RATE_LIMITED"
    assert "may not publish at all" in answer.json()["error"]["message"]


def test_lines_are_slowed_down_rather_than_refused(http: httpx.Client) -> None:
    """A long NDJSON body that has begun to be stored is stored whole, at the caller's rate."""
    before = end_of(http, "more")
    lines = "".join(f'{{"payload":{number}}}\n' for number in range(3500))
    answer = http.post("/topics/more/messages", headers={**headers_of("brisk"), **NDJSON}, content=lines)
    assert (answer.status_code, answer.json()["count"]) == (200, 3500)
    assert end_of(http, "more") == before + 3500


# Connections and subscriptions


async def test_connections_are_limited_for_a_caller(shared: RunningServer) -> None:
    """WebSockets and event streams count together; one that ends makes room; other callers are not concerned."""
    with shared.http() as http:
        headers = headers_of("few")
        async with shared.connect(additional_headers=headers):
            with http.stream("GET", "/topics/orders/events", headers=headers) as stream:
                assert stream.status_code == 200
                with pytest.raises(InvalidStatus) as refused:
                    await shared.connect(additional_headers=headers)
                body = json.loads(refused.value.response.body or b"")
                assert body["error"]["code"] == "TOO_MANY_CONNECTIONS"
                assert "'key:few' has 2 connections open, its limit" in body["error"]["message"]
                answer = http.get("/topics/orders/events", headers=headers)
                assert answer.json()["error"]["code"] == "TOO_MANY_CONNECTIONS"
                async with httpx.AsyncClient(base_url=shared.url) as browser:
                    (await browser.post("/session", headers=headers)).raise_for_status()
                    answer = await browser.get("/topics/orders/events")
                    assert answer.json()["error"]["code"] == "TOO_MANY_CONNECTIONS"
                async with shared.connect(additional_headers=headers_of("free")):
                    pass
            usage = shared.context.usages.of(Principal("key:few", {}, limits=CallerLimits(connections=2)))
            until(lambda: shared.on_loop(lambda: len(usage.slots)) == 1)
            async with shared.connect(additional_headers=headers):
                pass


async def test_subscriptions_are_limited_for_a_caller(shared: RunningServer) -> None:
    """They count over all connections and event streams; one with the same name replaces the other."""
    with shared.http() as http:
        headers = headers_of("narrow")
        async with (
            shared.connect(additional_headers=headers) as one,
            shared.connect(additional_headers=headers) as two,
        ):
            for ws, topic in ((one, "orders"), (two, "news")):
                assert (await ask(ws, type="subscribe", topic=topic, client_id="a"))["type"] == "ack"
            for ws in (one, two):
                refused = await ask(ws, type="subscribe", topic="more", client_id="a")
                assert refused["error"]["code"] == "TOO_MANY_SUBSCRIPTIONS"
                assert "'key:narrow' has 2 subscriptions, its limit" in refused["error"]["message"]
            answer = http.get("/topics/more/events", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "TOO_MANY_SUBSCRIPTIONS")
            assert (await ask(two, type="subscribe", topic="orders", client_id="a"))["type"] == "ack"
            assert (await ask(two, type="unsubscribe", topic="orders", client_id="a"))["type"] == "ack"
            assert (await ask(one, type="subscribe", topic="more", client_id="a"))["type"] == "ack"


# Kernels


def test_kernels_are_limited_for_a_caller(shared: RunningServer, http: httpx.Client, tmp_path: Path) -> None:
    """Also those that are being started count; one that is stopped makes room."""
    headers = headers_of("small")

    async def start_two() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=shared.url, headers=headers, timeout=60) as client:
            return list(await asyncio.gather(*[client.post("/api/kernels", json={}) for _ in range(2)]))

    answers = sorted(asyncio.run(start_two()), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers] == [201, 429]
    assert answers[1].json()["error"]["code"] == "TOO_MANY_KERNELS"
    assert "'key:small' has 1 kernels, its limit" in answers[1].json()["message"]
    kernel = answers[0].json()["id"]
    assert http.post("/api/kernels", headers=headers, json={}).status_code == 429
    (tmp_path / "kernel-1.json").write_text("{}")
    body = {"connection_file": str(tmp_path / "kernel-1.json")}
    attached = http.post("/api/kernels/attach", headers=headers, json=body)
    assert attached.json()["error"]["code"] == "TOO_MANY_KERNELS"
    assert http.delete(f"/api/kernels/{kernel}", headers=headers).status_code == 204
    again = http.post("/api/kernels", headers=headers, json={})
    assert again.status_code == 201
    http.delete(f"/api/kernels/{again.json()['id']}", headers=headers)


# What is kept of a caller


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def principal(name: str = "key:a", **limits: Any) -> Principal:
    return Principal(name, {}, limits=CallerLimits(**limits))


def test_a_rate_holds_over_time() -> None:
    """However messages are bundled, a caller comes to its rate and a burst of one second's worth."""
    clock = Clock()
    usage = CallerUsages(clock).of(principal(publishes_per_s=10))
    stored = 0
    for _ in range(1000):
        clock.now_s += 0.01
        for count in (1, 7):
            try:
                usage.count_publish(count, 0)
                stored += count
            except RateLimited:
                pass
    assert 100 <= stored <= 10 * 10 + 10 + 7


def test_a_callers_state_is_freed_when_it_is_gone() -> None:
    """It stays while a connection is there or a debt is owed, and no longer: a million callers leave nothing."""
    clock = Clock()
    usages = CallerUsages(clock)
    slot = usages.of(principal("key:connected", connections=1)).open_slot()
    usages.of(principal("key:owing", publishes_per_s=1)).count_publish(10, 0)
    for number in range(1000):
        usages.of(principal(f"jwt:issuer/{number}"))
    usages.sweep()
    assert len(usages) == 2
    clock.now_s += 9
    slot.release()
    slot.release()
    usages.sweep()
    assert len(usages) == 1
    clock.now_s += 2
    usages.sweep()
    assert len(usages) == 0


def test_a_connection_that_is_dropped_without_a_word_does_not_count() -> None:
    """Nothing has to remember to release a slot."""
    usage = CallerUsages().of(principal(connections=1))
    slot = usage.open_slot()
    with pytest.raises(TooManyConnections):
        usage.open_slot()
    del slot
    usage.open_slot()


def test_limits_that_change_count_at_once() -> None:
    """A keys file that was read again, or a token with other claims, changes what the caller may do."""
    clock = Clock()
    usages = CallerUsages(clock)
    usage = usages.of(principal(publishes_per_s=1))
    usage.count_publish(1, 0)
    with pytest.raises(RateLimited):
        usage.count_publish(1, 0)
    assert usages.of(principal()) is usage
    usage.count_publish(1_000_000, 0)
    usages.of(principal(publishes_per_s=5))
    usage.count_publish(1, 0)


def test_subscriptions_that_are_being_made_count() -> None:
    """Two connections that subscribe at the same moment do not both pass a limit of one."""
    usage = CallerUsages().of(principal(subscriptions=1))
    with (
        usage.reserve_subscription(("a", "b", "c")),
        pytest.raises(TooManySubscriptions),
        usage.reserve_subscription(("d", "b", "c")),
    ):
        pass
    with usage.reserve_subscription(("d", "b", "c")):
        pass
