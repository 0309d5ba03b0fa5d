"""Measure reads of a whole log into Spark: by the connector, and from Parquet files with the same rows.

Both read all columns of all rows into Spark's noop sink. The connector's figure includes
the server that reads its log, Spark's Python workers and Spark itself, which share the machine's cores.
"""

import asyncio
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench import Bench
from benchmarks.generator import Endpoint, Outcome
from benchmarks.peers.himalia import HIMALIA
from benchmarks.quiet_machine import TICKS_PER_S, busy_ticks
from benchmarks.section import Results, Section, Target, median_of, spread
from himalia.log import open_log
from himalia.log.api import Batch
from himalia.record import Draft
from himalia.spark.session import start_session

CONNECTOR, PARQUET = "Himalia's connector, from a server's durable log", "Spark's own scan of Parquet files"
MASTER = "local[2]"
TOPICS = 4
MESSAGES_PER_REQUEST = 8
BATCH = 2_000
WARM_UPS = 3

Read = Callable[[], DataFrame]


def measure(bench: Bench) -> list[Section]:
    count = bench.scale.connector_records
    section = Section(
        key="connector",
        title=f"Spark reads {count:,} records of kernels, on two cores",
        columns=(
            "from",
            "rows/s, median",
            "least – most",
            "µs each",
            "CPU µs each: server",
            "Spark and its workers",
        ),
    )
    bench.expect(2 * (bench.scale.rounds + WARM_UPS), "connector: filling a log")
    with (
        tempfile.TemporaryDirectory(dir=bench.directory) as scratch,
        _serve(Path(scratch), count) as endpoint,
        _session(Path(scratch)) as spark,
    ):
        files = str(Path(scratch) / "rows")
        url = f"http://127.0.0.1:{endpoint.port}"
        options = {"url": url, "token": "none", "subscribePattern": "recorded.>"}
        ways: dict[str, Read] = {
            CONNECTOR: lambda: spark.read.format("himalia").options(**options).load(),
            PARQUET: lambda: spark.read.parquet(files),
        }
        ways[CONNECTOR]().write.parquet(files)
        for name, read in ways.items():
            if inexact := _row_error(read(), count):
                section.failures.append(f"{name}: {inexact}")
        results = _rounds(bench, ways, endpoint, count)
    _fill(section, results)
    return [section]


def _rounds(bench: Bench, ways: dict[str, Read], endpoint: Endpoint, count: int) -> Results:
    results: Results = {name: [] for name in ways}
    for number in range(bench.scale.rounds + WARM_UPS):
        for name, read in ways.items():
            if number < WARM_UPS:
                bench.report(f"connector: {name}, before the clock starts")
                _run(read, endpoint, count)
            else:
                bench.report(f"connector: {name}, round {number - WARM_UPS + 1} of {bench.scale.rounds}")
                run = partial(_run, read, endpoint, count)
                results[name].append(bench.quiet_machine.run_undisturbed(run))
            bench.advance()
    return results


def _run(read: Read, endpoint: Endpoint, count: int) -> Outcome:
    server, ours, everybody = _server_s(endpoint), _own_cpu_s(), busy_ticks() / TICKS_PER_S
    began = time.perf_counter()
    read().write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - began
    server, ours = _server_s(endpoint) - server, _own_cpu_s() - ours
    others = busy_ticks() / TICKS_PER_S - everybody - ours
    return Outcome(
        delivered=count,
        elapsed_s=seconds,
        rate=count / seconds,
        server_cpu_percent=100 * server / seconds,
        generator_cpu_percent=100 * (ours - server) / seconds,
        others_cpu_percent=max(0.0, 100 * others / seconds),
    )


