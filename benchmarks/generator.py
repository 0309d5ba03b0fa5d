"""Run the load generator against one server and parse its report."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Self

from benchmarks.server_process import PeerFailed

GRACE_S = 15.0
QUIET_PERCENT = 15.0


@dataclass(frozen=True)
class Endpoint:
    """The address and protocol of a running server."""

    dialect: str
    port: int
    pid: int
    policy: str = ""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Options of the generator; see loadgen/options.h."""

    mode: str
    subscribers: int = 0
    deaf: int = 0
    publishers: int = 1
    in_flight: int = 64
    message_bytes: int = 190
    warm_s: float = field(default=0.5, metadata={"option": "warm"})
    seconds: float = 3.0
    rate: float = 500.0
    count: int = 0
    deadline_s: float = field(default=60.0, metadata={"option": "deadline"})

    def options(self) -> list[str]:
        words = []
        for item in fields(self):
            if item.name != "mode":
                option = item.metadata.get("option", item.name.replace("_", "-"))
                words += [f"--{option}", str(getattr(self, item.name))]
        return words


@dataclass(frozen=True)
class Outcome:
    """The result of a run. Counts are exact; rates and percentages cover only the timed part, after the warm-up."""

    published: int = 0
    acked: int = 0
    delivered: int = 0
    lost: int = 0
    duplicated: int = 0
    event_bytes: float = 0
    elapsed_s: float = 0
    rate: float = 0
    server_cpu_percent: float = 0
    generator_cpu_percent: float = 0
    others_cpu_percent: float = 0
    samples: int = 0
    p50_ms: float = 0
    p99_ms: float = 0
    max_ms: float = 0
    stalled_events: int = 0
    stalled_skipped: int = 0
    stalled_notices: int = 0
    stalled_noticed_lost: int = 0
    stalled_closed: int = 0

    @classmethod
    def from_report(cls, report: dict[str, Any]) -> Self:
        return cls(**{key: value for key, value in report.items() if key != "phase"})

    @property
    def disturbed(self) -> bool:
        """Whether other programs used the machine during the run."""
        return self.others_cpu_percent > QUIET_PERCENT

    @property
    def lost_percent(self) -> float:
        return 100 * self.lost / (self.lost + self.delivered) if self.lost else 0.0

    def count_error(self) -> str | None:
        """Return why this run's counts are not exact, or None."""
        if self.acked != self.published:
            return f"{self.published - self.acked} of {self.published} publishes were not acknowledged"
        if self.lost or self.duplicated:
            return f"{self.lost} deliveries lost and {self.duplicated} duplicated"
        return None


class Session:
    """A generator that works in phases: it reports each one, then waits for a command to continue."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._input: IO[str] = _present(process.stdin)
        self._output: IO[str] = _present(process.stdout)

    def phase(self, name: str) -> Outcome:
        """Wait for the end of this phase; the generator's own deadline limits the wait."""
        line = self._output.readline()
        if not line:
            raise PeerFailed(f"the load generator ended with status {self._process.wait()}")
        report = json.loads(line)
        if report["phase"] == "failed":
            raise PeerFailed(report["error"])
        if report["phase"] != name:
            raise PeerFailed(f"the load generator reported {report['phase']} when {name} was due")
        return Outcome.from_report(report)

    def go_on(self) -> None:
        self._input.write("\n")
        self._input.flush()


@dataclass(frozen=True)
class Generator:
    binary: Path

    @contextmanager
    def session(self, load: Load, endpoint: Endpoint) -> Iterator[Session]:
        command = [str(self.binary), load.mode, *load.options()]
        command += ["--dialect", endpoint.dialect, "--port", str(endpoint.port)]
        command += ["--server-pid", str(endpoint.pid)]
        if endpoint.policy:
            command += ["--policy", endpoint.policy]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            yield Session(process)
            process.wait(GRACE_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            _present(process.stdin).close()
            _present(process.stdout).close()

    def run(self, load: Load, endpoint: Endpoint) -> Outcome:
        with self.session(load, endpoint) as session:
            return session.phase("done")


def _present(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
