"""Watching a kernel over the WebSocket: viewers who leave, come late, or outlive the server.

The cases that were measured on an unmodified Jupyter server (PAINS.md), which loses output in each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.asyncio.client import connect

from himalia import Client
from tests.server.server_process import ServerProcess
from tests.servers import DEADLINE_S, RunningServer, ask, hear
from tests.shared_kernel_server import kernel_server

pytestmark = pytest.mark.slow
LINES = 20
SLOWLY = f"import time\nfor i in range({LINES}):\n    print('line', i, flush=True); time.sleep(0.05)"
PRINTED = "".join(f"line {i}\n" for i in range(LINES))


class Viewer:
    """Someone who watches a kernel's topic and keeps the bytes as they come."""

    def __init__(self, url: str, topic: str) -> None:
        self._url = url
        self._topic = topic
        self.seen: list[bytes] = []
        self.next = 0

    @asynccontextmanager
    async def watching(self, name: str) -> AsyncIterator[Any]:
        async with connect(self._url, max_size=None) as ws:
            position = {"from": self.next}
            answer = await ask(ws, type="subscribe", topic=self._topic, client_id=name, **position)
            assert answer["type"] == "ack", answer
            yield ws

    async def watch_until(self, ws: Any, wanted: Any) -> None:
        while True:
            event = await hear(ws)
            if event["type"] != "event":
                continue
            self.seen.append(json.dumps([event["offset"], event["ts"], event["message"]]).encode())
            self.next = event["offset"] + 1
            if wanted(event["message"]["payload"]):
                return

    @property
    def printed(self) -> str:
        payloads = [json.loads(seen)[2]["payload"] for seen in self.seen]
        return "".join(text_of(payload) for payload in payloads)


def text_of(payload: dict[str, Any]) -> str:
    """What a cell printed; a kernel that starts has things to say too, without a parent."""
    is_output = payload["header"]["msg_type"] == "stream" and payload["parent_header"]
    return payload["content"]["text"] if is_output and payload["content"]["name"] == "stdout" else ""


def prints(text: str) -> Any:
    return lambda payload: text in payload["content"].get("text", "")


def is_closed(payload: dict[str, Any]) -> bool:
    return payload["content"].get("event") == "request_closed"  # type: ignore[no-any-return]


@pytest.fixture
def started(tmp_path: Path) -> Any:
    with kernel_server(tmp_path) as server, server.http() as http:
        kernel = http.post("/api/kernels", json={}).json()["id"]
        yield server, http, kernel


def run(http: httpx.Client, kernel: str, code: str) -> dict[str, Any]:
    answer = http.post(f"/api/kernels/{kernel}/execute", json={"code": code})
    assert answer.status_code == 202, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def test_jupyterlab_2833_a_viewer_who_leaves_and_returns_in_mid_run(
    started: tuple[RunningServer, httpx.Client, str],
) -> None:
    """One who left in mid-cell, and returned as somebody else, has byte for byte what one has who stayed."""
    server, http, kernel = started
    topic = f"kernels.{kernel}"
    stayed, left = Viewer(server.ws_url, topic), Viewer(server.ws_url, topic)
    async with stayed.watching("stays") as steady:
        run(http, kernel, SLOWLY)
        async with left.watching("leaves") as ws:
            await left.watch_until(ws, prints("line 5\n"))
        await stayed.watch_until(steady, prints("line 12\n"))
        async with left.watching("another browser") as ws:
            await left.watch_until(ws, is_closed)
        await stayed.watch_until(steady, is_closed)
    assert left.seen == stayed.seen
    assert left.printed == PRINTED


async def test_a_second_viewer_who_joins_late(started: tuple[RunningServer, httpx.Client, str]) -> None:
    """One who joins in the middle sees all of it, and the first loses nothing by that."""
    server, http, kernel = started
    first, second = Viewer(server.ws_url, f"kernels.{kernel}"), Viewer(server.ws_url, f"kernels.{kernel}")
    async with first.watching("first") as ws:
        run(http, kernel, SLOWLY)
        await first.watch_until(ws, prints("line 10\n"))
        async with second.watching("second") as late:
            await second.watch_until(late, is_closed)
        await first.watch_until(ws, is_closed)
    assert first.seen == second.seen
    assert second.printed == PRINTED


async def test_the_server_is_killed_in_mid_cell(tmp_path: Path) -> None:
    """After kill -9 of the server and a restart, a viewer has every line once, and the request ended ok."""
    kernel_pids: list[int] = []
    try:
        with ServerProcess(tmp_path) as server, server.http() as http:
            model = http.post("/api/kernels", json={}).json()
            kernel, topic = model["id"], model["topic"]
            kernel_pids.append(model["pid"])
            request = run(http, kernel, SLOWLY)["request_id"]
            async with (
                Client(server.url, token=server.token) as client,
                client.subscribe(topic, from_=0) as events,
            ):
                async for event in events:
                    if prints("line 5\n")(event.payload):
                        break
            server.kill()
        with ServerProcess(tmp_path) as server, server.http() as http:
            texts: list[str] = []
            async with (
                asyncio.timeout(DEADLINE_S),
                Client(server.url, token=server.token) as client,
                client.subscribe(topic, from_=0) as events,
            ):
                async for event in events:
                    texts.append(text_of(event.payload))
                    if is_closed(event.payload):
                        break
            result = http.get(f"/api/kernels/{kernel}/executions/{request}").json()
            assert (result["status"], "".join(texts)) == ("ok", PRINTED)
            assert http.delete(f"/api/kernels/{kernel}").status_code == 204
    finally:
        for pid in kernel_pids:
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()
