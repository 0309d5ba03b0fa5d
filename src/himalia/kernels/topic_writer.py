"""Writes a kernel's messages to its topic, in order and exactly once.

The topic writer is a subscriber that may not drop. It buffers while the log is slow or unavailable, up to a limit in
bytes. Beyond the limit it accepts nothing until half of that is stored, and the kernel's spool is not read meanwhile.
Where there is no spool, the messages refused are counted, and a record reports the gap.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import Any, Protocol

from himalia.errors import LogUnavailable, TopicExists, TopicNotFound
from himalia.jupyter.channels import channel_of
from himalia.jupyter.records import KernelEvent, event_draft, gap_draft, to_draft
from himalia.jupyter.wire import KernelMessage
from himalia.kernels.draft_buffer import DraftBuffer, PendingDraft
from himalia.log.api import Appended, Batch
from himalia.pubsub import PubSubManager
from himalia.record import Draft
from himalia.throttle import LogThrottle
from himalia.topics import KERNEL_TOPIC_PREFIX

logger = logging.getLogger("himalia.kernels.topic_writer")

RETRY_AFTER_S = 0.5
STORE_WITHIN_S = 5.0
"""How long a caller waits for a commit of a log that is available, but slow."""
WARN_EVERY_S = 60.0
GATHER_S = 0.002


class Topic(Protocol):
    """The topic that a writer appends to. Called on the event loop."""

    @property
    def name(self) -> str: ...

    @property
    def kernel_id(self) -> str: ...

    def publish(self, batch: Batch) -> asyncio.Future[Appended]:
        """Append a batch; raises ``LogUnavailable`` while the log cannot store, ``TopicNotFound`` if it was deleted."""

    async def create(self) -> None:
        """Create the topic, if it does not exist. Raises ``LogUnavailable``."""


class KernelTopic:
    """A kernel's topic in the log of the server."""

    def __init__(self, manager: PubSubManager, kernel_id: str, owner: str | None = None) -> None:
        self.name = KERNEL_TOPIC_PREFIX + kernel_id
        self.kernel_id = kernel_id
        self.owner = owner
        """The caller whose kernel it is. If the topic existed before, its owner is the owner."""
        self._manager = manager

    async def create(self) -> None:
        """Create the topic, if it does not exist. Raises ``LogUnavailable``."""
        try:
            await self._manager.create_topic(self.name, owner=self.owner)
        except TopicExists:
            self.owner = (await self._manager.log.info(self.name)).owner

    def publish(self, batch: Batch) -> asyncio.Future[Appended]:
        """Append a batch."""
        return self._manager.publish(batch)


