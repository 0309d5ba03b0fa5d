"""A server in a process of its own, started as a user starts it, for what only a process can show."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGTERM, Signals
from types import TracebackType
from typing import Any
from urllib.parse import unquote

import httpx
import psutil

from tests.servers import DEADLINE_S, NO_TLS

_READY = re.compile(r"ready at (http.*?)/(?:\?token=(\S+))? ")


class ServerProcess:
    """``himalia serve`` on a free port. Ends with the ``with`` block, one way or the other."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        log: str | None = None,
        descriptors: int | tuple[int, int] | None = None,
    ) -> None:
        """``descriptors``: how many files the process may open, its soft limit and its hard one."""
        self.log = log or f"sqlite://{directory}/log.db"
        self._stderr = directory / f"stderr-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "himalia.cli", "serve", "--port", "0", "--log", self.log, *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HIMALIA_")}
        environment["HIMALIA_RUNTIME_DIR"] = str(directory / "runtime")
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*_limited(descriptors), *command],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                text=True,
            )
        self.url, self.token = self._until_ready()
        self.port = int(self.url.rpartition(":")[2])

    def _until_ready(self) -> tuple[str, str | None]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], DEADLINE_S)
        line = self._process.stdout.readline() if ready else ""
        found = _READY.search(line)
        if found is None:
            self.kill()
            raise AssertionError(f"it did not start: {line}{self.stderr()}")
        return found[1], unquote(found[2]) if found[2] else None

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def http(self, **options: Any) -> httpx.Client:
        options.setdefault("headers", self.headers)
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S, verify=NO_TLS, **options)

    def create(self, *topics: str) -> None:
        with self.http() as http:
            for topic in topics:
                http.post("/topics", json={"name": topic}).raise_for_status()

    def give_way(self) -> None:
        """Run only when nothing else wants to, as if this were on a machine of its own."""
        for thread in psutil.Process(self._process.pid).threads():
            os.setpriority(os.PRIO_PROCESS, thread.id, 19)

    @property
    def pid(self) -> int:
        return self._process.pid

    def descriptors(self) -> int:
        """Files that are open."""
        return psutil.Process(self._process.pid).num_fds()

    def cpu_s(self, interval_s: float) -> float:
        """Processor time that it takes within an interval from now on."""
        return psutil.Process(self._process.pid).cpu_percent(interval_s) / 100 * interval_s

    def memory_bytes(self) -> int:
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def stderr(self) -> str:
        return self._stderr.read_text()

    def signal(self, number: Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self, deadline_s: float = DEADLINE_S) -> int:
        """Waits for the end."""
        code = self._process.wait(deadline_s)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def stop(self, number: Signals = SIGTERM) -> int:
        self.signal(number)
        return self.exit_code()

    def kill(self) -> None:
        self._process.kill()
        self.exit_code()


def _limited(descriptors: int | tuple[int, int] | None) -> list[str]:
    """What to put before a command so that it may open only so many files."""
    if descriptors is None:
        return []
    soft, hard = descriptors if isinstance(descriptors, tuple) else (descriptors, descriptors)
    return ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh"]


def run_serve(*flags: str, directory: Path) -> tuple[int, str]:
    """Run ``himalia serve`` with settings that cannot work; its exit code and what it says."""
    environment = {**os.environ, "HIMALIA_RUNTIME_DIR": str(directory / "runtime")}
    log = f"sqlite://{directory}/log.db"
    done = subprocess.run(
        [sys.executable, "-m", "himalia.cli", "serve", "--port", "0", "--log", log, *flags],
        capture_output=True,
        text=True,
        env=environment,
        timeout=DEADLINE_S,
    )
    return done.returncode, done.stderr
