"""One batch, from the log into every table.

If a run is killed, the next one repeats the same batch and arrives at the same rows:

1. ``messages`` is committed first, with the plan. From then on the batch's records are those in that table.
2. The other tables are computed from these records and from the state that the batch before left. Each commit carries
   the batch's number; a table that has it already is skipped.
3. Changed rows are published, under the batch's number.
4. The state is committed, then the positions. Only that completes the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow.dataset import dataset, partitioning
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from himalia.spark import tuning
from himalia.spark.connector.address import ServerAddress
from himalia.spark.connector.offset_ranges import partition_ranges
from himalia.spark.connector.options import RECORDS_PER_PARTITION
from himalia.spark.delta.staging import StagedFiles
from himalia.spark.delta.table import Filters, Table
from himalia.spark.pipeline.copy_task import CopyTask
from himalia.spark.pipeline.feedback import Feedback, select_by_keys
from himalia.spark.pipeline.plan import Plan
from himalia.spark.pipeline.warehouse import Warehouse
from himalia.spark.transforms import executions, orphans
from himalia.spark.transforms.aggregate import AggregateTable
from himalia.spark.transforms.iopub import iopub
from himalia.spark.transforms.requests import fold_requests, next_state
from himalia.topics import KERNEL_TOPIC_PREFIX, PIPELINE_TOPIC_PREFIX

SMALL_RECORDS = 20_000
SMALL_BYTES = 16 * 1024 * 1024
"""Up to these sizes a batch goes through the driver's memory, which is faster than a job that writes files."""
T = TypeVar("T")

RUNNING: Filters = [("is_running", "=", "true")]
HOURS = partitioning(pa.schema([("hour", pa.string())]), flavor="hive")
"""How the directories of an aggregate are named."""


class ChangedRows(msgspec.Struct, frozen=True):
    """The rows of a table that a batch changed, as they are after the batch."""

    table: str
    rows: pa.Table


