"""Every limit is a setting, has a named error, and is met to the number."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from himalia.errors import TooManyReaders
from himalia.server.identity import Principal
from himalia.settings import DeliverySettings, LimitSettings, LogSettings
from tests.server.raw_clients import RawWebSocket, Wire, frame, handshake, until
from tests.servers import DEADLINE_S, RunningServer, ask, hear, message, say

Serve = Callable[..., RunningServer]
NDJSON = {"Content-Type": "application/x-ndjson"}


def code_of(answer: httpx.Response | dict[str, Any]) -> str:
    body = answer.json() if isinstance(answer, httpx.Response) else answer
    return str(body["error"]["code"])


def test_every_limit_has_a_test_here() -> None:
    """A limit that is added to the settings is added here as well."""
    others = [*LogSettings.model_fields, *DeliverySettings.model_fields]
    limits = [*LimitSettings.model_fields, *(name for name in others if name.endswith("_max"))]
    # How many ids are remembered is no limit on clients; the log's own tests have it.
    limits.remove("dedup_ids_max")
    assert len(limits) > 12
    tests = [name for name in vars(sys.modules[__name__]) if name.startswith("test_")]
    assert [limit for limit in limits if not any(limit in name for name in tests)] == []


# Sizes


async def test_message_bytes_max_is_the_largest_payload(serve: Serve) -> None:
    """A payload of ``message_bytes_max`` bytes is taken and one byte more is MESSAGE_TOO_LARGE, everywhere."""
    server = serve(auth=False, message_bytes_max=1000)
    server.create("orders")
    fits, too_large = "x" * 998, "x" * 999
    async with server.connect() as ws:
        assert (await ask(ws, type="publish", topic="orders", message=message(fits)))["type"] == "ack"
        answer = await ask(ws, type="publish", topic="orders", message=message(too_large))
        assert code_of(answer) == "MESSAGE_TOO_LARGE"
        await say(ws, type="publish", topic="orders", message=message("x" * 100_000))
        assert code_of(await hear(ws)) == "MESSAGE_TOO_LARGE"
        assert (await ask(ws, type="ping"))["type"] == "pong"
    with server.http() as http:
        assert http.post("/topics/orders/messages", json={"payload": fits}).status_code == 200
        for body in ({"payload": too_large}, [{"payload": 1}, {"payload": too_large}]):
            answer = http.post("/topics/orders/messages", json=body)
            assert (answer.status_code, code_of(answer)) == (413, "MESSAGE_TOO_LARGE")
        line = json.dumps({"payload": too_large})
        answer = http.post("/topics/orders/messages", content=line, headers=NDJSON)
        assert (answer.status_code, code_of(answer)) == (413, "MESSAGE_TOO_LARGE")
        assert http.get("/topics").json()["topics"][0]["messages"] == 2


async def test_headers_bytes_max_is_the_largest_headers(serve: Serve) -> None:
    """Headers are limited as JSON, with the stamps of the server in them."""
    server = serve(auth=False, headers_bytes_max=100)
    server.create("orders")
    empty = len(json.dumps({"a": "", "publisher": "anonymous", "caller": "anonymous"}, separators=(",", ":")))
    fits, too_large = {"a": "x" * (100 - empty)}, {"a": "x" * (101 - empty)}
    async with server.connect() as ws:
        for headers, expected in ((fits, "ack"), (too_large, "error")):
            answer = await ask(ws, type="publish", topic="orders", message=message(1, headers=headers))
            assert answer["type"] == expected
        assert code_of(answer) == "MESSAGE_TOO_LARGE"
    with server.http() as http:
        answer = http.post("/topics/orders/messages", json={"payload": 1, "headers": too_large})
        assert (answer.status_code, code_of(answer)) == (413, "MESSAGE_TOO_LARGE")


def test_bulk_bytes_max_is_the_largest_body_that_is_stored_whole(serve: Serve) -> None:
    """A list, or lines of a producer, are one transaction and so limited; nothing of a larger one is stored."""
    server = serve(auth=False, bulk_bytes_max=10_000)
    server.create("orders")
    several = [{"payload": "x" * 100} for _ in range(200)]
    lines = "".join(json.dumps(one) + "\n" for one in several)
    producer = {"producer": "p", "sequence": 1}
    with server.http() as http:
        answer = http.post("/topics/orders/messages", json=several)
        assert (answer.status_code, code_of(answer)) == (413, "MESSAGE_TOO_LARGE")
        answer = http.post("/topics/orders/messages", content=lines, headers=NDJSON, params=producer)
        assert (answer.status_code, code_of(answer)) == (413, "MESSAGE_TOO_LARGE")
        assert http.get("/topics").json()["topics"][0]["messages"] == 0
        # Lines without a producer are stored as they come, so their number has no limit.
        answer = http.post("/topics/orders/messages", content=lines, headers=NDJSON)
        assert answer.json()["count"] == 200


def test_a_line_of_ndjson_is_no_longer_than_a_message_whatever_bulk_bytes_max(serve: Serve) -> None:
    """A line that never ends is refused when it is longer than any message can be, not kept until then."""
    server = serve(auth=False, message_bytes_max=1000)
    server.create("orders")

    def endless() -> Any:
        yield b'{"payload":1}\n{"payload":"'
        for _ in range(200):
            yield b"x" * 100_000

    with server.http() as http:
        answer = http.post("/topics/orders/messages", content=endless(), headers=NDJSON)
        assert (answer.status_code, code_of(answer)) == (413, "MESSAGE_TOO_LARGE")
        assert "line 2" in answer.json()["error"]["message"]
        assert http.get("/topics").json()["topics"][0]["messages"] == 1


@pytest.mark.parametrize("message_bytes_max", [1000, 10_000_000])
def test_the_body_of_a_call_that_takes_fields_has_at_most_64_kib(
    serve: Serve, message_bytes_max: int
) -> None:
    """Whether it says its length or comes in chunks, and however large messages may be."""
    server = serve(auth=False, message_bytes_max=message_bytes_max)

    def create(content: Any) -> httpx.Response:
        return http.post("/topics", content=content, headers={"Content-Type": "application/json"})

    with server.http() as http:
        for name, chunked in (("whole", False), ("chunked", True)):
            text = json.dumps({"name": name}).encode().ljust(64 * 1024)
            answer = create(iter([text, b" "]) if chunked else text + b" ")
            assert (answer.status_code, code_of(answer)) == (413, "MESSAGE_TOO_LARGE")
            assert create(iter([text]) if chunked else text).status_code == 201


@pytest.mark.parametrize("kind", ["list", "long list", "lines with a producer"])
def test_bulk_messages_max_is_the_most_of_a_body_that_is_stored_whole(serve: Serve, kind: str) -> None:
    """One more is MESSAGE_TOO_LARGE and stores nothing; NDJSON that is stored as it comes in has any number."""
    server = serve(auth=False, bulk_messages_max=1000)
    server.create("orders")
    message = json.dumps({"payload": "x" * (1000 if kind == "long list" else 1)})
    lines = kind == "lines with a producer"
    path = "/topics/orders/messages" + ("?producer=p&sequence=1" if lines else "")
    headers = NDJSON if lines else {"Content-Type": "application/json"}
    with server.http() as http:
        for count, status in ((1001, 413), (1000, 200)):
            content = f"{message}\n" * count if lines else f"[{','.join([message] * count)}]"
            answer = http.post(path, content=content, headers=headers)
            assert answer.status_code == status, answer.text
        assert http.get("/topics").json()["topics"][0]["messages"] == 1000
        answer = http.post("/topics/orders/messages", content=f"{message}\n" * 2500, headers=NDJSON)
        assert answer.json()["count"] == 2500


def test_bodies_bytes_max_is_the_most_that_is_received_at_a_time(serve: Serve) -> None:
    """A body that could never be received does not wait for room. The others do: see test_request_body.py."""
    server = serve(auth=False, bodies_bytes_max=1_000_000)
    server.create("orders")
    with server.http() as http:
        for size, status in ((800_000, 200), (1_000_000, 413)):
            answer = http.post("/topics/orders/messages", json={"payload": "x" * size})
            assert answer.status_code == status


# Counts


async def test_connections_max_refuses_websockets_and_streams(serve: Serve) -> None:
    """TOO_MANY_CONNECTIONS with 503 before the handshake; who leaves makes room."""
    server = serve(auth=False, connections_max=2)
    server.create("orders")
    with Wire(server.port) as stream:
        stream.send(b"GET /topics/orders/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert stream.response()[0] == 200
        until(lambda: server.on_loop(lambda: len(server.context.streams)) == 1)
        async with server.connect():
            with pytest.raises(InvalidStatus) as refused:
                await server.connect()
            assert refused.value.response.status_code == 503
            assert json.loads(refused.value.response.body or b"")["error"]["code"] == "TOO_MANY_CONNECTIONS"
            with server.http() as http:
                answer = http.get("/topics/orders/events")
                assert (answer.status_code, code_of(answer)) == (503, "TOO_MANY_CONNECTIONS")
                assert http.get("/health").json()["connections"] == 2
        until(lambda: server.on_loop(lambda: server.context.connection_count) == 1)
        async with server.connect() as ws:
            assert (await ask(ws, type="ping"))["type"] == "pong"


async def test_subscriptions_max_is_per_connection(serve: Serve) -> None:
    """One more is TOO_MANY_SUBSCRIPTIONS; replacing one, or another connection, is not one more."""
    server = serve(auth=False, subscriptions_max=2)
    server.create("a", "b", "c")
    async with server.connect() as ws, server.connect() as other:
        for topic in ("a", "b"):
            assert (await ask(ws, type="subscribe", topic=topic, client_id="v"))["type"] == "ack"
        answer = await ask(ws, type="subscribe", topic="c", client_id="v")
        assert code_of(answer) == "TOO_MANY_SUBSCRIPTIONS"
        assert (await ask(ws, type="subscribe", topic="b", client_id="v"))["type"] == "ack"
        assert (await ask(other, type="subscribe", topic="c", client_id="w"))["type"] == "ack"
        await ask(ws, type="unsubscribe", topic="a", client_id="v")
        assert (await ask(ws, type="subscribe", topic="c", client_id="v"))["type"] == "ack"


async def test_cursors_max_is_for_the_whole_server(serve: Serve) -> None:
    """One topic followed more than the server allows is TOO_MANY_SUBSCRIPTIONS."""
    server = serve(auth=False, cursors_max=2)
    server.create("a", "b")
    async with server.connect() as ws, server.connect() as other:
        assert (await ask(ws, type="subscribe", topic="*", client_id="v"))["type"] == "ack"
        answer = await ask(other, type="subscribe", topic="a", client_id="w")
        assert code_of(answer) == "TOO_MANY_SUBSCRIPTIONS"
        with server.http() as http:
            answer = http.get("/topics/a/events")
            assert (answer.status_code, code_of(answer)) == (429, "TOO_MANY_SUBSCRIPTIONS")
        await ask(ws, type="unsubscribe", topic="*", client_id="v")
        assert (await ask(other, type="subscribe", topic="a", client_id="w"))["type"] == "ack"


async def test_cursors_max_counts_every_topic_of_a_pattern(serve: Serve) -> None:
    """A pattern that would follow too many topics is refused; a topic too many that is made later is told."""
    server = serve(auth=False, cursors_max=2)
    server.create("a", "b", "c")
    async with server.connect() as ws:
        answer = await ask(ws, type="subscribe", topic="*", client_id="v")
        assert code_of(answer) == "TOO_MANY_SUBSCRIPTIONS"
        with server.http() as http:
            http.delete("/topics/c").raise_for_status()
            assert (await ask(ws, type="subscribe", topic="*", client_id="v"))["type"] == "ack"
            http.post("/topics", json={"name": "d"}).raise_for_status()
        told = await hear(ws)
        assert (code_of(told), told["topic"]) == ("TOO_MANY_SUBSCRIPTIONS", "d")


async def test_filters_max_counts_distinct_filters(serve: Serve) -> None:
    """A filter that others use already costs nothing; a new one too many is TOO_MANY_SUBSCRIPTIONS."""
    server = serve(auth=False, filters_max=1)
    server.create("a")
    async with server.connect() as ws:
        for client_id in ("v", "w"):
            answer = await ask(ws, type="subscribe", topic="a", client_id=client_id, filter="offset > 1")
            assert answer["type"] == "ack"
        answer = await ask(ws, type="subscribe", topic="a", client_id="x", filter="offset > 2")
        assert code_of(answer) == "TOO_MANY_SUBSCRIPTIONS"
        for client_id in ("v", "w"):
            await ask(ws, type="unsubscribe", topic="a", client_id=client_id)
        answer = await ask(ws, type="subscribe", topic="a", client_id="x", filter="offset > 2")
        assert answer["type"] == "ack"


def test_topics_max_is_the_number_of_topics(serve: Serve) -> None:
    """One more is 429 TOO_MANY_TOPICS; deleting makes room."""
    server = serve(auth=False, topics_max=2)
    server.create("a", "b")
    with server.http() as http:
        answer = http.post("/topics", json={"name": "c"})
        assert (answer.status_code, code_of(answer)) == (429, "TOO_MANY_TOPICS")
        assert answer.headers["retry-after"]
        http.delete("/topics/a")
        assert http.post("/topics", json={"name": "c"}).status_code == 201


def test_producers_max_is_the_number_of_one_callers_producers(serve: Serve) -> None:
    """One name more, in any topic, is 429 TOO_MANY_PRODUCERS and stores nothing; names that are known go on."""
    server = serve(auth=False, producers_max=2)
    server.create("a", "b")
    with server.http() as http:

        def publish(topic: str, producer: str, sequence: int) -> httpx.Response:
            query: dict[str, str | int] = {"producer": producer, "sequence": sequence}
            return http.post(f"/topics/{topic}/messages", params=query, json=[{"payload": 1}])

        assert [publish(topic, "p", 1).status_code for topic in ("a", "b")] == [200, 200]
        answer = publish("a", "q", 1)
        assert (answer.status_code, code_of(answer)) == (429, "TOO_MANY_PRODUCERS")
        assert publish("a", "p", 2).json()["duplicates"] == 0
        assert [topic["messages"] for topic in http.get("/topics").json()["topics"]] == [2, 1]
        http.delete("/topics/b").raise_for_status()
        until(lambda: publish("a", "q", 1).status_code == 200)


async def test_topic_length_max_is_the_longest_name(serve: Serve) -> None:
    """A longer name is a bad request wherever a topic is named."""
    server = serve(auth=False, topic_length_max=10)
    with server.http() as http:
        assert http.post("/topics", json={"name": "x" * 10}).status_code == 201
        long = "x" * 11
        for answer in (
            http.post("/topics", json={"name": long}),
            http.delete(f"/topics/{long}"),
            http.post(f"/topics/{long}/messages", json={"payload": 1}),
            http.get(f"/topics/{long}/messages"),
            http.get(f"/topics/{long}/events"),
        ):
            assert (answer.status_code, code_of(answer)) == (422, "BAD_REQUEST")
    async with server.connect() as ws:
        for type in ("publish", "subscribe", "unsubscribe"):
            answer = await ask(ws, type=type, topic=long, client_id="v", message=message(1))
            assert code_of(answer) == "BAD_REQUEST"


# Rates and flow


async def test_publish_rate_max_is_per_connection_and_second(serve: Serve) -> None:
    """What comes too soon is RATE_LIMITED and not stored; a little later it is taken again."""
    server = serve(auth=False, publish_rate_max=20)
    server.create("orders")
    async with server.connect() as ws, server.connect() as other:
        answers = [await ask(ws, type="publish", topic="orders", message=message(i)) for i in range(60)]
        limited = [answer for answer in answers if answer["type"] == "error"]
        assert limited and {code_of(answer) for answer in limited} == {"RATE_LIMITED"}
        assert (await ask(other, type="publish", topic="orders", message=message(1)))["type"] == "ack"
        stored = 61 - len(limited)
        deadline = time.monotonic() + DEADLINE_S
        while (await ask(ws, type="publish", topic="orders", message=message(1)))["type"] == "error":
            assert time.monotonic() < deadline
        with server.http() as http:
            assert http.get("/topics").json()["topics"][0]["messages"] == stored + 1


async def pipelined(server: RunningServer, count: int, payload: Any = None) -> None:
    """Publish so many without waiting for anything; all are acknowledged, in order."""
    server.create("orders")
    async with server.connect() as ws:

        async def speak() -> None:
            for i in range(count):
                body = {"id": str(uuid.uuid4()), "payload": payload}
                await say(ws, type="publish", topic="orders", message=body, request_id=str(i))

        speaking = asyncio.create_task(speak())
        for i in range(count):
            answer = await hear(ws)
            assert (answer["type"], answer["request_id"], answer["offset"]) == ("ack", str(i), i)
        await speaking


@pytest.mark.slow
async def test_publishes_in_flight_max_pauses_reading_and_refuses_nothing(serve: Serve) -> None:
    """Whoever publishes faster than the log commits is slowed down: 20,000 are stored, in order."""
    await pipelined(serve(auth=False, publishes_in_flight_max=1), 20_000)


@pytest.mark.slow
async def test_in_flight_bytes_max_pauses_reading_and_refuses_nothing(serve: Serve) -> None:
    """The limit of bytes is shared by all; beyond it reading pauses, and goes on by itself."""
    server = serve(auth=False, in_flight_bytes_max=100)
    await pipelined(server, 20_000)
    assert server.on_loop(lambda: server.context.manager.in_flight_bytes) == 0


def test_in_flight_bytes_max_lets_several_publishers_take_turns(serve: Serve) -> None:
    """Nobody is forgotten on hold: every one of many publishers gets all its acknowledgements."""
    server = serve(auth=False, in_flight_bytes_max=2000, publishes_in_flight_max=8)
    server.create("orders")
    clients = [RawWebSocket(server) for _ in range(10)]
    with server.http() as http:
        for client in clients:
            bodies = [
                {"type": "publish", "topic": "orders", "message": message("x" * 100), "request_id": str(i)}
                for i in range(300)
            ]
            client.send(b"".join(frame(json.dumps(body).encode()) for body in bodies))
        assert http.post("/topics/orders/messages", json={"payload": "x" * 5000}).status_code == 200
        for client in clients:
            assert [client.hear()["request_id"] for _ in range(300)] == [str(i) for i in range(300)]
            client.socket.close()
        assert http.get("/topics").json()["topics"][0]["messages"] == 3001


def test_what_waits_behind_a_slow_command_is_bounded(serve: Serve) -> None:
    """Messages behind a command that waits for the log are not read into memory, and lose neither place nor order."""
    server = serve(auth=False, heartbeat_s=3600)
    server.create("orders")
    released = threading.Event()
    offset_at = server.context.log.offset_at

    async def slow(topic: str, ts_us: int) -> int:
        while not released.is_set():
            await asyncio.sleep(0.01)
        return await offset_at(topic, ts_us)

    server.context.log.offset_at = slow  # type: ignore[method-assign]
    with RawWebSocket(server) as raw:
        raw.say(type="subscribe", topic="orders", client_id="v", since=0, request_id="first")
        large = [
            {"type": "publish", "topic": "orders", "message": message("x" * 500_000), "request_id": str(i)}
            for i in range(60)
        ]
        speaking = threading.Thread(target=lambda: [raw.say(**body) for body in large])
        speaking.start()
        connection = server.on_loop(lambda: next(iter(server.context.connections)))
        until(lambda: not server.on_loop(lambda: connection._flow.is_reading))
        assert server.on_loop(lambda: sum(map(len, connection._waiting))) < 3_000_000
        released.set()
        answers = []
        while len(answers) < 61:
            heard = raw.hear()
            if heard["type"] != "event":
                answers.append(heard["request_id"])
        assert answers == ["first", *map(str, range(60))]
        speaking.join()


# What a subscription may ask for


async def test_last_n_max_is_the_most_that_is_replayed(serve: Serve) -> None:
    """``last_n`` beyond the limit is a bad request on the WebSocket, in a stream and in a read."""
    server = serve(auth=False, last_n_max=5)
    server.create("orders")
    async with server.connect() as ws:
        fields = {"type": "subscribe", "topic": "orders", "client_id": "v"}
        assert (await ask(ws, **fields, last_n=5))["type"] == "ack"
        assert code_of(await ask(ws, **fields, last_n=6)) == "BAD_REQUEST"
    with server.http() as http:
        assert http.get("/topics/orders/messages", params={"last": 5}).status_code == 200
        for path, name in (("messages", "last"), ("events", "last_n")):
            answer = http.get(f"/topics/orders/{path}", params={name: 6})
            assert (answer.status_code, code_of(answer)) == (422, "BAD_REQUEST")


async def test_filter_length_max_is_the_longest_filter(serve: Serve) -> None:
    """A longer filter is not even compiled."""
    server = serve(auth=False, filter_length_max=10)
    server.create("orders")
    async with server.connect() as ws:
        fields = {"type": "subscribe", "topic": "orders", "client_id": "v"}
        assert (await ask(ws, **fields, filter="offset > 1"))["type"] == "ack"
        assert code_of(await ask(ws, **fields, filter="offset > 10")) == "BAD_FILTER"
    with server.http() as http:
        answer = http.get("/topics/orders/events", params={"filter": "offset > 10"})
        assert (answer.status_code, code_of(answer)) == (422, "BAD_FILTER")


async def test_subscriber_limit_max_is_the_largest_limit(serve: Serve) -> None:
    """How far a subscriber may ask to fall behind is the server's to bound."""
    server = serve(auth=False, subscriber_limit_max=10)
    server.create("orders")
    async with server.connect() as ws:
        fields = {"type": "subscribe", "topic": "orders", "client_id": "v"}
        assert (await ask(ws, **fields, limit=10))["type"] == "ack"
        assert code_of(await ask(ws, **fields, limit=11)) == "BAD_REQUEST"
    with server.http() as http:
        answer = http.get("/topics/orders/events", params={"limit": 11})
        assert (answer.status_code, code_of(answer)) == (422, "BAD_REQUEST")


