"""The kernels of a server: opened after its log, ended before it. Without kernels, nothing of them is imported."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from himalia.errors import (
    BadRequest,
    Forbidden,
    HimaliaError,
    KernelUnavailable,
    ShuttingDown,
    TooManyKernels,
)
from himalia.pubsub import PubSubManager
from himalia.server.identity import Principal
from himalia.server.observe.audit import SERVER, Audit, AuditEvent
from himalia.server.observe.kernel_totals import KernelCounts
from himalia.settings import Settings
from himalia.tasks import ShieldedTasks

if TYPE_CHECKING:
    from himalia.kernels.context import RequestTracing
    from himalia.kernels.host import KernelHost
    from himalia.kernels.kernel import Kernel
    from himalia.kernels.request import Code, Request

T = TypeVar("T")

logger = logging.getLogger("himalia.server")

CONNECTION_FILE_BYTES_MAX = 64 * 1024
ANSWER_WITHIN_S = 10.0
"""How long each may take to answer, of all that have a connection file: what listens may be something else."""
START_WITHIN_S = 3.0
"""How long a kernel that is being started may take when the server stops: one that is up is easier to end."""
CANCEL_WITHIN_S = 2.0
LOOK_S = 1.0
"""How often to look whether the log can store the end of a request."""


class Hosting:
    """Lives on the event loop. Everything but ``open`` and ``close`` is refused while there are no kernels."""

    def __init__(
        self,
        manager: PubSubManager,
        settings: Settings,
        tracing: RequestTracing | None = None,
        audit: Audit | None = None,
        kernel_descriptors: int = 0,
    ) -> None:
        self.counts = KernelCounts()
        self._manager = manager
        self._settings = settings
        self._tracing = tracing
        self._audit = audit
        self._descriptors = kernel_descriptors
        self._host: KernelHost | None = None
        self._closing: asyncio.Task[None] | None = None
        # Kernels that are being started or attached: not listed yet, and not to be forgotten at the end.
        self._coming: set[asyncio.Task[Any]] = set()
        self._coming_of: Counter[str] = Counter()
        self._submitting = ShieldedTasks()
        self._ended: asyncio.Future[None]

    # From start to stop

    async def open(self) -> None:
        """Find the kernels of an earlier server again, and be ready for new ones."""
        self._ended = asyncio.get_running_loop().create_future()
        if not self._settings.kernels:
            return
        from himalia.kernels.host import KernelHost

        self._host = KernelHost(
            self._manager, self._settings, self._tracing, self, descriptors=self._descriptors
        )
        await self._host.open()

    def close(self) -> asyncio.Task[None]:
        """Begin to end all kernels, or leave them to their keepers; a second call gives the same task.

        Cancel it to wait no longer: what has not ended by then is ended by its keeper when its lease is over.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def cancel_close(self) -> None:
        """Wait no longer for kernels that do not end; the log is about to be closed."""
        closing = self.close()
        if not closing.done():
            logger.warning(
                "not all kernels have ended; their keepers end idle ones within %g s",
                self._settings.kernel_keep_s,
            )
            closing.cancel()
            await asyncio.wait({closing}, timeout=CANCEL_WITHIN_S)
        elif not closing.cancelled() and (error := closing.exception()) is not None:
            logger.error("the kernels were not ended in order", exc_info=error)

    async def _close(self) -> None:
        try:
            if self._coming:
                _, late = await asyncio.wait(self._coming, timeout=START_WITHIN_S)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
            if self._host is not None:
                await self._host.close()
        finally:
            if not self._ended.done():
                self._ended.set_result(None)

    # What the host reports

    def kernel_started(self, kernel: Kernel) -> None:
        by = kernel.owner or SERVER
        self._record(AuditEvent.KERNEL_STARTED, by, kernel_id=kernel.id, name=kernel.name)

    def kernel_restarted(self, kernel: Kernel, caller: str) -> None:
        self._record(AuditEvent.KERNEL_RESTARTED, caller or SERVER, kernel_id=kernel.id)

    def kernel_ended(self, kernel: Kernel) -> None:
        self.counts.add(kernel)
        by, reason = kernel.ended_by or SERVER, kernel.end_reason
        self._record(AuditEvent.KERNEL_STOPPED, by, kernel_id=kernel.id, reason=reason)

    def leftover_closed(self, kernel_id: str, reason: str) -> None:
        self._record(AuditEvent.KERNEL_STOPPED, SERVER, kernel_id=kernel_id, reason=reason)

    def _record(self, event: AuditEvent, caller: Principal | str, **fields: str | None) -> None:
        if self._audit is not None:
            self._audit.record(event, caller, **fields)

    # What there is

    @property
    def host(self) -> KernelHost:
        """``Forbidden`` if this server has no kernels."""
        if self._host is None:
            raise Forbidden("this server runs no kernels: it was started with --no-kernels")
        return self._host

    @property
    def kernels(self) -> list[Kernel]:
        """Those that run; none where there can be none."""
        return [] if self._host is None else list(self._host.kernels.values())

    @property
    def is_enabled(self) -> bool:
        return self._host is not None

    def check_deletable(self, topic: str) -> None:
        """``KernelUnavailable`` if a kernel that runs writes to this topic: its output would go nowhere."""
        for kernel in self.kernels:
            if kernel.topic == topic:
                raise KernelUnavailable(
                    f"kernel {kernel.id} runs and writes to {topic!r}; stop it first", kernel_id=kernel.id
                )

    # What is asked of them

    async def _counted(self, caller: Principal, bring: Callable[[], Awaitable[Kernel]]) -> Kernel:
        """Bring a kernel, which counts from now on; ``TooManyKernels`` if the caller has as many as it may."""
        name, limit = caller.name, caller.limits.kernels
        if limit is not None:
            count = sum(kernel.owner == name for kernel in self.kernels) + self._coming_of[name]
            if count >= limit:
                raise TooManyKernels(f"{name!r} has {count} kernels, its limit; stop one first", limit=limit)
        self._coming_of[name] += 1
        try:
            return await bring()
        finally:
            self._coming_of[name] -= 1
            if not self._coming_of[name]:
                del self._coming_of[name]

    async def start(
        self, name: str | None, cwd: Path | None, env: dict[str, str] | None, caller: Principal
    ) -> Kernel:
        """Start a kernel of this caller; it goes on if the client goes away."""
        start = partial(self.host.start, name, cwd=cwd, env=env, owner=caller.name)
        return await self._bring(self._counted(caller, start))

    async def attach(self, connection_file: str, caller: Principal) -> Kernel:
        """Listen to a foreign kernel; quick to say that there is none."""
        _ = self.host
        path = await asyncio.to_thread(_path, connection_file)
        return await self._bring(self._counted(caller, partial(self._attach, str(path), caller)))

    async def _attach(self, path: str, caller: Principal, **options: Any) -> Kernel:
        kernel = await self.host.attach(path, caller.name, **options)
        # Here, where no cancelled request can come between.
        self._record(AuditEvent.KERNEL_ATTACHED, caller, kernel_id=kernel.id, name=kernel.name)
        return kernel

    async def attach_all(self, caller: Principal) -> tuple[list[Kernel], dict[str, str]]:
        """Listen to all kernels of Jupyter's runtime directory; also says which files were skipped, and why."""
        from himalia.jupyter.connection_file import runtime_connection_files

        _ = self.host
        attached: list[Kernel] = []
        skipped: dict[str, str] = {}

        async def attach(path: str) -> None:
            try:
                await asyncio.to_thread(_path, path)
                attach_one = partial(self._attach, path, caller, within_s=0)
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    attached.append(await self._bring(self._counted(caller, attach_one)))
            except TimeoutError:
                skipped[path] = f"it did not answer within {ANSWER_WITHIN_S:g} s"
            except HimaliaError as error:
                skipped[path] = error.message

        files = await asyncio.to_thread(runtime_connection_files)
        await asyncio.gather(*[attach(str(path)) for path in files])
        return attached, skipped

    async def execute(self, kernel: Kernel, code: Code, caller: Principal) -> Request:
        """Put code in line and record that, also if the request is cancelled while the log commits it."""

        async def submit() -> Request:
            request = await kernel.execute(code)
            self._record(AuditEvent.CODE_RUN, caller, kernel_id=kernel.id, request_id=request.id)
            return request

        return await self._submitting.run(submit())

    async def until_closed(self, kernel: Kernel, request: Request) -> None:
        """Returns when a request is closed. The client may disconnect; the request continues.

        ``LogUnavailable`` if it has ended and the log cannot store that now.
        """
        either: set[asyncio.Future[Any]] = {request.closed, self._ended}
        while not (await asyncio.wait(either, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED))[0]:
            if request.status is not None:
                kernel.topic_writer.availability.check()
        if not request.closed.done():
            raise ShuttingDown(
                f"the server is shutting down while request {request.id} goes on; ask for its result later",
                request_id=request.id,
            )

    async def _bring(self, coming: Coroutine[Any, Any, T]) -> T:
        if self._closing is not None:
            coming.close()
            raise ShuttingDown("the server is shutting down; try again in a moment")
        task = asyncio.create_task(coming)
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)
        try:
            brought = await task
        except asyncio.CancelledError:
            if self._closing is None:
                raise
        if self._closing is not None:
            raise ShuttingDown("the server is shutting down; try again in a moment")
        return brought


def _path(name: str) -> Path:
    """A connection file. Blocks, but not for ever: only an ordinary, small file is opened later."""
    from himalia.jupyter.connection_file import find_connection_file

    try:
        path = find_connection_file(name)
        is_small_file = path.is_file() and path.stat().st_size <= CONNECTION_FILE_BYTES_MAX
    except (OSError, RuntimeError, ValueError):
        raise BadRequest("this is not the path of a connection file", path=name) from None
    if not is_small_file:
        raise BadRequest(f"{path} is not a kernel's connection file", path=str(path))
    return path
