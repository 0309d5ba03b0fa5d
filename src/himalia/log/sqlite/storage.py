"""The log's file while it is open: its lock, its write connection, and the state that was read from it."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from pathlib import Path

from himalia.errors import HimaliaError
from himalia.log.api import LogOptions
from himalia.log.clock import LogClock
from himalia.log.producers import ProducerState
from himalia.log.sqlite.database import check_length
from himalia.log.sqlite.errors import file_replaced, translate, translate_errors
from himalia.log.sqlite.files import create_private, make_directory, real_path
from himalia.log.sqlite.lock import LogLock, check_last_name, remove_name, save_name
from himalia.log.sqlite.maintenance import Maintenance
from himalia.log.sqlite.recovery import Recovery
from himalia.log.sqlite.store import Store, load_dedup, load_topics
from himalia.log.sqlite.wal import Loss
from himalia.log.transaction import LogState, TopicChange, Transaction

logger = logging.getLogger(__name__)

ERASE_AT_STOP_S = 2.0
ERASE_ROWS = 5000


class LogStorage:
    """Only the writer thread uses it; before that thread starts, the thread that calls ``open``.

    After a failure the connection is closed (``drop_store``). ``require_store`` then opens another one and reads the
    state again, so ``state`` is always what the file has, as far as this process knows.
    """

    def __init__(self, path: Path, options: LogOptions) -> None:
        self.path = path
        self._lock = LogLock(path)
        # None after a failure, until the next attempt.
        self._store: Store | None = None
        self.clock = LogClock(options.clock)
        self._is_clock_restored = False
        self.state = LogState(options.settings, self._find_producer)
        self.maintenance = Maintenance(self.state, self.clock, options)
        self.loss_warning: str | None = None
        """What is missing after a crash, until the next start."""

    def open(self) -> None:
        """Lock and open the file, and read its state. Blocks. Called once."""
        with translate_errors(self.path):
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a directory")
            file = real_path(self.path)
            make_directory(file.parent)
            self._lock.acquire()
            try:
                create_private(file)
                self._lock.acquire_file()
                self._open_locked(file)
            except BaseException:
                self.drop_store()
                self._lock.release()
                raise

    def _open_locked(self, file: Path) -> None:
        check_length(file)
        # Before the first connection: with it SQLite recovers, and the evidence of a loss is gone.
        recovery = Recovery(file)
        check_last_name(file)
        self._store = store = Store(self.path, recovery)
        if recovery.loss is not None:
            self._on_loss(store, recovery.loss)
            recovery.finish()
        self._load(store)
        save_name(store.db, file)
        self.check_file_replaced()

    def _on_loss(self, store: Store, loss: Loss) -> None:
        """Acknowledged records are missing: renew all epochs, so that no offset is used twice, and check the file."""
        # First: after this a start that does not finish has done no harm.
        store.renew_epochs()
        store.check_integrity()
        self.loss_warning = (
            f"acknowledged records {_describe_loss(self.path, loss)}; every topic has a new epoch, so that readers "
            "notice. Check the disk, and compare with a backup; this warning stays until the next start"
        )
        logger.error("%s", self.loss_warning)

    def close(self) -> None:
        """Leave the file complete in itself, without a write-ahead log, and unlock it."""
        if self._store is not None:
            try:
                self._erase_deleted_topics(self._store)
                self.save_clock(self._store)
                remove_name(self._store.db)
                self._store.checkpoint()
            except sqlite3.Error as error:
                # What was committed is in the write-ahead log and will be found there.
                logger.warning(
                    "the log was closed without a checkpoint, and the next start recovers it: %s",
                    translate(error, self.path).message,
                )
        self.drop_store()
        self._lock.release()

    def _erase_deleted_topics(self, store: Store) -> None:
        """Erase deleted topics for up to two seconds; the next start erases the rest."""
        deadline_s = time.monotonic() + ERASE_AT_STOP_S
        while self.maintenance.is_erasing and time.monotonic() < deadline_s:
            self.maintenance.step(store, ERASE_ROWS)

    # Failing and reopening

    def require_store(self) -> Store:
        """Return the store; after a failure, open it again and read the state again."""
        if self._store is None:
            self.check_file_replaced()
            self._load(Store(self.path))
        assert self._store is not None
        return self._store

    def drop_store(self) -> None:
        """Close the connection after a failure."""
        store, self._store = self._store, None
        if store is not None:
            try:
                store.close()
            except sqlite3.Error:
                logger.debug("closing a failed connection failed", exc_info=True)

    def check_file_replaced(self) -> None:
        """Raise ``LogUnavailable`` unless the path still leads to the file that is locked.

        SQLite would continue to write to a file that was removed, and everything written would be lost.
        """
        found = os.stat(self.path)
        if (found.st_dev, found.st_ino) != self._lock.identity:
            raise file_replaced(self.path)

    def contains(self, transaction: Transaction) -> bool:
        """Whether a transaction is in the file although its commit reported an error, as a new connection sees it."""
        try:
            self.require_store()
        except (sqlite3.Error, OSError, HimaliaError):
            return False
        # All of it or nothing was stored, so any change that can be seen proves all.
        visible = [c for c in transaction.topic_changes if c.records or c.created != c.deleted]
        return bool(visible) and all(self._is_committed(change) for change in visible)

    def _is_committed(self, change: TopicChange) -> bool:
        found = self.state.topics.get(change.state.name)
        is_same = found is not None and found.id == change.state.id
        if change.deleted:
            return not is_same
        return found is not None and is_same and found.end == change.state.end

    def _load(self, store: Store) -> None:
        self._store = store
        topics = self.state.topics
        before = {state.id: state.end for state in topics.values()}
        deleted = load_topics(store, self.state)
        topics = self.state.topics
        if not self._is_clock_restored:
            newest_us = max((state.last_ts_us for state in topics.values()), default=0)
            self.clock.restore(store.load_clock(), newest_us)
            self._is_clock_restored = True
        # The dedup index is right unless the file has records that it does not know. Reading it again at every
        # failure on a full disk would be slow.
        if not before or before != {state.id: state.end for state in topics.values()}:
            load_dedup(store, self.state, self.clock)
        self.maintenance.load(store, deleted)

    def _find_producer(self, topic: int, producer: str) -> ProducerState | None:
        try:
            return self.require_store().producers.find(topic, producer)
        except sqlite3.Error:
            self.drop_store()
            raise

    # The clock

    def save_clock(self, store: Store) -> None:
        self.clock.now()
        clock = self.clock.snapshot()
        with store.transaction():
            store.save_clock(clock)
        self.clock.mark_saved(clock)

    def follow_wall_clock(self) -> None:
        """End the hold of the clock, and end the era of the records that were stored until now."""
        store = self.require_store()
        before = self.clock.snapshot()
        shift_us = self.clock.follow_wall_clock()
        stored = [state for state in self.state.topics.values() if state.first < state.end]
        ended = [] if shift_us is None else [state.end_era(shift_us) for state in stored]
        try:
            self.maintenance.end_eras(store, ended, max(before.age_us - self.clock.last.age_us, 0))
        except BaseException:
            # The eras were not stored; without them the ages of records would be wrong.
            self.clock.restore(before, 0)
            raise


def _describe_loss(path: Path, loss: Loss) -> str:
    if not loss.committed:
        return f"may be missing from the log {path}: a start after a crash did not finish, so it is not known which"
    return (
        f"are missing from the log {path}: its write-ahead log was damaged or removed "
        f"(frames {loss.kept + 1} to {loss.committed})"
    )
