"""One batch, from the log into every table.

Whenever a run is killed, the next one goes on with the same batch and comes to the same rows:

1. ``messages`` is committed first, with the plan. From then on the batch's records are those in that table.
2. The other tables are made of these records and of the state that the batch before left. Each commit carries the
   batch's number, and a table that has it is left alone.
3. What changed is published, under the batch's number.
4. The state is committed, then the positions. Only now is the batch over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark.connector.http import Address
from himalia.spark.connector.options import RECORDS_PER_PARTITION
from himalia.spark.connector.planning import grouped
from himalia.spark.delta.table import Filters, Staged, Table
from himalia.spark.pipeline.copy_task import Copying
from himalia.spark.pipeline.feedback import Feedback, changed
from himalia.spark.pipeline.plan import Plan
from himalia.spark.pipeline.warehouse import AGGREGATES, Warehouse
from himalia.spark.transforms import executions, orphans
from himalia.spark.transforms.aggregate import AggregateTable
from himalia.spark.transforms.iopub import iopub
from himalia.spark.transforms.requests import carried, merged
from himalia.topics import KERNEL_TOPIC_PREFIX

logger = logging.getLogger("himalia.spark")

SMALL_RECORDS = 20_000
SMALL_BYTES = 16 * 1024 * 1024
"""A batch up to these sizes goes through the driver's memory, which is sooner done than a job that writes files."""
SHUFFLED_INTO = "spark.sql.shuffle.partitions"
SMALL = {
    "spark.sql.adaptive.enabled": "false",
    SHUFFLED_INTO: "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Few records are sooner done in one piece, and by expressions that are interpreted: to compile them takes longer than
the records do. Neither few nor many are planned anew while they run: all is known that could be found out then, and at
every shuffle the cores would wait for it."""
TASKS_PER_CORE = 2
"""So that no core is idle for long while another has its last task."""
SHUFFLED_BYTES = 64 * 1024 * 1024
"""What a task of the fold should have to sort, so that it does so in memory."""
RUNNING: Filters = [("is_running", "=", "true")]


def large(cores: int) -> dict[str, str]:
    """A session's settings for many records."""
    return {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
        # A method with more bytes of code is never compiled by the JVM, and was a fifth of the fold's time: beyond
        # this, Spark generates small methods instead.
        "spark.sql.codegen.hugeMethodLimit": "8000",
        "spark.sql.files.minPartitionNum": str(TASKS_PER_CORE * cores),
        # What is shuffled beside the fold is few rows, already summed.
        SHUFFLED_INTO: str(cores),
    }


class Change(msgspec.Struct, frozen=True):
    """The rows of a table that a batch changed, as they are now."""

    table: str
    rows: pa.Table


class Written(msgspec.Struct):
    """What a batch wrote."""

    tables: dict[str, int] = msgspec.field(default_factory=dict)
    """Rows by table, those included that replace others."""
    state_rows: int | None = None
    """Requests that are carried on; None if there was nothing to do with requests."""
    lost: int = 0
    """Records that were planned, and gone when they were to be read."""


class Batch:
    """One batch. Run it again, with this object or another of the same number, until it succeeds once."""

    def __init__(
        self,
        warehouse: Warehouse,
        number: int,
        plan: Plan,
        *,
        pool: Executor,
        feedback: Feedback | None,
        on_stage: Callable[[str], None],
    ) -> None:
        self._warehouse = warehouse
        self._spark = warehouse.spark
        self._number = number
        self._plan = plan
        self._pool = pool
        self._feedback = feedback
        self._on_stage = on_stage
        self._is_small = plan.records <= SMALL_RECORDS and plan.bytes <= SMALL_BYTES
        self._written = Written()

    def run(self, address: Address, *, fails_on_data_loss: bool) -> Written:
        """Do what is not done yet. The log is read at ``address``, should it have to be read."""
        self._fit_session()
        if not self._has(self._warehouse.requests):
            self._fill_tables(address, fails_on_data_loss=fails_on_data_loss)
        self._on_stage("positions")
        self._warehouse.positions.advance(self._number, self._plan)
        return self._written

    def _fill_tables(self, address: Address, *, fails_on_data_loss: bool) -> None:
        self._on_stage("messages")
        stored = self._stored(address, fails_on_data_loss=fails_on_data_loss)
        self._on_stage("tables")
        is_of_kernels = any(each.topic.startswith(KERNEL_TOPIC_PREFIX) for each in self._plan.ranges)
        decoded = self._decoded(stored) if is_of_kernels else None
        # Only now: it is done in the time in which the fold is thought out, which leaves the cores idle.
        with _all_of(self._submit_aggregates("messages", stored)) as sums:
            changes, state = self._fold(decoded) if decoded is not None else ([], None)
        self._on_stage("feedback")
        self._publish([*(future.result() for future in sums), *changes])
        if state is not None:
            self._on_stage("state")
            self._warehouse.requests.commit(self._number, state, replacing_all=True)

    def _fit_session(self) -> None:
        settings = SMALL if self._is_small else large(self._spark.sparkContext.defaultParallelism)
        for name, value in settings.items():
            self._spark.conf.set(name, value)

    @contextmanager
    def _split_by_size(self) -> Iterator[None]:
        """What this thread plans in this block is shuffled into more tasks, the larger the batch is.

        It may happen to what others plan meanwhile, which is few rows either way.
        """
        if self._is_small:
            yield
            return
        cores = self._spark.sparkContext.defaultParallelism
        tasks = max(TASKS_PER_CORE * cores, -(-self._plan.bytes // SHUFFLED_BYTES))
        self._spark.conf.set(SHUFFLED_INTO, tasks)
        try:
            yield
        finally:
            self._spark.conf.set(SHUFFLED_INTO, cores)

    def _has(self, table: Table) -> bool:
        return table.batch >= self._number

    # The records

    def _stored(self, address: Address, *, fails_on_data_loss: bool) -> DataFrame:
        """The batch's rows of ``messages``, which are in the table from now on."""
        table = self._warehouse["messages"]
        if self._has(table):
            return self._within_plan(table.rows(self._spark, table.files_of(self._number)))
        staged = table.stage_files(
            lambda directory: self._copied(address, directory, fails_on_data_loss=fails_on_data_loss),
            self._number,
        )
        table.commit(self._number, staged, metadata={"plan": self._plan.to_json()})
        self._written.tables["messages"] = staged.rows
        self._written.lost = self._plan.records - staged.rows
        return self._rows_of(table, staged.files)

    def _copied(self, address: Address, directory: Path, *, fails_on_data_loss: bool) -> list[Path]:
        """The planned records, from the log, in files."""
        context = self._spark.sparkContext
        groups = grouped(
            self._plan.ranges,
            records_max=RECORDS_PER_PARTITION,
            groups_min=1 if self._is_small else context.defaultParallelism,
        )
        work = [Copying(address, group, directory, fails_on_data_loss) for group in groups]
        written = context.parallelize(work, len(work)).flatMap(Copying.run).collect()
        return [directory / name for name in written]

    def _within_plan(self, rows: DataFrame) -> DataFrame:
        """The rows that the plan names. Files that were written again since may hold others."""
        inside = (F.col("start") <= F.col("offset")) & (F.col("offset") < F.col("stop"))
        joined = rows.join(F.broadcast(self._ranges()), ["topic", "epoch"])
        return joined.where(inside).select(*rows.columns)

    def _ranges(self) -> DataFrame:
        rows = [(each.topic, each.epoch, each.start, each.stop) for each in self._plan.ranges]
        return self._spark.createDataFrame(rows, "topic string, epoch string, start bigint, stop bigint")

    # The requests

    def _fold(self, decoded: DataFrame) -> tuple[list[Change | None], Staged]:
        """Fold the batch into the requests that are open, and write what comes of it."""
        state = self._warehouse.requests
        before = state.files()
        requests = merged(state.rows(self._spark, before), decoded)
        try:
            # First, and alone: people wait for it, and the others then find the requests in memory.
            with self._split_by_size():
                closed = self._write_executions(requests.persist(), before)
            sums = self._submit_aggregates("executions", closed)
            with _all_of([*sums, self._pool.submit(self._write_orphans, requests)]):
                staged = self._staged(state, carried(requests), before)
            self._written.state_rows = staged.rows
            return [future.result() for future in sums], staged
        finally:
            requests.unpersist()

    def _decoded(self, stored: DataFrame) -> DataFrame:
        """The batch's rows of ``iopub``: read back where they were just written, so that they are decoded once."""
        table = self._warehouse["iopub"]
        if self._has(table):
            return iopub(stored)
        staged = self._staged(table, iopub(stored))
        table.commit(self._number, staged)
        self._written.tables["iopub"] = staged.rows
        return self._rows_of(table, staged.files)

    def _write_executions(self, requests: DataFrame, before: Iterable[str]) -> DataFrame | None:
        """Returns the closed ones: read back, if they were just written, and not worked out again. None: no one."""
        table = self._warehouse["executions"]
        rows = executions.executions(requests)
        if self._has(table):
            return rows.where("not is_running")
        staged = self._staged(table, rows, before)
        table.commit(self._number, staged, replacing=RUNNING)
        self._written.tables["executions"] = staged.rows
        files = [file for file in staged.files if "is_running=true" not in file.path]
        return self._rows_of(table, files) if files else None

    def _write_orphans(self, requests: DataFrame) -> None:
        table = self._warehouse["orphans"]
        if not self._has(table):
            staged = self._staged(table, orphans.orphans(requests))
            if staged.rows:
                table.commit(self._number, staged)
            self._written.tables["orphans"] = staged.rows

    # The aggregates

    def _submit_aggregates(self, source: str, rows: DataFrame | None) -> list[Future[Change | None]]:
        """Merge the rows of a source into every table that sums it, each in a thread of the pool."""
        return [
            self._pool.submit(self._merge, aggregate, rows)
            for aggregate in AGGREGATES
            if aggregate.source == source
        ]

    def _merge(self, aggregate: AggregateTable, source: DataFrame | None) -> Change | None:
        """Merge what the source adds into a table; return the changed rows if they are to be published."""
        name = aggregate.schema.name
        table = self._warehouse[name]
        if source is None or (self._has(table) and self._feedback is None):
            return None
        added = aggregate.new_rows(source).toArrow()
        if not added.num_rows:
            return None
        hours: Filters = [("hour", "in", added["hour"].unique().to_pylist())]
        if not self._has(table):
            existing = table.files(hours)
            rows = self._spark.createDataFrame(added)
            if existing:
                rows = aggregate.merge(table.rows(self._spark, existing), rows)
            staged = self._staged(table, rows, existing, are_few=added.num_rows <= SMALL_RECORDS)
            table.commit(self._number, staged, replacing=hours)
            self._written.tables[name] = staged.rows
        if self._feedback is None:
            return None
        now = pa.concat_tables(parquet.read_table(file) for file in sorted(table.files(hours)))
        return Change(name, changed(now, added.select(list(aggregate.keys))))

    def _publish(self, changes: Iterable[Change | None]) -> None:
        for change in changes:
            if change is not None and self._feedback is not None:
                self._feedback.publish(f"pipeline.{change.table}", self._number, change.rows)

    # Files

    def _staged(
        self, table: Table, rows: DataFrame, beside: Iterable[str] = (), *, are_few: bool = False
    ) -> Staged:
        """The rows, in files. ``beside`` are the files of what the batch's own rows were merged with."""
        fitted = table.fitted(rows)
        if (self._is_small or are_few) and table.bytes_of(beside) <= SMALL_BYTES:
            return table.stage_few(fitted.toArrow(), self._number)
        return table.stage(fitted, self._number)

    def _rows_of(self, table: Table, files: Iterable[AddAction]) -> DataFrame:
        return table.rows(self._spark, [str(table.path / file.path) for file in files])


@contextmanager
def _all_of(work: list[Future[Any]]) -> Iterator[list[Future[Any]]]:
    """Leave the block only when all of the work has ended, also when the block itself fails; raise what it raised."""
    try:
        yield work
    finally:
        wait(work)
    for each in work:
        each.result()
