"""Recovery when a server starts: requests left open in a kernel's topic, and kernels that are gone.

A keeper that ends by itself leaves its spool and the kernel's exit code, and so does one that is killed, without the
code. Both stay on disk until all of it is committed, however late a server comes and however often it is killed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from himalia.errors import BadRequest, HimaliaError, TopicExists, TopicNotFound
from himalia.iopub.broker import IopubBroker
from himalia.jupyter.connection_file import ConnectionInfo, read_connection_file
from himalia.jupyter.lifecycle import RequestOrigin, RequestState, request_closed_draft
from himalia.jupyter.records import (
    DISK_WAS_FULL,
    EVENT_CHANNEL,
    KernelEvent,
    event_draft,
    gap_draft,
    read_headers,
    seq_of,
    to_message,
    too_large_draft,
)
from himalia.jupyter.request_events import UNREADABLE, EventKind, RequestEvent
from himalia.jupyter.timeline import KernelTimeline
from himalia.jupyter.wire import NOT_ON_IOPUB, Fault, FaultKind, KernelMessage, Wire, WireLimits
from himalia.keeper import kernel_directory
from himalia.keeper.client import KernelExit, read_exit, read_owner, read_spool, remove_stale_directory
from himalia.keeper.kernel_process import KernelProcess
from himalia.keeper.limits import exit_reason
from himalia.keeper.spool import Spooled
from himalia.keeper.spool_consumer import SPOOL_WAS_FULL, SpoolConsumer, SpoolPosition
from himalia.kernels.history import last_iopub
from himalia.kernels.kernel import Kernel
from himalia.kernels.model import HostListener
from himalia.kernels.topic_writer import KernelTopic, TopicWriter
from himalia.log.api import Batch, Log
from himalia.protocol.models import ExecutionStatus
from himalia.pubsub import PubSubManager
from himalia.record import Draft, Record, now_us
from himalia.settings import Settings
from himalia.topics import KERNEL_TOPIC_PREFIX

T = TypeVar("T")

logger = logging.getLogger("himalia.kernels")

CHUNK = 4000
LOOK_AGAIN_S = 0.05
"""How long to wait for a slow log before reading more of the spool."""


def encode_abandoned(kernel_id: str, request: RequestState, reason: str) -> Draft:
    """Encode the ``request_closed`` of a request whose kernel is gone, with the status that its records give."""
    # Its reply went to an earlier server.
    request = request.without_reply()
    if request.is_done:
        closed = request.close(now_us(), request.outcome)
    else:
        status = ExecutionStatus.DIED if request.was_sent else ExecutionStatus.ABORTED
        closed = request.close(now_us(), status, reason)
    return request_closed_draft(kernel_id, closed)


async def find_position(log: Log, topic: str) -> SpoolPosition:
    """Find where to resume reading a kernel's spool: after the last of its messages that is in the topic."""
    last = await last_iopub(log, topic)
    if last is None:
        return SpoolPosition()
    seq = seq_of(last)
    return SpoolPosition(resume_after_id=to_message(last).msg_id) if seq is None else SpoolPosition(seq)


async def has_ended(log: Log, topic: str) -> bool:
    """Return whether the last record of a topic is its kernel's end; true for an empty topic."""
    end = (await log.info(topic)).end
    records = (await log.read(topic, end - 1, limit=1)).records if end else ()
    if not records:
        return True
    event = _event_content(records[-1]).get("event")
    return event in (KernelEvent.DIED, KernelEvent.STOPPED)


def recorded_connection_file(directory: Path) -> Path:
    """Return the connection file of the kernel that was kept in a directory."""
    about = kernel_directory.read_info(directory) or {}
    return Path(str(about.get("connection_file") or directory / kernel_directory.CONNECTION_FILE))


async def open_requests(log: Log, topic: str) -> list[RequestState]:
    """Return the requests that were queued here and not closed, in the order in which they were queued."""
    since = await _open_since(log, topic)
    if since is None:
        return []
    timeline = KernelTimeline()
    async for record in _records(log, topic, since):
        timeline.apply(record)
    return [request for request in timeline.open if request.origin is RequestOrigin.QUEUED]


