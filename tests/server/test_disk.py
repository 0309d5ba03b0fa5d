"""A real disk that becomes full, and free again, under a real server."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from jupyter_client.manager import KernelManager

from tests.server.raw_clients import RawWebSocket, until
from tests.server.server_process import ServerProcess
from tests.small_file_system import fill_up, small_file_system

pytestmark = pytest.mark.slow
PROBE_INTERVAL_S = 1.0
"""How often a log that failed looks whether it can store again."""
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "disk") as path:
        yield path


def publish(raw: RawWebSocket, payload: Any) -> dict[str, Any]:
    return raw.ask(type="publish", topic="orders", message={"id": str(uuid.uuid4()), "payload": payload})


def fill_for_good(path: Path, store: Callable[[], bool]) -> Path:
    """Take all the space that is left, and what the log has left within its files.

    ``store`` stores a little, and returns whether it was refused. A log that fails is opened again, which may move
    records into the database and so free some space: refused for good is what is refused after several of these.
    """
    refused = 0
    while refused < 3:
        ballast = fill_up(path)
        refused = refused + 1 if store() else 0
        if refused:
            time.sleep(PROBE_INTERVAL_S)
    return ballast


def stored(http: httpx.Client) -> list[Any]:
    answer = http.get("/topics/orders/messages", headers={"Accept": "application/x-ndjson"})
    assert answer.status_code == 200
    records = [json.loads(line) for line in answer.text.splitlines()]
    assert [record["offset"] for record in records] == list(range(len(records)))
    return [record["message"]["payload"] for record in records]


def test_a_full_disk_is_told_and_survived(tmp_path: Path, small_disk: Path) -> None:
    """UNAVAILABLE while it is full, health says what to do, reading goes on, and trying again costs little; with room
    the server recovers."""
    log = f"sqlite://{small_disk}/log.db"
    with (
        ServerProcess(tmp_path, log=log) as server,
        RawWebSocket(server) as raw,  # type: ignore[arg-type]
        RawWebSocket(server) as viewer,  # type: ignore[arg-type]
        server.http() as http,
    ):
        server.create("orders")
        viewer.ask(type="subscribe", topic="orders", client_id="v")
        acknowledged: list[Any] = []
        for i in range(20):
            assert publish(raw, i)["offset"] == i
            acknowledged.append(i)
        refused: dict[str, Any] = {}

        def is_refused() -> bool:
            payload = uuid.uuid4().hex + "x" * 4000
            answer = publish(raw, payload)
            if answer["type"] == "error":
                refused.update(answer["error"])
                return True
            acknowledged.append(payload)
            return False

        ballast = fill_for_good(small_disk, is_refused)
        assert refused["code"] == "UNAVAILABLE"
        assert "space" in refused["message"] and str(small_disk) in refused["message"]

        health = http.get("/health")
        assert health.status_code == 503
        told = health.json()
        assert (
            told["status"] == "degraded" and "free" in told["problem"] and str(small_disk) in told["problem"]
        )
        assert http.get("/health", headers={"Authorization": ""}).json() == {"status": "degraded"}
        assert "himalia_log_healthy 0.0" in http.get("/metrics").text
        answer = http.post("/topics/orders/messages", json={"payload": "x" * 4000})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")
        assert answer.headers["retry-after"]
        answer = http.post("/topics", json={"name": "another"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")
        # Reading takes no room, so it goes on.
        assert stored(http) == acknowledged
        assert raw.is_alive()
        assert server.cpu_s(2.0) < 0.5

        ballast.unlink()
        until(lambda: http.get("/health").status_code == 200)
        after = publish(raw, "after")
        assert (after["type"], after["offset"]) == ("ack", len(acknowledged))
        acknowledged.append("after")
        assert stored(http) == acknowledged
        seen = 0
        while seen < len(acknowledged):
            heard = viewer.hear()
            if heard["type"] == "event":
                assert (heard["offset"], heard["message"]["payload"]) == (seen, acknowledged[seen])
                seen += 1
        assert "Traceback" not in server.stderr()
        for socket in (raw, viewer):
            socket.socket.close()
        assert server.stop() == 0
    with ServerProcess(tmp_path, log=log) as server, server.http() as http:
        assert stored(http) == acknowledged


def test_lines_on_a_disk_that_fills_up_say_how_many_are_stored(tmp_path: Path, small_disk: Path) -> None:
    """A long body may be stored in part; the error says how much, and that much is there."""
    with ServerProcess(tmp_path, log=f"sqlite://{small_disk}/log.db") as server, server.http() as http:
        server.create("orders")
        line = json.dumps({"payload": "x" * 200}) + "\n"
        answer = http.post("/topics/orders/messages", content=line * 20_000, headers=NDJSON)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")
        count = len(stored(http))
        assert count > 0
        assert f"the first {count} messages of the body are stored" in answer.json()["error"]["message"]


def test_a_server_does_not_start_on_a_full_disk_and_says_why(tmp_path: Path, small_disk: Path) -> None:
    """Where nothing can be stored at all, starting fails with a sentence."""
    fill_up(small_disk)
    with pytest.raises(AssertionError, match="no space left"):
        ServerProcess(tmp_path, log=f"sqlite://{small_disk}/log.db")


WAITS = "import os, time\nprint('waits', flush=True)\nwhile not os.path.exists({go!r}): time.sleep(0.01)\n"
PRINTS = "for i in range(300): print(i, 'x' * 100, flush=True)\nopen({done!r}, 'w').close()\n"
SOON_S = 15.0


def soon(call: Callable[[], httpx.Response]) -> httpx.Response:
    """An answer that may not take long, whatever the disk does."""
    began_s = time.monotonic()
    answer = call()
    assert time.monotonic() - began_s < SOON_S
    return answer


def is_refused(http: httpx.Client) -> bool:
    """Publish a little; whether there was no space for it."""
    return http.post("/topics/orders/messages", json={"payload": "x" * 1000}).status_code == 503


def assert_no_room(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")
    assert "space" in answer.json()["error"]["message"] and answer.headers["retry-after"]


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[str]:
    """The connection file of a kernel that something else started."""
    manager = KernelManager(connection_file=str(tmp_path / "kernel-foreign.json"))
    manager.start_kernel()
    yield manager.connection_file
    manager.shutdown_kernel(now=True)


def test_every_call_that_stores_is_refused_on_a_full_disk(
    tmp_path: Path, small_disk: Path, foreign: str
) -> None:
    """Each answers UNAVAILABLE within seconds with what to do; with room each works."""
    line = json.dumps({"payload": "x" * 4000}) + "\n"
    with (
        ServerProcess(tmp_path, log=f"sqlite://{small_disk}/log.db") as server,
        RawWebSocket(server) as raw,  # type: ignore[arg-type]
        server.http() as http,
    ):
        server.create("orders", "old")
        ballast = fill_for_good(small_disk, lambda: is_refused(http))
        calls: dict[str, Callable[[], httpx.Response]] = {
            "publish": lambda: http.post("/topics/orders/messages", json={"payload": "x" * 4000}),
            "publish a list": lambda: http.post(
                "/topics/orders/messages", json=[{"payload": "x" * 4000}] * 3
            ),
            "publish lines": lambda: http.post("/topics/orders/messages", content=line * 50, headers=NDJSON),
            "create a topic": lambda: http.post("/topics", json={"name": "new"}),
            "delete a topic": lambda: http.delete("/topics/old"),
            "confirm the clock": lambda: http.post("/clock/confirm"),
            "start a kernel": lambda: http.post("/api/kernels"),
            "attach a kernel": lambda: http.post("/api/kernels/attach", json={"connection_file": foreign}),
        }
        for name, call in calls.items():
            answer = soon(call)
            assert answer.status_code == 503, (name, answer.status_code, answer.text)
            assert_no_room(answer)
        assert http.get("/api/kernels").json() == []
        refused = publish(raw, "x" * 4000)
        assert (refused["type"], refused["error"]["code"]) == ("error", "UNAVAILABLE")
        assert {topic["name"] for topic in http.get("/topics").json()["topics"]} >= {"orders", "old"}

        ballast.unlink()
        until(lambda: http.get("/health").status_code == 200)
        for name, call in calls.items():
            assert call().is_success, name
        assert publish(raw, "after")["type"] == "ack"
        assert "Traceback" not in server.stderr()


def test_kernels_on_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    """Starting, executing and restarting are refused within seconds; nothing refused runs, and what ran is kept."""
    go, done, ran = (tmp_path / name for name in ("go", "done", "ran"))
    with (
        ServerProcess(tmp_path, log=f"sqlite://{small_disk}/log.db") as server,
        server.http() as http,
    ):
        server.create("orders")
        kernel = http.post("/api/kernels").raise_for_status().json()["id"]
        code = WAITS.format(go=str(go)) + PRINTS.format(done=str(done))
        running = http.post(f"/api/kernels/{kernel}/execute", json={"code": code}).json()["request_id"]
        execution = f"/api/kernels/{kernel}/executions/{running}"
        until(lambda: "waits" in http.get(execution).text)
        ballast = fill_for_good(small_disk, lambda: is_refused(http))
        go.touch()
        until(done.exists)
        until(lambda: http.get("/health").status_code == 503)

        write = {"code": f"open({str(ran)!r}, 'w').close()"}
        for _ in range(5):
            assert_no_room(soon(lambda: http.post(f"/api/kernels/{kernel}/execute", json=write)))
            assert_no_room(soon(lambda: http.post("/api/kernels")))
            assert_no_room(soon(lambda: http.post(f"/api/kernels/{kernel}/restart")))
        assert soon(lambda: http.post(f"/api/kernels/{kernel}/interrupt")).status_code == 204
        assert [one["id"] for one in http.get("/api/kernels").json()] == [kernel]
        complaints = [line for line in server.stderr().splitlines() if f"kernels.{kernel}" in line]
        assert len(complaints) <= 3, complaints

        ballast.unlink()
        until(lambda: http.get("/health").status_code == 200)
        until(lambda: http.get(execution).json()["status"] != "running")
        text = "".join(output["text"] for output in http.get(execution).json()["outputs"])
        assert text == "waits\n" + "".join(f"{i} {'x' * 100}\n" for i in range(300))
        after = http.post(f"/api/kernels/{kernel}/execute", json={"code": "1", "wait": True})
        assert (after.status_code, after.json()["status"]) == (200, "ok")
        assert not ran.exists()
        assert "Traceback" not in server.stderr()
        assert server.stop() == 0


def test_a_kernel_that_is_stopped_on_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    """Cancelling and stopping answer 503 within seconds and are done; the topic says so when there is space."""
    with (
        ServerProcess(tmp_path, log=f"sqlite://{small_disk}/log.db") as server,
        server.http() as http,
    ):
        server.create("orders")
        kernel = http.post("/api/kernels").raise_for_status().json()
        process, url = psutil.Process(kernel["pid"]), f"/api/kernels/{kernel['id']}"
        code = WAITS.format(go=str(tmp_path / "never"))
        execution = (
            f"{url}/executions/{http.post(f'{url}/execute', json={'code': code}).json()['request_id']}"
        )
        until(lambda: "waits" in http.get(execution).text)
        ballast = fill_for_good(small_disk, lambda: is_refused(http))
        assert_no_room(soon(lambda: http.delete(execution)))
        assert_no_room(soon(lambda: http.delete(url)))
        until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
        assert_no_room(soon(lambda: http.delete(url)))
        assert soon(lambda: http.get(execution)).json()["status"] == "running"

        ballast.unlink()
        until(lambda: not http.get("/api/kernels").json())
        assert http.get(execution).json()["status"] == "cancelled"
        events = http.get(f"/topics/kernels.{kernel['id']}/messages").json()["messages"]
        assert events[-1]["message"]["payload"]["content"]["event"] == "stopped"
        assert server.stop() == 0


def test_a_server_that_is_stopped_on_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    """It stops in order; the kernel ends, and what it printed is in the topic when a server comes back to space."""
    go, done = tmp_path / "go", tmp_path / "done"
    log = f"sqlite://{small_disk}/log.db"
    with ServerProcess(tmp_path, "--shutdown-s", "2", log=log) as server, server.http() as http:
        kernel = http.post("/api/kernels").raise_for_status().json()["id"]
        code = WAITS.format(go=str(go)) + PRINTS.format(done=str(done))
        running = http.post(f"/api/kernels/{kernel}/execute", json={"code": code}).json()["request_id"]
        execution = f"/api/kernels/{kernel}/executions/{running}"
        until(lambda: "waits" in http.get(execution).text)
        ballast = fill_up(small_disk)
        go.touch()
        until(done.exists)
        until(lambda: http.get("/health").status_code == 503)
        assert server.stop() == 0
        assert "Traceback" not in server.stderr()
    ballast.unlink()
    with ServerProcess(tmp_path, log=log) as server, server.http() as http:
        until(lambda: http.get(execution).json()["status"] != "running")
        text = "".join(output.get("text", "") for output in http.get(execution).json()["outputs"])
        assert text == "waits\n" + "".join(f"{i} {'x' * 100}\n" for i in range(300))
