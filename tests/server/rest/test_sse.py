"""A topic as Server-Sent Events: the same subscription as on the WebSocket, for browsers and ``curl``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.server.raw_clients import RawWebSocket, Wire, until
from tests.servers import DEADLINE_S, RunningServer

Serve = Callable[..., RunningServer]
NDJSON = {"Content-Type": "application/x-ndjson"}


class Event(dict[str, Any]):
    """One event: ``id`` and ``event`` of the stream, and the fields of its data."""

    id: str | None = None
    event: str = "message"
    comment: str | None = None


def parsed(lines: Iterator[str]) -> Iterator[Event]:
    """Events as a browser would see them; comments as events with nothing but a comment."""
    event, data = Event(), ""
    for line in lines:
        if line.startswith(":"):
            event.comment = line[1:].strip()
        elif line:
            name, _, value = line.partition(": ")
            if name == "data":
                data += value
            else:
                setattr(event, name, value)
        else:
            if data:
                event.update(json.loads(data))
            yield event
            event, data = Event(), ""


def lines(parts: Iterator[bytes]) -> Iterator[str]:
    """Lines as they come. httpx would also break them at signs that are no line breaks here."""
    text = b""
    for part in parts:
        *whole, text = (text + part).split(b"\n")
        for line in whole:
            yield line.decode()


class Stream:
    """A stream that is open. Comments are skipped unless they are waited for."""

    def __init__(self, server: RunningServer, topic: str = "orders", **options: Any) -> None:
        self._http = server.http()
        headers = options.pop("headers", {})
        self._context = self._http.stream("GET", f"/topics/{topic}/events", params=options, headers=headers)

    def __enter__(self) -> Stream:
        self.response = self._context.__enter__()
        assert self.response.status_code == 200
        self._events = parsed(lines(self.response.iter_bytes()))
        assert next(self._events).comment == "connected"
        return self

    def __exit__(self, *exit: Any) -> None:
        self._context.__exit__(*exit)
        self._http.close()

    def next(self) -> Event:
        return next(event for event in self._events if event.comment is None)

    def next_comment(self) -> str:
        return next(event.comment for event in self._events if event.comment is not None)


def publish(server: RunningServer, *payloads: Any, topic: str = "orders") -> None:
    with server.http() as http:
        http.post(
            f"/topics/{topic}/messages", json=[{"payload": payload} for payload in payloads]
        ).raise_for_status()


@pytest.fixture
def server(emptied: RunningServer) -> RunningServer:
    return emptied


@pytest.fixture
def orders(server: RunningServer) -> RunningServer:
    server.create("orders")
    return server


def test_events_come_as_they_are_published_with_their_offset_as_id(orders: RunningServer) -> None:
    """An event is the WebSocket's event, and its id is its offset."""
    with Stream(orders) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["cache-control"] == "no-store"
        publish(orders, {"sku": "A"}, "b\nc\r\u2028d")
        first, second = stream.next(), stream.next()
    assert (first.id, first.event) == ("0", "message")
    assert {name: first[name] for name in ("type", "topic", "offset")} == {
        "type": "event",
        "topic": "orders",
        "offset": 0,
    }
    assert first["message"]["payload"] == {"sku": "A"}
    assert (second.id, second["message"]["payload"]) == ("1", "b\nc\r\u2028d")


