"""Kernels that are gone when a server starts: what they left is stored, then their requests are closed.

A keeper that ends by itself leaves its spool and the kernel's exit code, and so does one that is killed, without the
code. Both stay on disk until all of it is committed, however late a server comes and however often it is killed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from himalia.errors import BadRequest, HimaliaError, TopicExists, TopicNotFound
from himalia.kernels.bridge import Bridge
from himalia.kernels.broker import IopubBroker
from himalia.kernels.connection_file import ConnectionInfo, read_connection_file
from himalia.kernels.exit_reason import exit_reason
from himalia.kernels.intake import SPOOL_WAS_FULL, Bookmark, Intake
from himalia.kernels.keeping import KernelExit, left_exit, left_owner, read_spool, remove_leftovers
from himalia.kernels.kernel import TOPIC_PREFIX
from himalia.kernels.records import DISK_WAS_FULL, KernelEvent, event_draft, gap_draft, too_large_draft
from himalia.kernels.recovery import (
    bookmark_in,
    closing_draft,
    has_ended,
    left_connection_file,
    open_requests,
)
from himalia.kernels.wire import NOT_ON_IOPUB, Fault, FaultKind, Wire
from himalia.log.api import Batch
from himalia.pubsub import PubSubManager
from himalia.settings import Settings

T = TypeVar("T")

logger = logging.getLogger("himalia.kernels")

LOOK_AGAIN_S = 0.05
"""How long to wait for a log that is slow, before the spool is read on."""


class Leftovers:
    """Lives on the event loop. ``on_closed`` is called with the id of each kernel found gone, and why it is gone."""

    def __init__(
        self, manager: PubSubManager, settings: Settings, on_closed: Callable[[str, str], None]
    ) -> None:
        self._manager = manager
        self._settings = settings
        self._on_closed = on_closed

    async def settle(self, directory: Path) -> None:
        """Store what the spool in a directory has, close what was open, and only then remove the directory.

        Never raises but when cancelled: what cannot be stored now is left for the next start.
        """
        try:
            if await self._store(directory):
                await asyncio.to_thread(remove_leftovers, directory)
        except (HimaliaError, OSError) as error:
            logger.warning("what kernel %s left stays in %s: %s", directory.name, directory, error)

    async def close_forgotten(self, topics: Sequence[str], is_forgotten: Callable[[str], bool]) -> None:
        """Close what is open in topics of kernels of which nothing else is left: the machine was restarted."""
        for topic in topics:
            try:
                if is_forgotten(topic):
                    reason = "nothing was left of it when the server came back"
                    await self._close(topic.removeprefix(TOPIC_PREFIX), reason, None)
            except HimaliaError as error:
                logger.warning("%s cannot be closed: %s", topic, error)

    async def _store(self, directory: Path) -> bool:
        """Says whether nothing more is needed of the directory."""
        kernel_id = directory.name
        exit_ = await asyncio.to_thread(left_exit, directory)
        reason = _why_gone(exit_)
        bookmark = await self._bookmark(directory)
        if bookmark is None:
            return True
        try:
            connection = await asyncio.to_thread(read_connection_file, left_connection_file(directory))
        except BadRequest as error:
            # Without the key no reader can tell what in it is the kernel's own.
            logger.error("the spool in %s cannot be checked, and stays there: %s", directory, error.message)
            await self._close(kernel_id, f"{reason}; what it said since is in {directory}", exit_)
            return False
        await self._append(directory, connection, bookmark, exit_)
        await self._close(kernel_id, reason, exit_)
        return True

    async def _bookmark(self, directory: Path) -> Bookmark | None:
        """Where to read on; None if there is neither a topic nor anything to put into one."""
        topic = TOPIC_PREFIX + directory.name
        try:
            return await bookmark_in(self._manager.log, topic)
        except TopicNotFound:
            if await asyncio.to_thread(lambda: next(read_spool(directory), None)) is None:
                return None
        try:
            await self._manager.create_topic(topic, owner=await asyncio.to_thread(left_owner, directory))
        except TopicExists:
            pass
        return Bookmark()

    async def _append(
        self, directory: Path, connection: ConnectionInfo, bookmark: Bookmark, exit_: KernelExit | None
    ) -> None:
        """Append to the topic what the spool has behind the bookmark; returns when it is committed."""
        kernel_id = directory.name
        limit = self._settings.kernel_message_bytes_max
        bridge = Bridge(
            self._manager.publish,
            TOPIC_PREFIX + kernel_id,
            kernel_id,
            bytes_max=self._settings.kernel_buffer_bytes,
        )
        broker = IopubBroker()
        broker.add_global_subscriber(bridge)
        intake = Intake(
            broker,
            Wire(
                connection.key.encode(),
                scheme=connection.signature_scheme,
                bytes_max=limit,
                refused_types=NOT_ON_IOPUB,
            ),
            directory,
            bookmark,
            is_blocked=lambda: bridge.overflowed,
            on_faults=partial(_tell_too_large, bridge, limit),
            on_gap=lambda count: bridge.tell(gap_draft(kernel_id, count, SPOOL_WAS_FULL)),
        )
        try:
            await _read_out(intake)
            if exit_ is not None and exit_.lost:
                bridge.put(gap_draft(kernel_id, exit_.lost, DISK_WAS_FULL))
            await bridge.close()
            bridge.check()
        except BaseException:
            bridge.abandon()
            raise
        finally:
            intake.close()

    async def _close(self, kernel_id: str, reason: str, exit_: KernelExit | None) -> None:
        """Close what a kernel that is gone left open, and say that it is gone, unless that is said already."""
        topic = TOPIC_PREFIX + kernel_id
        if await has_ended(self._manager.log, topic):
            return
        drafts = [
            closing_draft(kernel_id, request, f"the kernel is gone: {reason}")
            for request in await open_requests(self._manager.log, topic)
        ]
        known: dict[str, Any] = (
            {} if exit_ is None else {"returncode": exit_.returncode, "ended_us": exit_.ended_us}
        )
        drafts.append(event_draft(kernel_id, KernelEvent.DIED, reason=reason, **known))
        await self._manager.publish(Batch(topic, drafts))
        self._on_closed(kernel_id, reason)


async def _read_out(intake: Intake) -> None:
    finished = threading.Event()
    await _in_thread(lambda: intake.finish(finished.set))
    while not finished.is_set():
        if not await _in_thread(intake.read):
            await asyncio.sleep(LOOK_AGAIN_S)
    intake.check()


async def _in_thread(work: Callable[[], T]) -> T:
    """Run it in a thread. If that is cancelled, wait for the thread: it uses what is closed next."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


def _tell_too_large(bridge: Bridge, limit: int, faults: Sequence[Fault]) -> None:
    for fault in faults:
        if fault.kind is FaultKind.TOO_LARGE:
            bridge.tell(too_large_draft(bridge.kernel_id, fault, limit))


def _why_gone(exit_: KernelExit | None) -> str:
    if exit_ is None:
        return "its keeper was gone when the server came back"
    if exit_.reason:
        return exit_.reason
    ended = "ended" if exit_.returncode is None else exit_reason(exit_.returncode, exit_.limits)
    return f"{ended} while no server was there"
