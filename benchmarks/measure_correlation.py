"""Correlating kernel messages with their requests: the pipeline's fold beside ``transformWithStateInPandas``.

Both read the same Parquet file of traffic, decode it by the same expressions, and hand one row for each request that
closed to whoever counts them. Spark's start and a first run of each, in which the JVM compiles, are not counted.
"""

import shutil
import time
from collections.abc import Callable
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
from himalia.spark.pipeline.messages import messages
from himalia.spark.warehouse.batch import LARGE

FOLD, STATEFUL = "Himalia's fold, Spark's expressions", "transformWithStateInPandas, RocksDB state"
WANTED = 10.0
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Run = Callable[[SparkSession, Path, Path], int]
"""Correlates what is in a directory of Parquet files, with a scratch directory; says how many requests closed."""


def measure(bench: Bench) -> list[Section]:
    count = bench.effort.correlation_messages
    section = Section(
        key="correlation",
        title=f"Correlating {count:,} messages with their requests, on two cores",
        columns=("by", "messages/s, median", "least – most", "s", "requests closed"),
    )
    bench.expect(2 * (bench.effort.rounds + 1), "correlation")
    ways: dict[str, Run] = {FOLD: _fold, STATEFUL: _stateful}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    closed: dict[str, int] = {}
    with TemporaryDirectory(dir=bench.directory) as directory, spark(Path(directory)) as session:
        session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        for setting, value in LARGE.items():
            session.conf.set(setting, value)
        source = _written(Path(directory), count)
        for number in range(bench.effort.rounds + 1):
            for name, run in ways.items():
                bench.say(
                    f"correlation: {name}, {f'round {number}' if number else 'before the clock starts'}"
                )
                started_s = time.perf_counter()
                closed[name] = run(session, source, Path(directory) / "scratch")
                if number:
                    seconds[name].append(time.perf_counter() - started_s)
                bench.advance()
    _fill(section, count, seconds, closed)
    return [section]


def _fill(section: Section, count: int, seconds: dict[str, list[float]], closed: dict[str, int]) -> None:
    rates = {name: [count / each for each in taken] for name, taken in seconds.items()}
    for name, measured in rates.items():
        section.rows.append(
            [
                name,
                f"{median(measured):,.0f}",
                spread(measured),
                f"{median(seconds[name]):.1f}",
                f"{closed[name]:,}",
            ]
        )
    ratio = median(rates[FOLD]) / median(rates[STATEFUL])
    section.targets.append(Target(f"rate, against {STATEFUL}", ratio, WANTED))
    section.data.update(seconds)


def _written(directory: Path, count: int) -> Path:
    place = directory / f"traffic-{count}"
    place.mkdir()
    write_parquet(place / "messages.parquet", traffic(count))
    return place


def _fold(session: SparkSession, source: Path, scratch: Path) -> int:
    shutil.rmtree(scratch, ignore_errors=True)
    decoded = _decoded(session.read.parquet(str(source)))
    # The fold reads it several times: the pipeline writes it to its table ``iopub``.
    decoded.write.parquet(str(scratch))
    state = session.createDataFrame([], requests.STATE_SCHEMA)
    merged = requests.merged(state, session.read.schema(decoded.schema).parquet(str(scratch)))
    return _count(executions.closed(merged).where("not is_foreign"))


def _stateful(session: SparkSession, source: Path, scratch: Path) -> int:
    shutil.rmtree(scratch, ignore_errors=True)
    schema = session.read.parquet(str(source)).schema
    stream = session.readStream.schema(schema).parquet(str(source))
    counted = 0

    def take(batch: DataFrame, number: int) -> None:
        nonlocal counted
        counted += _count(batch)

    query = (
        stateful_executions(_decoded(stream))
        .writeStream.outputMode("append")
        .option("checkpointLocation", str(scratch))
        .trigger(availableNow=True)
        .foreachBatch(take)
        .start()
    )
    query.awaitTermination()
    return counted


def _decoded(records: DataFrame) -> DataFrame:
    return iopub(messages(records))


def _count(rows: DataFrame) -> int:
    """How many there are. Of a column, since rows that nobody looks at may not be made."""
    return int(rows.agg({"stdout": "count"}).collect()[0][0])