def test_line_breaks_in_a_payload_do_not_break_an_event(orders: RunningServer) -> None:
    """A payload that was written over several lines is one line of data."""
    pretty = json.dumps({"payload": {"a": [1, 2]}}, indent=2).replace("\n", "\r\n")
    with Stream(orders) as stream, orders.http() as http:
        http.post(
            "/topics/orders/messages", content=pretty, headers={"Content-Type": "application/json"}
        ).raise_for_status()
        assert stream.next()["message"]["payload"] == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"last_n": 0}, []),
        ({"last_n": 2}, [3, 4]),
        ({"last_n": 100}, [0, 1, 2, 3, 4]),
        ({"from": 1}, [1, 2, 3, 4]),
        ({"from": 5}, []),
        ({"since": "1970-01-01"}, [0, 1, 2, 3, 4]),
        ({"since": "2999-01-01T00:00:00Z"}, []),
        ({"headers": {"Last-Event-ID": "2"}}, [3, 4]),
        ({"headers": {"Last-Event-ID": "4"}}, []),
        ({"headers": {"Last-Event-ID": "2"}, "last_n": 5}, [3, 4]),
        ({"headers": {"Last-Event-ID": "2"}, "from": 0}, [3, 4]),
        ({"headers": {"Last-Event-ID": "2"}, "since": 0}, [3, 4]),
        ({"headers": {"Last-Event-ID": ""}, "last_n": 1}, [4]),
        ({"from": 0, "filter": "message.payload > 2"}, [3, 4]),
    ],
    ids=repr,
)
def test_a_stream_begins_where_it_is_told_and_goes_on_live(
    orders: RunningServer, options: dict[str, Any], expected: list[int]
) -> None:
    """By count, offset, time, or behind the last event seen, which wins; then what comes, nothing twice."""
    publish(orders, 0, 1, 2, 3, 4)
    with Stream(orders, **options) as stream:
        publish(orders, 5, 6)
        offsets = [stream.next()["offset"] for _ in range(len(expected) + 2)]
    assert offsets == [*expected, 5, 6]


def test_a_reader_that_comes_back_misses_nothing(orders: RunningServer) -> None:
    """Reconnecting with the last id, as a browser does, gives every event exactly once."""
    seen: list[int] = []
    for number in range(5):
        headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
        with Stream(orders, headers=headers, **({} if seen else {"from": 0})) as stream:
            publish(orders, *range(3))
            seen += [int(stream.next().id or "") for _ in range(3 if number % 2 else 2)]
        publish(orders, "while away")
    assert seen == list(range(len(seen)))


@pytest.mark.parametrize(
    "last_event_id", ["x", "-1", "1.5", "0x1", "1 2", "9" * 19, "\u0661", "\u00b2"], ids=repr
)
def test_a_last_event_id_that_is_no_offset_is_a_bad_request(
    orders: RunningServer, last_event_id: str
) -> None:
    """A resume that cannot be understood is refused, not begun somewhere."""
    with orders.http() as http:
        headers = [(b"Last-Event-ID", last_event_id.encode())]
        answer = http.get("/topics/orders/events", headers=headers)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "BAD_REQUEST")


def test_a_resume_that_cannot_be_honoured_is_told_as_a_gap(serve: Serve) -> None:
    """Events that retention took are named, and delivery begins at the oldest one kept."""
    server = serve(auth=False, log="memory://")
    server.create("orders", count=2)
    publish(server, *range(5))
    with Stream(server, headers={"Last-Event-ID": "0"}) as stream:
        gap = stream.next()
        assert (gap.event, gap.id, gap["msg"]) == ("info", None, "gap")
        assert (gap["requested"], gap["first"], gap["end"]) == (1, 3, 5)
        assert [stream.next()["offset"] for _ in range(2)] == [3, 4]


def test_an_offset_of_another_epoch_is_told_as_a_gap(orders: RunningServer) -> None:
    """Who read a topic that was made again since is not given other data under the old offsets."""
    publish(orders, 1)
    with Stream(orders, **{"from": 0, "epoch": "0123456789abcdef"}) as stream:
        assert stream.next()["msg"] == "gap"
        assert stream.next()["offset"] == 0


@pytest.mark.parametrize("options", [{"from": 3}, {"headers": {"Last-Event-ID": "2"}}], ids=repr)
def test_an_offset_beyond_the_end_is_waited_for(orders: RunningServer, options: dict[str, Any]) -> None:
    """A stream that begins beyond the end sends no earlier record: its first event is the one asked for."""
    publish(orders, 0)
    with Stream(orders, **options) as stream:
        publish(orders, 1, 2, 3, 4)
        assert [stream.next()["offset"] for _ in range(2)] == [3, 4]


def test_a_heartbeat_comes_when_nothing_else_does(serve: Serve) -> None:
    """A comment keeps the way open, and tells proxies and readers that the server is there."""
    server = serve(auth=False, heartbeat_s=0.1)
    server.create("orders")
    with Stream(server) as stream:
        assert stream.next_comment() == "ping"
        assert stream.next_comment() == "ping"
        publish(server, 1)
        assert stream.next()["offset"] == 0
        assert stream.next_comment() == "ping"


