"""Measure how long other clients wait while one client abuses the server. Each abuse has a fresh server."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO

from benchmarks.abuses import ABUSES, Abuse
from benchmarks.bench import Bench
from benchmarks.generator import QUIET_PERCENT
from benchmarks.hostile_client import TOKEN
from benchmarks.local_server import local_server
from benchmarks.quiet_machine import OthersCpu
from benchmarks.section import Section, Target
from benchmarks.server_process import PeerFailed, waited_for_core_s

WANTED_MS = 100.0
PAUSE_S = 0.01
ANSWER_MAX_S = 20.0
"""A server that has not answered by then is not waited for any longer."""
ABUSE_MAX_S = 30.0
AFTERWARDS_S = 1.0
"""Others may also have to wait while the server clears up."""


@dataclass
class Probe:
    """A client that requests ``/health`` repeatedly and records the response times."""

    port: int
    server_pid: int
    seconds: list[float] = field(default_factory=list)
    served_seconds: list[float] = field(default_factory=list)
    """The same, less what the server's event loop and this probe waited for a core that others used."""
    refused: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_MAX_S)
        while not self._ended.wait(PAUSE_S):
            began, queued = time.perf_counter(), self._queued_s()
            try:
                connection.request("GET", "/health", headers={"Authorization": f"Bearer {TOKEN}"})
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                self.refused += 1
                connection.close()
            took, queued = time.perf_counter() - began, self._queued_s() - queued
            self.seconds.append(took)
            self.served_seconds.append(max(0.0, took - queued))
        connection.close()

    def _queued_s(self) -> float:
        return waited_for_core_s(self.server_pid, self.server_pid) + waited_for_core_s(
            os.getpid(), threading.get_native_id()
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()


@dataclass(frozen=True)
class Waits:
    """Response times of the other client during an abuse."""

    longest_ms: float
    longest_served_ms: float
    p99_ms: float
    p50_ms: float
    answers: int
    refused: int
    others_cpu_percent: float

    @property
    def disturbed(self) -> bool:
        return self.others_cpu_percent > QUIET_PERCENT


def measure(bench: Bench) -> list[Section]:
    rounds = bench.scale.abuse_rounds
    section = Section(
        key="abuses",
        title="Wait for `/health` while one client abuses the server",
        columns=(
            "abuse",
            "longest, ms",
            "less waits for a core, ms",
            "p99, ms",
            "p50, ms",
            "answers",
            "none",
            "CPU % of other programs",
        ),
    )
    bench.expect(rounds * len(ABUSES), "abuses")
    runs: dict[str, list[Waits]] = {abuse.name: [] for abuse in ABUSES}
    for number in range(rounds):
        for abuse in ABUSES:
            bench.report(f"abuses: {abuse.name}, round {number + 1} of {rounds}")
            try:
                runs[abuse.name].append(bench.quiet_machine.run_undisturbed(partial(_run, bench, abuse)))
            except PeerFailed as failure:
                section.failures.append(f"{abuse.name}: {failure}")
            bench.advance()
    for abuse in ABUSES:
        if runs[abuse.name]:
            _add(section, abuse, runs[abuse.name])
    if rounds > 1:
        section.notes.append(f"Medians of {rounds} rounds.")
    return [section]


def _run(bench: Bench, abuse: Abuse) -> Waits:
    with (
        tempfile.TemporaryDirectory(dir=bench.directory) as directory,
        local_server(bench.server_python, Path(directory)) as server,
        _abuser(bench, abuse, server.port) as abuser,
    ):
        probe, others = Probe(server.port, server.pid), OthersCpu()
        with probe.running():
            abuser.run()
            time.sleep(AFTERWARDS_S)
        return _waits(probe, others.percent())


class Abuser:
    """A process that has prepared an abuse and waits for the command to begin."""

    def __init__(self, process: subprocess.Popen[str], input: IO[str], output: IO[str]) -> None:
        self._process = process
        self._input = input
        self._output = output

    def prepare(self, abuse: Abuse, port: int, scale: float, seconds: float) -> None:
        self._say(json.dumps([abuse.name, port, scale, seconds]))
        if self._output.readline() != "ready\n":
            raise PeerFailed("the abuser could not prepare it")

    def run(self) -> None:
        """Start the abuse, and wait until it ends or takes too long."""
        self._say("")
        try:
            status = self._process.wait(ABUSE_MAX_S)
        except subprocess.TimeoutExpired:
            return
        if status:
            raise PeerFailed(f"the abuser ended with status {status}")

    def _say(self, line: str) -> None:
        self._input.write(f"{line}\n")
        self._input.flush()


@contextmanager
def _abuser(bench: Bench, abuse: Abuse, port: int) -> Iterator[Abuser]:
    command = [sys.executable, "-m", "benchmarks.abuses"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        abuser = Abuser(process, process.stdin, process.stdout)
        try:
            abuser.prepare(abuse, port, bench.scale.abuse, bench.scale.abuse_seconds)
            yield abuser
        finally:
            process.kill()


def _waits(probe: Probe, others_cpu_percent: float) -> Waits:
    waits = sorted(1000 * seconds for seconds in probe.seconds)
    return Waits(
        longest_ms=waits[-1],
        longest_served_ms=1000 * max(probe.served_seconds),
        p99_ms=waits[int(len(waits) * 0.99)],
        p50_ms=waits[len(waits) // 2],
        answers=len(waits),
        refused=probe.refused,
        others_cpu_percent=others_cpu_percent,
    )


def _add(section: Section, abuse: Abuse, runs: list[Waits]) -> None:
    quiet = [run for run in runs if not run.disturbed] or runs
    longest = median(run.longest_ms for run in quiet)
    section.rows.append(
        [
            abuse.name,
            f"{longest:,.0f}",
            f"{median(run.longest_served_ms for run in quiet):,.0f}",
            f"{median(run.p99_ms for run in quiet):,.0f}",
            f"{median(run.p50_ms for run in quiet):.1f}",
            f"{sum(run.answers for run in quiet):,}",
            f"{sum(run.refused for run in quiet):,}",
            f"{max(run.others_cpu_percent for run in quiet):.0f}",
        ]
    )
    section.data[abuse.name] = [asdict(run) for run in runs]
    section.undecided = section.undecided or any(run.disturbed for run in quiet)
    if not abuse.is_control:
        section.targets.append(Target(f"{abuse.name}: longest wait, ms", longest, WANTED_MS, at_most=True))