class BatchResult(msgspec.Struct):
    """What a batch wrote."""

    tables: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of rows written, by table, including those that replace others."""
    state_rows: int | None = None
    """Rows of the new state; None if the batch had no records of kernels."""
    lost: int = 0
    """Records of the plan that were deleted before they were read."""


class Batch:
    """One batch. After a failure it is run again, by this object or another with the same number and plan."""

    def __init__(
        self,
        warehouse: Warehouse,
        number: int,
        plan: Plan,
        *,
        feedback: Feedback | None,
        on_stage: Callable[[str], None],
    ) -> None:
        self._warehouse = warehouse
        self._jobs = warehouse.jobs
        self._spark = warehouse.jobs.session
        self._number = number
        self._plan = plan
        self._feedback = feedback
        self._on_stage = on_stage
        self._is_small = plan.records <= SMALL_RECORDS and plan.bytes <= SMALL_BYTES
        self._result = BatchResult()

    def run(self, address: ServerAddress, *, fails_on_data_loss: bool) -> BatchResult:
        """Do what is not committed yet. ``address`` is used only if the records still have to be copied."""
        self._configure_session()
        if not self._has(self._warehouse.requests):
            self._fill_tables(address, fails_on_data_loss=fails_on_data_loss)
        self._on_stage("positions")
        self._warehouse.positions.advance(self._number, self._plan)
        return self._result

    def _fill_tables(self, address: ServerAddress, *, fails_on_data_loss: bool) -> None:
        self._on_stage("messages")
        stored = self._store_messages(address, fails_on_data_loss=fails_on_data_loss)
        self._on_stage("tables")
        has_kernels = any(each.topic.startswith(KERNEL_TOPIC_PREFIX) for each in self._plan.ranges)
        decoded = self._decode(stored) if has_kernels else None
        # Not earlier: these jobs run while Spark plans the fold, which leaves the cores idle.
        with _wait_all(self._submit_aggregates("messages", stored)) as sums:
            changes, state = self._fold(decoded) if decoded is not None else ([], None)
        self._on_stage("feedback")
        self._publish([*(future.result() for future in sums), *changes])
        if state is not None:
            self._on_stage("state")
            self._warehouse.requests.commit(self._number, state, replacing_all=True)

    def _configure_session(self) -> None:
        conf = tuning.small_batch_conf() if self._is_small else tuning.large_batch_conf(self._jobs.cores)
        for name, value in conf.items():
            self._spark.conf.set(name, value)

    @contextmanager
    def _more_tasks(self) -> Iterator[None]:
        """Shuffle what is planned in this block into more tasks, the larger the batch is.

        The setting is the session's, so it may also apply to jobs of other threads, which have few rows in any case.
        """
        if self._is_small or not tuning.is_on("task-sizes"):
            yield
            return
        tasks = tuning.fold_tasks(self._jobs.cores, self._plan.bytes)
        self._spark.conf.set(tuning.SHUFFLE_PARTITIONS, tasks)
        try:
            yield
        finally:
            self._spark.conf.set(tuning.SHUFFLE_PARTITIONS, self._jobs.cores)

    def _has(self, table: Table) -> bool:
        return table.batch >= self._number

    # The records

    def _store_messages(self, address: ServerAddress, *, fails_on_data_loss: bool) -> DataFrame:
        """Commit the batch's records to ``messages``, unless they are, and return these rows."""
        table = self._warehouse["messages"]
        if self._has(table):
            return self._select_planned(table.rows(self._spark, table.files_of(self._number)))
        staged = table.staging.write_files(
            lambda directory: self._copy_records(address, directory, fails_on_data_loss=fails_on_data_loss),
            self._number,
        )
        table.commit(self._number, staged, metadata={"plan": self._plan.to_json()})
        self._result.tables["messages"] = staged.rows
        self._result.lost = self._plan.records - staged.rows
        return self._rows_of(table, staged.files)

    def _copy_records(
        self, address: ServerAddress, directory: Path, *, fails_on_data_loss: bool
    ) -> list[Path]:
        """Copy the planned records from the log into files, and return their paths."""
        groups_min = 1 if self._is_small else self._jobs.cores
        groups = partition_ranges(self._plan.ranges, records_max=RECORDS_PER_PARTITION, groups_min=groups_min)
        tasks = [CopyTask(address, group, directory, fails_on_data_loss) for group in groups]
        names = self._spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(CopyTask.run).collect()
        return [directory / name for name in names]

    def _select_planned(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the plan. Files that were compacted since may have rows of other batches too."""
        is_planned = (F.col("start") <= F.col("offset")) & (F.col("offset") < F.col("stop"))
        joined = rows.join(F.broadcast(self._ranges()), ["topic", "epoch"])
        return joined.where(is_planned).select(*rows.columns)

    def _ranges(self) -> DataFrame:
        rows = [(each.topic, each.epoch, each.start, each.stop) for each in self._plan.ranges]
        return self._spark.createDataFrame(rows, "topic string, epoch string, start bigint, stop bigint")

    # The requests

    def _fold(self, decoded: DataFrame) -> tuple[list[ChangedRows | None], StagedFiles]:
        """Fold the batch into the open requests, write the tables of requests, and stage the new state."""
        state = self._warehouse.requests
        before = state.files()
        requests = fold_requests(state.rows(self._spark, before), decoded)
        try:
            # Before the other tables: users wait for this one, and it leaves the requests in Spark's cache for them.
            with self._more_tasks():
                closed = self._write_executions(requests.persist(), before)
            sums = self._submit_aggregates("executions", closed)
            work: list[Future[Any]] = [*sums, self._jobs.submit(self._write_orphans, requests)]
            with _wait_all(work):
                staged = self._stage(state, next_state(requests), before)
            self._result.state_rows = staged.rows
            return [future.result() for future in sums], staged
        finally:
            requests.unpersist()

    def _decode(self, stored: DataFrame) -> DataFrame:
        """Commit the batch's rows to ``iopub``, unless they are, and read them back: they are decoded once."""
        table = self._warehouse["iopub"]
        if self._has(table):
            return iopub(stored)
        staged = self._stage(table, iopub(stored))
        table.commit(self._number, staged)
        self._result.tables["iopub"] = staged.rows
        return self._rows_of(table, staged.files)

    def _write_executions(self, requests: DataFrame, before: Iterable[str]) -> DataFrame | None:
        """Commit ``executions``. Return the closed ones, read back and so computed once; None if there are none."""
        table = self._warehouse["executions"]
        rows = executions.executions(requests)
        if self._has(table):
            return rows.where("not is_running")
        staged = self._stage(table, rows, before)
        table.commit(self._number, staged, replacing=RUNNING)
        self._result.tables["executions"] = staged.rows
        files = [file for file in staged.files if "is_running=true" not in file.path]
        return self._rows_of(table, files) if files else None

    def _write_orphans(self, requests: DataFrame) -> None:
        table = self._warehouse["orphans"]
        if not self._has(table):
            staged = self._stage(table, orphans.orphans(requests))
            if staged.rows:
                table.commit(self._number, staged)
            self._result.tables["orphans"] = staged.rows

    # The aggregates

    def _submit_aggregates(self, source: str, rows: DataFrame | None) -> list[Future[ChangedRows | None]]:
        """Merge the rows of a source into every table that sums it, each in a thread of the pool."""
        return [
            self._jobs.submit(self._merge, aggregate, rows)
            for aggregate in self._warehouse.aggregates
            if aggregate.source == source
        ]

    def _merge(self, aggregate: AggregateTable, source: DataFrame | None) -> ChangedRows | None:
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
            staged = self._stage(table, rows, existing, are_few=added.num_rows <= SMALL_RECORDS)
            table.commit(self._number, staged, replacing=hours)
            self._result.tables[name] = staged.rows
        if self._feedback is None:
            return None
        now = dataset(
            sorted(table.files(hours)), partitioning=HOURS, partition_base_dir=str(table.path)
        ).to_table()
        return ChangedRows(name, select_by_keys(now, added.select(list(aggregate.keys))))

    def _publish(self, changes: Iterable[ChangedRows | None]) -> None:
        for change in changes:
            if change is not None and self._feedback is not None:
                self._feedback.publish(PIPELINE_TOPIC_PREFIX + change.table, self._number, change.rows)

    # Files

    def _stage(
        self, table: Table, rows: DataFrame, merged_with: Iterable[str] = (), *, are_few: bool = False
    ) -> StagedFiles:
        """Write rows to files, without committing. ``merged_with``: files whose rows are among them."""
        rows = table.cast_rows(rows)
        if (self._is_small or are_few) and table.bytes_of(merged_with) <= SMALL_BYTES:
            return table.staging.write_rows(rows.toArrow(), self._number)
        return table.staging.write_frame(rows, self._number)

    def _rows_of(self, table: Table, files: Iterable[AddAction]) -> DataFrame:
        return table.rows(self._spark, [str(table.path / file.path) for file in files])


@contextmanager
def _wait_all(futures: Sequence[Future[T]]) -> Iterator[Sequence[Future[T]]]:
    """Wait for all futures at the end of the block, also when it raises; raise the first of their exceptions."""
    try:
        yield futures
    finally:
        wait(futures)
    for future in futures:
        future.result()
