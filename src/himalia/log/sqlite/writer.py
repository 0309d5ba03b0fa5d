"""The writer thread: groups queued commands into one transaction and reports each commit in one callback.

While one transaction is being synced the next commands gather in the queue, so the cost of a commit is shared by more
batches the higher the load. Offsets and times are assigned here, from the thread's own state, which advances only after
the commit.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from himalia.errors import HimaliaError, InternalError, LogUnavailable, MessageTooLarge
from himalia.log.api import Health, LogOptions
from himalia.log.retention_hold import RetentionHold
from himalia.log.sqlite.command_queue import CommandQueue
from himalia.log.sqlite.commands import (
    Command,
    CommittedRecords,
    ConfirmClockCommand,
    Outcome,
    WriteCommand,
    WriterReport,
)
from himalia.log.sqlite.errors import is_storage_error, translate, translate_errors
from himalia.log.sqlite.health import HealthState
from himalia.log.sqlite.storage import LogStorage
from himalia.log.transaction import Transaction
from himalia.record import TopicInfo

logger = logging.getLogger(__name__)

TRANSACTION_MAX = 4096
"""Records, or batches, stored together at most."""
TRANSACTION_BYTES_MAX = 8 << 20
CHECK_INTERVAL_S = 1.0
"""Longest time between two checks of the clock, and of whether the file is still the one that was opened."""


class WriterListener(Protocol):
    """The event loop's side. Both methods are called in the writer thread."""

    def on_report(self, report: WriterReport) -> None:
        """Called after each iteration that changed anything, in the order of the commits."""
        ...

    def on_end(self) -> None:
        """Called once, last: the file is closed and unlocked."""
        ...