async def _open_since(log: Log, topic: str) -> int | None:
    """Find where to start reading: the newest event of a request names the offset of the oldest one open then."""
    end = (await log.info(topic)).end
    while end > 0:
        start = max(0, end - CHUNK)
        records = [record async for record in _records(log, topic, start, end)]
        for record in reversed(records):
            content = _event_content(record)
            if str(content.get("event", "")).startswith("request_"):
                since = content.get("open_since")
                return min(since, record.offset) if isinstance(since, int) else record.offset
        if not records or records[0].offset > start:
            return None  # the log keeps nothing older
        end = start
    return None


def _event_content(record: Record) -> dict[str, Any]:
    """Decode the content of a server event; empty for any other record."""
    headers = read_headers(record)
    if headers.channel != EVENT_CHANNEL:
        return {}
    try:
        return to_message(record, headers).decoded_content()
    except UNREADABLE:
        return {}


async def _records(log: Log, topic: str, start: int, end: int | None = None) -> AsyncIterator[Record]:
    while end is None or start < end:
        limit = CHUNK if end is None else min(CHUNK, end - start)
        chunk = await log.read(topic, start, limit=limit)
        for record in chunk.records:
            if end is not None and record.offset >= end:
                return
            yield record
        if not chunk.records:
            return
        start = chunk.records[-1].offset + 1


def read_parent_ids(spooled: Iterator[Spooled], wire: Wire) -> set[str]:
    """Return the parent ids of all messages in a spool. Reads all of it, so call it in a thread."""
    decoded = (wire.decode(entry.frames) for entry in spooled)
    return {message.parent_id for message in decoded if isinstance(message, KernelMessage)}


async def resume_kernel(kernel: Kernel, process: KernelProcess) -> None:
    """Connect to a kernel that its keeper has kept, and continue its requests and its output where the topic ends."""
    try:
        position = await find_position(kernel.log, kernel.topic)
        requests = await open_requests(kernel.log, kernel.topic)
    except TopicNotFound:
        position, requests = SpoolPosition(), []
    requests = await _mark_sent(process, requests)
    await kernel.resume(process.connection, position, requests)
    logger.info("attached to kernel %s again, %d requests open", kernel.id, len(requests))


async def _mark_sent(process: KernelProcess, requests: list[RequestState]) -> list[RequestState]:
    """Mark requests as sent that the spool mentions: the earlier server may have ended before it recorded that."""
    if all(request.was_sent for request in requests):
        return requests
    connection = process.connection
    wire = Wire(connection.key.encode(), scheme=connection.signature_scheme)
    parents = await asyncio.to_thread(read_parent_ids, process.read_spool(-1), wire)
    sent = RequestEvent(kind=EventKind.SENT, us=now_us())
    return [request.apply(sent) if request.request_id in parents else request for request in requests]


