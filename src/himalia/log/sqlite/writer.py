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
from himalia.log.contract import Health
from himalia.log.ids import RecentIds
from himalia.log.sparing import Spared
from himalia.log.sqlite.failures import is_of_the_file, replaced, translate, translated
from himalia.log.sqlite.files import create_private, make_directory
from himalia.log.sqlite.jobs import Job, NewRecords, News, Outcome, SettleJob, StopJob
from himalia.log.sqlite.loading import load_ids, load_topics
from himalia.log.sqlite.lock import FileLock
from himalia.log.sqlite.retention import Upkeep
from himalia.log.sqlite.schema import check_length
from himalia.log.sqlite.store import Store
from himalia.log.staging import Group, ProducerMark, Staged, World
from himalia.record import Retention, TopicInfo

logger = logging.getLogger(__name__)

GROUP_MAX = 4096
"""Records, or batches, stored together at most."""
GROUP_BYTES_MAX = 8 << 20
LOOK_INTERVAL_S = 1.0
"""How long not to see whether the file is still the one that was opened, at most: SQLite would go on writing to a
removed one, and everything written would be lost."""


class WriterOptions(msgspec.Struct, frozen=True):
    retention: Retention
    retention_interval_s: float
    retention_wait: float
    retention_paused: bool
    dedup_window_s: float
    dedup_ids_max: int
    topics_max: int
    probe_interval_s: float
    clock: Callable[[], int]


class Writer:
    """Owner of the file. ``submit`` may be called from any thread; ``tell`` is called in the writer's own."""

    def __init__(self, path: Path, options: WriterOptions, tell: Callable[[News], None]) -> None:
        self._path = path
        self._options = options
        self._tell = tell
        self._queue: SimpleQueue[Job | SettleJob | StopJob] = SimpleQueue()
        self._lock = FileLock(path)
        self._inode = 0
        # None after a failure, until the next attempt.
        self._store: Store | None = None
        self._problem: LogUnavailable | None = None
        self._next_probe_s = 0.0
        self._next_look_s = 0.0
        self._stopping = False
        self._settling: list[SettleJob] = []
        ids = RecentIds(window_s=options.dedup_window_s, ids_max=options.dedup_ids_max)
        self._world = World(ids, topics_max=options.topics_max, find_producer=self._find_producer)
        self._upkeep = Upkeep(
            self._world,
            options.retention,
            options.retention_interval_s,
            options.clock,
            spared=Spared(options.retention_wait, is_paused=options.retention_paused),
        )

    def open(self) -> list[TopicInfo]:
        """Take the lock, open the file and read its state. Blocks; called before ``start``, in any thread."""
        with translated(self._path):
            if self._path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a directory")
            make_directory(self._path.parent)
            self._lock.acquire()
            try:
                create_private(self._path)
                check_length(self._path)
                self._load(Store(self._path))
                self._inode = os.stat(self._path).st_ino
            except BaseException:
                self._drop_store()
                self._lock.release()
                raise
        return [state.info() for state in self._world.topics.values()]

    def start(self, ended: Callable[[], None]) -> None:
        """Begin to write. ``ended`` is called in the thread after ``StopJob`` has been dealt with."""

        def run() -> None:
            try:
                while not self._stopping:
                    self._turn()
                self._answer(self._settling, LogUnavailable("the log is closed"))
                self.shut()
            finally:
                ended()

        # A daemon: a program that forgets to close the log can end, and loses nothing that was acknowledged.
        threading.Thread(target=run, name="himalia-log-write", daemon=True).start()

    @property
    def spared(self) -> Spared:
        return self._upkeep.spared

    def submit(self, job: Job | SettleJob | StopJob) -> None:
        self._queue.put(job)

    def shut(self) -> None:
        """Leave the file complete in itself and let others have it."""
        if self._store is not None:
            try:
                self._store.checkpoint()
            except sqlite3.Error:
                # What was committed is in the write-ahead log and will be found there.
                logger.warning("could not tidy up the log %s", self._path, exc_info=True)
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
            self._settle()
        except Exception as error:
            # A bug, not the disk: the jobs concerned have been answered. The state is read afresh, and not at
            # once, so that a bug that stays does not keep the processor busy.
            logger.exception("the writer of the log %s stumbled", self._path)
            self._drop_store()
            self._trouble(LogUnavailable(f"the log {self._path} stumbled over a bug: {error!r}"), [])

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

    def _sort(self, job: Job | SettleJob | StopJob) -> Job | None:
        if isinstance(job, StopJob):
            self._stopping = True
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
            group = Group(self._world, self._options.clock())
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
        self, jobs: Sequence[Job | SettleJob], error: HimaliaError, *, health: Health | None = None
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
        # The ids at hand are right unless something was stored that they do not know of. To read them again
        # at every failure on a full disk would be slow.
        if not before or before != {state.id: state.end for state in self._world.topics.values()}:
            load_ids(store, self._world, self._options.clock())
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
        self._answer(jobs, error, health=Health(ok=False, problem=error.message))

    def _well(self) -> Health | None:
        """The file works: what to tell the loop of it, if it did not before."""
        if self._problem is None:
            return None
        logger.info("the log %s works again", self._path)
        self._problem = None
        return Health(ok=True)

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
                self._look_at_file()
                if not self._upkeep.is_due():
                    return
                changed = self._upkeep.step(self._reopen(), rows=stored * 2)
        except LogUnavailable as error:
            self._drop_store()
            self._trouble(error, [])
        else:
            self._tell(News(topics=[state.info() for state in changed], steps=1))

    def _look_at_file(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + min(LOOK_INTERVAL_S, self._options.retention_interval_s)
            self._check_identity()

    def _check_identity(self) -> None:
        if os.stat(self._path).st_ino != self._inode:
            raise replaced(self._path)

    def _settle(self) -> None:
        if not self._settling:
            return
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
