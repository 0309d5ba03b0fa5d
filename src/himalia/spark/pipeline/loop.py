"""The pipeline's loop: read what is new in the log into the tables, batch by batch.

Spark keeps no checkpoint: everything that a run continues from is in the commits of the warehouse.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from himalia.errors import DataLost, HimaliaError, InternalError
from himalia.retry import TRANSIENT_ERRORS, Backoff
from himalia.spark.connector.errors import LOSSES_REPORTED_MAX
from himalia.spark.connector.offset_ranges import TopicExtent
from himalia.spark.delta import maintenance
from himalia.spark.pipeline.feedback import Feedback
from himalia.spark.pipeline.plan import (
    Backlog,
    NextOffsets,
    Plan,
    cap_ends,
    compute_backlog,
    is_selected,
    plan_batch,
)
from himalia.spark.pipeline.progress import ProgressReporter, Summary
from himalia.spark.pipeline.server_client import ServerClient
from himalia.spark.pipeline.spark_errors import find_himalia_error, first_line
from himalia.spark.pipeline.stop_flag import StopFlag
from himalia.topics import check_pattern

if TYPE_CHECKING:
    from himalia.spark.pipeline.batch import BatchResult
    from himalia.spark.pipeline.warehouse import Warehouse

logger = logging.getLogger("himalia.spark")

BATCH_RECORDS = 1_000_000
BATCH_BYTES = 1024 * 1024 * 1024
ATTEMPTS_MAX = 3
RETRY_ONCE_S = 120.0
"""How long ``run_once`` waits for a server that is unreachable; ``run`` waits without limit."""
REPORT_POSITIONS_EVERY_S = 2.0


class PipelineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline reads, and how."""

    master: str = "local[*]"
    topics: Sequence[str] = (">",)
    """Patterns. The pipeline's own topics are read only if one of them names ``pipeline``."""
    batch_records: int = BATCH_RECORDS
    """About so many records in one batch, a tenth more at most."""
    feedback: bool = True
    """Whether changed rows are published to ``pipeline.*``."""
    fail_on_data_loss: bool = False
    """Whether records that were deleted before they were read are an error."""

    def __post_init__(self) -> None:
        for pattern in self.topics:
            check_pattern(pattern)


