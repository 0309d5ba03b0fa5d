"""A real disk that becomes full, and free again, under a real server."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.process import ServerProcess
from tests.server.raw import RawWebSocket, until

pytestmark = pytest.mark.slow
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    path = tmp_path / "disk"
    path.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=2m", "himalia-test", str(path)]
    if subprocess.run(options, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system takes more rights than this user has")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def publish(raw: RawWebSocket, payload: Any) -> dict[str, Any]:
    return raw.ask(type="publish", topic="orders", message={"id": str(uuid.uuid4()), "payload": payload})


def fill(path: Path) -> Path:
    """Take all the room that is left."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return ballast


def stored(http: httpx.Client) -> list[Any]:
    answer = http.get("/topics/orders/messages", headers={"Accept": "application/x-ndjson"})
    assert answer.status_code == 200
    records = [json.loads(line) for line in answer.text.splitlines()]
    assert [record["offset"] for record in records] == list(range(len(records)))
    return [record["message"]["payload"] for record in records]


def test_a_full_disk_is_told_and_survived(tmp_path: Path, small_disk: Path) -> None:
    """UNAVAILABLE while it is full, health says what to do, reading goes on; with room the server recovers."""
    log = f"sqlite://{small_disk}/log.db"
    with (
        ServerProcess(tmp_path, log=log) as server,
        RawWebSocket(server) as raw,  # type: ignore[arg-type]
        RawWebSocket(server) as viewer,  # type: ignore[arg-type]
        server.http() as http,
    ):
        server.create("orders")
        viewer.ask(type="subscribe", topic="orders", client_id="v")
        acknowledged = []
        for i in range(20):
            assert publish(raw, i)["offset"] == i
            acknowledged.append(i)
        ballast = fill(small_disk)

        refused = None
        for i in range(1000):
            answer = publish(raw, f"{i}" + "x" * 4000)
            if answer["type"] == "error":
                refused = answer["error"]
                break
            acknowledged.append(f"{i}" + "x" * 4000)
        assert refused is not None
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
    fill(small_disk)
    with pytest.raises(AssertionError, match="no space left"):
        ServerProcess(tmp_path, log=f"sqlite://{small_disk}/log.db")
