"""A synchronous face of the client, for scripts and notebooks. All the work is done by the asynchronous one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

from himalia.client.client import Client
from himalia.client.events import Event, Published
from himalia.client.subscription import Subscription
from himalia.protocol.models import (
    Attached,
    ClockConfirmed,
    Execution,
    Health,
    Kernel,
    KernelSpecs,
    SessionSummary,
    Stats,
    Submitted,
    TableRows,
    TableSummary,
    TopicSummary,
)
from himalia.record import Position, Retention

Result = TypeVar("Result")
Item = TypeVar("Item")


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="himalia-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it there and wait here. Ctrl-C here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncClient:
    """``Client`` without ``await``::

        with SyncClient() as client:
            client.publish("orders", {"sku": "A-17"})
            with client.subscribe("orders", last_n=5) as events:
                for event in events:
                    print(event.offset, event.payload)

    Takes the arguments of ``Client``, and each method does what that of ``Client`` says. May be used from several
    threads; ``on_notice`` and ``on_published`` are called on its private thread.
    """

    def __init__(self, url: str | None = None, token: str | None = None, **options: Any) -> None:
        self._client = Client(url, token, **options)
        self._loop: _Loop | None = None

    def __enter__(self) -> Self:
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run(self._client.close())
            self._loop.stop()
            self._loop = None

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._running().run(work)

    def _running(self) -> _Loop:
        if self._loop is None:
            self._loop = _Loop()
        return self._loop

    @property
    def url(self) -> str:
        return self._client.url

    def subscribe(self, topic: str, **options: Any) -> SyncSubscription[Any]:
        """Follow a topic or pattern. Takes the options of ``Client.subscribe``."""
        return SyncSubscription(self._running(), self._client.subscribe(topic, **options))

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Published:
        return self._run(self._client.publish(topic, payload, id=id, headers=headers, timeout_s=timeout_s))

    def publish_many(
        self,
        topic: str,
        messages: Iterable[Any],
        *,
        on_published: Callable[[Published], None] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        return self._run(
            self._client.publish_many(topic, messages, on_published=on_published, timeout_s=timeout_s)
        )

    def sessions(self) -> list[SessionSummary]:
        return self._run(self._client.sessions())

    def revoke_session(self, id: str) -> None:
        self._run(self._client.revoke_session(id))

    def revoke_sessions(self, caller: str | None = None) -> int:
        return self._run(self._client.revoke_sessions(caller))

    def create_topic(self, name: str, retention: Retention | None = None, *, exist_ok: bool = False) -> bool:
        return self._run(self._client.create_topic(name, retention, exist_ok=exist_ok))

    def delete_topic(self, name: str) -> None:
        self._run(self._client.delete_topic(name))

    def topics(self) -> list[TopicSummary]:
        return self._run(self._client.topics())

    def stats(self) -> Stats:
        return self._run(self._client.stats())

    def health(self) -> Health:
        return self._run(self._client.health())

    def confirm_clock(self) -> ClockConfirmed:
        return self._run(self._client.confirm_clock())

    def tables(self) -> list[TableSummary]:
        return self._run(self._client.tables())

    def table(self, name: str, **options: Any) -> TableRows:
        """Rows of a table. Takes the options of ``Client.table``."""
        return self._run(self._client.table(name, **options))

    def kernels(self) -> list[Kernel]:
        return self._run(self._client.kernels())

    def kernelspecs(self) -> KernelSpecs:
        return self._run(self._client.kernelspecs())

    def kernel(self, kernel_id: str) -> Kernel:
        return self._run(self._client.kernel(kernel_id))

    def start_kernel(
        self,
        name: str | None = None,
        *,
        cwd: str | PathLike[str] | None = None,
        path: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Kernel:
        return self._run(self._client.start_kernel(name, cwd=cwd, path=path, env=env))

    def attach_kernel(self, connection_file: str | PathLike[str]) -> Kernel:
        return self._run(self._client.attach_kernel(connection_file))

    def attach_all_kernels(self) -> Attached:
        return self._run(self._client.attach_all_kernels())

    def stop_kernel(self, kernel_id: str) -> None:
        self._run(self._client.stop_kernel(kernel_id))

    def interrupt_kernel(self, kernel_id: str) -> None:
        self._run(self._client.interrupt_kernel(kernel_id))

    def restart_kernel(self, kernel_id: str) -> Kernel:
        return self._run(self._client.restart_kernel(kernel_id))

    @overload
    def execute(
        self, kernel_id: str, code: str, *, wait: Literal[True] = True, **options: Any
    ) -> Execution: ...

    @overload
    def execute(self, kernel_id: str, code: str, *, wait: Literal[False], **options: Any) -> Submitted: ...

    def execute(
        self, kernel_id: str, code: str, *, wait: bool = True, **options: Any
    ) -> Execution | Submitted:
        """Have a kernel run code. Takes the options of ``Client.execute``."""
        work: Coroutine[Any, Any, Execution | Submitted]
        work = self._client.execute(kernel_id, code, wait=wait, **options)  # type: ignore[call-overload]
        return self._run(work)

    def execution(self, kernel_id: str, request_id: str, *, late: bool = False) -> Execution:
        return self._run(self._client.execution(kernel_id, request_id, late=late))

    def cancel_execution(self, kernel_id: str, request_id: str) -> Execution:
        return self._run(self._client.cancel_execution(kernel_id, request_id))

    def answer_input(self, kernel_id: str, value: str) -> None:
        self._run(self._client.answer_input(kernel_id, value))

    def read(self, topic: str, **options: Any) -> Iterator[Event]:
        """What is stored. Takes the options of ``Client.read``."""
        loop, events = self._running(), self._client.read(topic, **options)
        try:
            while (batch := loop.run(_some(events))) is not None:
                yield from batch
        finally:
            if loop.is_running:  # not if the client was closed before this generator
                loop.run(events.aclose())


class SyncSubscription(Generic[Item]):
    """A subscription for ``with`` and ``for``. See ``himalia.client.Subscription`` for what it promises."""

    def __init__(self, loop: _Loop, subscription: Subscription[Item]) -> None:
        self._loop = loop
        self._subscription = subscription

    def __enter__(self) -> Self:
        self._loop.run(self._subscription.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.run(self._subscription.__aexit__(kind, error, traceback))

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Item:
        """The next event. ``TimeoutError`` if none comes in time, ``StopIteration`` at the end; nothing is lost."""
        try:
            return self._loop.run(_next(self._subscription, timeout_s))
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def positions(self) -> Mapping[str, Position]:
        return self._subscription.positions


async def _next(subscription: Subscription[Item], timeout_s: float | None) -> Item:
    async with asyncio.timeout(timeout_s):
        return await anext(subscription)


async def _some(events: AsyncIterator[Event], most: int = 500) -> list[Event] | None:
    """The next events, or ``None`` at the end: going from thread to thread for each one would be slow."""
    batch: list[Event] = []
    async for event in events:
        batch.append(event)
        if len(batch) >= most:
            return batch
    return batch or None
