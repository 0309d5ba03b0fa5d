"""Measure whether the server's memory stays flat while clients come and go."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from benchmarks.bench import Bench
from benchmarks.churn import Churn
from benchmarks.local_server import LocalServer, local_server
from benchmarks.section import Section, Target
from benchmarks.server_process import PeerFailed, memory_bytes, open_descriptors

EVERY_S = 5.0
AFTERWARDS_S = 10.0
FLAT_MB = 5.0
BAR_CELLS = 30


@dataclass(frozen=True)
class Sample:
    seconds: float
    memory_mb: float
    descriptors: int


def measure(bench: Bench) -> list[Section]:
    minutes = bench.scale.churn_minutes
    section = Section(
        key="churn",
        title=f"Memory over {minutes:g} minutes of clients that come and go",
        columns=("minute", "memory, MB", "open descriptors", ""),
    )
    bench.expect(1, "churn")
    bench.report(f"churn: {minutes:g} minutes")
    try:
        with (
            tempfile.TemporaryDirectory(dir=bench.directory) as directory,
            local_server(bench.server_python, Path(directory)) as server,
        ):
            churn = Churn(server.port)
            before = sample(server, time.monotonic())
            samples = run(server, churn, 60 * minutes)
            time.sleep(AFTERWARDS_S)
            after = sample(server, time.monotonic())
    except PeerFailed as failure:
        section.failures.append(str(failure))
    else:
        _fill(section, before, samples, after, churn)
    bench.advance()
    return [section]


def sample(server: LocalServer, began: float) -> Sample:
    memory = memory_bytes(server.pid) / 1e6
    return Sample(time.monotonic() - began, memory, open_descriptors(server.pid))


def run(server: LocalServer, churn: Churn, seconds: float) -> list[Sample]:
    """Let clients come and go for the given time, and sample the server every few seconds."""
    samples = []
    began = time.monotonic()
    with churn.running():
        while (passed := time.monotonic() - began) < seconds:
            time.sleep(min(EVERY_S, seconds - passed))
            samples.append(sample(server, began))
    return samples


def slope_per_min(samples: Sequence[Sample]) -> float:
    """Return the growth in MB per minute, by least squares."""
    minutes, memory = [each.seconds / 60 for each in samples], [each.memory_mb for each in samples]
    middle, average = mean(minutes), mean(memory)
    spread = sum((minute - middle) ** 2 for minute in minutes)
    return sum((x - middle) * (y - average) for x, y in zip(minutes, memory, strict=True)) / (spread or 1.0)


def second_half(samples: Sequence[Sample]) -> list[Sample]:
    return list(samples[len(samples) // 2 :])


def _fill(section: Section, before: Sample, samples: list[Sample], after: Sample, churn: Churn) -> None:
    most = max(each.memory_mb for each in samples)
    section.rows.append(_row("before", before, most))
    for each in samples[:: max(1, round(60 / EVERY_S))]:
        section.rows.append(_row(f"{each.seconds / 60:.1f}", each, most))
    section.rows.append(_row("at the end", samples[-1], most))
    section.rows.append(_row(f"{AFTERWARDS_S:.0f} s after it", after, most))
    late = second_half(samples)
    growth = slope_per_min(late) * (late[-1].seconds - late[0].seconds) / 60
    spread = max(each.memory_mb for each in late) - min(each.memory_mb for each in late)
    section.targets.append(Target("growth in the second half, MB", growth, FLAT_MB, at_most=True))
    section.notes += [
        f"Start {before.memory_mb:.1f} MB, middle {late[0].memory_mb:.1f} MB, end {samples[-1].memory_mb:.1f} MB. "
        f"Second half: {slope_per_min(late):+.2f} MB a minute, most less least {spread:.1f} MB.",
        "Done: " + ", ".join(f"{count:,} {name}" for name, count in churn.done.items()) + ".",
    ]
    if churn.failed:
        section.notes.append(
            "Not done: " + ", ".join(f"{n:,} {name}" for name, n in churn.failed.items()) + "."
        )
    section.data = {
        "before": asdict(before),
        "samples": [asdict(each) for each in samples],
        "after": asdict(after),
        "done": dict(churn.done),
        "failed": dict(churn.failed),
    }


def _row(when: str, at: Sample, most: float) -> list[str]:
    bar = "█" * round(BAR_CELLS * at.memory_mb / most)
    return [when, f"{at.memory_mb:.1f}", f"{at.descriptors:,}", bar]
