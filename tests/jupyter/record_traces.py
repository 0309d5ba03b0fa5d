"""Record the topics of real kernels as traces: ``python -m tests.jupyter.record_traces``.

Plays every scenario on a real server with a real kernel, and stores the kernel's topic as a trace. Takes some minutes.
``--only`` plays those whose names contain one of the given words, and keeps the other traces. ``--expect`` records
nothing: it writes the edited traces and what the state machine makes of all, to be reviewed and committed with them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from signal import SIGTERM

from tests.jupyter import corpus, edits
from tests.jupyter.recording import RecordedKernel, RecordingServer, recorded_kernel
from tests.jupyter.scenarios import SCENARIOS
from tests.jupyter.scenarios.registry import SERVERS, Scenario

AT_A_TIME = 3
IN_PARTS_AT_A_TIME = 8
SCENARIO_S = 180.0


Playing = tuple[RecordedKernel, AsyncGenerator[None]]


class Recorder:
    """Plays scenarios and keeps their traces."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.traces: list[corpus.Trace] = []
        self.failed: list[str] = []

    async def play(self, server: str, scenarios: Sequence[Scenario]) -> None:
        """Play all scenarios of one kind of server."""
        if SERVERS[server].end is None:
            await self._play_beside(server, scenarios)
            return
        for start in range(0, len(scenarios), IN_PARTS_AT_A_TIME):
            part = scenarios[start : start + IN_PARTS_AT_A_TIME]
            await self._play_in_parts(server, f"{server}{start}", part)

    async def _play_beside(self, name: str, scenarios: Sequence[Scenario]) -> None:
        server = self._server(name, name)
        await server.start()
        free = asyncio.Semaphore(AT_A_TIME)

        async def play(scenario: Scenario) -> None:
            async with (
                free,
                self._watched(scenario),
                asyncio.timeout(SCENARIO_S),
                self._kernel(server, scenario) as kernel,
            ):
                await self._start(kernel, scenario)
                await scenario.play(kernel, *scenario.arguments)  # type: ignore[misc]
                await self._keep(kernel, scenario)

        await asyncio.gather(*map(play, scenarios))
        await server.end(SIGTERM)

    async def _play_in_parts(self, name: str, directory: str, scenarios: Sequence[Scenario]) -> None:
        """Play scenarios beside each other, up to where each lets the server end, and from there on."""
        server = self._server(name, directory)
        await server.start()
        async with contextlib.AsyncExitStack() as stack:
            playing: dict[Scenario, Playing] = {}
            for scenario in scenarios:
                kernel = await stack.enter_async_context(self._kernel(server, scenario))
                async with self._watched(scenario):
                    await self._start(kernel, scenario)
                    playing[scenario] = kernel, scenario.play(kernel, *scenario.arguments)  # type: ignore[assignment]
            await self._advance(playing)
            while playing:
                await server.end(SERVERS[name].end or SIGTERM)
                await self._advance(playing)
                await server.start()
                await self._advance(playing)
        await server.end(SIGTERM)

    async def _advance(self, playing: dict[Scenario, Playing]) -> None:
        """Play each to its next yield; keep and remove those that are over."""

        async def step(scenario: Scenario) -> None:
            kernel, parts = playing[scenario]
            is_over = True
            async with self._watched(scenario), asyncio.timeout(SCENARIO_S):
                is_over = await anext(parts, True) is True
                if is_over:
                    await self._keep(kernel, scenario)
            if is_over:
                del playing[scenario]

        await asyncio.gather(*map(step, list(playing)))

    def _server(self, name: str, directory: str) -> RecordingServer:
        place = self._directory / directory
        place.mkdir(exist_ok=True)
        return RecordingServer(place, *SERVERS[name].flags)

    def _kernel(
        self, server: RecordingServer, scenario: Scenario
    ) -> contextlib.AbstractAsyncContextManager[RecordedKernel]:
        number = SCENARIOS.index(scenario)
        return recorded_kernel(server, scenario.kernel, self._directory / "scratch" / str(number))

    async def _start(self, kernel: RecordedKernel, scenario: Scenario) -> None:
        if scenario.is_foreign:
            await kernel.start_foreign()
        else:
            await kernel.start()

    async def _keep(self, kernel: RecordedKernel, scenario: Scenario) -> None:
        text = (await kernel.settled()).decode()
        replaced = {
            str(kernel.scratch): "/scratch",
            str(self._directory): "/server",
            kernel.id: scenario.name,
            sys.prefix: "/venv",
            sys.base_prefix: "/python",
            str(Path.cwd()): "/work",
            socket.gethostname(): "machine",
            f'"{getpass.getuser()}"': '"user"',
        }
        for own, neutral in replaced.items():
            text = text.replace(own, neutral)
        about = corpus.About(
            trace=scenario.name, family=scenario.family, kernel=scenario.kernel, about=scenario.about
        )
        self.traces.append(corpus.Trace(about, text.splitlines()))
        print(f"{len(self.traces):4} {scenario.name}: {text.count(chr(10)) + 1} records", flush=True)

    @contextlib.asynccontextmanager
    async def _watched(self, scenario: Scenario) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            self.failed.append(scenario.name)
            print(f"     {scenario.name} FAILED: {type(error).__name__}: {error}", flush=True)


async def record(scenarios: Sequence[Scenario]) -> Recorder:
    directory = Path(tempfile.mkdtemp(prefix="ht-", dir="/tmp"))
    recorder = Recorder(directory)
    by_server: dict[str, list[Scenario]] = defaultdict(list)
    for scenario in scenarios:
        by_server[scenario.server].append(scenario)
    try:
        for server, part in by_server.items():
            await recorder.play(server, part)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return recorder


def write(recorded: list[corpus.Trace]) -> None:
    corpus.write([*recorded, *edits.edited(recorded)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[""], help="play the scenarios whose names contain one of these"
    )
    parser.add_argument("--expect", action="store_true", help="write the expected results of the traces")
    given = parser.parse_args()
    if given.expect:
        write([trace for trace in corpus.traces() if trace.about.family != edits.FAMILY])
        corpus.write_expected()
        return
    os.environ["HIMALIA_LOG_LEVEL"] = "warning"
    wanted = [scenario for scenario in SCENARIOS if any(word in scenario.name for word in given.only)]
    started_s = time.monotonic()
    recorder = asyncio.run(record(wanted))
    kept = {} if given.only == [""] else {trace.name: trace for trace in corpus.traces()}
    kept |= {trace.name: trace for trace in recorder.traces}
    recorded = [trace for trace in kept.values() if trace.about.family != edits.FAMILY]
    write(recorded)
    took_s = time.monotonic() - started_s
    print(
        f"{len(recorder.traces)} traces in {took_s:.0f} s; {len(recorded)} in all; failed: {recorder.failed}"
    )
    sys.exit(bool(recorder.failed))


if __name__ == "__main__":
    main()
