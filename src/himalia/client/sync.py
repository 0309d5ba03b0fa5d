"""The synchronous client, for scripts and notebooks. It runs the asynchronous one on an event loop in a thread."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from himalia.client.api.kernels import ExecuteOptions
from himalia.client.client import Client
from himalia.client.events import Event, Notice
from himalia.client.options import SubscribeOptions
from himalia.client.subscription import Subscription
from himalia.protocol.models import Execution, Submitted
from himalia.record import Position

Result = TypeVar("Result")
Item = TypeVar("Item")
Options = ParamSpec("Options")

BATCH_MAX = 500
"""Records of ``read`` that cross from thread to thread at once."""


class _LoopThread:
    """An event loop that runs in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="himalia-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and wait for its result. Ctrl-C in the calling thread cancels it."""
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


def _make_sync(
    method: Callable[Concatenate[Client, Options], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[SyncClient, Options], Result]:
    """Make the synchronous twin of a method of ``Client``, with its parameters and its docstring."""

    @wraps(method)
    def call(self: SyncClient, *args: Options.args, **options: Options.kwargs) -> Result:
        return self._loop().run(method(self._client, *args, **options))

    return cast("Callable[Concatenate[SyncClient, Options], Result]", call)


def _make_sync_iterator(
    method: Callable[Concatenate[Client, Options], AsyncGenerator[Item, None]],
) -> Callable[Concatenate[SyncClient, Options], Iterator[Item]]:
    """Make the synchronous twin of a method of ``Client`` that returns an asynchronous generator."""

    @wraps(method)
    def call(self: SyncClient, *args: Options.args, **options: Options.kwargs) -> Iterator[Item]:
        return _iterate(self._loop(), method(self._client, *args, **options))

    return cast("Callable[Concatenate[SyncClient, Options], Iterator[Item]]", call)


class SyncClient:
    """``Client`` without ``await``::

        with SyncClient() as client:
            client.publish("orders", {"sku": "A-17"})
            with client.subscribe("orders", last_n=5) as events:
                for event in events:
                    print(event.offset, event.payload)

    Each method does what that of ``Client`` does. Several threads may share one; ``on_notice`` and ``on_published`` are
    called in its own thread.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._client = Client(url, token, timeout_s=timeout_s, tls=tls)
        self._running_loop: _LoopThread | None = None

    def __enter__(self) -> Self:
        try:
            self._loop().run(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread. The client may be used again, and then starts another."""
        if self._running_loop is not None:
            self._running_loop.run(self._client.close())
            self._running_loop.stop()
            self._running_loop = None

    def _loop(self) -> _LoopThread:
        if self._running_loop is None:
            self._running_loop = _LoopThread()
        return self._running_loop

    @property
    def url(self) -> str:
        """The current URL of the server."""
        return self._client.url

    @overload
    def subscribe(
        self, topic: str, *, notices: Literal[False] = False, **options: Unpack[SubscribeOptions]
    ) -> SyncSubscription[Event]: ...

    @overload
    def subscribe(
        self, topic: str, *, notices: Literal[True], **options: Unpack[SubscribeOptions]
    ) -> SyncSubscription[Event | Notice]: ...

    def subscribe(
        self, topic: str, *, notices: bool = False, **options: Unpack[SubscribeOptions]
    ) -> SyncSubscription[Any]:
        """Subscribe to a topic or a pattern, as ``Client.subscribe`` does."""
        subscription: Subscription[Any]
        if notices:
            subscription = self._client.subscribe(topic, notices=True, **options)
        else:
            subscription = self._client.subscribe(topic, **options)
        return SyncSubscription(self._loop(), subscription)

    @overload
    def execute(
        self, kernel_id: str, code: str, *, wait: Literal[True] = True, **options: Unpack[ExecuteOptions]
    ) -> Execution: ...

    @overload
    def execute(
        self, kernel_id: str, code: str, *, wait: Literal[False], **options: Unpack[ExecuteOptions]
    ) -> Submitted: ...

    def execute(
        self, kernel_id: str, code: str, *, wait: bool = True, **options: Unpack[ExecuteOptions]
    ) -> Execution | Submitted:
        """Run code in a kernel, as ``Client.execute`` does."""
        if wait:
            return self._loop().run(self._client.execute(kernel_id, code, **options))
        return self._loop().run(self._client.execute(kernel_id, code, wait=False, **options))

    publish = _make_sync(Client.publish)
    publish_many = _make_sync(Client.publish_many)

    create_topic = _make_sync(Client.create_topic)
    delete_topic = _make_sync(Client.delete_topic)
    topics = _make_sync(Client.topics)
    read = _make_sync_iterator(Client.read)

    stats = _make_sync(Client.stats)
    health = _make_sync(Client.health)
    confirm_clock = _make_sync(Client.confirm_clock)
    sessions = _make_sync(Client.sessions)
    revoke_session = _make_sync(Client.revoke_session)
    revoke_sessions = _make_sync(Client.revoke_sessions)

    tables = _make_sync(Client.tables)
    table = _make_sync(Client.table)

    kernels = _make_sync(Client.kernels)
    kernelspecs = _make_sync(Client.kernelspecs)
    kernel = _make_sync(Client.kernel)
    start_kernel = _make_sync(Client.start_kernel)
    attach_kernel = _make_sync(Client.attach_kernel)
    attach_all_kernels = _make_sync(Client.attach_all_kernels)
    stop_kernel = _make_sync(Client.stop_kernel)
    interrupt_kernel = _make_sync(Client.interrupt_kernel)
    restart_kernel = _make_sync(Client.restart_kernel)
    execution = _make_sync(Client.execution)
    cancel_execution = _make_sync(Client.cancel_execution)
    answer_input = _make_sync(Client.answer_input)


class SyncSubscription(Generic[Item]):
    """A subscription for ``with`` and ``for``. See ``himalia.client.Subscription`` for its guarantees."""

    def __init__(self, loop: _LoopThread, subscription: Subscription[Item]) -> None:
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
        """Return the next event. Raises ``TimeoutError``, which loses no event, and ``StopIteration`` at the end."""
        try:
            return self._loop.run(_next(self._subscription, timeout_s))
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def positions(self) -> Mapping[str, Position]:
        """The position after the last yielded event, by topic."""
        return self._subscription.positions


async def _next(subscription: Subscription[Item], timeout_s: float | None) -> Item:
    async with asyncio.timeout(timeout_s):
        return await anext(subscription)


def _iterate(loop: _LoopThread, items: AsyncGenerator[Item, None]) -> Iterator[Item]:
    try:
        while (batch := loop.run(_next_batch(items))) is not None:
            yield from batch
    finally:
        if loop.is_running:  # not if the client was closed before this generator
            loop.run(items.aclose())


async def _next_batch(items: AsyncIterator[Item]) -> list[Item] | None:
    """Return up to ``BATCH_MAX`` items, or None at the end: crossing threads for each item would be slow."""
    batch: list[Item] = []
    async for item in items:
        batch.append(item)
        if len(batch) >= BATCH_MAX:
            return batch
    return batch or None
