"""Real kernels behind a real server, driven over REST, for recording traces of their topics."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from tests.server.server_process import ServerProcess

DEADLINE_S = 90.0
QUIET_S = 0.3
NDJSON = {"Accept": "application/x-ndjson"}
Line = dict[str, Any]


class RecordingServer:
    """``himalia serve`` in a directory, which may be killed and started again on the same log."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self._flags = flags
        self._process: ServerProcess | None = None

    async def start(self) -> None:
        self._process = await asyncio.to_thread(ServerProcess, self.directory, *self._flags)

    async def end(self, number: signal.Signals) -> None:
        """Send it a signal and wait until it is gone."""
        if self._process is not None:
            process, self._process = self._process, None
            await asyncio.to_thread(process.stop, number)

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        assert self._process is not None, "the server is not running"
        async with httpx.AsyncClient(
            base_url=self._process.url, headers=self._process.headers, timeout=DEADLINE_S
        ) as http:
            return await http.request(method, path, json=body, **options)


class RecordedKernel:
    """One kernel of the server, and its topic."""

    def __init__(self, server: RecordingServer, kernel: str, scratch: Path) -> None:
        self.server = server
        self.name = kernel
        self.scratch = scratch
        """A directory of its own, for files by which code and recorder signal each other."""
        self.id = ""
        self.pid = 0
        self.manager: AsyncKernelManager | None = None
        """Of a foreign kernel: who started it."""
        self._clients: list[AsyncKernelClient] = []

    # Life

    async def start(self) -> None:
        self._take(await self.server.call("POST", "/api/kernels", {"name": self.name}))

    async def start_foreign(self) -> None:
        """Start a kernel as any other program does; ``attach`` has the server listen to it."""
        path = self.scratch / "connection.json"
        self.manager = AsyncKernelManager(kernel_name=self.name, connection_file=str(path))
        await self.manager.start_kernel()
        self.pid = int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    async def attach(self) -> None:
        pid = self.pid
        body = {"connection_file": str(self.scratch / "connection.json")}
        self._take(await self.server.call("POST", "/api/kernels/attach", body))
        self.pid = pid

    def _take(self, answer: httpx.Response) -> None:
        body = answer.raise_for_status().json()
        self.id, self.pid = body["id"], body["pid"] or 0

    async def refresh(self) -> None:
        """Read the process id again, after a restart."""
        self._take(await self._call("GET", ""))

    async def interrupt(self) -> None:
        (await self._call("POST", "/interrupt")).raise_for_status()

    async def restart(self) -> None:
        (await self._call("POST", "/restart")).raise_for_status()
        await self.refresh()

    async def stop(self) -> None:
        """End it, or detach from a foreign one."""
        await self._call("DELETE", "")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def kill_keeper(self) -> None:
        keeper = psutil.Process(self.pid).parent()
        assert keeper is not None
        keeper.kill()

    async def gone(self) -> None:
        """Wait until the kernel's process has ended."""
        await until(lambda: not psutil.pid_exists(self.pid) or _is_zombie(self.pid))

    async def close(self) -> None:
        """Leave nothing behind."""
        for client in self._clients:
            client.stop_channels()
        with suppress(httpx.HTTPError, AssertionError):
            await self.stop()
        if self.manager is not None:
            await self.manager.shutdown_kernel(now=True)

    # Requests

    async def submit(self, code: str, **options: Any) -> str:
        """Queue code; returns the request's id."""
        answer = await self._call("POST", "/execute", {"code": code, **options})
        return str(answer.raise_for_status().json()["request_id"])

    async def run(self, code: str, **options: Any) -> str:
        """Run code to its end; returns its status."""
        return await self.result(await self.submit(code, **options))

    async def run_if_alive(self, code: str, **options: Any) -> None:
        """The same, unless the kernel has ended: xeus-python ends when it is interrupted between two steps."""
        try:
            await self.run(code, **options)
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (404, 409):
                raise

    async def result(self, request_id: str) -> str:
        """Wait for the end of a request of the server's; returns its status."""

        def closed(lines: list[Line]) -> list[str]:
            events = [content(line) for line in lines if header(line, "parent_id") == request_id]
            return [event["status"] for event in events if event.get("event") == "request_closed"]

        return closed(await self.until(closed))[0]

    async def begun(self, request_id: str) -> None:
        """Wait until the kernel has echoed the code of a request."""
        await self.until(lambda lines: of_type(lines, "execute_input", request_id))

    async def cancel(self, request_id: str) -> None:
        (await self._call("DELETE", f"/executions/{request_id}")).raise_for_status()

    async def asked(self, number: int = 1) -> None:
        """Wait until code has asked for input so many times."""
        await self.until(lambda lines: len(of_type(lines, "input_request")) >= number)

    async def answer(self, value: str) -> None:
        (await self._call("POST", "/input", {"value": value})).raise_for_status()

    # Another client

    async def client(self) -> AsyncKernelClient:
        """A client of the kernel's own, such as any other program has; it is ready."""
        client = AsyncKernelClient(connection_file=str(self.connection_file))
        client.load_connection_file()
        client.start_channels(hb=False)
        self._clients.append(client)
        await client.wait_for_ready(timeout=DEADLINE_S)
        return client

    @property
    def connection_file(self) -> Path:
        if self.manager is not None:
            return self.scratch / "connection.json"
        return next(self.server.directory.glob(f"runtime/*/kernels/{self.id}/connection.json"))

    # The topic

    async def records(self) -> bytes:
        answer = await self.server.call("GET", f"/topics/kernels.{self.id}/messages", headers=NDJSON)
        return answer.raise_for_status().content

    async def lines(self) -> list[Line]:
        return [json.loads(line) for line in (await self.records()).splitlines()]

    async def until(self, wanted: Callable[[list[Line]], Any]) -> list[Line]:
        """Wait until the topic has something."""
        async with asyncio.timeout(DEADLINE_S):
            while not wanted(lines := await self.lines()):
                await asyncio.sleep(0.03)
        return lines

    async def printed(self, text: str) -> None:
        """Wait until this has been printed, or the kernel has died."""
        await self.until(lambda lines: text in printed(lines) or "died" in events(lines))

    async def event(self, name: str, number: int = 1) -> None:
        """Wait for an event of the kernel, which may come several times."""
        await self.until(lambda lines: events(lines).count(name) >= number)

    async def idle_of(self, request_id: str) -> None:
        """Wait until the kernel is done with a request of another client, or has died."""

        def is_done(lines: list[Line]) -> bool:
            said = of_type(lines, "status", request_id)
            return "died" in events(lines) or any(content(line)["execution_state"] == "idle" for line in said)

        await self.until(is_done)

    async def settled(self) -> bytes:
        """The topic's records, when nothing more comes."""
        before = b""
        while before != (now := await self.records()):
            before = now
            await asyncio.sleep(QUIET_S)
        return now

    async def _call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return await self.server.call(method, f"/api/kernels/{self.id}{path}", body)

    # Files by which code waits for the recorder

    def wait_code(self, name: str = "go") -> str:
        """Code that waits for ``release``."""
        path = str(self.scratch / name)
        return f"import os, time\nwhile not os.path.exists({path!r}): time.sleep(.01)"

    def release(self, name: str = "go") -> None:
        (self.scratch / name).touch()

    def mark_code(self, name: str = "done") -> str:
        """Code that makes a file; see ``marked``."""
        return f"open({str(self.scratch / name)!r}, 'w').close()"

    async def marked(self, name: str = "done") -> None:
        await until((self.scratch / name).exists)


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not happened():
            await asyncio.sleep(0.02)


def header(line: Line, name: str) -> str:
    return str(line["message"]["headers"].get(name, ""))


def content(line: Line) -> dict[str, Any]:
    payload = line["message"]["payload"]
    found = payload.get("content") if isinstance(payload, dict) else None
    return found if isinstance(found, dict) else {}


def of_type(lines: list[Line], msg_type: str, parent_id: str | None = None) -> list[Line]:
    return [
        line
        for line in lines
        if header(line, "msg_type") == msg_type and parent_id in (None, header(line, "parent_id"))
    ]


def events(lines: list[Line]) -> list[str]:
    return [str(content(line).get("event")) for line in of_type(lines, "kernel_event")]


def printed(lines: list[Line]) -> str:
    return "".join(content(line)["text"] for line in of_type(lines, "stream"))


@asynccontextmanager
async def recorded_kernel(
    server: RecordingServer, kernel: str, scratch: Path
) -> AsyncIterator[RecordedKernel]:
    """A kernel for one trace, not started yet; it ends with the block."""
    await asyncio.to_thread(scratch.mkdir, parents=True)
    driven = RecordedKernel(server, kernel, scratch)
    try:
        yield driven
    finally:
        await driven.close()
