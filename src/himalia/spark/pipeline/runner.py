"""The pipeline's loop: what is new in the log goes into the tables, batch by batch.

There is no checkpoint of Spark's: all that a run needs in order to go on is in the warehouse's own commits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from himalia.errors import DataLost, HimaliaError, InternalError
from himalia.retry import TRANSIENT_ERRORS, Backoff
from himalia.spark.connector.errors import LOSSES_TOLD_MAX
from himalia.spark.delta import maintenance
from himalia.spark.delta.lock import locked
from himalia.spark.package import send
from himalia.spark.pipeline.errors import first_line, translated
from himalia.spark.pipeline.feedback import Feedback
from himalia.spark.pipeline.plan import (
    Backlog,
    Plan,
    Positions,
    TopicEnd,
    backlog_of,
    is_read,
    planned,
    until,
)
from himalia.spark.pipeline.progress import Meter, Progress, Summary
from himalia.spark.pipeline.server_client import Server
from himalia.spark.pipeline.stop_flag import Stopping
from himalia.spark.session import REQUIRED, is_cluster, start_session
from himalia.topics import check_pattern

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from himalia.spark.pipeline.batch import Written
    from himalia.spark.pipeline.warehouse import Warehouse

__all__ = ["Pipeline", "Progress", "Summary"]

logger = logging.getLogger("himalia.spark")

BATCH_RECORDS = 1_000_000
BATCH_BYTES = 1024 * 1024 * 1024
ATTEMPTS_MAX = 3
AWAY_MAX_S = 120.0
"""How long one pass waits for a server that went away; a run that stays waits for ever."""
STOP_WITHIN_S = 5.0
TELL_EVERY_S = 2.0
THREADS = 4

SESSION = {
    # Lists the files of a table in the driver, which knows them by name, and not in a job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # Rows of a few partitions are written as they come, without sorting them first.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # What each job will do is written down at length, for a page of Spark's that is not there.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "0",
}


class Pipeline:
    """Fills the tables of one warehouse from one server's log::

        with Pipeline(None, None, Path("warehouse")) as pipeline:
            print(pipeline.run_once().rows)

    Entering it takes the warehouse's lock and starts Spark, or joins the session that runs in this process. Without
    ``url`` and ``token`` the server is found as the client finds it. ``topics`` are patterns; the pipeline's own topics
    are read only if one of them names ``pipeline``. ``on_progress`` is called on the thread that runs.

    Raises a ``HimaliaError`` whose message is a sentence for people. It may be run again at once: what was done stays
    done, what was under way is taken up.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None,
        warehouse: Path,
        *,
        master: str = "local[*]",
        topics: Sequence[str] = (">",),
        batch_records: int = BATCH_RECORDS,
        feedback: bool = True,
        fail_on_data_loss: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._server = Server(url, token)
        self._path = warehouse.absolute()
        self._master = master
        self._patterns = [check_pattern(pattern) for pattern in topics]
        self._batch_records = batch_records
        self._publishes = feedback
        self._fails_on_data_loss = fail_on_data_loss
        self._meter = Meter(on_progress)
        self._stopping = Stopping(STOP_WITHIN_S, self._cancel_jobs)
        self._group = f"himalia-pipeline-{uuid4()}"
        self._told_s = 0.0
        self._losses_told_of = 0
        self._owns_spark = False
        self._stack: ExitStack
        self._spark: SparkSession
        self._pool: ThreadPoolExecutor
        self._warehouse: Warehouse
        self._feedback: Feedback

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Before Spark, which takes seconds to start: what a user can have got wrong is told at once.
            stack.enter_context(locked(self._path))
            stack.callback(self._server.close)
            self._topics()
            self._spark = self._started(stack)
            self._stopping.watch()
            stack.callback(self._stopping.over)
            self._pool = stack.enter_context(ThreadPoolExecutor(THREADS, initializer=self._join_group))
            self._join_group()
            stack.callback(self._leave_group)
            self._warehouse = _opened(self._spark, self._path)
            self._feedback = Feedback(self._server, self._warehouse.positions.id)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def stop(self) -> None:
        """Have a run end soon: with its batch, or after some seconds in the middle of it, which the next takes up.

        For any thread, and for signal handlers. Asked twice, it does not wait for the batch.
        """
        self._stopping.ask()

    def run_once(self) -> Summary:
        """Take in what is in the log now. What is published meanwhile is left for the next run."""
        self._meter.start()
        ends = {(topic.name, topic.epoch): topic.end for topic in self._topics()}
        self._tell_positions()
        while self._patiently(ends):
            pass
        return self._ended()

    def run(self, every_s: float) -> Summary:
        """Take in what is in the log, and look for more every so many seconds, until ``stop``."""
        self._meter.start()
        self._tell_positions()
        while not self._stopping.is_asked:
            began = time.monotonic()
            if not self._patiently(None):
                self._stopping.wait(began + every_s - time.monotonic())
        return self._ended()

    def _ended(self) -> Summary:
        self._tell_positions()
        return self._meter.summary()

    # One turn

    def _patiently(self, ends: Positions | None) -> bool:
        """One turn, tried again while it fails for reasons that pass. Says whether there is more to do at once."""
        backoff, began, attempts = Backoff(), time.monotonic(), 0
        while not self._stopping.is_asked:
            attempts += 1
            try:
                if attempts > 1:
                    self._warehouse.refresh()
                return self._turn(ends)
            except Exception as error:
                if self._stopping.is_asked:
                    break
                is_patient = ends is None or time.monotonic() - began < AWAY_MAX_S
                self._judge(error, attempts, is_patient=is_patient)
            self._stopping.wait(backoff.next_s())
        return False

    def _judge(self, error: Exception, attempts: int, *, is_patient: bool) -> None:
        """Raise what cannot be mended by trying again."""
        known = translated(error)
        if isinstance(known, TRANSIENT_ERRORS):
            if not is_patient:
                raise known from error
            logger.log(logging.WARNING if attempts == 1 else logging.DEBUG, "%s; trying again", known.message)
        elif known is not None:
            raise known from error
        elif attempts >= ATTEMPTS_MAX:
            raise InternalError(
                f"a batch failed {attempts} times, the last time with: {first_line(error)}. "
                "Nothing is lost: the next run takes it up"
            ) from error
        else:
            logger.warning("a batch failed and is tried again: %s", first_line(error), exc_info=error)

    def _turn(self, ends: Positions | None) -> bool:
        """One batch, if there is anything for one. ``ends`` are where to stop, if not at the end of the log."""
        number = self._warehouse.positions.batch + 1
        begun = self._begun(number)
        backlog = self._backlog(ends, begun)
        plan = begun or planned(backlog, records_max=self._batch_records, bytes_max=BATCH_BYTES)
        if not plan.records:
            self._meter.idle(number - 1)
            return False
        left = backlog.records
        if begun is None:
            left -= plan.records
            self._tell_losses(number, backlog)
        self._meter.begin(number, plan.records, left)
        written = self._run_batch(number, plan)
        self._meter.end(written)
        maintenance.tend(self._warehouse.tables.values(), self._warehouse.internal_tables, number)
        self._tell_positions(every_s=TELL_EVERY_S)
        return ends is not None or left > 0

    def _begun(self, number: int) -> Plan | None:
        """The plan of a batch that a run was killed in, once its records are in ``messages``."""
        messages = self._warehouse["messages"]
        return Plan.from_json(messages.metadata_of(number)["plan"]) if messages.batch >= number else None

    def _run_batch(self, number: int, plan: Plan) -> Written:
        from himalia.spark.pipeline.batch import Batch

        batch = Batch(
            self._warehouse,
            number,
            plan,
            pool=self._pool,
            feedback=self._feedback if self._publishes else None,
            on_stage=self._meter.stage,
        )
        return batch.run(self._server.address, fails_on_data_loss=self._fails_on_data_loss)

    # The log

    def _topics(self) -> list[TopicEnd]:
        return [topic for topic in self._server.topics() if is_read(topic.name, self._patterns)]

    def _backlog(self, ends: Positions | None, begun: Plan | None) -> Backlog:
        """What has not been read. What a batch that was begun holds has been: it is in ``messages``."""
        topics, positions = self._topics(), self._warehouse.positions
        return backlog_of(
            topics if ends is None else until(topics, ends),
            positions.next if begun is None else positions.after(begun),
        )

    def _tell_losses(self, number: int, backlog: Backlog) -> None:
        """What went before it was read is told, and counted; it is an error only if that was asked for."""
        if number != self._losses_told_of:
            # A batch that is tried again has lost nothing more.
            self._losses_told_of = number
            self._meter.lost += backlog.lost
            for sentence in backlog.losses:
                logger.warning("%s: it was not read in time", sentence)
        if backlog.losses and self._fails_on_data_loss:
            raise DataLost("; ".join(backlog.losses[:LOSSES_TOLD_MAX]), lost=backlog.lost)

    def _tell_positions(self, every_s: float = 0.0) -> None:
        """Tell the server how far the log is read. That it cannot be told now is no reason to stop."""
        if time.monotonic() - self._told_s < every_s:
            return
        self._told_s = time.monotonic()
        try:
            epochs = {topic.name: topic.epoch for topic in self._topics()}
            self._feedback.tell_positions(self._warehouse.positions.by_topic(epochs))
        except HimaliaError as error:
            logger.debug("the positions cannot be told now: %s", error.message)

    # Spark

    def _started(self, stack: ExitStack) -> SparkSession:
        """A session of our own, in Spark as it runs in this process or is started now."""
        self._owns_spark = not _is_running()
        session = start_session(self._master, app="himalia pipeline", conf=SESSION)
        if self._owns_spark:
            stack.callback(session.stop)
        own = session.newSession()
        for name, value in (SESSION | REQUIRED).items():
            own.conf.set(name, value)
        if is_cluster(own.sparkContext.master or self._master):
            send(own.sparkContext)
        return own

    def _join_group(self) -> None:
        """Jobs of this thread are those of this run, to be cancelled together."""
        self._spark.sparkContext.setJobGroup(self._group, "himalia pipeline")

    def _leave_group(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    def _cancel_jobs(self) -> None:
        context = self._spark.sparkContext
        context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)
        if self._owns_spark:
            # Spark leaves some jobs that it starts by itself, to fill its cache, out of the group.
            context.cancelAllJobs()


def _is_running() -> bool:
    """Whether this process has a Spark already, which is then not ours to stop."""
    try:
        from pyspark import SparkContext
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None


def _opened(spark: SparkSession, path: Path) -> Warehouse:
    from himalia.spark.pipeline.warehouse import Warehouse

    return Warehouse(spark, path)