class Leftovers:
    """Stores and closes what kernels left whose keeper is gone. Belongs to the event loop."""

    def __init__(self, manager: PubSubManager, settings: Settings, listener: HostListener) -> None:
        self._manager = manager
        self._settings = settings
        self._listener = listener

    async def settle(self, directory: Path) -> None:
        """Store the spool in a directory, close the open requests, and only then remove the directory.

        Raises nothing, except when cancelled: what cannot be stored now is left for the next start.
        """
        try:
            if await self._store(directory):
                await asyncio.to_thread(remove_stale_directory, directory)
        except (HimaliaError, OSError) as error:
            logger.warning("the output of kernel %s stays in %s: %s", directory.name, directory, error)

    async def close_forgotten(self, topics: Sequence[str], is_forgotten: Callable[[str], bool]) -> None:
        """Close open requests in topics whose kernels left nothing else: the machine was restarted."""
        for topic in topics:
            try:
                if is_forgotten(topic):
                    reason = "nothing was left of it when the server came back"
                    await self._close(topic.removeprefix(KERNEL_TOPIC_PREFIX), reason, None)
            except HimaliaError as error:
                logger.warning("%s cannot be closed: %s", topic, error)

    async def _store(self, directory: Path) -> bool:
        """Store and close; returns whether the directory can be removed."""
        kernel_id = directory.name
        exit_ = await asyncio.to_thread(read_exit, directory)
        reason = _death_reason(exit_)
        position = await self._find_position(directory)
        if position is None:
            return True
        try:
            connection = await asyncio.to_thread(read_connection_file, recorded_connection_file(directory))
        except BadRequest as error:
            # Without the key, forged messages in it cannot be detected.
            logger.error("the spool in %s cannot be verified, and stays there: %s", directory, error.message)
            await self._close(kernel_id, f"{reason}; its last output is in {directory}", exit_)
            return False
        await self._append(directory, connection, position, exit_)
        await self._close(kernel_id, reason, exit_)
        return True

    async def _find_position(self, directory: Path) -> SpoolPosition | None:
        """Find where to resume reading; None if there is neither a topic nor a message to store in one."""
        topic = KERNEL_TOPIC_PREFIX + directory.name
        try:
            return await find_position(self._manager.log, topic)
        except TopicNotFound:
            if await asyncio.to_thread(lambda: next(read_spool(directory), None)) is None:
                return None
        try:
            await self._manager.create_topic(topic, owner=await asyncio.to_thread(read_owner, directory))
        except TopicExists:
            pass
        return SpoolPosition()

    async def _append(
        self, directory: Path, connection: ConnectionInfo, position: SpoolPosition, exit_: KernelExit | None
    ) -> None:
        """Append the spool's messages after the position to the topic; returns when they are committed."""
        kernel_id = directory.name
        limit = self._settings.kernel_message_bytes_max
        topic_writer = TopicWriter(
            KernelTopic(self._manager, kernel_id),
            bytes_max=self._settings.kernel_buffer_bytes,
            recreates=False,
        )
        broker = IopubBroker()
        broker.add_global_subscriber(topic_writer)
        consumer = SpoolConsumer(
            broker,
            Wire(
                connection.key.encode(),
                scheme=connection.signature_scheme,
                limits=WireLimits(limit, NOT_ON_IOPUB),
            ),
            directory,
            position,
            _LeftoverListener(topic_writer, limit),
        )
        try:
            await _read_to_end(consumer)
            if exit_ is not None and exit_.lost:
                topic_writer.append(gap_draft(kernel_id, exit_.lost, DISK_WAS_FULL))
            await topic_writer.close()
            topic_writer.check()
        except BaseException:
            topic_writer.cancel()
            raise
        finally:
            consumer.close()

    async def _close(self, kernel_id: str, reason: str, exit_: KernelExit | None) -> None:
        """Close the open requests of a kernel that is gone, and write its end, unless the topic has that already."""
        topic = KERNEL_TOPIC_PREFIX + kernel_id
        if await has_ended(self._manager.log, topic):
            return
        drafts = [
            encode_abandoned(kernel_id, request, f"the kernel is gone: {reason}")
            for request in await open_requests(self._manager.log, topic)
        ]
        known: dict[str, Any] = (
            {} if exit_ is None else {"returncode": exit_.returncode, "ended_us": exit_.ended_us}
        )
        drafts.append(event_draft(kernel_id, KernelEvent.DIED, reason=reason, **known))
        await self._manager.publish(Batch(topic, drafts))
        self._listener.leftover_closed(kernel_id, reason)


async def _read_to_end(consumer: SpoolConsumer) -> None:
    finished = threading.Event()
    await _in_thread(lambda: consumer.finish(finished.set))
    while not finished.is_set():
        if not await _in_thread(consumer.read):
            await asyncio.sleep(LOOK_AGAIN_S)
    consumer.check()


async def _in_thread(work: Callable[[], T]) -> T:
    """Run a function in a thread. When cancelled, wait for the thread: it uses objects that the caller closes next."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


class _LeftoverListener:
    """Writes to the topic what is missing in a spool that is left over, or too large."""

    def __init__(self, topic_writer: TopicWriter, limit: int) -> None:
        self._topic_writer = topic_writer
        self._limit = limit

    @property
    def is_blocked(self) -> bool:
        return self._topic_writer.is_full

    def on_faults(self, faults: Sequence[Fault]) -> None:
        writer = self._topic_writer
        for fault in faults:
            if fault.kind is FaultKind.TOO_LARGE:
                writer.offer_draft(too_large_draft(writer.kernel_id, fault, self._limit))

    def on_spool_gap(self, count: int | None) -> None:
        writer = self._topic_writer
        writer.offer_draft(gap_draft(writer.kernel_id, count, SPOOL_WAS_FULL))


def _death_reason(exit_: KernelExit | None) -> str:
    if exit_ is None:
        return "its keeper was gone when the server came back"
    if exit_.reason:
        return exit_.reason
    ended = "ended" if exit_.returncode is None else exit_reason(exit_.returncode, exit_.limits)
    return f"{ended} while no server was running"