def test_write_buffer_bytes_and_chunk_bytes_bound_what_waits_for_a_slow_peer(serve: Serve) -> None:
    """What the server holds for a subscriber that does not read is about one buffer and one chunk."""
    server = serve(auth=False, write_buffer_bytes=4096, chunk_bytes=8192, heartbeat_s=3600)
    server.create("orders")
    with RawWebSocket(server, receive_bytes=4096) as raw, server.http() as http:
        raw.ask(type="subscribe", topic="orders", client_id="v", policy="lossless")
        line = json.dumps({"payload": "x" * 1000}) + "\n"
        http.post("/topics/orders/messages", content=line * 10_000, headers=NDJSON)
        until(lambda: http.get("/stats").json()["topics"]["orders"]["lag"])
        assert http.get("/stats").json()["queue_bytes"] <= 4096 + 2 * 8192
        events = 0
        while events < 10_000:
            heard = raw.hear()
            assert (heard["type"], heard["offset"]) == ("event", events)
            events += 1


def test_handshake_timeout_s_does_not_end_a_request_that_has_begun(serve: Serve) -> None:
    """The limit is on the head of a request; a body, or an open WebSocket, may take its time."""
    # So long that a busy machine sends a head in it; each head is sent as soon as its connection is open.
    server = serve(auth=False, handshake_timeout_s=2)
    with RawWebSocket(server) as raw, Wire(server.port) as slow:
        slow.send(
            b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n"
            b"Content-Type: application/json\r\n\r\n"
        )
        with Wire(server.port) as silent:
            assert silent.until_end() == b""  # the limit has passed for all three
        slow.send(b'{"name":"orders"}')
        assert slow.response()[0] == 201
        assert raw.is_alive()


