"""A Himalia server with one kernel, used over REST, for measurements on kernels."""

import http.client
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import rest
from benchmarks.server_process import PeerFailed, free_port, running

IDLE_MAX_S = 3.0
"""The server hangs up on a connection that was idle for 5 s."""


class KernelServer:
    """One kernel and one connection, which is opened again after a silence."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._used_s = time.monotonic()
        self.kernel_id = str(self.post("/api/kernels", {"name": "python3"})["id"])
        self.topic = f"kernels.{self.kernel_id}"

    def execute(self, code: str, *, wait: bool) -> dict[str, Any]:
        return self.post(f"/api/kernels/{self.kernel_id}/execute", {"code": code, "wait": wait})

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if time.monotonic() - self._used_s > IDLE_MAX_S:
            self._connection.close()
        self._connection.request(
            "POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        response = self._connection.getresponse()
        answer = response.read()
        self._used_s = time.monotonic()
        if response.status >= 300:
            raise PeerFailed(f"POST {path}: {response.status} {answer[:300].decode(errors='replace')}")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded


@contextmanager
def kernel_server(directory: Path) -> Iterator[KernelServer]:
    port = free_port()
    program = Path(sys.executable).with_name("himalia")
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--log", f"sqlite:///{directory / 'log.db'}", "--no-auth"]
    os.environ["HIMALIA_RUNTIME_DIR"] = str(directory / "runtime")
    with running(command, directory / "himalia.out", lambda: rest.is_healthy(port)) as pid:
        yield KernelServer(port, pid)
