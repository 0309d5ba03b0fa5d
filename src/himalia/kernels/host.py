"""The kernels of a server: started, attached, found again, listed, culled and let go."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import NAMESPACE_URL, uuid4, uuid5

import msgspec
import zmq
from jupyter_client.kernelspec import KernelSpecManager

from himalia.errors import (
    BadRequest,
    ExecutionNotFound,
    HimaliaError,
    KernelNotFound,
    KernelUnavailable,
    TooManyKernels,
    TopicNotFound,
)
from himalia.kernels.bridge import Bridge
from himalia.kernels.broker import IopubBroker
from himalia.kernels.connection_file import ConnectionInfo, find_connection_file, read_connection_file
from himalia.kernels.history import find_request, last_iopub_id, read_execution
from himalia.kernels.intake import SPOOL_WAS_FULL, Bookmark, Intake
from himalia.kernels.iopub import IopubThread
from himalia.kernels.keeping import KeeperGone, found_keepers, remove_leftovers
from himalia.kernels.kernel import TOPIC_PREFIX, Kernel
from himalia.kernels.parts import Parts
from himalia.kernels.process import KernelProcess
from himalia.kernels.records import KernelEvent, event_draft
from himalia.kernels.recovery import (
    OpenRequest,
    closing_draft,
    has_ended,
    left_connection_file,
    open_requests,
    parents_in,
)
from himalia.kernels.result import ExecutionResult
from himalia.kernels.tracing import RequestTracing
from himalia.kernels.wire import Wire
from himalia.log.contract import Batch
from himalia.pubsub import PubSubManager
from himalia.record import now_us
from himalia.runtime import runtime_directory
from himalia.settings import Settings

logger = logging.getLogger("himalia.kernels")

DEFAULT_NAME = "python3"
CULL_LOOK_S = 5.0
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
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` gives the seconds by which requests go stale."""
        self.kernels: dict[str, Kernel] = {}
        self.specs = KernelSpecManager()
        self.on_ended: Callable[[Kernel], None] | None = None
        """Told of every kernel that is gone, with its counts as they are at the end."""
        self._manager = manager
        self._settings = settings
        self._tracing = tracing
        self._clock = clock
        self._starting = 0
        self._attaching: dict[str, asyncio.Task[Kernel]] = {}
        self._is_closing = False
        self._background: list[asyncio.Task[None]] = []
        self._directory = _directory_of(manager.log.url)

    async def open(self) -> None:
        """Begin to listen, and find the kernels again that an earlier server left behind."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._parts = Parts(self._manager, IopubThread(), context, self._settings, self._tracing, self._clock)
        self._parts.iopub.start()
        kept = found_keepers(self._directory)
        known = {TOPIC_PREFIX + directory.name for directory in kept}
        topics = [info.name for info in await self._manager.log.topics() if info.name not in known]
        for directory in kept:
            await self._find_again(directory)
        await asyncio.gather(*[self._attach_again(attached) for attached in self._remembered()])
        self._background.append(asyncio.create_task(self._close_forgotten(topics)))
        if self._settings.kernel_cull_s:
            self._background.append(asyncio.create_task(self._cull()))

    async def close(self) -> None:
        """Stop all kernels, or leave them to their keepers if the settings say so; foreign ones live on.

        Cancel it to wait no longer: what has not ended by then is left to its keeper.
        """
        self._is_closing = True
        for task in self._background:
            task.cancel()
        kernels = list(self.kernels.values())
        stay = self._settings.kernels_stay
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
        self, name: str | None = None, *, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> Kernel:
        """Start a kernel; returns when it answers. Raises ``KernelFailed``, ``BadRequest`` or ``TooManyKernels``."""
        self._check_room()
        kernel_id, name = str(uuid4()), name or DEFAULT_NAME
        if cwd is not None and not await asyncio.to_thread(cwd.is_dir):
            cwd = None  # as Jupyter does: a notebook's folder may not exist on this machine
        self._starting += 1
        try:
            directory = self._directory / "kernels" / kernel_id
            process = await KernelProcess.start(
                kernel_id, name, directory, self._settings, cwd=cwd, env=env, specs=self.specs
            )
            kernel = Kernel(kernel_id, name, self._parts, process, self._ended)
            try:
                await kernel.open(process.connection, KernelEvent.STARTED, pid=process.pid)
            except BaseException:
                await kernel.stop("it did not start")
                raise
            self.kernels[kernel_id] = kernel
        finally:
            self._starting -= 1
        if not kernel.is_alive:
            raise KernelUnavailable(f"kernel {kernel_id} died at once", kernel_id=kernel_id)
        return kernel

    async def attach(self, connection_file: str) -> Kernel:
        """Listen to a kernel that something else started; returns when it answers."""
        path = find_connection_file(connection_file)
        attached = Attached(self._id_of(path), str(path))
        if attached.kernel_id in self.kernels:
            return self.kernels[attached.kernel_id]
        # Two that ask at a time get one kernel: two would keep all of its output twice.
        attaching = self._attaching.get(attached.kernel_id)
        if attaching is None:
            self._check_room()
            attaching = asyncio.create_task(self._attach_anew(attached))
            self._attaching[attached.kernel_id] = attaching
            attaching.add_done_callback(lambda _: self._attaching.pop(attached.kernel_id, None))
            return await attaching
        return await asyncio.shield(attaching)

    async def stop(self, kernel_id: str, reason: str = "asked to") -> None:
        """End a kernel; a foreign one is only let go."""
        kernel = self.get(kernel_id)
        await kernel.stop(reason)
        self._forget(kernel_id)

    # Executions

    async def result(self, kernel_id: str, request_id: str, *, late: bool = False) -> ExecutionResult:
        """What became of a request, from the log: also while it runs, and after its kernel is gone."""
        log, topic = self._manager.log, TOPIC_PREFIX + kernel_id
        kernel = self.kernels.get(kernel_id)
        start = kernel.runner.offset_of(request_id) if kernel is not None else None
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
        return await read_execution(log, topic, kernel_id, request_id, start, late=late)

    # Coming back

    async def _find_again(self, directory: Path) -> None:
        kernel_id = directory.name
        topic = TOPIC_PREFIX + kernel_id
        log = self._manager.log
        try:
            process = await KernelProcess.find(directory, self.specs)
        except KeeperGone:
            await self._bury(directory)
            return
        except (HimaliaError, OSError, LookupError, msgspec.MsgspecError):
            # One that another version left, for instance: it may not keep the server from starting.
            logger.exception("kernel %s cannot be attached to again", kernel_id)
            return
        try:
            wanted = await last_iopub_id(log, topic) or ""
            found = await open_requests(log, topic)
        except TopicNotFound:
            await self._manager.create_topic(topic)
            wanted, found = "", []
        await self._mark_sent(process, found)
        kernel = self.kernels[kernel_id] = Kernel(kernel_id, process.name, self._parts, process, self._ended)
        await kernel.resume(process.connection, wanted, found)
        logger.info("attached to kernel %s again, %d requests open", kernel_id, len(found))

    async def _mark_sent(self, process: KernelProcess, found: Sequence[OpenRequest]) -> None:
        """What the spool has heard of was sent, whatever the log says: the server may have ended in between."""
        if all(request.was_sent for request in found):
            return
        connection = process.connection
        wire = Wire(connection.key.encode(), scheme=connection.signature_scheme)
        parents = await asyncio.to_thread(parents_in, process.read_spool(-1), wire)
        for request in found:
            if request.request_id in parents:
                request.sent_us = request.sent_us or now_us()

    async def _bury(self, directory: Path) -> None:
        """The keeper is gone too: store what its spool has, close what was open, and remove what it left."""
        kernel_id = directory.name
        reason = "its keeper was gone when the server came back"
        try:
            await self._read_left_spool(directory)
            await self._close_gone(kernel_id, reason)
        except TopicNotFound:
            pass
        await asyncio.to_thread(remove_leftovers, directory)

    async def _read_left_spool(self, directory: Path) -> None:
        """Append to the topic what a spool has behind the topic's last message."""
        kernel_id = directory.name
        topic = TOPIC_PREFIX + kernel_id
        wanted = await last_iopub_id(self._manager.log, topic) or ""
        try:
            connection = read_connection_file(left_connection_file(directory))
        except BadRequest as error:
            logger.warning("what the spool of kernel %s has cannot be checked: %s", kernel_id, error)
            return
        bridge = Bridge(self._manager.publish, topic, kernel_id, bytes_max=self._settings.kernel_buffer_bytes)
        broker = IopubBroker()
        broker.add_global_subscriber(bridge)
        gaps: list[int] = []
        intake = Intake(
            broker,
            Wire(
                connection.key.encode(),
                scheme=connection.signature_scheme,
                bytes_max=self._settings.kernel_message_bytes_max,
            ),
            directory,
            Bookmark(wanted=wanted),
            is_blocked=lambda: bridge.overflowed,
            on_gap=gaps.append,
        )
        finished = threading.Event()
        await asyncio.to_thread(intake.finish, finished.set)
        while not finished.is_set():
            if not await asyncio.to_thread(intake.read):
                # It waits for the log.
                await asyncio.sleep(0.05)
        intake.close()
        for count in gaps:
            bridge.put(event_draft(kernel_id, KernelEvent.GAP, count=count, reason=SPOOL_WAS_FULL))
        await bridge.close()

    async def _close_gone(self, kernel_id: str, reason: str) -> None:
        """Close what a kernel that is gone left open, and say that it is gone."""
        topic = TOPIC_PREFIX + kernel_id
        drafts = [
            closing_draft(kernel_id, request, f"the kernel is gone: {reason}")
            for request in await open_requests(self._manager.log, topic)
        ]
        drafts.append(event_draft(kernel_id, KernelEvent.DIED, reason=reason))
        await self._manager.publish(Batch(topic, drafts))

    async def _close_forgotten(self, topics: Sequence[str]) -> None:
        """Kernels of which nothing is left but their topic: their lease was over, or the machine was restarted."""
        if not self._manager.log.url.startswith("sqlite:"):
            return  # other servers may have kernels on the same log
        for topic in topics:
            kernel_id = topic.removeprefix(TOPIC_PREFIX)
            if kernel_id == topic or kernel_id in self.kernels or kernel_id in self._attaching:
                continue
            try:
                if not await has_ended(self._manager.log, topic):
                    await self._close_gone(kernel_id, "nothing was left of it when the server came back")
            except HimaliaError as error:
                logger.warning("%s cannot be closed: %s", topic, error)

    async def _attach_anew(self, attached: Attached) -> Kernel:
        kernel = await self._attach(attached, KernelEvent.ATTACHED)
        self._remember(attached)
        return kernel

    async def _attach(self, attached: Attached, event: KernelEvent) -> Kernel:
        connection = read_connection_file(Path(attached.connection_file))
        await _check_listens(connection)
        name = connection.kernel_name or "attached"
        kernel = Kernel(attached.kernel_id, name, self._parts, None, self._ended)
        kernel.connection_file = attached.connection_file
        try:
            await kernel.open(connection, event, connection_file=attached.connection_file)
        except BaseException:
            await kernel.let_go()
            raise
        self.kernels[attached.kernel_id] = kernel
        return kernel

    async def _attach_again(self, attached: Attached) -> None:
        """A foreign kernel has no spool: what it said meanwhile is lost, and the topic says so."""
        kernel_id = attached.kernel_id
        topic = TOPIC_PREFIX + kernel_id
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
        kernel.go_on_with(found)
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
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
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

    # Ending

    def _ended(self, kernel: Kernel) -> None:
        self.kernels.pop(kernel.id, None)
        if self.on_ended is not None:
            self.on_ended(kernel)
        if not self._is_closing:
            self._forget(kernel.id)

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
                silent_s = (now_us() - kernel.last_activity_us) / 1e6
                if not kernel.is_foreign and not kernel.is_busy and silent_s >= idle_s:
                    logger.info("kernel %s did nothing for %.0f s", kernel.id, silent_s)
                    try:
                        await kernel.stop(f"it did nothing for {idle_s:g} s")
                    except HimaliaError as error:
                        logger.warning("kernel %s was not stopped: %s", kernel.id, error)


def _directory_of(log_url: str) -> Path:
    """Where this log's kernels are kept. A log in memory is gone with its server, and so is its directory's name."""
    name = f"{log_url}#{os.getpid()}" if log_url.startswith("memory:") else log_url
    return runtime_directory() / f"log-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


async def _check_listens(connection: ConnectionInfo) -> None:
    """Raises ``KernelUnavailable`` where there is no kernel: one that does not answer is waited for much longer."""
    if connection.transport != "tcp":
        return
    deadline_s = time.monotonic() + LISTENS_WITHIN_S
    while True:
        try:
            async with asyncio.timeout(LISTENS_WITHIN_S):
                _, writer = await asyncio.open_connection(connection.ip, connection.hb_port)
            writer.close()
            return
        except (OSError, TimeoutError) as error:
            if time.monotonic() >= deadline_s:
                raise KernelUnavailable(
                    f"nobody listens at {connection.endpoint('hb')}: this kernel has ended ({error})"
                ) from None
        # It may be starting.
        await asyncio.sleep(0.1)