def test_a_kept_alive_connection_has_the_limit_again_for_its_next_request(serve: Serve) -> None:
    """A second request that never ends is let go like a first one."""
    server = serve(auth=False, handshake_timeout_s=0.2)
    with Wire(server.port) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.response()[0] == 200
        wire.send(b"GET /health HTTP/1.1\r\nHos")
        assert wire.until_end() == b""


def test_a_handshake_is_answered_within_the_same_limits_on_every_connection(serve: Serve) -> None:
    """Refusing many does not wear the server out."""
    server = serve(auth=False, connections_max=1)
    with RawWebSocket(server) as raw:
        for _ in range(50):
            with Wire(server.port) as wire:
                wire.send(handshake(server.port))
                assert wire.response()[0] == 503
        assert raw.is_alive()


def test_readers_max_refuses_more_readers_by_name(serve: Serve) -> None:
    """The answer says which limit it is, and there is room again when a reader has gone."""
    server = serve(auth=False, readers_max=1)
    server.create("orders")
    path = "/topics/orders/messages"
    with Wire(server.port, receive_bytes=4096) as slow, server.http() as http:
        line = json.dumps({"payload": "x" * 100_000}) + "\n"
        http.post(path, content=line * 200, headers=NDJSON).raise_for_status()
        slow.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n".encode())
        until(lambda: server.on_loop(lambda: server.context.readers) == 1)
        refused = http.get(path, params={"limit": 1})
        assert (refused.status_code, code_of(refused)) == (503, "TOO_MANY_READERS")
        assert "readers_max" in refused.json()["error"]["message"]
        slow.socket.close()
        until(lambda: http.get(path, params={"limit": 1}).status_code == 200)


