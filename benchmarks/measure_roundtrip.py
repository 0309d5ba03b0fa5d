"""Measure the round trip of one small execution.

The libraries run in this process; Himalia over REST adds a process and an HTTP request.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import uvloop
from jupyter_client.manager import start_new_kernel

from benchmarks.bench import Bench
from benchmarks.kernel_peer import kernel_server
from benchmarks.section import Section, Target
from benchmarks.server_process import PeerFailed
from himalia.kernels import Kernel, KernelHost, execute_code
from himalia.log import open_log
from himalia.pubsub import PubSubManager
from himalia.settings import Settings

JUPYTER, HIMALIA = "jupyter_client execute_interactive", "Himalia execute_code, durable log"
REST = "Himalia over REST, POST …/execute with wait"
WARM_UP = 10


def measure(bench: Bench) -> list[Section]:
    section = Section(
        key="roundtrip",
        title="Round trip of `1+1`, one after the other",
        columns=("client", "p50 ms", "p99 ms"),
    )
    ways = {JUPYTER: _jupyter, HIMALIA: _himalia, REST: _rest}
    bench.expect(bench.scale.rounds * len(ways), "roundtrip")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(bench.scale.rounds):
        for name, client in ways.items():
            bench.report(f"roundtrip: {name}")
            with TemporaryDirectory(dir=bench.directory) as directory, client(Path(directory)) as execute:
                seconds[name] += _times(execute, bench.scale.roundtrips)
            bench.advance()
    for name, measured in seconds.items():
        p99 = quantiles(measured, n=100)[98]
        section.rows.append([name, f"{median(measured) * 1e3:.2f}", f"{p99 * 1e3:.2f}"])
    ratio = median(seconds[HIMALIA]) / median(seconds[JUPYTER])
    section.targets.append(Target(f"p50, against {JUPYTER}", ratio, 1.3, at_most=True))
    section.data.update(seconds)
    return [section]


def _times(execute: Callable[[], None], count: int) -> list[float]:
    for _ in range(WARM_UP):
        execute()
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        execute()
        seconds.append(time.perf_counter() - started)
    return seconds


@contextmanager
def _jupyter(directory: Path) -> Iterator[Callable[[], None]]:
    manager, client = start_new_kernel(kernel_name="python3")

    def execute() -> None:
        reply = client.execute_interactive("1+1", output_hook=lambda message: None, timeout=30)
        if reply["content"]["status"] != "ok":
            raise PeerFailed("1+1 failed")

    try:
        yield execute
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@contextmanager
def _himalia(directory: Path) -> Iterator[Callable[[], None]]:
    os.environ["HIMALIA_RUNTIME_DIR"] = str(directory / "runtime")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        kernel = runner.run(_started(stack, f"sqlite://{directory / 'log.db'}"))

        def execute() -> None:
            result = runner.run(execute_code(kernel, "1+1"))
            if result.outputs[0]["data"]["text/plain"] != "2":
                raise PeerFailed("1+1 is not 2")

        try:
            yield execute
        finally:
            runner.run(stack.aclose())


async def _started(stack: AsyncExitStack, log_url: str) -> Kernel:
    log = open_log(log_url)
    await log.open()
    stack.push_async_callback(log.close)
    manager = PubSubManager(log)
    await manager.start()
    stack.push_async_callback(manager.stop)
    host = KernelHost(manager, Settings(log=log_url))
    await host.open()
    stack.push_async_callback(host.close)
    return await host.start("python3")


@contextmanager
def _rest(directory: Path) -> Iterator[Callable[[], None]]:
    with kernel_server(directory) as server:

        def execute() -> None:
            result = server.execute("1+1", wait=True)
            if result["outputs"][0]["data"]["text/plain"] != "2":
                raise PeerFailed("1+1 is not 2")

        yield execute
