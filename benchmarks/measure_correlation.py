"""Compare the pipeline's fold with ``transformWithStateInPandas`` at correlating kernel messages with requests.

Both read the same Parquet file of traffic, decode it with the same expressions, and produce a row of ``executions`` for
each closed request. Their number and a hash over the common columns of every row must be equal. Spark's start and a
first run of each, in which the JVM compiles, are not counted.
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
from benchmarks.stateful_peer import COLUMNS
from benchmarks.stateful_peer import executions as stateful_executions
from himalia.spark import tuning
from himalia.spark.transforms import executions, requests
from himalia.spark.transforms.iopub import iopub

FOLD, STATEFUL = "Himalia's fold, Spark's expressions", "transformWithStateInPandas, RocksDB state"
WANTED = 10.0
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Rows:
    """A summary of rows: the number of closed requests, and a hash of all columns that ignores the order of rows."""

    closed: int
    digest: int


Run = Callable[[SparkSession, Path, Path], Rows]
"""Correlates what is in a directory of Parquet files, with a scratch directory."""


def measure(bench: Bench) -> list[Section]:
    sizes = bench.scale.correlation_messages
    section = Section(
        key="correlation",
        title="Correlating kernel messages with their requests, on two cores",
        columns=("messages", "by", "messages/s, median", "least – most", "s", "requests closed"),
    )
    bench.expect(len(WAYS) * (len(sizes) * bench.scale.rounds + 1), "correlation")
    with TemporaryDirectory(dir=bench.directory) as directory, spark(Path(directory)) as session:
        session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        cores = session.sparkContext.defaultParallelism
        for setting, value in (
            tuning.large_batch_conf(cores) | {tuning.SHUFFLE_PARTITIONS: str(tuning.fold_tasks(cores, 0))}
        ).items():
            session.conf.set(setting, value)
        scratch = Path(directory) / "scratch"
        for size in sizes:
            source = _written(Path(directory), size)
            if size == sizes[0]:
                bench.report("correlation: before the clock starts")
                _round(bench, session, source, scratch)
            rounds = []
            for number in range(1, bench.scale.rounds + 1):
                bench.report(f"correlation: {size:,} messages, round {number} of {bench.scale.rounds}")
                rounds.append(_round(bench, session, source, scratch))
            _fill(section, size, rounds)
    return [section]


@dataclass(frozen=True)
class Taken:
    """Duration and result of one pass."""

    seconds: float
    rows: Rows


def _round(bench: Bench, session: SparkSession, source: Path, scratch: Path) -> dict[str, Taken]:
    """Run each implementation once."""
    taken = {}
    for name, run in WAYS.items():
        started_s = time.perf_counter()
        rows = run(session, source, scratch)
        taken[name] = Taken(time.perf_counter() - started_s, rows)
        bench.advance()
    return taken


def _fill(section: Section, size: int, rounds: list[dict[str, Taken]]) -> None:
    rates = {name: [size / each[name].seconds for each in rounds] for name in WAYS}
    for name, measured in rates.items():
        closed = {each[name].rows.closed for each in rounds}
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
    found = {each.rows for one in rounds for each in one.values()}
    if len(found) > 1 or Rows(0, 0) in found:
        section.failures.append(f"{size:,} messages: they do not come to the same rows, or to none")
    ratio = median(rates[FOLD]) / median(rates[STATEFUL])
    section.targets.append(Target(f"rate at {size:,} messages, against {STATEFUL}", ratio, WANTED))
    section.data[str(size)] = {name: [each[name].seconds for each in rounds] for name in WAYS}


def _written(directory: Path, count: int) -> Path:
    place = directory / f"traffic-{count}"
    place.mkdir()
    write_parquet(place / "messages.parquet", traffic(count))
    return place


def _fold(session: SparkSession, source: Path, scratch: Path) -> Rows:
    shutil.rmtree(scratch, ignore_errors=True)
    decoded = iopub(session.read.parquet(str(source)))
    # The fold reads it several times: the pipeline writes it to its table ``iopub``.
    decoded.write.parquet(str(scratch / "iopub"))
    state = session.createDataFrame([], requests.STATE_SCHEMA)
    merged = requests.fold_requests(
        state, session.read.schema(decoded.schema).parquet(str(scratch / "iopub"))
    ).persist()
    try:
        requests.next_state(merged).write.parquet(str(scratch / "state"))
        return _rows(executions.executions(merged).where("not is_running and not is_foreign"))
    finally:
        merged.unpersist()


def _stateful(session: SparkSession, source: Path, scratch: Path) -> Rows:
    shutil.rmtree(scratch, ignore_errors=True)
    schema = session.read.parquet(str(source)).schema
    stream = session.readStream.schema(schema).parquet(str(source))
    found = Rows(0, 0)

    def take(batch: DataFrame, number: int) -> None:
        nonlocal found
        more = _rows(batch)
        found = Rows(found.closed + more.closed, found.digest ^ more.digest)

    query = (
        stateful_executions(iopub(stream))
        .writeStream.outputMode("append")
        .option("checkpointLocation", str(scratch))
        .trigger(availableNow=True)
        .foreachBatch(take)
        .start()
    )
    query.awaitTermination()
    return found


def _rows(executions: DataFrame) -> Rows:
    # As JSON with nulls, because the hash of columns skips nulls.
    text = f"to_json(struct({', '.join(COLUMNS)}), map('ignoreNullFields', 'false'))"
    [row] = executions.selectExpr("count(*)", f"coalesce(bit_xor(xxhash64({text})), 0)").collect()
    return Rows(*row)


WAYS: dict[str, Run] = {FOLD: _fold, STATEFUL: _stateful}
