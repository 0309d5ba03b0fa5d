"""Reading stored records through a filter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.servers import RunningServer


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    server.create("orders")
    with server.http() as client:
        yield client


def publish(http: httpx.Client, *payloads: Any) -> None:
    http.post("/topics/orders/messages", json=[{"payload": one} for one in payloads]).raise_for_status()


def read(http: httpx.Client, **params: Any) -> dict[str, Any]:
    answer = http.get("/topics/orders/messages", params=params).raise_for_status()
    return answer.json()  # type: ignore[no-any-return]


def offsets(answer: dict[str, Any]) -> list[int]:
    return [one["offset"] for one in answer["messages"]]


def test_only_what_matches_comes_and_limit_counts_what_was_looked_at(http: httpx.Client) -> None:
    """``next`` moves past the rest, so that reading on finds every match once."""
    publish(http, *range(100))
    answer = read(http, filter="message.payload % 10 == 3", **{"from": 5}, limit=30)
    assert offsets(answer) == [13, 23, 33]
    assert (answer["next"], answer["first"], answer["end"]) == (35, 0, 100)
    assert "failed" not in answer
    found, at = [], 0
    while at < 100:
        page = read(http, filter="message.payload % 10 == 3", limit=7, **{"from": at})
        found += offsets(page)
        at = page["next"]
    assert found == list(range(3, 100, 10))


def test_records_on_which_it_fails_are_counted(http: httpx.Client) -> None:
    """They are left out, and the first of them is named with the reason."""
    publish(http, {"total": 1}, "text", {"total": 5}, {}, [])
    answer = read(http, filter="message.payload.total > 2")
    assert offsets(answer) == [2]
    assert (answer["failed"]["count"], answer["failed"]["offset"]) == (3, 1)
    assert "the filter failed" in answer["failed"]["message"]


@pytest.mark.parametrize(
    ("params", "accept", "code"),
    [
        ({"filter": "payload > 1"}, "application/json", "BAD_FILTER"),
        ({"filter": "true && " * 600 + "true"}, "application/json", "BAD_FILTER"),
        ({"filter": "true"}, "application/x-ndjson", "BAD_REQUEST"),
    ],
)
def test_what_cannot_be_filtered_is_refused(
    http: httpx.Client, params: dict[str, str], accept: str, code: str
) -> None:
    answer = http.get("/topics/orders/messages", params=params, headers={"Accept": accept})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, code)


@pytest.mark.alone
@pytest.mark.slow
def test_others_are_answered_while_filters_are_evaluated(server: RunningServer, http: httpx.Client) -> None:
    """A costly filter on many records takes turns with everything else."""
    publish(http, *({"tags": [f"tag {number}" for number in range(200)]} for _ in range(2000)))
    costly = 'message.payload.tags.exists(tag, tag.startsWith("x") || tag.endsWith("y"))'
    with ThreadPoolExecutor(2) as pool, server.http() as others:
        reads = [
            pool.submit(others.get, "/topics/orders/messages", params={"filter": costly}) for _ in range(2)
        ]
        slowest = 0.0
        while not all(one.done() for one in reads):
            began = time.monotonic()
            http.get("/health").raise_for_status()
            slowest = max(slowest, time.monotonic() - began)
        assert [one.result().json()["messages"] for one in reads] == [[], []]
    assert slowest < 0.5, slowest
