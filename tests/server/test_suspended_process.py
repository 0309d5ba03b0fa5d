"""A server that stands still for half a minute, as on a machine that is suspended or out of memory."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.server.raw_clients import RawWebSocket, until
from tests.server.server_process import ServerProcess

LINES = 70
PAUSE_S = 30.0


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_subscriber_and_a_cell_come_through(tmp_path: Path) -> None:
    """The cell prints on and ends; the subscriber, whose connection stays, gets every line."""
    code = f"import time\nfor n in range({LINES}): print('line', n, flush=True); time.sleep(0.4)"
    with ServerProcess(tmp_path) as server, server.http() as http:
        kernel = http.post("/api/kernels", json={}).raise_for_status().json()
        with RawWebSocket(server) as viewer:  # type: ignore[arg-type]
            viewer.ask(type="subscribe", topic=kernel["topic"], client_id="viewer", policy="lossless")
            body = {"code": code}
            request = http.post(f"/api/kernels/{kernel['id']}/execute", json=body).raise_for_status().json()
            server.signal(signal.SIGSTOP)
            time.sleep(PAUSE_S)
            server.signal(signal.SIGCONT)
            result = f"/api/kernels/{kernel['id']}/executions/{request['request_id']}"
            until(lambda: http.get(result).json()["status"] == "ok", 60)
            wanted = [f"line {n}" for n in range(LINES)]
            assert http.get(result).json()["outputs"][0]["text"].splitlines() == wanted
            printed = ""
            while printed.count("\n") < LINES:
                event = viewer.hear()
                if event["type"] == "event" and event["message"]["headers"].get("msg_type") == "stream":
                    printed += event["message"]["payload"]["content"]["text"]
            assert printed.splitlines() == wanted
        http.delete(f"/api/kernels/{kernel['id']}").raise_for_status()
