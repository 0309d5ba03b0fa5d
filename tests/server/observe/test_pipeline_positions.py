"""The server has retention wait for the pipeline, by what that tells in ``pipeline.positions``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.servers import DEADLINE_S, RunningServer


def publish(server: RunningServer, topic: str, *payloads: Any) -> None:
    with server.http(headers=server.headers) as http:
        body = [{"payload": payload} for payload in payloads]
        http.post(f"/topics/{topic}/messages", json=body).raise_for_status()


def topic(server: RunningServer, name: str) -> dict[str, Any]:
    with server.http(headers=server.headers) as http:
        topics = http.get("/topics").json()["topics"]
    return next(topic for topic in topics if topic["name"] == name)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def tell(server: RunningServer, offset: int) -> None:
    position = {"offset": offset, "epoch": topic(server, "orders")["epoch"]}
    publish(server, "pipeline.positions", {"positions": {"orders": position}})


def test_unread_records_stay_over_a_restart(serve: Callable[..., RunningServer]) -> None:
    """Also when the server starts, and nobody has told it again, nothing unread goes; what is read goes."""
    server = serve()
    server.create("pipeline.positions")
    server.create("orders", count=10)
    tell(server, 0)
    server.stop()
    server = serve(token=server.token)
    publish(server, "orders", *range(18))
    # Another topic shows that retention has passed by.
    server.create("clicks", count=1)
    publish(server, "clicks", *range(18))
    until(lambda: topic(server, "clicks")["first"] == 17)
    assert topic(server, "orders")["first"] == 0
    tell(server, 18)
    until(lambda: topic(server, "orders")["first"] == 8)


def test_nonsense_holds_up_nothing(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    server.create("pipeline.positions")
    server.create("orders", count=1)
    publish(server, "pipeline.positions", {"positions": "everywhere"})
    publish(server, "orders", *range(5))
    until(lambda: topic(server, "orders")["first"] == 4)
    assert server.context.is_open
