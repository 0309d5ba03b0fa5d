"""Keepers that an earlier version started, adopted by the present one: real wheels, keepers and kernels."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from himalia.protocol.models import ExecutionStatus
from tests.kernels.hosts import (
    DEADLINE_S,
    Hosting,
    events,
    hosting,
    is_running,
    printed,
    repeated,
    text_of,
    until,
    until_recorded,
)

__all__ = ["hosting"]

pytestmark = pytest.mark.slow

WHEELS = Path(__file__).with_name("old_wheels")
OLD_SERVER = """
import asyncio, json, sys
from pathlib import Path
import himalia
from himalia.kernels.host import KernelHost
from himalia.kernels.request import Code
from himalia.log import open_log
from himalia.pubsub import PubSubManager
from himalia.settings import Settings

async def main(installed, url, code, text):
    assert Path(himalia.__file__).is_relative_to(installed), himalia.__file__
    log = open_log(url)
    await log.open()
    manager = PubSubManager(log)
    await manager.start()
    host = KernelHost(manager, Settings(log=url))
    await host.open()
    kernel = await host.start("python3")
    request = await kernel.execute(Code(code=code))
    while True:
        chunk = await log.read(f"kernels.{kernel.id}", 0, limit=1000)
        if any(text.encode() in one.payload and b'"stream"' in one.headers for one in chunk.records):
            break
        await asyncio.sleep(0.01)
    print(json.dumps([kernel.id, request.id, kernel.model().pid]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
"""A server that starts a kernel and a request, and reports both when the log has the first output."""

RUNNING = """
import pathlib, time
def wait_for(name):
    while not pathlib.Path({directory!r}, name).exists():
        time.sleep(0.01)
print("before", flush=True)
wait_for("go")
for number in range(500):
    print("meanwhile", number, flush=True)
pathlib.Path({directory!r}, "printed").touch()
wait_for("finish")
print("after")
"""
OUTPUT = "".join(["before\n", *(f"meanwhile {number}\n" for number in range(500)), "after\n"])


@pytest.fixture
def old_servers() -> Iterator[list[subprocess.Popen[str]]]:
    """The servers of earlier versions that a test has started; none outlives it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for server in started:
        server.kill()
        server.communicate()


def install(revision: str, target: Path) -> None:
    """Install the wheel of an earlier revision into an empty directory."""
    (wheel,) = (WHEELS / revision).glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-deps", "--no-index", "--no-compile", "--target", str(target)]
    subprocess.run([*pip, *options, str(wheel)], check=True, timeout=DEADLINE_S)


@pytest.mark.parametrize("revision", ["51d74f6", "c8cdca2"])
async def test_a_keeper_of_an_earlier_version_is_adopted(
    hosting: Hosting, tmp_path: Path, old_servers: list[subprocess.Popen[str]], revision: str
) -> None:
    """The server that started it is killed in mid-request: the log gets all output once, and the kernel lives on."""
    installed = tmp_path / "installed"
    await asyncio.to_thread(install, revision, installed)
    code = RUNNING.format(directory=str(tmp_path))
    server = start_old_server(installed, hosting.url, code)
    old_servers.append(server)
    kernel_id, request_id, pid = await asyncio.wait_for(read_line(server), DEADLINE_S)
    hosting.track()
    keeper = psutil.Process(pid).parent()
    assert keeper is not None and keeper.environ()["PYTHONPATH"] == str(installed)
    server.kill()
    server.wait(DEADLINE_S)
    (tmp_path / "go").touch()
    await until((tmp_path / "printed").exists)

    host = await hosting.open()
    kernel = host.get(kernel_id)
    assert kernel.model().pid == pid and is_running(keeper)
    (tmp_path / "finish").touch()
    found = await until_recorded(
        hosting,
        kernel_id,
        lambda found: any(event["of"] == request_id for event in events(found, "request_closed")),
    )
    result = await host.result(kernel_id, request_id)
    assert (result.status, text_of(result)) == (ExecutionStatus.OK, OUTPUT)
    assert printed(found, request_id) == OUTPUT and not repeated(found) and not events(found, "gap")
    assert text_of(await hosting.run(kernel, "print(6 * 7)")) == "42\n"

    await kernel.restart()
    assert not is_running(keeper) and kernel.model().pid != pid
    assert text_of(await hosting.run(kernel, "print('restarted')")) == "restarted\n"


def start_old_server(installed: Path, url: str, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", OLD_SERVER, str(installed), url, code, "before"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(installed)},
    )


async def read_line(server: subprocess.Popen[str]) -> Any:
    assert server.stdout is not None
    line = await asyncio.to_thread(server.stdout.readline)
    assert line, "the server of the earlier version has ended"
    return json.loads(line)
