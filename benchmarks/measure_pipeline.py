"""Measure the whole pipeline: throughput into all tables, delay until an execution is visible, effect on publishers.

The server, Spark's workers and Spark itself share two cores. Spark's start and the first run, in which the JVM
compiles, are not counted.
"""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.bench import Bench
from benchmarks.generator import Endpoint, Load, Outcome
from benchmarks.kernel_peer import kernel_server
from benchmarks.pipeline_peer import MASTER, Filled, serve, spark, url
from benchmarks.section import Section, Target, median_of, spread
from benchmarks.server_process import PeerFailed, running
from himalia.spark.delta.staging import STAGING
from himalia.spark.pipeline.runner import Pipeline, PipelineOptions, Progress, Summary

WANTED_RATE = 40_000
WANTED_LINEAR = 0.8
WANTED_NEIGHBOUR = 1.5
EVERY_S = 1.0
VISIBLE_WITHIN_S = 60.0
NEIGHBOUR_RATE = 500
NEIGHBOUR_SUBSCRIBERS = 10
ALONE, READING = "alone", "while the pipeline reads"
COUNTING = "while unrelated programs keep all cores busy, at the lowest priority"
COUNT_MAX = 5_000_000_000
"""So that they end by themselves in any case, after a minute or two."""
SPARK_WITHIN_S = 120.0


def measure(bench: Bench) -> Iterator[Section]:
    sizes = bench.scale.pipeline_messages
    bench.expect(
        len(sizes) * bench.scale.rounds + 1 + bench.scale.visible_samples + 3 * bench.scale.rounds,
        "pipeline",
    )
    with TemporaryDirectory(dir=bench.directory) as scratch, spark(Path(scratch)):
        yield _throughput(bench, Path(scratch), sizes)
        yield _neighbour(bench, Path(scratch) / str(sizes[-1]))
        yield _visible(bench)


# Throughput


@dataclass
class Runs:
    """The runs of one size of log."""

    filled: Filled
    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    batches: int = 0
    state_rows: int = 0

    def note(self, summary: Summary, told: list[Progress]) -> None:
        self.rates.append(summary.rows / summary.seconds)
        self.seconds.append(summary.seconds)
        self.batches = summary.batches
        self.state_rows = max([self.state_rows, *(progress.state_rows for progress in told)])


def _throughput(bench: Bench, scratch: Path, sizes: tuple[int, ...]) -> Section:
    section = Section(
        key="pipeline",
        title="The whole pipeline, log to all tables, on two cores",
        columns=(
            "messages",
            "messages/s, median",
            "least – most",
            "s",
            "batches",
            "requests",
            "peak state, requests",
        ),
    )
    found: dict[int, Runs] = {}
    for size in sizes:
        bench.report(f"pipeline: filling a log with {size:,} messages")
        directory = scratch / str(size)
        directory.mkdir()
        found[size] = Runs(Filled(directory / "log.db", size))
        with serve(directory) as endpoint:
            if size == sizes[0]:
                bench.report("pipeline: before the clock starts")
                _run(endpoint, directory, [])
                bench.advance()
            for number in range(1, bench.scale.rounds + 1):
                bench.report(f"pipeline: {size:,} messages, round {number} of {bench.scale.rounds}")
                told: list[Progress] = []
                summary = _run(endpoint, directory, told)
                if inexact := _row_error(directory / "warehouse", found[size].filled):
                    section.failures.append(f"{size:,} messages: {inexact}")
                found[size].note(summary, told)
                bench.advance()
    _fill(section, found)
    return section


def _run(endpoint: Endpoint, directory: Path, told: list[Progress]) -> Summary:
    """Run one pass into an empty warehouse."""
    shutil.rmtree(directory / "warehouse", ignore_errors=True)
    with Pipeline(
        url(endpoint),
        "none",
        directory / "warehouse",
        PipelineOptions(master=MASTER, topics=["kernels.>"]),
        on_progress=told.append,
    ) as pipeline:
        return pipeline.run_once()


