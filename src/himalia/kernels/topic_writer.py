"""Writes a kernel's messages to its topic, in order and exactly once.

The topic writer is a subscriber that may not drop. It buffers while the log is slow or unavailable, up to a limit in
bytes. Beyond the limit it accepts nothing until half of that is stored, and the kernel's spool is not read meanwhile.
Where there is no spool, dropped messages are counted and reported, for a record of the gap.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from himalia.errors import LogUnavailable, TopicNotFound
from himalia.jupyter.channels import channel_of
from himalia.jupyter.records import KernelEvent, event_draft, to_draft
from himalia.jupyter.wire import KernelMessage
from himalia.log.api import Appended, Batch
from himalia.record import Draft
from himalia.throttle import LogThrottle

logger = logging.getLogger("himalia.kernels.topic_writer")

BATCH_RECORDS_MAX = 4096
BATCH_BYTES_MAX = 8 << 20
RETRY_AFTER_S = 0.5
STORE_WITHIN_S = 5.0
"""How long a caller waits for a commit of a log that is well, but slow."""
WARN_EVERY_S = 60.0
GATHER_S = 0.002

Publish = Callable[[Batch], "asyncio.Future[Appended]"]


class Waiting:
    """A draft on its way, and who wants to know where it came to stand."""

    __slots__ = ("draft", "future", "size_bytes")

    def __init__(self, draft: Draft, future: asyncio.Future[int] | None = None) -> None:
        self.draft = draft
        self.future = future
        self.size_bytes = draft.size_bytes


class Bridge:
    """``offer`` may be called from any one thread; everything else belongs to the event loop.

    Appended by producer and sequence: a retry after a failure stores nothing twice, and a kernel that uses a message
    id again loses nothing. ``create_topic`` is called if the topic was deleted: the kernel lives on, and so does it.
    """

    def __init__(
        self,
        publish: Publish,
        topic: str,
        kernel_id: str,
        *,
        bytes_max: int,
        create_topic: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.topic = topic
        self.kernel_id = kernel_id
        self.overflowed = False
        self.on_missed: Callable[[int], None] | None = None
        """Told how many messages were offered in vain, when it takes them again."""
        self._missed = 0
        self._create_topic = create_topic
        self._publish = publish
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        # Of its own: the sequence of a bridge before this one is not known here.
        self._producer = f"kernel-{secrets.token_hex(8)}"
        self._sequence = 0
        self._pump_task: asyncio.Task[None] | None = None
        self._closed = False
        self._error: Exception | None = None
        self._unwell: LogUnavailable | None = None
        # Set while the log cannot store.
        self._trouble = asyncio.Event()
        self._complaint = LogThrottle(WARN_EVERY_S)
        self._overflow = LogThrottle(WARN_EVERY_S)

    @property
    def buffered_bytes(self) -> int:
        return self._waiting_bytes

    @property
    def unwell(self) -> LogUnavailable | None:
        """Why the log cannot store now; None if it can, as far as is known."""
        return self._unwell

    def check_well(self) -> None:
        """Raises ``LogUnavailable`` while the log cannot store."""
        if self._unwell is not None:
            raise LogUnavailable(self._unwell.message, **self._unwell.data)

    async def done_or_unwell(self, work: asyncio.Future[Any], within_s: float | None = None) -> bool:
        """Wait for something that needs the log, but not for a log that cannot store; says whether it is done."""
        trouble = asyncio.ensure_future(self._trouble.wait())
        try:
            await asyncio.wait({work, trouble}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            trouble.cancel()
        return work.done()

    async def stored(self, committed: asyncio.Future[int]) -> int:
        """The offset of what was put, once it is committed; ``LogUnavailable`` as soon as the log cannot store.

        What was put stays in line all the same, and is stored when the log can.
        """
        if await self.done_or_unwell(committed, STORE_WITHIN_S):
            return committed.result()
        self.check_well()
        raise LogUnavailable(
            f"the log did not store a record within {STORE_WITHIN_S:g} s; retry", topic=self.topic
        )

    # In

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        """Messages from IOPub. False once closed."""
        if self._closed:
            return False
        if self._misses(messages):
            return True
        waiting = [Waiting(self._draft(message)) for message in messages]
        with self._lock:
            self._waiting.extend(waiting)
            self._waiting_bytes += sum([entry.size_bytes for entry in waiting])
            self.overflowed = self._waiting_bytes > self._bytes_max
        if self.overflowed and self._overflow.allow():
            logger.warning("%s: more than %d bytes wait for the log", self.topic, self._bytes_max)
        self._wake()
        return True

    def _draft(self, message: KernelMessage) -> Draft:
        try:
            return to_draft(message, self.kernel_id, channel_of(message.msg_type))
        except Exception:  # a bug on one message may not end the kernel's way into the log
            logger.exception("%s: a %s message cannot be stored", self.topic, message.msg_type)
            return event_draft(
                self.kernel_id,
                KernelEvent.GAP,
                request_id=message.parent_id,
                count=1,
                reason=f"a {message.msg_type} message could not be stored",
            )

    def _misses(self, messages: Sequence[KernelMessage]) -> bool:
        with self._lock:
            if self.overflowed:
                self._missed += len(messages)
            return self.overflowed

    def tell(self, draft: Draft) -> None:
        """A record of our own, from the thread that offers: it stands before what is offered next."""
        if self._closed:
            return
        entry = Waiting(draft)
        with self._lock:
            self._waiting.append(entry)
            self._waiting_bytes += entry.size_bytes
        self._wake()

    def put(self, draft: Draft, *, is_urgent: bool = True) -> asyncio.Future[int]:
        """A record of our own; the future has its offset when it is committed, or says why it cannot be.

        One that is not urgent may wait a moment for more to come.
        """
        future: asyncio.Future[int] = self._loop.create_future()
        entry = Waiting(draft, future)
        if self._error is not None:
            _refuse([entry], self._error)
            return future
        with self._lock:
            self._waiting.append(entry)
            self._waiting_bytes += entry.size_bytes
        if is_urgent:
            self._start()
        else:
            self._gather()
        return future

    # Out

    async def flush(self) -> None:
        """Returns when everything taken so far is committed."""
        # What a thread has offered may not have been looked at yet.
        self._start()
        while self._pump_task is not None:
            await asyncio.wait({self._pump_task})

    def check(self) -> None:
        """Raises the error for which the log refused something, if it did."""
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Commit what was taken, and take nothing more."""
        self._closed = True
        await self.flush()

    def abandon(self) -> None:
        """Stop at once, for a log that cannot store any more."""
        # Forgotten here: a task that is cancelled before its first step never comes to its own ``finally``.
        pump, self._pump_task = self._pump_task, None
        if pump is not None:
            pump.cancel()
        self._fail(LogUnavailable(f"{self.topic} was given up: the log did not store it in time"), [])

    def _wake(self) -> None:
        if self._scheduled:
            return
        self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._gather)
        except RuntimeError:
            self._closed = True  # the loop is gone

    def _gather(self) -> None:
        """Begin in a moment: the messages of a small cell come in a few milliseconds, and can share a commit."""
        self._scheduled = False
        if self._pump_task is None and self._timer is None:
            self._timer = self._loop.call_later(GATHER_S, self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pump_task is None and self._waiting:
            self._pump_task = self._loop.create_task(self._pump())

    async def _pump(self) -> None:
        batch: list[Waiting] = []
        try:
            while batch := self._take():
                appended = await self._append([entry.draft for entry in batch])
                for entry, offset in zip(batch, appended.offsets, strict=True):
                    if entry.future is not None and not entry.future.done():
                        entry.future.set_result(offset)
                self._recover()
        except asyncio.CancelledError:
            _refuse(batch, LogUnavailable(f"{self.topic} was given up"))
            raise
        except Exception as error:  # whatever it is: those who wait must hear of it
            self._fail(error, batch)
        finally:
            self._pump_task = None

    def _take(self) -> list[Waiting]:
        taken: list[Waiting] = []
        size = 0
        with self._lock:
            while self._waiting and len(taken) < BATCH_RECORDS_MAX and size < BATCH_BYTES_MAX:
                entry = self._waiting.popleft()
                size += entry.size_bytes
                taken.append(entry)
            self._waiting_bytes -= size
        return taken

    def _recover(self) -> None:
        with self._lock:
            if not self.overflowed or self._waiting_bytes > self._bytes_max // 2:
                return
            missed, self._missed = self._missed, 0
            self.overflowed = False
        if missed and self.on_missed is not None:
            self.on_missed(missed)

    async def _append(self, drafts: Sequence[Draft]) -> Appended:
        """Until it is stored: the same batch again and again while the log is unwell."""
        self._sequence += 1
        batch = Batch(self.topic, drafts, producer=self._producer, sequence=self._sequence)
        while True:
            try:
                appended = await self._publish(batch)
                self._recovered()
                return appended
            except TopicNotFound:
                if self._create_topic is None:
                    raise
                logger.warning("%s was deleted while its kernel lives: it is made anew", self.topic)
                try:
                    await self._create_topic()
                except LogUnavailable as error:
                    await self._retry_later(error)
            except LogUnavailable as error:
                await self._retry_later(error)

    async def _retry_later(self, error: LogUnavailable) -> None:
        self._unwell = error
        self._trouble.set()
        if self._complaint.allow():
            logger.warning("%s: cannot be stored now, retrying: %s", self.topic, error)
        await asyncio.sleep(RETRY_AFTER_S)

    def _recovered(self) -> None:
        if self._unwell is not None:
            self._unwell = None
            self._trouble.clear()
            logger.info("%s: is stored again", self.topic)

    def _fail(self, error: Exception, batch: Sequence[Waiting]) -> None:
        """The log refuses the batch: there is nowhere to put anything."""
        logger.error("%s: nothing more can be kept: %s", self.topic, error)
        self._closed = True
        self._error = error
        with self._lock:
            left, self._waiting = list(self._waiting), deque()
            self._waiting_bytes = 0
        _refuse([*batch, *left], error)


def _refuse(entries: Sequence[Waiting], error: Exception) -> None:
    for entry in entries:
        if entry.future is not None and not entry.future.done():
            entry.future.set_exception(error)
            # Not everybody who puts something asks what became of it.
            entry.future.exception()
