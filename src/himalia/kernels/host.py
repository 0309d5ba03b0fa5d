"""The kernels of a server: started, attached, resumed after an earlier server, and ended with this one."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import zmq
from jupyter_client.kernelspec import KernelSpecManager

from himalia.errors import (
    ExecutionNotFound,
    HimaliaError,
    KernelNotFound,
    KernelUnavailable,
    LogUnavailable,
    ShuttingDown,
    TopicNotFound,
)
from himalia.iopub.listener import IopubThread
from himalia.iopub.result import ExecutionResult
from himalia.jupyter.connection_file import read_connection_file, runtime_connection_files
from himalia.jupyter.records import KernelEvent, event_draft
from himalia.keeper.client import KeeperGone, list_keeper_directories
from himalia.keeper.kernel_process import KernelProcess
from himalia.keeper.launch import check_attachable
from himalia.kernels.attachments import Attachment, Attachments, locate_connection_file
from himalia.kernels.connection import check_listening
from himalia.kernels.context import KernelContext, RequestTracing
from himalia.kernels.history import find_request, read_execution
from himalia.kernels.kernel import Kernel
from himalia.kernels.model import HostListener, KernelIdentity, NoListener
from himalia.kernels.quota import KernelQuota
from himalia.kernels.recovery import Leftovers, open_requests, resume_kernel
from himalia.kernels.request import Request
from himalia.local_server import runtime_directory
from himalia.log import sqlite_path
from himalia.log.api import Batch
from himalia.pubsub import PubSubManager
from himalia.settings import Settings
from himalia.tasks import TaskSet
from himalia.topics import KERNEL_TOPIC_PREFIX

logger = logging.getLogger("himalia.kernels")

DEFAULT_NAME = "python3"
CULL_LOOK_S = 5.0
SETTLE_WITHIN_S = 10.0
"""How long a server that starts waits until the output of kernels that are gone is in the log."""
START_WITHIN_S = 3.0
"""How long a kernel that is being started may take when the server stops: one that runs is easier to end."""
CANCEL_WITHIN_S = 2.0
LISTENS_WITHIN_S = 3.0
ANSWER_WITHIN_S = 10.0
"""How long each kernel may take to answer when all are attached: another program may listen at its port."""
LOG_CHECK_S = 1.0
"""How often to check whether the log can store the end of a request."""


@dataclass(frozen=True)
class HostOptions:
    tracing: RequestTracing | None = None
    clock: Callable[[], float] = time.monotonic
    """Gives the seconds after which requests go stale."""
    descriptors: int = 0
    """How many files a kernel may open, if this process has raised its own limit; 0 if not."""


class KernelHost:
    """All kernels of one server. Lives on the event loop; ``open`` before use, ``close`` after.

    Reports to the listener. Kernels are added to ``kernels`` when they answer, and removed when they have ended.
    """

    def __init__(
        self,
        manager: PubSubManager,
        settings: Settings,
        listener: HostListener | None = None,
        options: HostOptions | None = None,
    ) -> None:
        options = options or HostOptions()
        self.kernels: dict[str, Kernel] = {}
        self.specs = KernelSpecManager()
        self._listener: HostListener = listener or NoListener()
        self._descriptors = options.descriptors
        sockets: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context = KernelContext(
            manager, IopubThread(), sockets, settings, options.tracing, options.clock
        )
        self._directory, *self._earlier_directories = _directories_of(manager.log.url)
        self._attachments = Attachments(self._directory)
        self._quota = KernelQuota(self.kernels, settings.kernels_max)
        self._leftovers = Leftovers(manager, settings, self._listener)
        # Kernels that could not be started and are ending: not listed, and ended with the host at the latest.
        self._failed: set[Kernel] = set()
        # Starts and attachments under way, for the same reason.
        self._opening: set[asyncio.Task[Kernel]] = set()
        self._attaching: dict[str, asyncio.Task[Kernel]] = {}
        self._background = TaskSet(logger, "a task of the kernel host failed")
        self._is_open = False
        self._closing: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    # From open to close

    async def open(self) -> None:
        """Begin to listen, and resume the kernels that an earlier server left."""
        self._context.iopub.start()
        kept = [
            found
            for directory in (self._directory, *self._earlier_directories)
            for found in list_keeper_directories(directory)
        ]
        known = {KERNEL_TOPIC_PREFIX + directory.name for directory in kept}
        topics = [info.name for info in await self._context.log.topics() if info.name not in known]
        gone = [directory for directory in kept if not await self._resume_kept(directory)]
        if gone:
            # A large spool, or a full disk, does not delay the start.
            settling = [self._background.spawn(self._leftovers.settle(directory)) for directory in gone]
            await asyncio.wait(settling, timeout=SETTLE_WITHIN_S)
        await asyncio.gather(*[self._reattach(attachment) for attachment in self._attachments.load()])
        self._background.spawn(self._leftovers.close_forgotten(topics, self._is_forgotten))
        if self._context.settings.kernel_cull_s:
            self._background.spawn(_cull_idle(self.kernels, self._context.settings.kernel_cull_s))
        self._is_open = True

    async def close(self) -> None:
        """Stop all kernels; attached ones are only detached.

        They are left to their keepers if the settings say so, or if ``open`` failed: the next server may succeed.

        Cancel it to wait no longer: kernels that have not ended by then are left to their keepers. Later calls return
        when the first one has ended, however it ended.
        """
        is_first = self._closing is None
        closing = self.begin_close()
        if is_first:
            await closing
        else:
            await asyncio.wait({closing})

    def begin_close(self) -> asyncio.Task[None]:
        """Begin to close, and return the task; a second call returns the same one."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def cancel_close(self) -> None:
        """Wait no longer for kernels that do not end, because the log is about to be closed."""
        closing = self.begin_close()
        if not closing.done():
            logger.warning(
                "not all kernels have ended; their keepers end idle ones within %g s",
                self._context.settings.kernel_keep_s,
            )
            closing.cancel()
            await asyncio.wait({closing}, timeout=CANCEL_WITHIN_S)
        elif not closing.cancelled() and (error := closing.exception()) is not None:
            logger.error("the kernels were not ended in order", exc_info=error)

    async def _close(self) -> None:
        try:
            if self._opening:
                _, late = await asyncio.wait(self._opening, timeout=START_WITHIN_S)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_WITHIN_S):
                    await self._background.cancel()
            await self._end_all([*self.kernels.values(), *self._failed])
        finally:
            self._closed.set()

    async def _end_all(self, kernels: list[Kernel]) -> None:
        stay = self._context.settings.kernels_stay or not self._is_open
        try:
            ends = await asyncio.gather(
                *[
                    kernel.lifecycle.detach()
                    if stay or kernel.is_foreign
                    else kernel.stop("the server stopped")
                    for kernel in kernels
                ],
                return_exceptions=True,
            )
            for end in ends:
                if isinstance(end, BaseException):
                    logger.error("a kernel was not ended in order", exc_info=end)
        except asyncio.CancelledError:
            await asyncio.gather(*[kernel.lifecycle.abort() for kernel in kernels], return_exceptions=True)
            raise
        finally:
            await asyncio.to_thread(self._context.iopub.stop)
            self._context.sockets.destroy(linger=0)

    # Kernels

    def get(self, kernel_id: str) -> Kernel:
        """Return a kernel; ``KernelNotFound`` if it does not run."""
        try:
            return self.kernels[kernel_id]
        except KeyError:
            raise KernelNotFound(kernel_id) from None

    def check_deletable(self, topic: str) -> None:
        """Raise ``KernelUnavailable`` if a kernel that runs writes to this topic: its output would be lost."""
        for kernel in self.kernels.values():
            if kernel.topic == topic:
                raise KernelUnavailable(
                    f"kernel {kernel.id} runs and writes to {topic!r}; stop it first", kernel_id=kernel.id
                )

    async def start(
        self,
        name: str | None = None,
        *,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        owner: str | None = None,
        owner_max: int | None = None,
    ) -> Kernel:
        """Start a kernel of an owner, who may have ``owner_max``; returns when it answers.

        Raises ``KernelFailed``, ``BadRequest``, ``TooManyKernels`` or ``ShuttingDown``; ``LogUnavailable`` if the log
        cannot store now.
        """

        async def start() -> Kernel:
            with self._quota.reserve_for(owner, owner_max), self._quota.reserve():
                return await self._start(name or DEFAULT_NAME, cwd, env, owner)

        return await self._track(start())

    async def _start(
        self, name: str, cwd: Path | None, env: dict[str, str] | None, owner: str | None
    ) -> Kernel:
        health = await self._context.log.health()
        if not health.ok:
            raise LogUnavailable(health.problem or "the log cannot store now")
        kernel_id = str(uuid4())
        if cwd is not None and not await asyncio.to_thread(cwd.is_dir):
            cwd = None  # as Jupyter does: a notebook's folder may not exist on this machine
        process = await KernelProcess.start(
            kernel_id,
            name,
            self._directory / "kernels" / kernel_id,
            self._context.settings,
            cwd=cwd,
            env=env,
            owner=owner,
            specs=self.specs,
            descriptors=self._descriptors,
            # The directory of a log in memory is named after this process: no other server finds it.
            keeps_files=not self._context.log.url.startswith("memory:"),
        )
        kernel = Kernel(KernelIdentity(kernel_id, name, owner), process, self._context, self)
        self._listener.kernel_started(kernel)
        try:
            await kernel.open(process.connection, KernelEvent.STARTED, pid=process.pid, caller=owner or "")
        except BaseException:
            # Its last records are stored later if the log cannot store them now.
            self._failed.add(kernel)
            stopping = asyncio.ensure_future(kernel.stop("it did not start"))
            await kernel.output.topic_writer.availability.wait_for(stopping)
            raise
        self.kernels[kernel_id] = kernel
        if not kernel.is_alive:
            raise KernelUnavailable(f"kernel {kernel_id} died at once", kernel_id=kernel_id)
        return kernel

    async def attach(
        self,
        connection_file: str,
        owner: str | None = None,
        *,
        owner_max: int | None = None,
        within_s: float = LISTENS_WITHIN_S,
    ) -> Kernel:
        """Listen to a kernel that another program started; returns when it answers.

        ``owner`` becomes its owner, unless its topic exists and has another. Raises ``KernelUnavailable`` if no
        program listens at its address within the time given, and as ``start`` does.
        """
        path = await asyncio.to_thread(locate_connection_file, connection_file)

        async def attach() -> Kernel:
            with self._quota.reserve_for(owner, owner_max):
                kernel = await self._attach(self._attachments.identify(path, self.kernels), owner, within_s)
            # Here, where a cancellation cannot come between.
            self._listener.kernel_attached(kernel, owner or "")
            return kernel

        return await self._track(attach())

    async def attach_all(
        self, owner: str | None = None, *, owner_max: int | None = None
    ) -> tuple[list[Kernel], dict[str, str]]:
        """Attach all kernels of Jupyter's runtime directory; also returns the files skipped, with the reasons."""
        attached: list[Kernel] = []
        skipped: dict[str, str] = {}

        async def attach(path: str) -> None:
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    attached.append(await self.attach(path, owner, owner_max=owner_max, within_s=0))
            except TimeoutError:
                skipped[path] = f"it did not answer within {ANSWER_WITHIN_S:g} s"
            except HimaliaError as error:
                skipped[path] = error.message

        files = await asyncio.to_thread(runtime_connection_files)
        await asyncio.gather(*[attach(str(path)) for path in files])
        return attached, skipped

    async def _attach(self, attachment: Attachment, owner: str | None, within_s: float) -> Kernel:
        """Attach a kernel once, however many callers attach it at a time: its output would be stored twice."""
        kernel_id = attachment.kernel_id
        if kernel_id in self.kernels:
            return self.kernels[kernel_id]
        attaching = self._attaching.get(kernel_id)
        if attaching is not None:
            return await asyncio.shield(attaching)

        async def attach() -> Kernel:
            kernel = await self._connect_foreign(attachment, KernelEvent.ATTACHED, owner, within_s)
            self._attachments.save(attachment)
            return kernel

        self._quota.check()
        attaching = self._attaching[kernel_id] = asyncio.create_task(attach())
        attaching.add_done_callback(lambda _: self._attaching.pop(kernel_id, None))
        return await attaching

    async def _connect_foreign(
        self, attachment: Attachment, event: KernelEvent, owner: str | None, within_s: float
    ) -> Kernel:
        file = attachment.connection_file
        address = read_connection_file(Path(file))
        check_attachable(address, file, self._context.settings.kernel_encryption)
        await check_listening(address, within_s=within_s)
        identity = KernelIdentity(attachment.kernel_id, address.kernel_name or "attached", owner)
        kernel = Kernel(identity, None, self._context, self)
        try:
            await kernel.open(address, event, connection_file=file, caller=owner or "")
        except BaseException:
            availability = kernel.output.topic_writer.availability
            await (kernel.lifecycle.abort() if availability.error else kernel.lifecycle.detach())
            raise
        self.kernels[kernel.id] = kernel
        self._attachments.add_connected(attachment)
        return kernel

    async def stop(self, kernel_id: str, reason: str = "asked to", caller: str = "") -> None:
        """End a kernel; only detach from an attached one.

        ``LogUnavailable`` if the end of its output cannot be stored now: it ends when that is stored.
        """
        kernel = self.get(kernel_id)
        availability = kernel.output.topic_writer.availability
        stopping = asyncio.ensure_future(kernel.stop(reason, caller))
        if not await availability.wait_for(stopping):
            availability.check()
        await stopping
        self._attachments.remove(kernel_id)

    async def _track(self, opening: Coroutine[Any, Any, Kernel]) -> Kernel:
        """Run a start or attachment, for which the end of the host waits. Raises ``ShuttingDown``."""
        if self._closing is not None:
            opening.close()
            raise ShuttingDown("the server is shutting down; try again in a moment")
        task = asyncio.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        try:
            kernel = await task
        except asyncio.CancelledError:
            if self._closing is None:
                raise
        if self._closing is not None:
            raise ShuttingDown("the server is shutting down; try again in a moment")
        return kernel

    # Requests

    async def result(
        self, kernel_id: str, request_id: str, *, late: bool = False, keeps_json: bool = False
    ) -> ExecutionResult:
        """Read the result of a request from the log: also while it runs, and after its kernel is gone.

        ``keeps_json`` for a result that is only to be encoded: see ``OutputBuilder``.
        """
        log, topic = self._context.log, KERNEL_TOPIC_PREFIX + kernel_id
        kernel = self.kernels.get(kernel_id)
        start = kernel.scheduler.log.offset_of(request_id) if kernel is not None else None
        try:
            if start is None:
                start = await find_request(log, topic, request_id)
        except TopicNotFound:
            raise KernelNotFound(kernel_id) from None
        if start is None:
            raise ExecutionNotFound(
                f"kernel {kernel_id} has no request {request_id!r}, or the log no longer keeps it",
                request_id=request_id,
            )
        return await read_execution(
            log, topic, kernel_id, request_id, start, late=late, keeps_json=keeps_json
        )

    async def wait_closed(self, kernel: Kernel, request: Request) -> None:
        """Wait until a request is closed. The client may disconnect; the request continues.

        ``LogUnavailable`` if the request has ended and the log cannot store that now; ``ShuttingDown`` if it is open
        when the host has closed.
        """
        closed = asyncio.ensure_future(self._closed.wait())
        either: set[asyncio.Future[Any]] = {request.closed, closed}
        try:
            while not (await asyncio.wait(either, timeout=LOG_CHECK_S, return_when=asyncio.FIRST_COMPLETED))[
                0
            ]:
                if request.status is not None:
                    kernel.output.topic_writer.availability.check()
        finally:
            closed.cancel()
        if not request.closed.done():
            raise ShuttingDown(
                f"the server is shutting down while request {request.id} is running; fetch its result later",
                request_id=request.id,
            )

    # Kernels of an earlier server

    async def _resume_kept(self, directory: Path) -> bool:
        """Resume the kernel whose keeper lives in a directory; returns false if the keeper is gone."""
        kernel_id = directory.name
        try:
            process = await KernelProcess.find(directory, self.specs, self._descriptors)
        except KeeperGone:
            return False
        except (HimaliaError, OSError, LookupError, msgspec.MsgspecError):
            # It must not keep the server from starting: a later version may have left it.
            logger.exception("kernel %s cannot be attached to again", kernel_id)
            return True
        identity = KernelIdentity(kernel_id, process.name, process.owner)
        kernel = self.kernels[kernel_id] = Kernel(identity, process, self._context, self)
        try:
            await resume_kernel(kernel, process)
        except HimaliaError as error:
            logger.error("kernel %s is left to its keeper until the next start: %s", kernel_id, error)
            self.kernels.pop(kernel_id, None)
            await kernel.lifecycle.abort()
        return True

    async def _reattach(self, attachment: Attachment) -> None:
        """Attach a foreign kernel again. It has no spool: a record says that its output meanwhile is missing."""
        kernel_id = attachment.kernel_id
        topic = KERNEL_TOPIC_PREFIX + kernel_id
        try:
            since_us = (await self._context.log.info(topic)).last_ts_us
            requests = await open_requests(self._context.log, topic)
            gap = event_draft(kernel_id, KernelEvent.GAP, since_us=since_us, reason="the server was away")
            await self._context.manager.publish(Batch(topic, [gap]))
            kernel = await self._connect_foreign(attachment, KernelEvent.REATTACHED, None, LISTENS_WITHIN_S)
        except (HimaliaError, OSError) as error:
            logger.warning("kernel %s is not attached again: %s", kernel_id, error)
            self._attachments.remove(kernel_id)
            return
        await kernel.adopt_requests(requests)
        kernel.close_unanswered()

    def _is_forgotten(self, topic: str) -> bool:
        """Whether a topic is of a kernel that is not known here. On a shared log it may be another server's."""
        kernel_id = topic.removeprefix(KERNEL_TOPIC_PREFIX)
        is_known = kernel_id == topic or kernel_id in self.kernels or kernel_id in self._attaching
        return not is_known and self._context.log.url.startswith("sqlite:")

    # As the listener of its kernels

    def kernel_restarted(self, kernel: Kernel, caller: str) -> None:
        """Report it."""
        self._listener.kernel_restarted(kernel, caller)

    def kernel_ended(self, kernel: Kernel) -> None:
        """Remove it and report it."""
        self.kernels.pop(kernel.id, None)
        self._attachments.discard_connected(kernel.id)
        self._failed.discard(kernel)
        self._listener.kernel_ended(kernel)
        if self._closing is None:
            self._attachments.remove(kernel.id)