def _row_error(warehouse: Path, filled: Filled) -> str | None:
    """Return how the tables differ from the log, or None."""
    rows = DeltaTable(warehouse / "messages").to_pyarrow_table(columns=["topic", "offset"])
    distinct = rows.group_by(["topic", "offset"]).aggregate([]).num_rows
    ends = rows.group_by("topic").aggregate([("offset", "max")])["offset_max"]
    # The server adds a few: it closes open requests, since the kernels have ended.
    there = sum(end + 1 for end in ends.to_pylist())
    if there < filled.records or (rows.num_rows, distinct) != (there, there):
        return f"{rows.num_rows} rows, {distinct} distinct, of {there} records, {filled.records} of them messages"
    executions = DeltaTable(warehouse / "executions").to_pyarrow_table(columns=["is_foreign"])
    own = pc.sum(pc.invert(executions["is_foreign"])).as_py()
    return None if own == filled.requests else f"{own} executions of {filled.requests} requests"


def _fill(section: Section, found: dict[int, Runs]) -> None:
    rates = {size: median(runs.rates) for size, runs in found.items()}
    for size, runs in found.items():
        section.rows.append(
            [
                f"{size:,}",
                f"{rates[size]:,.0f}",
                spread(runs.rates),
                f"{median(runs.seconds):.1f}",
                str(runs.batches),
                f"{runs.filled.requests:,}",
                f"{runs.state_rows:,}",
            ]
        )
    largest = max(rates)
    section.targets.append(Target("thousand messages/s", rates[largest] / 1000, WANTED_RATE / 1000))
    section.targets.append(
        Target(
            f"rate at {largest:,} messages, against the best",
            rates[largest] / max(rates.values()),
            WANTED_LINEAR,
        )
    )
    section.notes.append(
        "Spark's start is not counted, nor the first run; everything else is, the first plan to the last commit."
    )
    section.data.update(
        {str(size): {"rates": runs.rates, "state": runs.state_rows} for size, runs in found.items()}
    )


# From the end of an execution to its row


def _visible(bench: Bench) -> Section:
    section = Section(
        key="visible",
        title=f"From the end of an execution to its row in `executions`, with --every {EVERY_S:.0f}s",
        columns=("", "median s", "p95 s", "least – most"),
    )
    waits = []
    with TemporaryDirectory(dir=bench.directory) as scratch, kernel_server(Path(scratch)) as server:
        warehouse = Path(scratch) / "warehouse"
        with _run_pipeline(f"http://127.0.0.1:{server.port}", warehouse):
            # The first ones wait for the JVM to warm up.
            for number in range(-bench.scale.visible_warm_ups, bench.scale.visible_samples):
                bench.report(f"pipeline: execution {max(number + 1, 0)} of {bench.scale.visible_samples}")
                # Vary the moment within the cycle at which it ends.
                time.sleep(random.uniform(0, EVERY_S))
                request_id = server.execute("print('hello'); 6 * 7", wait=True)["request_id"]
                waited_s = _until_visible(warehouse / "executions", request_id)
                if number >= 0:
                    waits.append(waited_s)
                    bench.advance()
    typical, late = median(waits), quantiles(waits, n=20, method="inclusive")[-1]
    section.rows.append(["visible", f"{typical:.2f}", f"{late:.2f}", f"{min(waits):.2f} – {max(waits):.2f}"])
    section.data["seconds"] = waits
    return section


@contextmanager
def _run_pipeline(server: str, warehouse: Path) -> Iterator[None]:
    """Run a pipeline with --every 1s until the block ends."""
    pipeline = Pipeline(server, "none", warehouse, PipelineOptions(master=MASTER, topics=["kernels.>"]))
    entered, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            with pipeline as loop:
                entered.set()
                loop.run(EVERY_S)
        except BaseException as error:
            failures.append(error)
        finally:
            entered.set()

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    try:
        yield
    finally:
        pipeline.stop()
        thread.join()
    if failures:
        raise PeerFailed(f"the pipeline failed: {failures[0]}")


