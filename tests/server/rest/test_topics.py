"""Creating, listing and deleting topics over REST, and their retention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.raw_clients import RawWebSocket, until
from tests.server.rest.calls import JSON, Serve, error_of, post
from tests.servers import RunningServer


@pytest.fixture
def server(emptied: RunningServer) -> RunningServer:
    return emptied


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    server.create("orders")
    with server.http() as http:
        yield http


def test_creating_a_topic(http: httpx.Client) -> None:
    """201 with the name; a second time is 409."""
    answer = http.post("/topics", json={"name": "news.today"})
    assert (answer.status_code, answer.json()) == (201, {"status": "created", "topic": "news.today"})
    assert error_of(http.post("/topics", json={"name": "news.today"})) == (409, "TOPIC_EXISTS")


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "a..b"},
        {"name": "a.*"},
        {"name": ">"},
        {"name": "ä"},
        {"name": "x" * 256},
        {"name": 1},
        {"name": None},
        {},
        [],
        "orders",
        {"name": "a", "colour": "red"},
        {"name": "a", "retention": 1},
        {"name": "a", "retention": {"age_s": -1}},
        {"name": "a", "retention": {"bytes": -1}},
        {"name": "a", "retention": {"count": 1.5}},
        {"name": "a", "retention": {"count": 1 << 63}},
        {"name": "a", "retention": {"colour": 1}},
    ],
    ids=repr,
)
def test_a_topic_that_cannot_be_is_422(http: httpx.Client, body: Any) -> None:
    """Names and retention are checked before anything is made."""
    assert error_of(http.post("/topics", json=body)) == (422, "BAD_REQUEST")
    assert len(http.get("/topics").json()["topics"]) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"name":', b"\xff", b'{"name":"\xff"}', b"[" * 50_000, b'{"name":"a"}x', b"NaN"],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_not_json_is_422(http: httpx.Client, body: bytes) -> None:
    """Whatever is wrong with a body has the same status and code."""
    headers = {"Content-Type": JSON}
    assert error_of(http.post("/topics", content=body, headers=headers)) == (422, "BAD_REQUEST")
    answer = http.post("/topics/orders/messages", content=body, headers=headers)
    assert error_of(answer) == (422, "BAD_REQUEST")


def test_deleting_a_topic(server: RunningServer, http: httpx.Client) -> None:
    """200 with the name, its subscribers are told and unsubscribed; a second time is 404."""
    with RawWebSocket(server) as raw:
        raw.ask(type="subscribe", topic="orders", client_id="v")
        answer = http.delete("/topics/orders")
        assert (answer.status_code, answer.json()) == (200, {"status": "deleted", "topic": "orders"})
        told = raw.hear()
        assert (told["type"], told["msg"], told["topic"]) == ("info", "topic_deleted", "orders")
    assert error_of(http.delete("/topics/orders")) == (404, "TOPIC_NOT_FOUND")
    assert error_of(http.get("/topics/orders/messages")) == (404, "TOPIC_NOT_FOUND")
    assert error_of(post(http, {"payload": 1})) == (404, "TOPIC_NOT_FOUND")
    assert error_of(post(http, '{"payload": 1}')) == (404, "TOPIC_NOT_FOUND")


def test_listing_topics(server: RunningServer, http: httpx.Client) -> None:
    """Every topic by name, with its subscribers, its range and its retention."""
    server.create("news", count=5, age_s=60, bytes=1000)
    post(http, {"payload": "x"})
    with RawWebSocket(server) as raw:
        raw.ask(type="subscribe", topic="orders", client_id="v")
        news, orders = http.get("/topics").json()["topics"]
    assert (news["name"], news["subscribers"], news["retention"]) == (
        "news",
        0,
        {"age_s": 60.0, "bytes": 1000, "count": 5},
    )
    assert {name: orders[name] for name in ("name", "subscribers", "messages", "first", "end")} == {
        "name": "orders",
        "subscribers": 1,
        "messages": 1,
        "first": 0,
        "end": 1,
    }
    assert orders["bytes"] > 0 and len(orders["epoch"]) == 16 and orders["created"].endswith("Z")


def test_a_topic_that_was_made_again_has_another_epoch(http: httpx.Client) -> None:
    """The same name is not the same topic: offsets begin again, under another epoch."""
    epochs = []
    for _ in range(2):
        answer = post(http, {"payload": 1}).json()
        assert answer["offset"] == 0
        epochs.append(answer["epoch"])
        http.delete("/topics/orders").raise_for_status()
        http.post("/topics", json={"name": "orders"}).raise_for_status()
    assert epochs[0] != epochs[1]


def test_retention_of_a_topic_by_count(serve: Serve) -> None:
    """A topic keeps as much as it was told to, and reads say where it begins now."""
    server = serve(auth=False, log="memory://")
    server.create("orders", count=3)
    with server.http() as http:
        post(http, [{"payload": i} for i in range(10)])
        answer = http.get("/topics/orders/messages").json()
        assert [one["offset"] for one in answer["messages"]] == [7, 8, 9]
        assert (answer["next"], answer["end"]) == (10, 10)


def test_retention_of_a_topic_in_the_durable_log(server: RunningServer, http: httpx.Client) -> None:
    """Retention works by itself, a little later; what is gone is not read as something else."""
    server.create("short", count=3)
    for i in range(10):
        http.post("/topics/short/messages", json={"payload": i}).raise_for_status()

    def first() -> int:
        found = {one["name"]: one for one in http.get("/topics").json()["topics"]}
        return int(found["short"]["first"])

    until(lambda: first() == 7)
    found = http.get("/topics/short/messages", params={"from": 2}).json()["messages"]
    assert [one["offset"] for one in found] == [7, 8, 9]