def test_one_caller_does_not_take_all_places_for_readers(serve: Serve) -> None:
    """The last ones are for callers that have none, one for each."""
    context = serve(auth=False, readers_max=16).context
    greedy, modest, other = (Principal(name, {}) for name in ("key:greedy", "key:modest", "key:other"))
    for _ in range(14):
        context.admit_reader(greedy)
    with pytest.raises(TooManyReaders, match=r"14 of them of 'key:greedy'.*readers_max"):
        context.admit_reader(greedy)
    context.admit_reader(modest)
    with pytest.raises(TooManyReaders):
        context.admit_reader(modest)
    context.admit_reader(other)
    with pytest.raises(TooManyReaders):
        context.admit_reader(Principal("key:late", {}))
    for caller, count in ((greedy, 14), (modest, 1), (other, 1)):
        for _ in range(count):
            context.release_reader(caller)
    assert context.readers == 0


def two_callers(path: Path) -> dict[str, dict[str, str]]:
    """Write a keys file with two callers, and say what each of them sends."""
    secrets = {name: f"{name}-0123456789abcdef" for name in ("greedy", "other")}
    path.write_text(
        "".join(
            f'[keys.{name}]\nkey = "{secret}"\nsubscribe = [">"]\nmanage = [">"]\n'
            for name, secret in secrets.items()
        )
    )
    path.chmod(0o600)
    return {name: {"X-API-Key": secret} for name, secret in secrets.items()}


