"""What every measurement is given: generator, effort, chosen peers, and a place to start servers in."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress, TaskID

from benchmarks.effort import Effort
from benchmarks.generator import Endpoint, Generator, Load, Outcome
from benchmarks.patience import Patience
from benchmarks.peers.peer import Peer


@dataclass(frozen=True)
class Bench:
    generator: Generator
    effort: Effort
    peer_keys: frozenset[str]
    directory: Path
    patience: Patience
    progress: Progress
    task: TaskID
    server_python: Path

    def chosen(self, peers: Sequence[Peer]) -> list[Peer]:
        return [peer for peer in peers if peer.key in self.peer_keys]

    def expect(self, runs: int, title: str) -> None:
        """Announces how many runs a measurement consists of."""
        self.progress.reset(self.task, total=runs, description=title)

    def say(self, what: str) -> None:
        """What is measured now: beside the bar, or a line where there is no terminal to draw one in."""
        self.progress.update(self.task, description=what)
        if not self.progress.console.is_terminal:
            self.progress.console.print(f"{time.strftime('%H:%M:%S')} {what}", highlight=False)

    def advance(self) -> None:
        self.progress.advance(self.task)

    @contextmanager
    def started(self, peer: Peer) -> Iterator[Endpoint]:
        """A fresh server in an empty directory on this disk; both are gone afterwards."""
        with (
            tempfile.TemporaryDirectory(dir=self.directory) as directory,
            peer.start(Path(directory)) as endpoint,
        ):
            yield endpoint

    def run(self, peer: Peer, load: Load) -> Outcome:
        """One run against a fresh server, in a quiet moment if there is one."""

        def run() -> Outcome:
            with self.started(peer) as endpoint:
                return self.generator.run(load, endpoint)

        return self.patience.undisturbed(run)
