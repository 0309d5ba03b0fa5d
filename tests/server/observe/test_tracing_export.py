"""Spans that leave the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest


@pytest.mark.slow
def test_spans_reach_a_collector(tmp_path: Path) -> None:
    """`himalia serve --tracing` sends its spans by OTLP to where the environment says."""
    received: list[bytes] = []
    arrived = threading.Event()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.path.encode() + self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            arrived.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    command = [Path(sys.executable).parent / "himalia", "serve", "--port", "0", "--no-auth", "--tracing"]
    command += ["--log", f"sqlite://{tmp_path}/log.db"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        with httpx.Client(base_url=url) as http:
            http.post("/topics", json={"name": "orders"}).raise_for_status()
            http.post("/topics/orders/messages", json={"payload": 1}).raise_for_status()
        assert arrived.wait(20)
    finally:
        server.terminate()
        server.wait(20)
        collector.shutdown()
        collector.server_close()
    assert any(b"/v1/traces" in body and b"publish orders" in body for body in received)
