"""Kernel hosts for tests: on a real log, with real kernels and keepers, of which none outlives its test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from himalia.iopub.result import ExecutionResult
from himalia.jupyter.records import read_headers, to_message
from himalia.jupyter.wire import KernelMessage
from himalia.kernels.host import KernelHost
from himalia.kernels.kernel import Kernel
from himalia.kernels.request import Code, Request
from himalia.log import open_log
from himalia.log.api import Log
from himalia.protocol.models import ExecutionStatus
from himalia.pubsub import PubSubManager
from himalia.record import Record
from himalia.settings import Settings

DEADLINE_S = 60.0
ROOT = Path(__file__).parents[2]


class Opened:
    """A host and the log it stands on, as a server would have them."""

    def __init__(self, log: Log, manager: PubSubManager, host: KernelHost) -> None:
        self.log = log
        self.manager = manager
        self.host = host

    async def close(self) -> None:
        await self.host.close()
        await self.manager.stop()
        await self.log.close()


async def opened(url: str, **settings: Any) -> Opened:
    """Open a log, and a host on it."""
    log = open_log(url)
    await log.open()
    manager = PubSubManager(log)
    await manager.start()
    host = KernelHost(manager, Settings(log=url, **settings))
    server = Opened(log, manager, host)
    try:
        await host.open()
    except BaseException:
        await server.close()
        raise
    return server


class Hosting:
    """One place for a log and its kernels, at which servers come and go, one at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite://{directory}/log.db"
        self.runtime = directory / "r"
        self._opened: Opened | None = None
        self._processes: dict[int, psutil.Process] = {}
        self._servers: list[Server] = []
        self._managers: list[AsyncKernelManager] = []
        self._clients: list[AsyncKernelClient] = []

    # A server in this process

    @property
    def host(self) -> KernelHost:
        assert self._opened is not None
        return self._opened.host

    @property
    def log(self) -> Log:
        assert self._opened is not None
        return self._opened.log

    @property
    def manager(self) -> PubSubManager:
        assert self._opened is not None
        return self._opened.manager

    async def open(self, **settings: Any) -> KernelHost:
        self._opened = await opened(self.url, **settings)
        self.track()
        return self.host

    async def close(self) -> None:
        """A graceful end, if there is a server."""
        self.track()
        if self._opened is not None:
            gone, self._opened = self._opened, None
            await gone.close()

    async def start(self, name: str = "python3", **options: Any) -> Kernel:
        kernel = await self.host.start(name, **options)
        self.track()
        return kernel

    async def run(self, kernel: Kernel, code: str, **options: Any) -> ExecutionResult:
        """Execute, and wait for the end."""
        request = await kernel.execute(Code(code=code, **options))
        return await self.result(kernel, request)

    async def result(self, kernel: Kernel, request: Request, **options: Any) -> ExecutionResult:
        await ended(request)
        return await self.host.result(kernel.id, request.id, **options)

    async def records(self, kernel_id: str) -> list[Record]:
        return await records(self.log, f"kernels.{kernel_id}")

    # A server in a process of its own, to be killed

    async def serve(self, **settings: Any) -> Server:
        self._servers.append(Server(self, settings))
        await self._servers[-1].ask("ready")
        return self._servers[-1]

    # A kernel of somebody else's

    async def start_foreign(self) -> tuple[Path, AsyncKernelManager]:
        path = self.directory / f"kernel-foreign{len(self._managers)}.json"
        manager = AsyncKernelManager(kernel_name="python3", connection_file=str(path))
        self._managers.append(manager)
        await manager.start_kernel()
        assert manager.provisioner is not None
        self._watch(manager.provisioner.pid)  # type: ignore[attr-defined]
        return path, manager

    async def client(self, connection_file: str | Path) -> AsyncKernelClient:
        """A client such as any other program has."""
        client = AsyncKernelClient(connection_file=str(connection_file))
        client.load_connection_file()
        # Without the heartbeat: by it a client takes a kernel for dead that has not run for a second.
        client.start_channels(hb=False)
        self._clients.append(client)
        await client.wait_for_ready(timeout=DEADLINE_S)
        return client

    # Processes

    def track(self) -> None:
        """Take note of every keeper and kernel there is."""
        for about in self.runtime.glob("*/kernels/*/keeper.json"):
            try:
                said = json.loads(about.read_bytes())
            except (OSError, ValueError):
                continue
            self._watch(said["keeper_pid"], said["pid"])

    def left(self) -> list[int]:
        """The tracked processes that are still there."""
        return [pid for pid, process in self._processes.items() if is_running(process)]

    def _watch(self, *pids: int) -> None:
        for pid in pids:
            try:
                self._processes.setdefault(pid, psutil.Process(pid))
            except psutil.NoSuchProcess:
                pass

    async def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                for client in self._clients:
                    client.stop_channels()
                await self.close()
        finally:
            self.track()
            for server in self._servers:
                server.kill()
            for process in self._processes.values():
                # It may end by itself between the look and the signal.
                with contextlib.suppress(psutil.NoSuchProcess):
                    if is_running(process):
                        process.kill()
            for manager in self._managers:
                await manager.shutdown_kernel(now=True)
            psutil.wait_procs(list(self._processes.values()), timeout=10)
            shutil.rmtree(self.directory, ignore_errors=True)


