"""The one thread that writes: it groups what is waiting into one transaction and tells the loop at one stroke.

While one group is being synced the next gathers in the queue, so the cost of a commit is shared by more batches
the higher the load. Offsets and times are assigned here, from the thread's own state, which moves on only after
the commit.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from himalia.errors import HimaliaError, InternalError, LogUnavailable, MessageTooLarge
from himalia.log.api import Health
from himalia.log.clock import LogClock, TimeSource
from himalia.log.dedup import RecentIds
from himalia.log.producers import ProducerMark, Producers
from himalia.log.retention_hold import Spared
from himalia.log.sqlite.commands import ConfirmClockJob, Job, NewRecords, News, Outcome, SettleJob, StopJob
from himalia.log.sqlite.database import check_length
from himalia.log.sqlite.errors import is_of_the_file, replaced, translate, translated
from himalia.log.sqlite.files import create_private, make_directory, real_path
from himalia.log.sqlite.lock import FileLock, check_last_name, forget_name, save_name
from himalia.log.sqlite.maintenance import Upkeep
from himalia.log.sqlite.recovery import Recovery
from himalia.log.sqlite.store import Store, load_ids, load_topics
from himalia.log.sqlite.wal import Loss
from himalia.log.transaction import Group, Staged, World
from himalia.record import Retention, TopicInfo

logger = logging.getLogger(__name__)

GROUP_MAX = 4096
"""Records, or batches, stored together at most."""
GROUP_BYTES_MAX = 8 << 20
LOOK_INTERVAL_S = 1.0
"""How long not to see whether the file is still the one that was opened, at most (SQLite would go on writing to a
removed one, and everything written would be lost), nor what the clock says."""
CLOCK_LINES_EVERY_S = 60.0
ERASE_AT_STOP_S = 2.0
ERASE_ROWS = 5000

AnyJob = Job | SettleJob | ConfirmClockJob | StopJob


class WriterOptions(msgspec.Struct, frozen=True):
    retention: Retention
    retention_interval_s: float
    retention_wait: float
    retention_paused: bool
    dedup_window_s: float
    dedup_ids_max: int
    topics_max: int
    producers_max: int
    producer_age_s: float
    probe_interval_s: float
    clock: TimeSource


class Writer:
    """Owner of the file. ``submit`` may be called from any thread; ``tell`` is called in the writer's own."""

    def __init__(self, path: Path, options: WriterOptions, tell: Callable[[News], None]) -> None:
        self._path = path
        self._options = options
        self._tell = tell
        self._queue: SimpleQueue[AnyJob] = SimpleQueue()
        self._lock = FileLock(path)
        # None after a failure, until the next attempt.
        self._store: Store | None = None
        self._problem: LogUnavailable | None = None
        self._next_probe_s = 0.0
        self._next_look_s = 0.0
        self._stopping = False
        self._settling: list[SettleJob] = []
        self._confirming: list[ConfirmClockJob] = []
        self._clock = LogClock(options.clock)
        self._has_started = False
        self._warning: str | None = None
        self._lost: str | None = None
        self._next_clock_line_s = 0.0
        ids = RecentIds(window_s=options.dedup_window_s, ids_max=options.dedup_ids_max)
        producers = Producers(
            count_max=options.producers_max,
            age_s=options.producer_age_s,
            dedup_window_s=options.dedup_window_s,
        )
        self._world = World(
            ids, topics_max=options.topics_max, producers=producers, find_producer=self._find_producer
        )
        self._upkeep = Upkeep(
            self._world,
            options.retention,
            options.retention_interval_s,
            self._clock,
            spared=Spared(options.retention_wait, is_paused=options.retention_paused),
        )

    def open(self) -> list[TopicInfo]:
        """Take the lock, open the file and read its state. Blocks; called before ``start``, in any thread."""
        with translated(self._path):
            if self._path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a directory")
            file = real_path(self._path)
            make_directory(file.parent)
            self._lock.acquire()
            try:
                create_private(file)
                self._lock.acquire_file()
                check_length(file)
                recovery = Recovery(file)
                check_last_name(file)
                self._store = store = Store(self._path, recovery)
                if recovery.loss is not None:
                    self._on_loss(store, recovery.loss)
                    recovery.finish()
                self._load(store)
                save_name(store.db, file)
                self._check_identity()
            except BaseException:
                self._drop_store()
                self._lock.release()
                raise
        return [state.info() for state in self._world.topics.values()]

    def _on_loss(self, store: Store, loss: Loss) -> None:
        """Acknowledged records are missing: use no offset again under its epoch, and see that nothing else is."""
        # First: after this a start that does not finish has done no harm.
        store.renew_epochs()
        store.check_whole()
        self._lost = (
            f"acknowledged records {_what_is_missing(self._path, loss)}; every topic has a new epoch, so that readers "
            "are told. Check the disk, and compare with a backup; this is said until the next start"
        )
        logger.error("%s", self._lost)

    def start(self, ended: Callable[[], None]) -> None:
        """Begin to write. ``ended`` is called in the thread after ``StopJob`` has been dealt with."""

        def run() -> None:
            try:
                while not self._stopping:
                    self._turn()
                self._answer([*self._settling, *self._confirming], LogUnavailable("the log is closed"))
                self.shut()
            finally:
                ended()

        # A daemon: a program that forgets to close the log can end, and loses nothing that was acknowledged.
        threading.Thread(target=run, name="himalia-log-write", daemon=True).start()

    @property
    def spared(self) -> Spared:
        return self._upkeep.spared

    def submit(self, job: AnyJob) -> None:
        self._queue.put(job)

    def shut(self) -> None:
        """Leave the file complete in itself and let others have it."""
        if self._store is not None:
            try:
                self._erase(self._store)
                self._save_clock(self._store)
                forget_name(self._store.db)
                self._store.checkpoint()
            except sqlite3.Error as error:
                # What was committed is in the write-ahead log and will be found there.
                logger.warning(
                    "the log was closed without a checkpoint, and the next start recovers it: %s",
                    translate(error, self._path).message,
                )
        self._drop_store()
        self._lock.release()

    def _turn(self) -> None:
        """Store what is waiting, then do a little of what can wait."""
        try:
            first = self._next_job()
            stored = self._store_group(self._waiting(first)) if first is not None else 0
            if self._problem is not None:
                self._probe()
            else:
                self._do_upkeep(stored)
            if self._confirming:
                self._confirm_clock()
            if self._settling:
                self._settle()
        except Exception as error:
            # A bug, not the disk: the jobs concerned have been answered. The state is read afresh, and not at
            # once, so that a bug that stays does not keep the processor busy.
            logger.exception("the writer of the log %s stumbled", self._path)
            self._drop_store()
            self._trouble(LogUnavailable(f"the log {self._path} stumbled over a bug: {error!r}"), [])

    def _erase(self, store: Store) -> None:
        """Erase deleted topics before the end, if that is soon done; the rest goes at the next start."""
        deadline_s = time.monotonic() + ERASE_AT_STOP_S
        while self._upkeep.is_erasing and time.monotonic() < deadline_s:
            self._upkeep.step(store, ERASE_ROWS)

    # Gathering

    def _next_job(self) -> Job | None:
        """The next thing to store, or None if there is something else to do first."""
        try:
            wait_s = self._wait_s()
            job = self._queue.get(timeout=wait_s) if wait_s > 0 else self._queue.get_nowait()
        except Empty:
            return None
        return self._sort(job)

    def _wait_s(self) -> float:
        if self._problem is not None:
            return self._next_probe_s - time.monotonic()
        return self._upkeep.wait_s()

    def _waiting(self, first: Job) -> Iterator[Job]:
        """This job and those queued behind it."""
        yield first
        while not self._stopping:
            try:
                job = self._sort(self._queue.get_nowait())
            except Empty:
                return
            if job is not None:
                yield job

    def _sort(self, job: AnyJob) -> Job | None:
        if isinstance(job, StopJob):
            self._stopping = True
        elif isinstance(job, ConfirmClockJob):
            self._confirming.append(job)
        elif isinstance(job, SettleJob):
            self._settling.append(job)
            self._upkeep.hurry()
        else:
            return job
        return None

    # Storing

    def _store_group(self, waiting: Iterator[Job]) -> int:
        """Store as many of these as make a group. Returns the number of records stored."""
        jobs = [next(waiting)]
        try:
            # Before the group looks at the world, which this may renew.
            self._reopen()
            group = Group(self._world, self._clock.now())
            outcomes = [self._stage(jobs[0], group)]
            while max(group.records, len(jobs)) < GROUP_MAX and group.size_bytes < GROUP_BYTES_MAX:
                job = next(waiting, None)
                if job is None:
                    break
                jobs.append(job)
                outcomes.append(self._stage(job, group))
            seconds = self._write(group)
        except HimaliaError as error:
            self._trouble(error, jobs)
            return 0
        except Exception as error:
            if is_of_the_file(error):
                self._trouble(translate(error, self._path), jobs)
                return 0
            return self._store_singly(jobs, error)
        self._publish(group, outcomes, seconds)
        return group.records

    def _stage(self, job: Job, group: Group) -> Outcome:
        try:
            return Outcome(job.future, job.stage(group))
        except HimaliaError as error:
            return Outcome(job.future, error=error)

    def _write(self, group: Group) -> float | None:
        """Commit the group; returns the seconds it took, or None if there was nothing to commit."""
        if group.changes_nothing:
            return None
        started = time.perf_counter()
        store = self._reopen()
        try:
            store.write(group)
        except sqlite3.Error as error:
            if not is_of_the_file(error):
                raise
            self._drop_store()
            if not self._is_stored(group):
                raise
            logger.warning("a commit of the log %s was reported as failed, but is there", self._path)
        else:
            self._world.take_over(group)
        self._upkeep.notice(group)
        return time.perf_counter() - started

    def _store_singly(self, jobs: Sequence[Job], error: Exception) -> int:
        """Something in this group cannot be stored at all: find out what, and store the rest."""
        if len(jobs) > 1:
            return sum(self._store_group(iter([job])) for job in jobs)
        logger.error("the log cannot store a batch", exc_info=error)
        # It may be a bug rather than the batch: begin anew with what is in the file.
        self._drop_store()
        too_large = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_TOOBIG
        refusal = MessageTooLarge if too_large else InternalError
        self._answer(jobs, refusal(f"the log cannot store this: {error}"))
        return 0

    def _publish(self, group: Group, outcomes: Sequence[Outcome], seconds: float | None) -> None:
        staged = group.staged if seconds is not None else ()
        self._tell(
            News(
                outcomes=outcomes,
                topics=[s.state.info() for s in staged if not s.deleted],
                ended=[s.state.info() for s in staged if s.deleted],
                added=[NewRecords(s.state.epoch, s.records, s.size_bytes) for s in staged if s.records],
                changes=group.changes,
                health=self._well() if seconds is not None else None,
                commit_seconds=seconds,
                records=group.records,
                duplicates=group.duplicates,
            )
        )

    def _answer(
        self,
        jobs: Sequence[Job | SettleJob | ConfirmClockJob],
        error: HimaliaError,
        *,
        health: Health | None = None,
    ) -> None:
        outcomes = [Outcome(job.future, error=error) for job in jobs]
        self._tell(News(outcomes=outcomes, failures=bool(jobs), health=health))

    # Failing and recovering

    def _reopen(self) -> Store:
        """The store; opened again, and the state read again, if it failed before."""
        if self._store is None:
            self._check_identity()
            self._load(Store(self._path))
        assert self._store is not None
        return self._store

    def _load(self, store: Store) -> None:
        self._store = store
        before = {state.id: state.end for state in self._world.topics.values()}
        erasing = load_topics(store, self._world)
        if not self._has_started:
            newest_us = max((state.last_ts_us for state in self._world.topics.values()), default=0)
            self._clock.start(store.load_clock(), newest_us)
            self._has_started = True
        # The ids at hand are right unless something was stored that they do not know of. To read them again
        # at every failure on a full disk would be slow.
        if not before or before != {state.id: state.end for state in self._world.topics.values()}:
            load_ids(store, self._world, self._clock)
        self._upkeep.load(store, erasing)

    def _is_stored(self, group: Group) -> bool:
        """After a commit that failed: whether it is in the file all the same, as a new connection sees it."""
        try:
            self._reopen()
        except (sqlite3.Error, OSError, HimaliaError):
            return False
        # All or nothing was stored, so any change that can be seen tells of all.
        changed = [s for s in group.staged if s.records or s.created != s.deleted]
        return bool(changed) and all(self._is_there(staged) for staged in changed)

    def _is_there(self, staged: Staged) -> bool:
        found = self._world.topics.get(staged.state.name)
        is_same = found is not None and found.id == staged.state.id
        if staged.deleted:
            return not is_same
        return found is not None and is_same and found.end == staged.state.end

    def _trouble(self, error: HimaliaError, jobs: Sequence[Job]) -> None:
        """The file failed. Answer those who wait for it, and look again before long."""
        if not isinstance(error, LogUnavailable):
            self._answer(jobs, error)
            return
        if self._problem is None or self._problem.message != error.message:
            logger.error("%s", error.message)
        self._problem = error
        self._next_probe_s = time.monotonic() + self._options.probe_interval_s
        self._answer(jobs, error, health=self._health())

    def _well(self) -> Health | None:
        """The file works: what to tell the loop of it, if it did not before."""
        if self._problem is None:
            return None
        logger.info("the log %s works again", self._path)
        self._problem = None
        return self._health()

    def _health(self) -> Health:
        problem = None if self._problem is None else self._problem.message
        warnings = [warning for warning in (self._lost, self._warning) if warning is not None]
        return Health(ok=problem is None, problem=problem, warnings=warnings)

    @property
    def health(self) -> Health:
        """As it is before ``start``."""
        return self._health()

    def _probe(self) -> None:
        """Find out whether a log that failed can store again, without waiting for someone to publish."""
        if time.monotonic() < self._next_probe_s:
            return
        try:
            with translated(self._path):
                self._reopen().probe()
        except LogUnavailable as error:
            self._drop_store()
            self._trouble(error, [])
        else:
            self._tell(News(health=self._well()))

    def _drop_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                store.close()
            except sqlite3.Error:
                logger.debug("closing a failed connection failed", exc_info=True)

    # What can wait

    def _do_upkeep(self, stored: int) -> None:
        """One small step of retention or erasing; larger when much comes in, so that it keeps pace."""
        try:
            with translated(self._path):
                self._look_around()
                if not self._upkeep.is_due():
                    return
                changed = self._upkeep.step(self._reopen(), rows=stored * 2)
        except LogUnavailable as error:
            self._drop_store()
            self._trouble(error, [])
        else:
            self._tell(News(topics=[state.info() for state in changed], steps=1))

    def _look_around(self) -> None:
        """Look at the file and at the clock, if that was some time ago."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + min(LOOK_INTERVAL_S, self._options.retention_interval_s)
            self._check_identity()
            self._keep_time()
        elif self._settling or self._clock.has_changed:
            self._keep_time()

    def _check_identity(self) -> None:
        found = os.stat(self._path)
        if (found.st_dev, found.st_ino) != self._lock.identity:
            raise replaced(self._path)

    # Clocks

    def _keep_time(self) -> None:
        """Look at the clock, and have the file know of it every now and then."""
        self._clock.now()
        if self._clock.is_over:
            self._follow_clock()
        elif self._clock.is_to_be_saved:
            self._save_clock(self._reopen())
        self._warn_of_clock()

    def _warn_of_clock(self) -> None:
        warning = self._clock.warning
        if warning == self._warning:
            return
        self._warning = warning
        self._tell(News(health=self._health()))
        # A clock that jumps all the time fills no disk with lines.
        now_s = time.monotonic()
        if now_s >= self._next_clock_line_s:
            self._next_clock_line_s = now_s + CLOCK_LINES_EVERY_S
            logger.warning("%s", warning or f"the log {self._path} goes by this machine's clock again")

    def _save_clock(self, store: Store) -> None:
        self._clock.now()
        clock = self._clock.save()
        with store.transaction():
            store.save_clock(clock)
        self._clock.saved(clock)

    def _follow_clock(self) -> None:
        store = self._reopen()
        before = self._clock.save()
        shift_us = self._clock.follow()
        stored = [state for state in self._world.topics.values() if state.first < state.end]
        ended = [] if shift_us is None else [state.end_era(shift_us) for state in stored]
        try:
            self._upkeep.end_eras(store, ended, max(before.age_us - self._clock.last.age_us, 0))
        except BaseException:
            # Without what was to be stored, records would seem to have another age.
            self._clock.start(before, 0)
            raise

    def _confirm_clock(self) -> None:
        confirming, self._confirming = self._confirming, []
        if self._problem is not None:
            self._answer(confirming, self._problem)
            return
        warning = self._clock.warning
        try:
            with translated(self._path):
                self._follow_clock()
        except LogUnavailable as error:
            self._drop_store()
            self._answer(confirming, error)
            self._trouble(error, [])
            return
        self._warn_of_clock()
        self._tell(News(outcomes=[Outcome(job.future, warning) for job in confirming]))

    def _settle(self) -> None:
        if self._problem is not None:
            self._answer(self._settling, self._problem)
        elif self._upkeep.is_due():
            return
        else:
            self._tell(News(outcomes=[Outcome(job.future) for job in self._settling]))
        self._settling = []

    def _find_producer(self, topic: int, producer: str) -> ProducerMark | None:
        try:
            return self._reopen().find_producer(topic, producer)
        except sqlite3.Error:
            self._drop_store()
            raise


def _what_is_missing(path: Path, loss: Loss) -> str:
    if not loss.committed:
        return f"may be missing from the log {path}: a start after a crash did not finish, and left no way to tell"
    return (
        f"are missing from the log {path}: its write-ahead log was damaged or removed "
        f"(frames {loss.kept + 1} to {loss.committed})"
    )