class LogAvailability:
    """Whether the log can store, as a topic writer finds out. Belongs to the event loop."""

    def __init__(self) -> None:
        self.error: LogUnavailable | None = None
        """Why the log cannot store now; None if it can, as far as is known."""
        self._lost = asyncio.Event()

    def mark_unavailable(self, error: LogUnavailable) -> None:
        """Note that the log refused a batch because it cannot store now."""
        self.error = error
        self._lost.set()

    def mark_available(self) -> bool:
        """Note that the log stored a batch; returns whether it could not before."""
        if self.error is None:
            return False
        self.error = None
        self._lost.clear()
        return True

    def check(self) -> None:
        """Raise ``LogUnavailable`` while the log cannot store."""
        if self.error is not None:
            raise LogUnavailable(self.error.message, **self.error.data)

    async def wait_for(self, work: asyncio.Future[Any], within_s: float | None = None) -> bool:
        """Wait for work that needs the log, but not for a log that cannot store; returns whether the work is done."""
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait({work, lost}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
        return work.done()


class TopicWriter:
    """``offer`` and ``offer_draft`` may be called by any one thread; everything else belongs to the event loop.

    Batches have a producer and a sequence number: a retry after a failure stores nothing twice, and a kernel that
    uses a message id again loses nothing. If the topic is deleted while its kernel lives it is created again, unless
    ``recreates`` is false: then the writer fails.
    """

    def __init__(self, topic: Topic, *, bytes_max: int, recreates: bool = True) -> None:
        self.topic = topic.name
        self.kernel_id = topic.kernel_id
        self.availability = LogAvailability()
        self._topic = topic
        self._recreates = recreates
        self._buffer = DraftBuffer(bytes_max)
        self._loop = asyncio.get_running_loop()
        # Set by the offering thread, so that it wakes the loop once, not once for each batch.
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._append_task: asyncio.Task[None] | None = None
        # Unique, because the sequence of an earlier writer of this topic is not known here.
        self._producer = f"kernel-{secrets.token_hex(8)}"
        self._sequence = 0
        self._is_closed = False
        self._error: Exception | None = None
        self._retry_throttle = LogThrottle(WARN_EVERY_S)
        self._full_throttle = LogThrottle(WARN_EVERY_S)

    @property
    def is_full(self) -> bool:
        """Whether messages are refused now."""
        return self._buffer.is_full

    @property
    def buffered_bytes(self) -> int:
        return self._buffer.size_bytes

    # In one thread, usually that of IOPub

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        """Buffer messages of the kernel, as a subscriber of its broker. False once closed."""
        if self._is_closed:
            return False
        if self._buffer.refuse_if_full(len(messages)):
            return True
        self._buffer.extend([PendingDraft(self._encode(message)) for message in messages])
        if self._buffer.is_full and self._full_throttle.allow():
            logger.warning("%s: more than %d bytes wait for the log", self.topic, self._buffer.bytes_max)
        self._wake()
        return True

    def offer_draft(self, draft: Draft) -> None:
        """Buffer a record of the server: it precedes the messages that this thread offers next."""
        if not self._is_closed:
            self._buffer.add(PendingDraft(draft))
            self._wake()

    def _encode(self, message: KernelMessage) -> Draft:
        try:
            return to_draft(message, self.kernel_id, channel_of(message.msg_type))
        except Exception:  # a bug on one message must not stop the messages behind it
            logger.exception("%s: a %s message cannot be stored", self.topic, message.msg_type)
            return event_draft(
                self.kernel_id,
                KernelEvent.GAP,
                request_id=message.parent_id,
                count=1,
                reason=f"a {message.msg_type} message could not be stored",
            )

    def _wake(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._start_soon)
        except RuntimeError:
            self._is_closed = True  # the loop is closed

    # On the event loop

    def append(self, draft: Draft, *, is_urgent: bool = True) -> asyncio.Future[int]:
        """Append a record of the server; the future has its offset once it is committed, or the error.

        One that is not urgent may wait a moment, to share a commit with the next.
        """
        committed: asyncio.Future[int] = self._loop.create_future()
        entry = PendingDraft(draft, committed)
        if self._error is not None:
            _fail_all([entry], self._error)
            return committed
        self._buffer.add(entry)
        if is_urgent:
            self._start()
        else:
            self._start_soon()
        return committed

    def append_gap(self, count: int | None, reason: str) -> None:
        """Append and log that so many messages are missing before the next; None if the number is not known."""
        self.append(self.encode_gap(count, reason))

    def encode_gap(self, count: int | None, reason: str) -> Draft:
        """Encode the record of a gap, and log it. Any thread may call this."""
        logger.warning("%s: %s messages are missing: %s", self.topic, count or "some", reason)
        return gap_draft(self.kernel_id, count, reason)

    async def wait_committed(self, committed: asyncio.Future[int]) -> int:
        """Return the offset of a record once it is committed; ``LogUnavailable`` as soon as the log cannot store.

        The record stays in the buffer after this error, and is stored when the log can.
        """
        if await self.availability.wait_for(committed, STORE_WITHIN_S):
            return committed.result()
        self.availability.check()
        raise LogUnavailable(
            f"the log did not store a record within {STORE_WITHIN_S:g} s; retry", topic=self.topic
        )

    async def flush(self) -> None:
        """Wait until everything buffered so far is committed."""
        # The timer, or the call from the offering thread, may not have run yet.
        self._start()
        while self._append_task is not None:
            await asyncio.wait({self._append_task})

    def check(self) -> None:
        """Raise the error with which the log refused a batch for good, if it did."""
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Refuse everything from now on, and commit what is buffered."""
        self._is_closed = True
        await self.flush()

    def cancel(self) -> None:
        """Stop at once, because the log did not store in time: what is buffered fails."""
        # Cleared here, because a task that is cancelled before its first step never runs its ``finally``.
        task, self._append_task = self._append_task, None
        if task is not None:
            task.cancel()
        self._fail(
            LogUnavailable(f"writing {self.topic} was cancelled: the log did not store it in time"), []
        )

    def _start_soon(self) -> None:
        """Start in a moment: the messages of a small cell arrive within milliseconds, and can share a commit."""
        self._is_scheduled = False
        if self._append_task is None and self._timer is None:
            self._timer = self._loop.call_later(GATHER_S, self._start)

    def _start(self) -> None:
        self._is_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._append_task is None and self._buffer:
            self._append_task = self._loop.create_task(self._append_all())

    async def _append_all(self) -> None:
        batch: list[PendingDraft] = []
        try:
            while batch := self._buffer.pop_batch():
                appended = await self._append([entry.draft for entry in batch])
                for entry, offset in zip(batch, appended.offsets, strict=True):
                    if entry.committed is not None and not entry.committed.done():
                        entry.committed.set_result(offset)
                if refused := self._buffer.reopen():
                    self.append_gap(refused, "the log was too slow, and this kernel has no spool")
        except asyncio.CancelledError:
            _fail_all(batch, LogUnavailable(f"writing {self.topic} was cancelled"))
            raise
        except Exception as error:  # whatever it is: callers wait for these records
            self._fail(error, batch)
        finally:
            self._append_task = None

    async def _append(self, drafts: Sequence[Draft]) -> Appended:
        """Append one batch, and retry the same one until the log has stored it."""
        self._sequence += 1
        batch = Batch(self.topic, drafts, producer=self._producer, sequence=self._sequence)
        while True:
            try:
                appended = await self._topic.publish(batch)
            except TopicNotFound:
                if not self._recreates:
                    raise
                logger.warning("%s was deleted while its kernel runs: creating it again", self.topic)
                try:
                    await self._topic.create()
                except LogUnavailable as error:
                    await self._wait_to_retry(error)
            except LogUnavailable as error:
                await self._wait_to_retry(error)
            else:
                if self.availability.mark_available():
                    logger.info("%s: the log stores again", self.topic)
                return appended

    async def _wait_to_retry(self, error: LogUnavailable) -> None:
        self.availability.mark_unavailable(error)
        if self._retry_throttle.allow():
            logger.warning("%s: the log cannot store now, retrying: %s", self.topic, error)
        await asyncio.sleep(RETRY_AFTER_S)

    def _fail(self, error: Exception, batch: Sequence[PendingDraft]) -> None:
        """The log refuses the batch for good: everything else fails as well."""
        logger.error("%s: nothing more can be stored: %s", self.topic, error)
        self._is_closed = True
        self._error = error
        _fail_all([*batch, *self._buffer.clear()], error)


def _fail_all(entries: Sequence[PendingDraft], error: Exception) -> None:
    for entry in entries:
        if entry.committed is not None and not entry.committed.done():
            entry.committed.set_exception(error)
            # Read it once: asyncio would log the exceptions of futures that no caller awaits.
            entry.committed.exception()