def _until_visible(table: Path, request_id: str) -> float:
    began = time.perf_counter()
    while time.perf_counter() - began < VISIBLE_WITHIN_S:
        if DeltaTable.is_deltatable(str(table)):
            closed = DeltaTable(table).to_pyarrow_table([("is_running", "=", False)], ["request_id"])
            if pc.is_in(request_id, closed["request_id"].combine_chunks()).as_py():
                return time.perf_counter() - began
        time.sleep(0.02)
    raise PeerFailed(f"an execution was not visible after {VISIBLE_WITHIN_S:.0f} s")


# The server during a pass


def _neighbour(bench: Bench, directory: Path) -> Section:
    section = Section(
        key="neighbour",
        title=f"{NEIGHBOUR_RATE} publishes/s to {NEIGHBOUR_SUBSCRIBERS} subscribers, while the pipeline reads the log",
        columns=("", "p50 ms", "p99 ms", "max ms", "lost"),
    )
    found: dict[str, list[Outcome]] = {ALONE: [], COUNTING: [], READING: []}
    load = Load(
        mode="latency",
        subscribers=NEIGHBOUR_SUBSCRIBERS,
        rate=NEIGHBOUR_RATE,
        in_flight=4096,
        message_bytes=152,
        seconds=bench.scale.neighbour_seconds,
        warm_s=bench.scale.warm_s,
    )
    with serve(directory) as endpoint:
        for number in range(1, bench.scale.rounds + 1):
            bench.report(f"pipeline: its neighbour, round {number} of {bench.scale.rounds}")
            found[ALONE].append(bench.generator.run(load, endpoint))
            bench.advance()
            with _run_counters(os.cpu_count() or 1):
                found[COUNTING].append(bench.generator.run(load, endpoint))
            bench.advance()
            found[READING].append(_measure_while(bench, load, endpoint, directory))
            bench.advance()
    for name, runs in found.items():
        section.rows.append([name, *_latencies(runs)])
        section.failures += [f"{name}: {inexact}" for run in runs if (inexact := run.count_error())]
    for percentile in ("p50_ms", "p99_ms"):
        ratio = median_of(found[READING], percentile) / median_of(found[ALONE], percentile)
        section.targets.append(
            Target(f"{percentile[:3]}, against alone", ratio, WANTED_NEIGHBOUR, at_most=True)
        )
    return section


@contextmanager
def _run_counters(processes: int) -> Iterator[None]:
    """Run programs that only count, at the lowest priority, to measure the effect of busy cores alone."""
    command = ["nice", "-n", "19", sys.executable, "-c", f"for _ in range({COUNT_MAX}): pass"]
    with ExitStack() as stack:
        for _ in range(processes):
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
        yield


def _measure_while(bench: Bench, load: Load, endpoint: Endpoint, directory: Path) -> Outcome:
    """Run the load while the pipeline reads the log."""
    warehouse = directory / "warehouse"
    shutil.rmtree(warehouse, ignore_errors=True)
    program = str(Path(sys.executable).with_name("himalia"))
    command = [program, "pipeline", "run", "--once", "--master", MASTER, "--topics", "kernels.>"]
    command += ["--url", url(endpoint), "--warehouse", str(warehouse)]
    reading = warehouse / "messages" / STAGING
    with running(command, directory / "pipeline.out", reading.exists, within_s=SPARK_WITHIN_S) as pid:
        outcome = bench.generator.run(load, endpoint)
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            raise PeerFailed("the pipeline had read the log before the load ended; give it a longer log")
    return outcome


def _latencies(runs: list[Outcome]) -> list[str]:
    return [
        f"{median_of(runs, 'p50_ms'):.2f}",
        f"{median_of(runs, 'p99_ms'):.2f}",
        f"{max(run.max_ms for run in runs):.2f}",
        "some" if any(run.lost for run in runs) else "none",
    ]
