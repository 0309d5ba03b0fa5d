"""The context of a measurement: generator, scale, selected peers, and a directory for servers."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress, TaskID

from benchmarks.generator import Endpoint, Generator, Load, Outcome
from benchmarks.peers.peer import Peer
from benchmarks.quiet_machine import QuietMachine
from benchmarks.scale import Scale


@dataclass(frozen=True)
class Bench:
    generator: Generator
    scale: Scale
    peer_keys: frozenset[str]
    directory: Path
    quiet_machine: QuietMachine
    progress: Progress
    task: TaskID
    server_python: Path

    def select_peers(self, peers: Sequence[Peer]) -> list[Peer]:
        return [peer for peer in peers if peer.key in self.peer_keys]

    def expect(self, runs: int, title: str) -> None:
        """Set the number of runs of a measurement."""
        self.progress.reset(self.task, total=runs, description=title)

    def report(self, what: str) -> None:
        """Show the current step, on the progress bar or, without a terminal, as a line."""
        self.progress.update(self.task, description=what)
        if not self.progress.console.is_terminal:
            self.progress.console.print(f"{time.strftime('%H:%M:%S')} {what}", highlight=False)

    def advance(self) -> None:
        self.progress.advance(self.task)

    @contextmanager
    def start_server(self, peer: Peer) -> Iterator[Endpoint]:
        """Start a server in an empty directory on this disk; remove both at the end of the block."""
        with (
            tempfile.TemporaryDirectory(dir=self.directory) as directory,
            peer.start(Path(directory)) as endpoint,
        ):
            yield endpoint

    def run(self, peer: Peer, load: Load) -> Outcome:
        """Run once against a fresh server, repeated if the run is disturbed."""

        def run() -> Outcome:
            with self.start_server(peer) as endpoint:
                return self.generator.run(load, endpoint)

        return self.quiet_machine.run_undisturbed(run)
