"""The kernels of a server: started, attached, found again, listed, culled and let go."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

import msgspec
import zmq
from jupyter_client.kernelspec import KernelSpecManager

from himalia.errors import (
    ExecutionNotFound,
    HimaliaError,
    KernelNotFound,
    KernelUnavailable,
    LogUnavailable,
    TooManyKernels,
    TopicNotFound,
)
from himalia.iopub.listener import IopubThread
from himalia.iopub.result import ExecutionResult
from himalia.jupyter.connection_file import find_connection_file, read_connection_file
from himalia.jupyter.lifecycle import RequestState
from himalia.jupyter.records import KernelEvent, event_draft
from himalia.jupyter.request_events import EventKind, RequestEvent
from himalia.jupyter.wire import Wire
from himalia.keeper.client import KeeperGone, list_keeper_directories
from himalia.keeper.kernel_process import KernelProcess
from himalia.keeper.launch import check_attachable
from himalia.keeper.spool_consumer import Bookmark
from himalia.kernels.connection import check_listening
from himalia.kernels.context import Parts, RequestTracing
from himalia.kernels.history import find_request, read_execution
from himalia.kernels.kernel import Kernel
from himalia.kernels.model import HostListener
from himalia.kernels.recovery import (
    Leftovers,
    bookmark_in,
    open_requests,
    spooled_parent_ids,
)
from himalia.local_server import make_private, runtime_directory
from himalia.log import sqlite_path
from himalia.log.api import Batch
from himalia.pubsub import PubSubManager
from himalia.record import now_us
from himalia.settings import Settings
from himalia.topics import KERNEL_TOPIC_PREFIX

logger = logging.getLogger("himalia.kernels")

DEFAULT_NAME = "python3"
CULL_LOOK_S = 5.0
SETTLE_WITHIN_S = 10.0
"""How long a server that starts waits until what kernels left, which are gone, is in the log."""
CANCEL_WITHIN_S = 2.0
LISTENS_WITHIN_S = 3.0
_FILE_ID = re.compile(r"kernel-([A-Za-z0-9_-]{1,100})\.json\Z")


class Attached(msgspec.Struct, frozen=True):
    """A foreign kernel that the server listens to, remembered for the next server."""

    kernel_id: str
    connection_file: str


class KernelHost:
    """All kernels of one server. Lives on the event loop; ``open`` before use, ``close`` after."""

    def __init__(
        self,
        manager: PubSubManager,
        settings: Settings,
        tracing: RequestTracing | None = None,
        listener: HostListener | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        descriptors: int = 0,
    ) -> None:
        """``clock`` gives the seconds by which requests go stale.

        Kernels may open so many files as ``descriptors`` says, if this process has raised its own limit; 0 if not.
        """
        self.kernels: dict[str, Kernel] = {}
        self.specs = KernelSpecManager()
        self._listener = listener
        self._manager = manager
        self._settings = settings
        self._tracing = tracing
        self._clock = clock
        self._descriptors = descriptors
        self._starting = 0
        # Could not be started, and are being ended: not listed, and not to be forgotten at the end.
        self._failed: set[Kernel] = set()
        self._attaching: dict[str, asyncio.Task[Kernel]] = {}
        self._is_open = False
        self._is_closing = False
        self._leftovers = Leftovers(manager, settings, self._closed_leftover)
        self._background: set[asyncio.Task[None]] = set()
        self._directory, *self._earlier_directories = _directories_of(manager.log.url)

    async def open(self) -> None:
        """Begin to listen, and find the kernels again that an earlier server left behind."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._parts = Parts(self._manager, IopubThread(), context, self._settings, self._tracing, self._clock)
        self._parts.iopub.start()
        kept = [
            found
            for directory in (self._directory, *self._earlier_directories)
            for found in list_keeper_directories(directory)
        ]
        known = {KERNEL_TOPIC_PREFIX + directory.name for directory in kept}
        topics = [info.name for info in await self._manager.log.topics() if info.name not in known]
        for directory in kept:
            await self._find_again(directory)
        if self._background:
            # What takes longer, because there is much to read or the disk is full, does not delay the start.
            await asyncio.wait(self._background, timeout=SETTLE_WITHIN_S)
        await asyncio.gather(*[self._attach_again(attached) for attached in self._remembered()])
        self._spawn(self._leftovers.close_forgotten(topics, self._is_forgotten))
        if self._settings.kernel_cull_s:
            self._spawn(self._cull())
        self._is_open = True

    async def close(self) -> None:
        """Stop all kernels; foreign ones live on.

        They are left to their keepers if the settings say so, or if ``open`` failed: the next server may succeed.

        Cancel it to wait no longer: what has not ended by then is left to its keeper.
        """
        self._is_closing = True
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=CANCEL_WITHIN_S)
        kernels = [*self.kernels.values(), *self._failed]
        stay = self._settings.kernels_stay or not self._is_open
        try:
            ends = await asyncio.gather(
                *[k.let_go() if stay or k.is_foreign else k.stop("the server stopped") for k in kernels],
                return_exceptions=True,
            )
            for end in ends:
                if isinstance(end, BaseException):
                    logger.error("a kernel was not ended in order", exc_info=end)
        except asyncio.CancelledError:
            await asyncio.gather(*[kernel.abandon() for kernel in kernels], return_exceptions=True)
            raise
        finally:
            await asyncio.to_thread(self._parts.iopub.stop)
            self._parts.context.destroy(linger=0)

    # Kernels

    def get(self, kernel_id: str) -> Kernel:
        try:
            return self.kernels[kernel_id]
        except KeyError:
            raise KernelNotFound(kernel_id) from None

    async def start(
        self,
        name: str | None = None,
        *,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        owner: str | None = None,
    ) -> Kernel:
        """Start a kernel; returns when it answers.

        Raises ``KernelFailed``, ``BadRequest`` or ``TooManyKernels``; ``LogUnavailable`` if nothing can be stored.
        """
        self._check_room()
        health = await self._manager.log.health()
        if not health.ok:
            raise LogUnavailable(health.problem or "the log cannot store now")
        kernel_id, name = str(uuid4()), name or DEFAULT_NAME
        if cwd is not None and not await asyncio.to_thread(cwd.is_dir):
            cwd = None  # as Jupyter does: a notebook's folder may not exist on this machine
        self._starting += 1
        try:
            directory = self._directory / "kernels" / kernel_id
            process = await KernelProcess.start(
                kernel_id,
                name,
                directory,
                self._settings,
                cwd=cwd,
                env=env,
                owner=owner,
                specs=self.specs,
                descriptors=self._descriptors,
                # The directory of a log in memory is named after this process: no other server finds it.
                keeps_files=not self._manager.log.url.startswith("memory:"),
            )
            kernel = Kernel(kernel_id, name, self._parts, process, self, owner)
            if self._listener is not None:
                self._listener.kernel_started(kernel)
            try:
                await kernel.open(
                    process.connection, KernelEvent.STARTED, pid=process.pid, caller=owner or ""
                )
            except BaseException:
                await self._give_up(kernel)
                raise
            self.kernels[kernel_id] = kernel
        finally:
            self._starting -= 1
        if not kernel.is_alive:
            raise KernelUnavailable(f"kernel {kernel_id} died at once", kernel_id=kernel_id)
        return kernel

    async def attach(
        self, connection_file: str, owner: str | None = None, *, within_s: float = LISTENS_WITHIN_S
    ) -> Kernel:
        """Listen to a kernel that something else started; returns when it answers.

        It is ``owner``'s, unless its topic is from an earlier time and another's. ``KernelUnavailable`` if nothing
        listens there within the time given.
        """
        path = find_connection_file(connection_file)
        attached = Attached(self._id_of(path), str(path))
        if attached.kernel_id in self.kernels:
            return self.kernels[attached.kernel_id]
        # Two that ask at a time get one kernel: two would keep all of its output twice.
        attaching = self._attaching.get(attached.kernel_id)
        if attaching is None:
            self._check_room()
            attaching = asyncio.create_task(self._attach_anew(attached, owner, within_s))
            self._attaching[attached.kernel_id] = attaching
            attaching.add_done_callback(lambda _: self._attaching.pop(attached.kernel_id, None))
            return await attaching
        return await asyncio.shield(attaching)

    async def stop(self, kernel_id: str, reason: str = "asked to", caller: str = "") -> None:
        """End a kernel; a foreign one is only detached.

        ``LogUnavailable`` if what it said last cannot be stored now: it ends all the same, when that is stored.
        """
        kernel = self.get(kernel_id)
        stopping = asyncio.ensure_future(kernel.stop(reason, caller))
        if not await kernel.topic_writer.availability.wait_for(stopping):
            kernel.topic_writer.availability.check()
        await stopping
        self._forget(kernel_id)

    # Executions

    async def result(
        self, kernel_id: str, request_id: str, *, late: bool = False, keeps_json: bool = False
    ) -> ExecutionResult:
        """What became of a request, from the log: also while it runs, and after its kernel is gone.

        ``keeps_json`` for a result that is only to be encoded: see ``OutputBuilder``.
        """
        log, topic = self._manager.log, KERNEL_TOPIC_PREFIX + kernel_id
        kernel = self.kernels.get(kernel_id)
        start = kernel.scheduler.offset_of(request_id) if kernel is not None else None
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

    # Coming back

    async def _find_again(self, directory: Path) -> None:
        kernel_id = directory.name
        try:
            process = await KernelProcess.find(directory, self.specs, self._descriptors)
        except KeeperGone:
            self._spawn(self._leftovers.settle(directory))
            return
        except (HimaliaError, OSError, LookupError, msgspec.MsgspecError):
            # One that another version left, for instance: it may not keep the server from starting.
            logger.exception("kernel %s cannot be attached to again", kernel_id)
            return
        kernel = self.kernels[kernel_id] = Kernel(
            kernel_id, process.name, self._parts, process, self, process.owner
        )
        try:
            await self._resume(kernel, process)
        except HimaliaError as error:
            logger.error("kernel %s is left to its keeper until the next start: %s", kernel_id, error)
            self.kernels.pop(kernel_id, None)
            await kernel.abandon()

    async def _resume(self, kernel: Kernel, process: KernelProcess) -> None:
        log, topic = self._manager.log, kernel.topic
        try:
            bookmark = await bookmark_in(log, topic)
            found = await open_requests(log, topic)
        except TopicNotFound:
            bookmark, found = Bookmark(), []
        found = await self._mark_sent(process, found)
        await kernel.resume(process.connection, bookmark, found)
        logger.info("attached to kernel %s again, %d requests open", kernel.id, len(found))

    async def _mark_sent(self, process: KernelProcess, found: list[RequestState]) -> list[RequestState]:
        """Requests that the spool mentions were sent, whatever the log says: the server may have ended in between."""
        if all(request.was_sent for request in found):
            return found
        connection = process.connection
        wire = Wire(connection.key.encode(), scheme=connection.signature_scheme)
        parents = await asyncio.to_thread(spooled_parent_ids, process.read_spool(-1), wire)
        sent = RequestEvent(kind=EventKind.SENT, us=now_us())
        return [request.apply(sent) if request.request_id in parents else request for request in found]

    async def _attach_anew(self, attached: Attached, owner: str | None, within_s: float) -> Kernel:
        kernel = await self._attach(attached, KernelEvent.ATTACHED, owner, within_s)
        self._remember(attached)
        return kernel

    async def _attach(
        self,
        attached: Attached,
        event: KernelEvent,
        owner: str | None = None,
        within_s: float = LISTENS_WITHIN_S,
    ) -> Kernel:
        connection = read_connection_file(Path(attached.connection_file))
        check_attachable(connection, attached.connection_file, self._settings.kernel_encryption)
        await check_listening(connection, within_s=within_s)
        name = connection.kernel_name or "attached"
        kernel = Kernel(attached.kernel_id, name, self._parts, None, self, owner)
        kernel.connection_file = attached.connection_file
        try:
            await kernel.open(connection, event, connection_file=attached.connection_file, caller=owner or "")
        except BaseException:
            await (kernel.abandon() if kernel.topic_writer.availability.error else kernel.let_go())
            raise
        self.kernels[attached.kernel_id] = kernel
        return kernel

    async def _attach_again(self, attached: Attached) -> None:
        """A foreign kernel has no spool: what it said meanwhile is lost, and the topic says so."""
        kernel_id = attached.kernel_id
        topic = KERNEL_TOPIC_PREFIX + kernel_id
        try:
            since_us = (await self._manager.log.info(topic)).last_ts_us
            found = await open_requests(self._manager.log, topic)
            gap = event_draft(kernel_id, KernelEvent.GAP, since_us=since_us, reason="the server was away")
            await self._manager.publish(Batch(topic, [gap]))
            kernel = await self._attach(attached, KernelEvent.REATTACHED)
        except (HimaliaError, OSError) as error:
            logger.warning("kernel %s is not attached again: %s", kernel_id, error)
            self._forget(kernel_id)
            return
        await kernel.go_on_with(found)
        kernel.settle_adopted()

    def _remembered(self) -> list[Attached]:
        found = []
        for path in sorted(self._directory.glob("attached/*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Attached))
            except (OSError, msgspec.MsgspecError):
                path.unlink(missing_ok=True)
        return found

    def _remember(self, attached: Attached) -> None:
        directory = self._directory / "attached"
        make_private(directory)
        (directory / f"{attached.kernel_id}.json").write_bytes(msgspec.json.encode(attached))

    def _forget(self, kernel_id: str) -> None:
        (self._directory / "attached" / f"{kernel_id}.json").unlink(missing_ok=True)

    def _id_of(self, path: Path) -> str:
        """The id of a foreign kernel: the same whenever its connection file is."""
        named = _FILE_ID.match(path.name)
        other = self.kernels.get(named[1]) if named else None
        if named and (other is None or other.connection_file == str(path)):
            return named[1]
        return str(uuid5(NAMESPACE_URL, path.as_uri()))

    def _is_forgotten(self, topic: str) -> bool:
        """Whether a topic is of a kernel that is not known here. On a log that is shared it may be another server's."""
        kernel_id = topic.removeprefix(KERNEL_TOPIC_PREFIX)
        is_known = kernel_id == topic or kernel_id in self.kernels or kernel_id in self._attaching
        return not is_known and self._manager.log.url.startswith("sqlite:")

    # Ending

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _give_up(self, kernel: Kernel) -> None:
        """End a kernel that did not start; what is to be said of it follows where the log cannot store it now."""
        self._failed.add(kernel)
        await kernel.topic_writer.availability.wait_for(
            asyncio.ensure_future(kernel.stop("it did not start"))
        )

    def kernel_restarted(self, kernel: Kernel, caller: str) -> None:
        if self._listener is not None:
            self._listener.kernel_restarted(kernel, caller)

    def kernel_ended(self, kernel: Kernel) -> None:
        self.kernels.pop(kernel.id, None)
        self._failed.discard(kernel)
        if self._listener is not None:
            self._listener.kernel_ended(kernel)
        if not self._is_closing:
            self._forget(kernel.id)

    def _closed_leftover(self, kernel_id: str, reason: str) -> None:
        if self._listener is not None:
            self._listener.leftover_closed(kernel_id, reason)

    def _check_room(self) -> None:
        if self._is_closing:
            raise KernelUnavailable("the server is shutting down")
        limit = self._settings.kernels_max
        if len(self.kernels) + self._starting >= limit:
            raise TooManyKernels(
                f"{limit} kernels run, the limit; stop some or raise kernels_max", limit=limit
            )

    async def _cull(self) -> None:
        idle_s = self._settings.kernel_cull_s
        while True:
            await asyncio.sleep(min(CULL_LOOK_S, idle_s / 2))
            for kernel in list(self.kernels.values()):
                silent_s = kernel.silent_s
                if not kernel.is_foreign and not kernel.is_busy and silent_s >= idle_s:
                    logger.info("kernel %s did nothing for %.0f s", kernel.id, silent_s)
                    try:
                        await kernel.stop(f"it did nothing for {idle_s:g} s")
                    except HimaliaError as error:
                        logger.warning("kernel %s was not stopped: %s", kernel.id, error)


def _directories_of(log_url: str) -> list[Path]:
    """Where this log's kernels are kept, by whatever name the log was opened, and where an earlier version kept them.

    A log in memory is gone with its server, and so is its directory's name.
    """
    names = [log_url]
    if log_url.startswith("memory:"):
        names = [f"{log_url}#{os.getpid()}"]
    elif log_url.startswith("sqlite:"):
        # An earlier version went by the name that was given, also if that was a symbolic link.
        names.insert(0, f"sqlite://{sqlite_path(log_url).resolve()}")
    digests = [hashlib.sha256(name.encode()).hexdigest()[:12] for name in dict.fromkeys(names)]
    return [runtime_directory() / f"log-{digest}" for digest in digests]