def _row_error(rows: DataFrame, count: int) -> str | None:
    """Return how these rows differ from those written, or None."""
    found = rows.selectExpr("count(*) AS rows", "count(DISTINCT id) AS ids", "sum(offset) AS offsets").first()
    assert found is not None
    each = count // TOPICS
    expected = (count, count, TOPICS * each * (each - 1) // 2)
    if tuple(found) == expected:
        return None
    return f"{found.rows} rows with {found.ids} ids came, of {count}"


def _fill(section: Section, results: Results) -> None:
    section.data = {name: [asdict(run) for run in runs] for name, runs in results.items()}
    shown = section.comparable(results)
    rates = {name: median_of(runs, "rate") for name, runs in shown.items()}
    for name, runs in shown.items():
        server_us = median([1e4 * run.server_cpu_percent / run.rate for run in runs])
        spark_us = median([1e4 * run.generator_cpu_percent / run.rate for run in runs])
        section.rows.append(
            [
                name,
                f"{rates[name]:,.0f}",
                spread([run.rate for run in runs]),
                f"{1e6 / rates[name]:.1f}",
                f"{server_us:.1f}",
                f"{spark_us:.1f}",
            ]
        )
    section.targets.append(Target("thousand rows/s through the connector", rates[CONNECTOR] / 1000, 250))
    section.targets.append(
        Target("rows/s, against Spark's own scan", rates[CONNECTOR] / rates[PARQUET], 0.25)
    )


def _server_s(endpoint: Endpoint) -> float:
    return _parent_and_cpu_s(endpoint.pid)[1]


def _own_cpu_s() -> float:
    """Return the CPU time of this process and its descendants: Spark, its workers, the server."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*"):
        # A process that has just ended is counted by its parent.
        with suppress(OSError):
            processes[int(path.name)] = _parent_and_cpu_s(int(path.name))
    return sum(seconds for pid, (_, seconds) in processes.items() if _is_ours(pid, processes))


def _is_ours(pid: int, processes: dict[int, tuple[int, float]]) -> bool:
    while pid in processes:
        if pid == os.getpid():
            return True
        pid = processes[pid][0]
    return False


def _parent_and_cpu_s(pid: int) -> tuple[int, float]:
    """Return a process's parent, and the CPU time of it and its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), sum(map(int, fields[11:15])) / TICKS_PER_S


@contextmanager
def _serve(directory: Path, count: int) -> Iterator[Endpoint]:
    """Run a server on a log with the records."""
    asyncio.run(_write_log(directory / "log.db", count))
    with HIMALIA.start(directory) as endpoint:
        yield endpoint


@contextmanager
def _session(directory: Path) -> Iterator[SparkSession]:
    spark = start_session(MASTER, app="benchmarks", conf={"spark.local.dir": str(directory)})
    try:
        yield spark
    finally:
        spark.stop()


async def _write_log(path: Path, count: int) -> None:
    log = open_log(f"sqlite://{path}")
    await log.open()
    chance = Random(1)
    for _ in range(TOPICS):
        kernel_id = _uuid(chance)
        topic = f"recorded.{kernel_id}"
        await log.create(topic)
        drafts = _drafts(chance, kernel_id, count // TOPICS)
        while batch := [draft for _, draft in zip(range(BATCH), drafts, strict=False)]:
            await log.append(Batch(topic, batch))
    await log.close()


def _drafts(chance: Random, kernel_id: str, count: int) -> Iterator[Draft]:
    """Return a kernel's records: for each request busy, the code, some lines of output, idle."""
    session = _uuid(chance)
    types = ["status", "execute_input", *["stream"] * (MESSAGES_PER_REQUEST - 3), "status"]
    channels = {"status": "status", "execute_input": "execution", "stream": "stream"}
    request = ""
    for number in range(count):
        place = number % MESSAGES_PER_REQUEST
        if not place:
            request = _uuid(chance)
        msg_type, msg_id = types[place], f"{session}_{number}"
        headers = {
            "msg_type": msg_type,
            "channel": channels[msg_type],
            "parent_id": request,
            "kernel_id": kernel_id,
            "username": "alice",
            "session": session,
        }
        payload = {
            "header": _header(msg_id, msg_type, session),
            "parent_header": _header(request, "execute_request", session),
            "metadata": {},
            "content": _content(msg_type, number),
        }
        yield Draft(msg_id, _json(payload), _json(headers))


def _header(msg_id: str, msg_type: str, session: str) -> dict[str, str]:
    return {
        "msg_id": msg_id,
        "msg_type": msg_type,
        "username": "alice",
        "session": session,
        "date": "2026-11-16T02:00:00.000000Z",
        "version": "5.3",
    }


def _content(msg_type: str, number: int) -> dict[str, object]:
    if msg_type == "status":
        return {"execution_state": "busy" if number % MESSAGES_PER_REQUEST == 0 else "idle"}
    if msg_type == "execute_input":
        return {"code": f"for i in range(5):\n    print(frame.iloc[{number} + i])", "execution_count": number}
    return {"name": "stdout", "text": f"line {number} of what a cell prints, about as long as most of them\n"}


def _uuid(chance: Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128)))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