async def test_one_caller_does_not_take_all_places_for_connections(serve: Serve, tmp_path: Path) -> None:
    """One in eight of ``connections_max`` is for others, WebSockets and event streams alike."""
    callers = two_callers(tmp_path / "keys.toml")
    server = serve(keys_file=tmp_path / "keys.toml", connections_max=16)
    async with AsyncExitStack() as stack:
        for _ in range(14):
            await stack.enter_async_context(server.connect(additional_headers=callers["greedy"]))
        with pytest.raises(InvalidStatus) as refused:
            await server.connect(additional_headers=callers["greedy"])
        body = json.loads(refused.value.response.body or b"")
        assert body["error"]["code"] == "TOO_MANY_CONNECTIONS"
        assert "'key:greedy' has 14 connections open" in body["error"]["message"]
        with server.http() as http:
            http.post("/topics", json={"name": "orders"}, headers=callers["other"]).raise_for_status()
            answer = http.get("/topics/orders/events", headers=callers["greedy"])
            assert (answer.status_code, code_of(answer)) == (503, "TOO_MANY_CONNECTIONS")
        for _ in range(2):
            ws = await stack.enter_async_context(server.connect(additional_headers=callers["other"]))
            assert (await ask(ws, type="ping"))["type"] == "pong"


async def test_one_caller_does_not_take_all_cursors(serve: Serve, tmp_path: Path) -> None:
    """One in eight of ``cursors_max`` is for others; who unsubscribes has room again."""
    callers = two_callers(tmp_path / "keys.toml")
    server = serve(keys_file=tmp_path / "keys.toml", cursors_max=16)
    with server.http(headers=callers["other"]) as http:
        for topic in ("a.1", "a.2", "b"):
            http.post("/topics", json={"name": topic}).raise_for_status()
    async with (
        server.connect(additional_headers=callers["greedy"]) as greedy,
        server.connect(additional_headers=callers["other"]) as other,
    ):
        for number in range(7):
            answer = await ask(greedy, type="subscribe", topic="a.*", client_id=f"v{number}")
            assert answer["type"] == "ack"
        answer = await ask(greedy, type="subscribe", topic="b", client_id="v")
        assert code_of(answer) == "TOO_MANY_SUBSCRIPTIONS"
        assert "'key:greedy' has 14 cursors" in answer["error"]["message"]
        with server.http(headers=callers["other"]) as http:
            http.post("/topics", json={"name": "a.3"}).raise_for_status()
        told = await hear(greedy)
        assert (code_of(told), told["topic"]) == ("TOO_MANY_SUBSCRIPTIONS", "a.3")
        for topic in ("a.1", "b"):
            assert (await ask(other, type="subscribe", topic=topic, client_id="w"))["type"] == "ack"
        await ask(greedy, type="unsubscribe", topic="a.*", client_id="v0")
        until(lambda: server.on_loop(lambda: server.context.manager.subscriptions.cursor_count) == 14)


# Tables


async def granted(server: RunningServer, *callers: str) -> int:
    """How many of these callers get a slot for a query at once."""
    slots = server.context.tables._slots
    waiting = [asyncio.ensure_future(slots.acquire(caller, 60)) for caller in callers]
    await asyncio.sleep(0.05)
    count = sum(one.done() for one in waiting)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return count


async def test_queries_max_is_how_many_run_at_a_time(serve: Serve) -> None:
    """Queries of tables beyond the limit wait, for every caller."""
    assert await granted(serve(auth=False, queries_max=2, queries_per_caller=1), "a", "b", "c") == 2


async def test_queries_per_caller_leaves_slots_to_others(serve: Serve) -> None:
    """One caller runs as many queries as it may have, and the rest of the slots stay free."""
    assert await granted(serve(auth=False, queries_max=3, queries_per_caller=1), "a", "a", "b") == 2
