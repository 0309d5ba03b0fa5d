"""Prometheus metrics: what happened, counted once and never taken back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.raw_clients import RawWebSocket, Wire, frame, handshake, until
from tests.servers import RunningServer

Serve = Callable[..., RunningServer]
NDJSON = {"Content-Type": "application/x-ndjson"}


def scraped(http: httpx.Client) -> dict[str, float]:
    """Every sample by name and labels."""
    answer = http.get("/metrics")
    assert answer.status_code == 200
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = "".join(f"{{{value}}}" for value in sample.labels.values())
            samples[f"{sample.name}{labels}"] = sample.value
    return samples


@pytest.fixture
def orders(server: RunningServer) -> RunningServer:
    server.create("orders")
    server.wait_for_audit()
    return server


def test_metrics_are_in_the_form_that_prometheus_reads(orders: RunningServer) -> None:
    """Every metric has a type and says what it is, and is of this program."""
    with orders.http() as http:
        answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    assert len(families) >= 15
    for family in families:
        assert family.name.startswith("himalia_") and family.documentation and family.type != "unknown"
        assert len({json.dumps(sample.labels) + sample.name for sample in family.samples}) == len(
            family.samples
        )


def test_publishes_deliveries_and_repeats_are_counted(orders: RunningServer) -> None:
    """Each record once, each delivery once for each subscriber."""
    body = {"id": str(uuid.uuid4()), "payload": 1}
    with RawWebSocket(orders) as one, RawWebSocket(orders) as two, orders.http() as http:
        for client_id, raw in (("one", one), ("two", two)):
            raw.ask(type="subscribe", topic="orders", client_id=client_id)
        before = scraped(http)
        for _ in range(3):
            http.post("/topics/orders/messages", json=body).raise_for_status()
        one.say(type="publish", topic="orders", message={"id": str(uuid.uuid4()), "payload": 2})
        for raw in (one, two):
            seen = 0
            while seen < 2:
                seen += raw.hear()["type"] == "event"
        after = scraped(http)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["himalia_publishes_total"] == 2
    assert grown["himalia_duplicates_total"] == 2
    assert grown["himalia_deliveries_total"] == 4
    assert grown["himalia_drops_total"] == 0
    assert grown["himalia_commits_total"] == 2
    assert grown["himalia_commit_seconds_count"] == 2
    assert grown["himalia_log_failures_total"] == 0


def test_what_is_there_now_is_gauged(orders: RunningServer) -> None:
    """Connections, subscriptions, topics and the log's size; they fall again."""
    with orders.http() as http:
        with RawWebSocket(orders) as raw:
            raw.ask(type="subscribe", topic="orders", client_id="v")
            with http.stream("GET", "/topics/orders/events"), orders.http() as other:
                now = scraped(other)
        names = ("connections", "subscribers", "topics", "lag_records", "queue_bytes", "in_flight_publishes")
        assert [now[f"himalia_{name}"] for name in names] == [2, 2, 1, 0, 0, 0]
        assert now["himalia_log_bytes"] > 0 and now["himalia_log_healthy"] == 1
        assert now["himalia_uptime_seconds"] > 0
        until(lambda: scraped(http)["himalia_connections"] == 0)
        assert scraped(http)["himalia_subscribers"] == 0


def test_errors_are_counted_by_code_wherever_they_are_told(serve: Serve) -> None:
    """REST, WebSocket, handshakes and foreign hosts: what a client was refused is counted, once."""
    server = serve(token="correct horse battery")
    with server.http(headers=server.headers) as http:
        http.get("/topics/missing/messages")
        http.post("/topics", json={})
        http.get("/topics", headers={"Host": "evil.example"})
        with Wire(server.port) as wire:
            wire.send(handshake(server.port))
            assert wire.response()[0] == 401
        with Wire(server.port) as wire:
            wire.send(handshake(server.port, Origin="null"))
            assert wire.response()[0] == 403
        with RawWebSocket(server) as raw:
            raw.ask(type="subscribe", topic="missing", client_id="v")
            raw.send(frame(b"nonsense"))
            raw.hear()
        now = scraped(http)
    errors = {name: value for name, value in now.items() if name.startswith("himalia_errors_total")}
    assert errors == {
        "himalia_errors_total{TOPIC_NOT_FOUND}": 2,
        "himalia_errors_total{BAD_REQUEST}": 2,
        "himalia_errors_total{FORBIDDEN}": 2,
        "himalia_errors_total{UNAUTHORIZED}": 1,
    }


def test_drops_lag_and_queues_of_slow_subscribers_show(serve: Serve) -> None:
    """An operator sees that somebody is slow before anything is lost, and how much was."""
    server = serve(auth=False, heartbeat_s=3600)
    server.create("orders")
    line = json.dumps({"payload": "x" * 10_000}) + "\n"
    with RawWebSocket(server, receive_bytes=4096) as raw, server.http() as http:
        raw.ask(type="subscribe", topic="orders", client_id="v", limit=10)
        now = scraped(http)
        while now["himalia_lag_records"] <= 20 or not now["himalia_queue_bytes"]:
            http.post("/topics/orders/messages", content=line * 500, headers=NDJSON).raise_for_status()
            now = scraped(http)
        dropped = 0
        while not dropped:
            heard = raw.hear()
            if heard["type"] == "info":
                dropped = heard["count"]
        assert scraped(http)["himalia_drops_total"] >= dropped


def test_counters_never_decrease(orders: RunningServer) -> None:
    """Nothing that is counted is forgotten when connections or topics go."""
    seen: list[dict[str, Any]] = []
    with orders.http() as http:
        for _ in range(3):
            http.post("/topics", json={"name": "short"}).raise_for_status()
            with RawWebSocket(orders) as raw:
                raw.ask(type="subscribe", topic="short", client_id="v")
                http.post("/topics/short/messages", json={"payload": 1}).raise_for_status()
                assert raw.hear()["type"] == "event"
            http.delete("/topics/short").raise_for_status()
            seen.append(scraped(http))
    for earlier, later in pairwise(seen):
        for name, value in earlier.items():
            if name.endswith(("_total", "_count", "_sum", "_bucket")):
                assert later[name] >= value, name
    assert seen[-1]["himalia_publishes_total"] == seen[-1]["himalia_deliveries_total"] == 3
