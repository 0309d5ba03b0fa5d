"""``himalia up`` in a directory of its own, as a user starts it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import httpx
import psutil

from tests.cli.command import DEADLINE_S, RunningCommand
from tests.servers import NO_TLS


class UpProcess(RunningCommand):
    """``himalia up`` that is ready, on a free port and a log in ``directory``."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        env: Mapping[str, str] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.log = f"sqlite://{directory}/log.db"
        super().__init__("up", "--port", "0", "--log", self.log, *flags, env=env, deadline_s=deadline_s)
        self.greeting = self.line()
        found = re.search(r"(http\S+?)/(?:\?token=(\S+))? ", self.greeting)
        assert found, (self.greeting, self.process.stderr and self.process.stderr.read())
        self.url, self.token = found[1], unquote(found[2]) if found[2] else None
        self.deadline_s = deadline_s
        self.env = dict(env or {})

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]

    def http(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=DEADLINE_S, verify=NO_TLS)

    def family(self) -> list[psutil.Process]:
        """It, and all processes that it has started, theirs included."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def part(self, words: str) -> psutil.Process | None:
        """The one of them whose command line has these words."""
        return next((one for one in self.family() if words in command_of(one)), None)

    def errors(self) -> str:
        """All that it has said on stderr, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()


def assert_all_gone(family: list[psutil.Process], within_s: float = 0.0) -> None:
    """None of these runs any more. A zombie does not: it only waits for its parent to look."""
    deadline = time.monotonic() + within_s
    while left := [process for process in family if _runs(process)]:
        assert time.monotonic() < deadline, [command_of(process) for process in left]
        psutil.wait_procs(left, timeout=0.1)


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
