"""Kept kernels for tests: real keepers and kernels, of which none outlives its test."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.connect import write_connection_file
from jupyter_client.manager import AsyncKernelManager

from himalia.keeper.client import KeeperClient, Spooled, read_spool
from himalia.keeper.provisioner import KeeperProvisioner
from himalia.keeper.server_protocol import Launch

DEADLINE_S = 30.0
SLEEP = [sys.executable, "-S", "-c", "import signal; signal.pause()"]

SERVER = """
import asyncio, json, sys
from jupyter_client.manager import AsyncKernelManager
from himalia.keeper.provisioner import KeeperProvisioner

async def main(directory):
    km = AsyncKernelManager(kernel_name="python3", kernel_id="kept")
    km.provisioner = KeeperProvisioner(
        kernel_id="kept", kernel_spec=km.kernel_spec, parent=km, directory=directory
    )
    await km.start_kernel()
    kc = km.client()
    kc.start_channels()
    await kc.wait_for_ready(timeout=30)
    info = km.provisioner.keeper.info
    print(json.dumps([info.keeper_pid, info.pid]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""
"""A process that starts a kernel, says who keeps it, and then only holds the lease."""


class Nursery:
    """Knows every process that a test started, and ends those that are left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: list[psutil.Process] = []
        self._servers: list[subprocess.Popen[str]] = []

    def track(self, *pids: int) -> None:
        for pid in pids:
            try:
                # Remembers when the process began, so that it never ends another one.
                self._processes.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                pass

    def track_keeper(self, keeper: KeeperClient) -> KeeperClient:
        self.track(keeper.info.keeper_pid, keeper.info.pid)
        return keeper

    async def start(self, argv: list[str], *, lacks: str | None = None, **launch: Any) -> KeeperClient:
        """Any command under a keeper; ``lacks`` names what a server of an earlier version does not tell it."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection_file, _ = write_connection_file(str(self.directory / "connection.json"), key=b"key")
        whole = {"kernel_id": "kept", "cwd": "/", "env": dict(os.environ), **launch}
        made = Launch(argv=argv, connection_file=connection_file, **whole)
        if lacks is not None:
            fields = {name: value for name, value in made._asdict().items() if name != lacks}
            made = namedtuple("Launch", fields)(**fields)  # type: ignore[assignment]
        return self.track_keeper(await KeeperClient.start(self.directory, made))

    def manager(self, kernel_name: str = "python3", **traits: Any) -> AsyncKernelManager:
        manager = AsyncKernelManager(kernel_name=kernel_name, kernel_id="kept")
        manager.provisioner = KeeperProvisioner(
            kernel_id="kept",
            kernel_spec=manager.kernel_spec,
            parent=manager,
            directory=str(self.directory),
            **traits,
        )
        return manager

    async def start_kernel(self, kernel_name: str = "python3", **traits: Any) -> AsyncKernelManager:
        manager = self.manager(kernel_name, **traits)
        await manager.start_kernel()
        self.track_keeper(keeper_of(manager))
        return manager

    async def start_server(self) -> tuple[subprocess.Popen[str], int, int]:
        """Another process that holds a kernel; its own, and the ids of the keeper's and the kernel's."""
        server = self._spawn_server()
        assert server.stdout is not None
        keeper_pid, pid = json.loads(await asyncio.to_thread(server.stdout.readline))
        self.track(keeper_pid, pid)
        return server, keeper_pid, pid

    def _spawn_server(self) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", SERVER, str(self.directory)]
        self._servers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        return self._servers[-1]

    def end(self) -> None:
        for server in self._servers:
            server.kill()
            server.communicate()
        for process in self._processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        for process in self._processes:
            wait_gone(process.pid)


def keeper_of(manager: AsyncKernelManager) -> KeeperClient:
    provisioner = manager.provisioner
    assert isinstance(provisioner, KeeperProvisioner)
    assert provisioner.keeper is not None
    return provisioner.keeper


def wait_gone(pid: int, timeout_s: float = DEADLINE_S) -> None:
    """Wait until a process has ended, though its parent may not have asked about it yet."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], timeout_s)[0], f"process {pid} is still there"
    finally:
        os.close(descriptor)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def client_of(manager: AsyncKernelManager) -> AsyncKernelClient:
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=DEADLINE_S)
    except RuntimeError as error:
        raise AssertionError(f"{error}; the kernel wrote: {keeper_of(manager).log_tail()}") from error
    return client


async def run(client: AsyncKernelClient, code: str) -> dict[str, Any]:
    """Execute; the content of the reply."""
    reply = await client.execute_interactive(code, timeout=DEADLINE_S, output_hook=lambda message: None)
    return dict(reply["content"])


def spooled_headers(directory: Path, after: int = -1) -> list[dict[str, Any]]:
    return [json.loads(frames_of(entry)[2]) for entry in read_spool(directory, after)]


def printed(directory: Path) -> str:
    """All that the kernel in a directory printed, as its spool tells."""
    text = []
    for entry in read_spool(directory):
        frames = frames_of(entry)
        if json.loads(frames[2])["msg_type"] == "stream":
            content = json.loads(frames[5])
            text.append(content["text"] if content["name"] == "stdout" else "")
    return "".join(text)


async def until_printed(directory: Path, text: str) -> None:
    """Wait until the spool has all of this and no more; another client may have had it a moment earlier."""
    try:
        await until(lambda: printed(directory) == text)
    except TimeoutError:
        assert printed(directory) == text


def frames_of(entry: Spooled) -> list[bytes]:
    """From the delimiter on: delimiter, signature, header, parent, metadata, content."""
    return entry.frames[entry.frames.index(b"<IDS|MSG>") :]


def content_of(entry: Spooled) -> dict[str, Any]:
    return dict(json.loads(frames_of(entry)[5]))


async def until(happened: Callable[[], bool]) -> None:
    """Wait for something that nobody tells of, with a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not happened():
            await asyncio.sleep(0.01)