class Writer:
    """Owns the file and the thread that writes to it.

    ``submit`` may be called from any thread. ``open``, and ``close`` of a writer that was not started, run in any
    thread while no other uses the writer. Everything else runs in the writer thread, which calls ``listener``.
    """

    def __init__(self, path: Path, options: LogOptions, listener: WriterListener) -> None:
        self._path = path
        self._listener = listener
        self._queue = CommandQueue()
        self._storage = LogStorage(path, options)
        self._health = HealthState(path, options.probe_interval_s)
        self._check_interval_s = min(CHECK_INTERVAL_S, options.retention_interval_s)
        self._next_check_s = 0.0

    def open(self) -> list[TopicInfo]:
        """Lock and open the file; return its topics. Blocks. Called once, before ``start``."""
        self._storage.open()
        self._health.loss_warning = self._storage.loss_warning
        return [state.info() for state in self._storage.state.topics.values()]

    def start(self) -> None:
        """Start the thread. It ends after ``StopCommand``."""

        def run() -> None:
            try:
                while not self._queue.is_stopping:
                    self._run_once()
                self._fail_commands(self._queue.pop_confirmations(), LogUnavailable("the log is closed"))
                self.close()
            finally:
                self._listener.on_end()

        # A daemon: a program that does not close the log can end, and loses nothing that was acknowledged.
        threading.Thread(target=run, name="himalia-log-write", daemon=True).start()

    def submit(self, command: Command) -> None:
        self._queue.submit(command)

    def close(self) -> None:
        """Leave the file complete in itself and unlock it."""
        self._storage.close()

    @property
    def hold(self) -> RetentionHold:
        return self._storage.maintenance.hold

    @property
    def health(self) -> Health:
        """The health before ``start``; later it is part of the reports."""
        return self._health.health

    def _run_once(self) -> None:
        """Store the commands that wait, then do one step of maintenance."""
        try:
            command = self._queue.next(self._wait_s())
            stored = 0 if command is None else self._store_transaction(self._queue.drain(command))
            if self._health.problem is not None:
                self._probe()
            else:
                self._run_maintenance(stored)
            if confirmations := self._queue.pop_confirmations():
                self._confirm_clock(confirmations)
        except Exception as error:
            # A bug, not the disk: the commands concerned have their error. The state is read again, and only after the
            # probe interval, so that a permanent bug does not keep the processor busy.
            logger.exception("internal error in the log writer of %s", self._path)
            self._storage.drop_store()
            self._on_failure(
                LogUnavailable(f"internal error in the log writer of {self._path}: {error!r}; retrying")
            )

    def _wait_s(self) -> float:
        if self._health.problem is not None:
            return self._health.probe_wait_s()
        return self._storage.maintenance.wait_s()

    # Storing

    def _store_transaction(self, waiting: Iterator[WriteCommand]) -> int:
        """Store as many commands as fit into one transaction; return the number of records stored."""
        commands = [next(waiting)]
        try:
            # Before the transaction reads the state, which this may replace.
            self._storage.require_store()
            transaction = Transaction(self._storage.state, self._storage.clock.now())
            outcomes = [_stage(commands[0], transaction)]
            while (
                max(transaction.records, len(commands)) < TRANSACTION_MAX
                and transaction.size_bytes < TRANSACTION_BYTES_MAX
            ):
                command = next(waiting, None)
                if command is None:
                    break
                commands.append(command)
                outcomes.append(_stage(command, transaction))
            seconds = self._commit(transaction)
        except HimaliaError as error:
            self._on_failure(error, commands)
            return 0
        except Exception as error:
            if is_storage_error(error):
                self._on_failure(translate(error, self._path), commands)
                return 0
            return self._store_individually(commands, error)
        self._report_commit(transaction, outcomes, seconds)
        return transaction.records

    def _commit(self, transaction: Transaction) -> float | None:
        """Commit the transaction; return the seconds it took, None if there was nothing to commit."""
        if transaction.is_empty:
            return None
        started = time.perf_counter()
        storage = self._storage
        store = storage.require_store()
        try:
            store.write(transaction)
        except sqlite3.Error as error:
            if not is_storage_error(error):
                raise
            storage.drop_store()
            if not storage.contains(transaction):
                raise
            # The state was read again with the transaction in it.
            logger.warning("COMMIT on %s returned an error, but the transaction was written", self._path)
        else:
            storage.state.apply(transaction)
        storage.maintenance.on_commit(transaction)
        return time.perf_counter() - started

    def _store_individually(self, commands: Sequence[WriteCommand], error: Exception) -> int:
        """One of these commands cannot be stored at all: find it by storing each in a transaction of its own."""
        if len(commands) > 1:
            return sum(self._store_transaction(iter([command])) for command in commands)
        logger.error("the log cannot store a batch", exc_info=error)
        # It may be a bug rather than the batch: read the state from the file again.
        self._storage.drop_store()
        is_too_large = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_TOOBIG
        refusal = MessageTooLarge if is_too_large else InternalError
        self._fail_commands(commands, refusal(f"the log cannot store this: {error}"))
        return 0

    def _report_commit(
        self, transaction: Transaction, outcomes: Sequence[Outcome], seconds: float | None
    ) -> None:
        is_committed = seconds is not None
        changes = transaction.topic_changes if is_committed else ()
        self._listener.on_report(
            WriterReport(
                outcomes=outcomes,
                topics=[c.state.info() for c in changes if not c.deleted],
                deleted_topics=[c.state.info() for c in changes if c.deleted],
                added=[
                    CommittedRecords(c.state.epoch, c.records, c.size_bytes) for c in changes if c.records
                ],
                changes=transaction.changes,
                health=self._health.leave_failed_state() if is_committed else None,
                commit_seconds=seconds,
                records=transaction.records,
                duplicates=transaction.duplicates,
            )
        )

    # Failing and recovering

    def _on_failure(self, error: HimaliaError, commands: Sequence[WriteCommand] = ()) -> None:
        """Fail these commands; after a failure of the file, enter the failed state, which ``_probe`` ends."""
        if isinstance(error, LogUnavailable):
            self._fail_commands(commands, error, health=self._health.enter_failed_state(error))
        else:
            self._fail_commands(commands, error)

    def _fail_commands(
        self,
        commands: Sequence[WriteCommand | ConfirmClockCommand],
        error: HimaliaError,
        *,
        health: Health | None = None,
    ) -> None:
        outcomes = [Outcome(command.future, error=error) for command in commands]
        self._listener.on_report(
            WriterReport(outcomes=outcomes, failures=1 if commands else 0, health=health)
        )

    def _probe(self) -> None:
        """Find out whether a log that failed can store again, without waiting for a client to publish."""
        if self._health.probe_wait_s() > 0:
            return
        try:
            with translate_errors(self._path):
                self._storage.require_store().probe()
        except LogUnavailable as error:
            self._storage.drop_store()
            self._on_failure(error)
        else:
            self._listener.on_report(WriterReport(health=self._health.leave_failed_state()))

    # Maintenance

    def _run_maintenance(self, stored: int) -> None:
        """Do one small step of maintenance; a larger one after many records, so that retention keeps pace."""
        maintenance = self._storage.maintenance
        try:
            with translate_errors(self._path):
                self._check_file_and_clock()
                if not maintenance.is_due():
                    return
                changed = maintenance.step(self._storage.require_store(), rows=stored * 2)
        except LogUnavailable as error:
            self._storage.drop_store()
            self._on_failure(error)
        else:
            self._listener.on_report(WriterReport(topics=[state.info() for state in changed], steps=1))

    def _check_file_and_clock(self) -> None:
        """Check the file and the clock if the last check was some time ago."""
        now_s = time.monotonic()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + self._check_interval_s
            self._storage.check_file_replaced()
            self._check_clock()
        elif self._storage.clock.has_changed:
            self._check_clock()

    def _check_clock(self) -> None:
        """Read the clock, end its hold when that is over, and store its state from time to time."""
        clock = self._storage.clock
        clock.now()
        if clock.is_hold_over:
            self._storage.follow_wall_clock()
        elif clock.needs_saving:
            self._storage.save_clock(self._storage.require_store())
        self._report_clock_warning()

    def _report_clock_warning(self) -> None:
        health = self._health.set_clock_warning(self._storage.clock.warning)
        if health is not None:
            self._listener.on_report(WriterReport(health=health))

    def _confirm_clock(self, commands: Sequence[ConfirmClockCommand]) -> None:
        if self._health.problem is not None:
            self._fail_commands(commands, self._health.problem)
            return
        warning = self._storage.clock.warning
        try:
            with translate_errors(self._path):
                self._storage.follow_wall_clock()
        except LogUnavailable as error:
            self._storage.drop_store()
            self._fail_commands(commands, error)
            self._on_failure(error)
            return
        self._report_clock_warning()
        self._listener.on_report(
            WriterReport(outcomes=[Outcome(command.future, warning) for command in commands])
        )


def _stage(command: WriteCommand, transaction: Transaction) -> Outcome:
    try:
        return Outcome(command.future, command.stage(transaction))
    except HimaliaError as error:
        return Outcome(command.future, error=error)
