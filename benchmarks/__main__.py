"""`python -m benchmarks`: run all or some measurements and print Markdown."""

import json
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import (
    build,
    machine,
    measure_abuses,
    measure_churn,
    measure_connector,
    measure_correlation,
    measure_fanout,
    measure_flood,
    measure_growth,
    measure_idle,
    measure_iopub,
    measure_latency,
    measure_pipeline,
    measure_publish,
    measure_requests,
    measure_roundtrip,
    measure_stalled,
    table,
)
from benchmarks.bench import Bench
from benchmarks.generator import Generator
from benchmarks.quiet_machine import QuietMachine
from benchmarks.scale import FULL, QUICK
from benchmarks.section import Section

MEASUREMENTS: dict[str, Callable[[Bench], Iterable[Section]]] = {
    "fanout": measure_fanout.measure,
    "publish": measure_publish.measure,
    "latency": measure_latency.measure,
    "idle": measure_idle.measure,
    "stalled": measure_stalled.measure,
    "growth": measure_growth.measure,
    "iopub": measure_iopub.measure,
    "flood": measure_flood.measure,
    "roundtrip": measure_roundtrip.measure,
    "requests": measure_requests.measure,
    "connector": measure_connector.measure,
    "correlation": measure_correlation.measure,
    "pipeline": measure_pipeline.measure,
    "abuses": measure_abuses.measure,
    "churn": measure_churn.measure,
}
USUAL = [name for name in MEASUREMENTS if name != "churn"]
"""All measurements but the one that takes ten minutes."""
PEERS = ("himalia", "redis", "nats", "seed", "null")


def main(
    only: Annotated[str, typer.Option(help="Measurements to run.")] = ",".join(USUAL),
    peers: Annotated[str, typer.Option(help="Servers to run them on.")] = ",".join(PEERS),
    quick: Annotated[bool, typer.Option("--quick", help="One short round of each.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, max=20, help="Number of rounds per server.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.2, max=600, help="How long `churn` runs.")] = None,
    patience: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds in total for repeating disturbed runs.")
    ] = 30,
    server_python: Annotated[
        Path,
        typer.Option(help="Python of the server for `abuses` and `churn`, such as that of another checkout."),
    ] = Path(sys.executable),
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write every run here.")] = None,
) -> None:
    """Compare Himalia with other servers on this machine, in one run."""
    chosen = _words(only, MEASUREMENTS, "measurement")
    peer_keys = _words(peers, PEERS, "server")
    signal.signal(signal.SIGTERM, _exit_orderly)
    _allow_many_descriptors()
    try:
        generator = Generator(build.compile_binaries().loadgen)
    except build.BuildError as reason:
        print(reason, file=sys.stderr)
        raise typer.Exit(2) from None
    with _scratch() as directory, _progress() as progress:
        task = progress.add_task("starting", total=None)
        scale = QUICK if quick else FULL
        if rounds is not None:
            scale = replace(scale, rounds=rounds, abuse_rounds=rounds)
        if minutes is not None:
            scale = replace(scale, churn_minutes=minutes)
        bench = Bench(
            generator,
            scale,
            frozenset(peer_keys),
            directory,
            QuietMachine(patience),
            progress,
            task,
            server_python,
        )
        described = machine.describe(directory)
        print(table.heading(described), end="\n\n", flush=True)
        sections = []
        for name in chosen:
            for section in MEASUREMENTS[name](bench):
                print(table.markdown(section), flush=True)
                sections.append(section)
    if json_file is not None:
        everything = {"machine": asdict(described), "sections": [asdict(section) for section in sections]}
        json_file.write_text(json.dumps(everything, indent=1) + "\n")
    if any(section.failures for section in sections):
        raise typer.Exit(1)


def _words(text: str, known: Collection[str], kind: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise typer.BadParameter(f"no {kind} is called {word!r}; there are {', '.join(known)}")
    return words


def _exit_orderly(signal_number: int, _: FrameType | None) -> None:
    """Raise an exception on SIGTERM, so that every child process and directory is removed."""
    raise SystemExit(128 + signal_number)


def _allow_many_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def _scratch() -> Iterator[Path]:
    """Create a directory next to the sources: /tmp is often in memory, but a durable log must be on a disk."""
    build.BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build.BUILD, prefix="run-") as directory:
        yield Path(directory)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


if __name__ == "__main__":
    typer.run(main)