async def _cull_idle(kernels: Mapping[str, Kernel], idle_s: float) -> None:
    """Stop kernels of our own that were neither busy nor sent a request for a time."""
    while True:
        await asyncio.sleep(min(CULL_LOOK_S, idle_s / 2))
        for kernel in list(kernels.values()):
            silent_s = kernel.output.monitor.silent_s
            if not kernel.is_foreign and not kernel.is_busy and silent_s >= idle_s:
                logger.info("kernel %s was idle for %.0f s: stopping it", kernel.id, silent_s)
                try:
                    await kernel.stop(f"it did nothing for {idle_s:g} s")
                except HimaliaError as error:
                    logger.warning("kernel %s was not stopped: %s", kernel.id, error)


def _directories_of(log_url: str) -> list[Path]:
    """Return where this log's kernels are kept, by whatever name the log was opened, and where 0.1 kept them.

    A log in memory ends with its server, and so does its directory's name.
    """
    names = [log_url]
    if log_url.startswith("memory:"):
        names = [f"{log_url}#{os.getpid()}"]
    elif log_url.startswith("sqlite:"):
        # Version 0.1 used the name that was given, even if that was a symbolic link.
        names.insert(0, f"sqlite://{sqlite_path(log_url).resolve()}")
    digests = [hashlib.sha256(name.encode()).hexdigest()[:12] for name in dict.fromkeys(names)]
    return [runtime_directory() / f"log-{digest}" for digest in digests]
