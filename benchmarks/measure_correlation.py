"""Correlating kernel messages with their requests: the pipeline's fold beside ``transformWithStateInPandas``.

Both read the same Parquet file of traffic, decode it by the same expressions, and hand one row for each request that
closed to whoever counts them. Spark's start and a first run of each, in which the JVM compiles, are not counted.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench import Bench
from benchmarks.kernel_traffic import traffic, write_parquet
from benchmarks.pipeline_peer import spark
from benchmarks.section import Section, Target, spread
from benchmarks.stateful_peer import executions as stateful_executions
from himalia.spark.pipeline import executions, requests
from himalia.spark.pipeline.iopub import iopub
from himalia.spark.warehouse.batch import LARGE

FOLD, STATEFUL = "Himalia's fold, Spark's expressions", "transformWithStateInPandas, RocksDB state"
WANTED = 10.0
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Run = Callable[[SparkSession, Path, Path], int]
"""Correlates what is in a directory of Parquet files, with a scratch directory; says how many requests closed."""


def measure(bench: Bench) -> list[Section]:
    sizes = bench.effort.correlation_messages
    section = Section(
        key="correlation",
        title="Correlating kernel messages with their requests, on two cores",
        columns=("messages", "by", "messages/s, median", "least – most", "s", "requests closed"),
    )
    bench.expect(len(WAYS) * (len(sizes) * bench.effort.rounds + 1), "correlation")
    with TemporaryDirectory(dir=bench.directory) as directory, spark(Path(directory)) as session:
        session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        for setting, value in LARGE.items():
            session.conf.set(setting, value)
        scratch = Path(directory) / "scratch"
        for size in sizes:
            source = _written(Path(directory), size)
            if size == sizes[0]:
                bench.say("correlation: before the clock starts")
                _round(bench, session, source, scratch)
            rounds = []
            for number in range(1, bench.effort.rounds + 1):
                bench.say(f"correlation: {size:,} messages, round {number} of {bench.effort.rounds}")
                rounds.append(_round(bench, session, source, scratch))
            _fill(section, size, rounds)
    return [section]


@dataclass(frozen=True)
class Taken:
    """What one way took for one pass, and how many requests it closed."""

    seconds: float
    closed: int


def _round(bench: Bench, session: SparkSession, source: Path, scratch: Path) -> dict[str, Taken]:
    """Each way once, one after the other."""
    taken = {}
    for name, run in WAYS.items():
        started_s = time.perf_counter()
        closed = run(session, source, scratch)
        taken[name] = Taken(time.perf_counter() - started_s, closed)
        bench.advance()
    return taken


def _fill(section: Section, size: int, rounds: list[dict[str, Taken]]) -> None:
    rates = {name: [size / each[name].seconds for each in rounds] for name in WAYS}
    for name, measured in rates.items():
        closed = {each[name].closed for each in rounds}
        section.rows.append(
            [
                f"{size:,}",
                name,
                f"{median(measured):,.0f}",
                spread(measured),
                f"{median(each[name].seconds for each in rounds):.1f}",
                ", ".join(f"{each:,}" for each in sorted(closed)),
            ]
        )
    if len({each.closed for one in rounds for each in one.values()}) > 1:
        section.failures.append(f"{size:,} messages: they do not agree on how many requests closed")
    ratio = median(rates[FOLD]) / median(rates[STATEFUL])
    section.targets.append(Target(f"rate at {size:,} messages, against {STATEFUL}", ratio, WANTED))
    section.data[str(size)] = {name: [each[name].seconds for each in rounds] for name in WAYS}


def _written(directory: Path, count: int) -> Path:
    place = directory / f"traffic-{count}"
    place.mkdir()
    write_parquet(place / "messages.parquet", traffic(count))
    return place


def _fold(session: SparkSession, source: Path, scratch: Path) -> int:
    shutil.rmtree(scratch, ignore_errors=True)
    decoded = iopub(session.read.parquet(str(source)))
    # The fold reads it several times: the pipeline writes it to its table ``iopub``.
    decoded.write.parquet(str(scratch))
    state = session.createDataFrame([], requests.STATE_SCHEMA)
    merged = requests.merged(state, session.read.schema(decoded.schema).parquet(str(scratch)))
    return _count(executions.executions(merged).where("not is_running and not is_foreign"))


def _stateful(session: SparkSession, source: Path, scratch: Path) -> int:
    shutil.rmtree(scratch, ignore_errors=True)
    schema = session.read.parquet(str(source)).schema
    stream = session.readStream.schema(schema).parquet(str(source))
    counted = 0

    def take(batch: DataFrame, number: int) -> None:
        nonlocal counted
        counted += _count(batch)

    query = (
        stateful_executions(iopub(stream))
        .writeStream.outputMode("append")
        .option("checkpointLocation", str(scratch))
        .trigger(availableNow=True)
        .foreachBatch(take)
        .start()
    )
    query.awaitTermination()
    return counted


def _count(rows: DataFrame) -> int:
    """How many there are. Of a column, since rows that nobody looks at may not be made."""
    return int(rows.agg({"stdout": "count"}).collect()[0][0])


WAYS: dict[str, Run] = {FOLD: _fold, STATEFUL: _stateful}