class BatchLoop:
    """Runs batches, in the thread that created it. Only ``stop`` may be called by other threads."""

    def __init__(
        self,
        server: ServerClient,
        warehouse: Warehouse,
        stop_flag: StopFlag,
        reporter: ProgressReporter,
        *,
        options: PipelineOptions,
    ) -> None:
        self._server = server
        self._warehouse = warehouse
        self._stop_flag = stop_flag
        self._reporter = reporter
        self._options = options
        self._feedback = Feedback(server, warehouse.positions.id)
        self._positions_reported_s = 0.0
        self._losses_reported_in = 0

    def run_once(self) -> Summary:
        """Read what is in the log now. Records that are published meanwhile are left for the next run."""
        self._reporter.start()
        ends = {(topic.name, topic.epoch): topic.end for topic in self._topics()}
        self._report_positions()
        while self._retry_batch(ends):
            pass
        return self._finish()

    def run(self, every_s: float) -> Summary:
        """Read what is in the log, and look for more every ``every_s`` seconds, until ``stop``."""
        self._reporter.start()
        self._report_positions()
        while not self._stop_flag.is_requested:
            began = time.monotonic()
            if not self._retry_batch(None):
                self._stop_flag.wait(began + every_s - time.monotonic())
        return self._finish()

    def stop(self) -> None:
        """Stop the run: see ``Pipeline.stop``."""
        self._stop_flag.request()

    def _finish(self) -> Summary:
        self._report_positions()
        return self._reporter.summary()

    # One batch

    def _retry_batch(self, ends: NextOffsets | None) -> bool:
        """Run the next batch, with retries. Return whether another one should follow at once."""
        backoff, began, attempts = Backoff(), time.monotonic(), 0
        while not self._stop_flag.is_requested:
            attempts += 1
            try:
                if attempts > 1:
                    self._warehouse.refresh()
                return self._run_next_batch(ends)
            except Exception as error:
                if self._stop_flag.is_requested:
                    break
                waits_for_server = ends is None or time.monotonic() - began < RETRY_ONCE_S
                _raise_if_permanent(error, attempts, waits_for_server=waits_for_server)
            self._stop_flag.wait(backoff.next_s())
        return False

    def _run_next_batch(self, ends: NextOffsets | None) -> bool:
        """Run a batch if there are new records. ``ends``: where to stop, if not at the end of the log."""
        number = self._warehouse.positions.batch + 1
        unfinished = self._unfinished_plan(number)
        backlog = self._backlog(ends, unfinished)
        plan = unfinished or plan_batch(
            backlog, records_max=self._options.batch_records, bytes_max=BATCH_BYTES
        )
        if not plan.records:
            self._reporter.idle(number - 1)
            return False
        remaining = backlog.records
        if unfinished is None:
            remaining -= plan.records
            self._report_losses(number, backlog)
        self._reporter.begin(number, plan.records, remaining)
        result = self._run_batch(number, plan)
        self._reporter.end(result)
        maintenance.maintain(self._warehouse.tables.values(), self._warehouse.internal_tables, number)
        self._report_positions(every_s=REPORT_POSITIONS_EVERY_S)
        return ends is not None or remaining > 0

    def _unfinished_plan(self, number: int) -> Plan | None:
        """Return the plan of a batch that was interrupted after its records were committed to ``messages``."""
        messages = self._warehouse["messages"]
        return Plan.from_json(messages.metadata_of(number)["plan"]) if messages.batch >= number else None

    def _run_batch(self, number: int, plan: Plan) -> BatchResult:
        from himalia.spark.pipeline.batch import Batch

        batch = Batch(
            self._warehouse,
            number,
            plan,
            feedback=self._feedback if self._options.feedback else None,
            on_stage=self._reporter.stage,
        )
        return batch.run(self._server.address, fails_on_data_loss=self._options.fail_on_data_loss)

    # The log

    def _topics(self) -> list[TopicExtent]:
        return [topic for topic in self._server.topics() if is_selected(topic.name, self._options.topics)]

    def _backlog(self, ends: NextOffsets | None, unfinished: Plan | None) -> Backlog:
        """Return what is unread. The records of an unfinished batch are read: they are in ``messages``."""
        topics, positions = self._topics(), self._warehouse.positions
        return compute_backlog(
            topics if ends is None else cap_ends(topics, ends),
            positions.next if unfinished is None else positions.after(unfinished),
        )

    def _report_losses(self, number: int, backlog: Backlog) -> None:
        """Log and count records that were deleted before they were read; raise if the options make them an error."""
        # A batch that is retried finds the same losses again.
        if number != self._losses_reported_in:
            self._losses_reported_in = number
            self._reporter.lost += backlog.lost
            for sentence in backlog.losses:
                logger.warning("%s: they were not read in time", sentence)
        if backlog.losses and self._options.fail_on_data_loss:
            raise DataLost("; ".join(backlog.losses[:LOSSES_REPORTED_MAX]), lost=backlog.lost)

    def _report_positions(self, every_s: float = 0.0) -> None:
        """Publish how far the log is read, at most every ``every_s``. Failing to do so does not stop a run."""
        if time.monotonic() - self._positions_reported_s < every_s:
            return
        self._positions_reported_s = time.monotonic()
        try:
            epochs = {topic.name: topic.epoch for topic in self._topics()}
            self._feedback.publish_positions(self._warehouse.positions.by_topic(epochs))
        except HimaliaError as error:
            logger.debug("cannot publish the positions: %s", error.message)


def _raise_if_permanent(error: Exception, attempts: int, *, waits_for_server: bool) -> None:
    """Log an error after which the batch is retried, and raise any other."""
    known = find_himalia_error(error)
    if isinstance(known, TRANSIENT_ERRORS):
        if not waits_for_server:
            raise known from error
        logger.log(logging.WARNING if attempts == 1 else logging.DEBUG, "%s; retrying", known.message)
    elif known is not None:
        raise known from error
    elif attempts >= ATTEMPTS_MAX:
        raise InternalError(
            f"a batch failed {attempts} times, the last time with: {first_line(error)}. "
            "Nothing is lost: the next run repeats it"
        ) from error
    else:
        logger.warning("a batch failed; retrying: %s", first_line(error), exc_info=error)