class Server:
    """A host in a process of its own; see ``host_process.py`` for what it can be asked."""

    def __init__(self, hosting: Hosting, settings: dict[str, Any]) -> None:
        self._hosting = hosting
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.host_process", hosting.url, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=dict(os.environ),
        )

    async def ask(self, op: str, **data: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **data}) + "\n")
        self._process.stdin.flush()
        try:
            line = await asyncio.wait_for(asyncio.to_thread(self._process.stdout.readline), DEADLINE_S)
        except TimeoutError:
            said = [log.read_text() for log in self._hosting.runtime.glob("*/kernels/*/kernel.log")]
            raise AssertionError(
                f"no answer to {op!r} within {DEADLINE_S:g} s; kernels said: {said}"
            ) from None
        assert line, "the server has ended"
        self._hosting.track()
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer
        return answer

    def kill(self) -> None:
        """As kill -9 does; returns when it is gone."""
        self._process.kill()
        self._process.communicate()


def is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
async def hosting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hosting]:
    """A place for a log and kernels; whatever runs there ends with the test."""
    directory = Path(tempfile.mkdtemp(prefix="hk-", dir="/tmp"))
    made = Hosting(directory)
    monkeypatch.setenv("HIMALIA_RUNTIME_DIR", str(made.runtime))
    yield made
    await made.end()


async def ended(request: Request) -> ExecutionStatus:
    return await asyncio.wait_for(asyncio.shield(request.closed), DEADLINE_S)


async def until(happened: Callable[[], Any]) -> None:
    """Wait for something that nobody tells of, with a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not happened():
            await asyncio.sleep(0.01)


# What is in a topic


async def records(log: Log, topic: str) -> list[Record]:
    found: list[Record] = []
    while True:
        chunk = await log.read(topic, len(found), limit=10_000, bytes_max=64 << 20)
        if not chunk.records:
            return found
        found += chunk.records


async def until_recorded(
    hosting: Hosting, kernel_id: str, wanted: Callable[[list[Record]], Any]
) -> list[Record]:
    """Wait until the topic has something."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await hosting.records(kernel_id)
            if wanted(found):
                return found
            await asyncio.sleep(0.02)


def printed(found: list[Record], parent_id: str | None = None) -> str:
    """What was printed to stdout, in the order of the records."""
    text = []
    for record in found:
        headers = read_headers(record)
        if headers.msg_type == "stream" and parent_id in (None, headers.parent_id):
            content = to_message(record, headers).decoded_content()
            text.append(content["text"] if content["name"] == "stdout" else "")
    return "".join(text)


def events(found: list[Record], name: str | None = None) -> list[dict[str, Any]]:
    """The kernel's events, each with the request it is about under ``of``."""
    contents = [
        {**to_message(record).decoded_content(), "of": read_headers(record).parent_id}
        for record in found
        if read_headers(record).channel == "kernel"
    ]
    return [content for content in contents if name in (None, content["event"])]


def names(found: list[Record]) -> list[str]:
    return [event["event"] for event in events(found)]


def messages(found: list[Record], msg_type: str, parent_id: str | None = None) -> list[KernelMessage]:
    all_of_type = [to_message(record) for record in found if read_headers(record).msg_type == msg_type]
    return [message for message in all_of_type if parent_id in (None, message.parent_id)]


def repeated(found: list[Record]) -> list[str]:
    """Ids of IOPub messages that are there more than once."""
    ids = [record.id for record in found]
    return [id for id in set(ids) if ids.count(id) > 1] if len(set(ids)) < len(ids) else []


def text_of(result: ExecutionResult, name: str | None = None) -> str:
    """What was printed, to both streams or to one."""
    streams = [output for output in result.outputs if output["output_type"] == "stream"]
    return "".join(output["text"] for output in streams if name in (None, output["name"]))