def test_a_pattern_follows_topics_that_are_made_later(server: RunningServer) -> None:
    """A stream may follow many topics; each event names its own."""
    server.create("orders.eu")
    with Stream(server, "orders.*") as stream:
        server.create("orders.us", "news")
        created = stream.next()
        assert (created.event, created["msg"], created["topic"]) == ("info", "topic_created", "orders.us")
        for topic in ("news", "orders.us", "orders.eu"):
            publish(server, 1, topic=topic)
        assert [stream.next()["topic"] for _ in range(2)] == ["orders.us", "orders.eu"]


def test_a_deleted_topic_is_told(orders: RunningServer) -> None:
    """The end of a topic is an event of its stream."""
    with Stream(orders) as stream, orders.http() as http:
        http.delete("/topics/orders").raise_for_status()
        assert stream.next()["msg"] == "topic_deleted"


def test_a_filter_that_fails_is_told_as_an_error(orders: RunningServer) -> None:
    """Errors are events of that name, and the stream goes on."""
    with Stream(orders, filter="message.payload.a == 1") as stream:
        publish(orders, 0, {"a": 1})
        heard = [stream.next(), stream.next()]
    assert sorted(event.event for event in heard) == ["error", "message"]
    assert next(e["error"]["code"] for e in heard if e.event == "error") == "FILTER_FAILED"


@pytest.mark.parametrize(
    ("topic", "options", "status", "code"),
    [
        ("missing", {}, 404, "TOPIC_NOT_FOUND"),
        ("no topic", {}, 422, "BAD_REQUEST"),
        ("orders", {"last_n": -1}, 422, "BAD_REQUEST"),
        ("orders", {"last_n": "x"}, 422, "BAD_REQUEST"),
        ("orders", {"from": -1}, 422, "BAD_REQUEST"),
        ("orders", {"from": 1 << 63}, 422, "BAD_REQUEST"),
        ("orders", {"since": "yesterday"}, 422, "BAD_REQUEST"),
        ("orders", {"last_n": 1, "from": 1}, 422, "BAD_REQUEST"),
        ("orders", {"epoch": "x"}, 422, "BAD_REQUEST"),
        ("orders", {"policy": "lossy"}, 422, "BAD_REQUEST"),
        ("orders", {"limit": 0}, 422, "BAD_REQUEST"),
        ("orders", {"filter": "("}, 422, "BAD_FILTER"),
    ],
    ids=repr,
)
def test_a_stream_that_cannot_be_is_refused(
    orders: RunningServer, topic: str, options: dict[str, Any], status: int, code: str
) -> None:
    """Errors come as answers, before the stream begins."""
    with orders.http() as http:
        answer = http.get(f"/topics/{topic}/events", params=options)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def flood(server: RunningServer, count: int) -> None:
    with server.http() as http:
        line = json.dumps({"payload": "x" * 5000}) + "\n"
        http.post("/topics/orders/messages", content=line * count, headers=NDJSON).raise_for_status()


def slow_stream(server: RunningServer, query: str) -> Wire:
    """A stream that nobody reads yet, with little room between server and client."""
    wire = Wire(server.port, receive_bytes=4096)
    wire.send(f"GET /topics/orders/events?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert wire.response()[0] == 200
    return wire


def chunks(wire: Wire) -> Iterator[bytes]:
    """The parts of a chunked response, as they come."""
    while True:
        size = b""
        while not size.endswith(b"\r\n"):
            size += wire.exactly(1)
        if not int(size, 16):
            return
        yield wire.exactly(int(size, 16))
        wire.exactly(2)


def until_lagging(server: RunningServer) -> None:
    with server.http() as http:
        until(lambda: http.get("/stats").json()["topics"]["orders"]["lag"] > 200)


@pytest.mark.slow
def test_a_slow_reader_is_told_what_it_missed(serve: Serve) -> None:
    """Under ``drop_oldest`` a notice names exactly the offsets that were skipped: events and notices have no hole."""
    server = serve(auth=False)
    server.create("orders")
    with slow_stream(server, "policy=drop_oldest&limit=10") as wire:
        while True:
            flood(server, 1000)
            with server.http() as http:
                if http.get("/stats").json()["topics"]["orders"]["lag"] > 100:
                    break
        with server.http() as http:
            end = http.get("/topics").json()["topics"][0]["end"]
        at = dropped = 0
        for event in parsed(lines(chunks(wire))):
            if event.comment is not None:
                continue
            if event.event == "info":
                assert event["msg"] == "dropped"
                assert (event["first"], event["count"]) == (at, event["last"] - event["first"] + 1)
                at, dropped = event["last"] + 1, dropped + event["count"]
            else:
                assert event["offset"] == at
                at += 1
            if at == end:
                break
        assert dropped > 0


def test_a_slow_reader_under_lossless_gets_everything(serve: Serve) -> None:
    """Who may not miss anything reads the log at its own pace."""
    server = serve(auth=False)
    server.create("orders")
    with slow_stream(server, "policy=lossless") as wire:
        flood(server, 2000)
        until_lagging(server)
        with server.http() as http:
            assert http.get("/stats").json()["queue_bytes"] < 1_000_000
        events = (event for event in parsed(lines(chunks(wire))) if event.comment is None)
        assert [next(events)["offset"] for _ in range(2000)] == list(range(2000))


def test_a_slow_reader_under_disconnect_is_told_and_ended(serve: Serve) -> None:
    """SLOW_CONSUMER says where to resume, and then the stream ends."""
    server = serve(auth=False)
    server.create("orders")
    with slow_stream(server, "policy=disconnect&limit=10") as wire:
        while True:
            flood(server, 1000)
            with server.http() as http:
                if not http.get("/health").json()["subscribers"]:
                    break
                stats = http.get("/stats").json()["subscribers"]
                if stats and stats[0]["lag"] > 2000:
                    break
        events = [event for event in parsed(lines(chunks(wire))) if event.comment is None]
        assert events[-1].event == "error"
        assert events[-1]["error"]["code"] == "SLOW_CONSUMER"
        assert f"from={len(events) - 1}" in events[-1]["error"]["message"]
    until(lambda: server.on_loop(lambda: server.context.connection_count) == 0)


def test_a_reader_that_goes_away_leaves_no_ghost(orders: RunningServer) -> None:
    """A stream ends with its connection, whether or not anything is published."""
    with Stream(orders):
        until(lambda: orders.on_loop(lambda: orders.context.manager.subscriber_count) == 1)
    until(lambda: orders.on_loop(lambda: orders.context.manager.subscriber_count) == 0)
    until(lambda: orders.on_loop(lambda: orders.context.connection_count) == 0)


def test_a_reader_that_goes_away_before_the_answer_leaves_no_ghost(orders: RunningServer) -> None:
    """Who vanishes while the subscription is being made is not subscribed for ever."""
    publish(orders, 1, 2, 3)
    # Recent records are at hand; only older ones take a moment to find, in which a client can vanish.
    for query in ("since=1970-01-01", "from=0", "last_n=1"):
        for _ in range(20):
            wire = Wire(orders.port)
            wire.send(f"GET /topics/orders/events?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            wire.reset()
    with orders.http() as http:
        assert http.get("/health").status_code == 200
        until(lambda: http.get("/health").json()["subscribers"] == 0)
        until(lambda: http.get("/health").json()["connections"] == 0)


def test_many_readers_and_a_websocket_see_the_same(orders: RunningServer) -> None:
    """A stream is a cursor like any other: the same records, the same offsets, the same times."""
    with Stream(orders) as one, Stream(orders) as two, RawWebSocket(orders) as three:
        three.ask(type="subscribe", topic="orders", client_id="v")
        publish(orders, 1)
        seen = [one.next(), two.next(), three.hear()]
    assert seen[0] == seen[1] == seen[2]


def test_a_stream_opens_at_once(orders: RunningServer) -> None:
    """Headers and a first comment come before any event, so that a client knows it is connected."""
    began = time.monotonic()
    with Stream(orders):
        assert time.monotonic() - began < DEADLINE_S / 2


def test_a_head_request_is_not_a_stream(orders: RunningServer) -> None:
    """Only GET opens a stream; anything else is 405 in the one shape of errors."""
    with orders.http() as http:
        answer: httpx.Response = http.post("/topics/orders/events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "METHOD_NOT_ALLOWED")
