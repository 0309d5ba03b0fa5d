"""The client: one object for publishing, subscribing, looking after topics and running code."""

from __future__ import annotations

import logging
import ssl
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from himalia.client.connection import Connection
from himalia.client.discovery import Finder
from himalia.client.events import Event, Notice, Outgoing, Published
from himalia.client.publisher import Bulk, Publisher
from himalia.client.subscription import Subscription
from himalia.errors import BadRequest, Unauthorized
from himalia.protocol import ClientMessage, Policy
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
from himalia.topics import check_name, check_pattern, is_pattern

if TYPE_CHECKING:
    from himalia.client.rest import KernelCalls, Rest

Start = int | Position | Mapping[str, int | Position]

logger = logging.getLogger("himalia.client")


class Client:
    """A client of one server::

        async with Client() as client:
            await client.publish("orders", {"sku": "A-17"})
            async with client.subscribe("orders", last_n=5) as events:
                async for event in events:
                    print(event.offset, event.payload)

    Without ``url`` it finds the server that runs on this machine and its token, or takes ``HIMALIA_URL`` and
    ``HIMALIA_TOKEN``. The token travels in a header, never in a URL. ``timeout_s`` bounds a publish, retries
    included, and each REST call. Nothing is connected before it is needed.

    It belongs to the event loop on which it is used. Every failure is a ``himalia.errors.HimaliaError``.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._finder = Finder(url, token)
        self._tls = tls
        self._timeout_s = timeout_s
        self._publisher: Publisher | None = None
        self._rest: Rest | None = None

    async def __aenter__(self) -> Self:
        address = self._finder.find()
        if address.is_overheard:
            logger.warning(
                "the token is sent to %s without TLS, where others can read it on its way", address.url
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections for publishing and REST; subscriptions end with their own ``async with``.

        Publishes under way fail. The client may be used again, and then connects anew.
        """
        publisher, self._publisher = self._publisher, None
        rest, self._rest = self._rest, None
        if publisher is not None:
            await publisher.close()
        if rest is not None:
            await rest.close()

    @property
    def url(self) -> str:
        """Where the server is, as of now."""
        return self._finder.find().url

    async def _dial(self) -> Connection:
        address = self._finder.find()
        try:
            return await Connection.open(address, self._tls)
        except Unauthorized:
            # A server that was restarted between finding and connecting has made another token.
            again = self._finder.find()
            if again == address:
                raise
            return await Connection.open(again, self._tls)

    # Subscribing

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        last_n: int | None = None,
        from_: Start | None = None,
        epoch: str | None = None,
        since: str | float | None = None,
        policy: Policy | None = None,
        limit: int | None = None,
        filter: str | None = None,
        priority: int = 0,
        client_id: str | None = None,
        notices: Literal[False] = False,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> Subscription[Event]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        last_n: int | None = None,
        from_: Start | None = None,
        epoch: str | None = None,
        since: str | float | None = None,
        policy: Policy | None = None,
        limit: int | None = None,
        filter: str | None = None,
        priority: int = 0,
        client_id: str | None = None,
        notices: Literal[True],
        on_notice: Callable[[Notice], None] | None = None,
    ) -> Subscription[Event | Notice]: ...

    def subscribe(
        self,
        topic: str,
        *,
        last_n: int | None = None,
        from_: Start | None = None,
        epoch: str | None = None,
        since: str | float | None = None,
        policy: Policy | None = None,
        limit: int | None = None,
        filter: str | None = None,
        priority: int = 0,
        client_id: str | None = None,
        notices: bool = False,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> Subscription[Any]:
        """Follow a topic, or a pattern (``orders.*``, ``orders.>``), from now on or from where you say.

        Begin with one of: ``last_n`` records; ``from_`` an offset (of ``epoch``), a ``Position``, or for a pattern
        a map of them, such as ``Subscription.positions`` gives (topics it does not name begin at their first
        record); ``since`` a time, ISO 8601 or seconds since 1970. An offset beyond the end is waited for.

        ``policy`` is what happens when you are more than ``limit`` records behind: ``drop_oldest`` (the default
        when live or with ``last_n``), ``disconnect``, or ``lossless`` (the default with ``from_`` and ``since``).
        It stays the same after a reconnect. ``filter`` is a CEL expression of ``topic``, ``offset``, ``headers`` and
        ``message.payload``. Another subscription with the same ``client_id`` replaces this one; by default each has
        its own.

        Notices (``Dropped``, ``Gap``, ``TopicCreated``, ...) come at their place among the events: to ``on_notice``
        if given, and from the iteration itself with ``notices=True``. With neither, a loss is logged as a warning.
        """
        check_pattern(topic)
        start, epoch = _start(topic, from_, epoch)
        first = ClientMessage(
            "subscribe",
            topic=topic,
            client_id=client_id or f"client-{uuid.uuid4()}",
            last_n=last_n,
            start=start,
            epoch=epoch,
            since=since,
            policy=policy,
            limit=limit,
            filter=filter,
            priority=priority,
        )
        return Subscription(
            self._dial,
            first,
            notices=notices,
            on_notice=on_notice,
        )

    # Publishing

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Published:
        """Store a message; comes back when it is safe. ``payload`` is anything that JSON can say, or ``msgspec.Raw``
        with JSON in it, which is sent as it is. Decimals, UUIDs and times become text, bytes base64, a dataclass an
        object, a scalar of numpy its number. ``BadRequest`` refuses what JSON cannot say: NaN, infinities, sets,
        arrays, other objects, and keys of a dict that are neither strings nor numbers.

        A lost connection, or a server that cannot store just now, is retried until ``timeout_s``. That is safe: a
        message has an id (a UUID; made if not given), and the server stores the same id once. Concurrent calls share
        one connection and are sent in the order of the calls.
        """
        check_name(topic)
        publisher = self._publishing()
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return await publisher.settle(publisher.submit(topic, Outgoing(payload, id, headers), timeout_s))

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[Any] | AsyncIterable[Any],
        *,
        on_published: Callable[[Published], None] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Store many messages, in order, without waiting for each; returns how many.

        An item is a payload, or an ``Outgoing`` with its own id and headers. So many are under way at a time as
        the server takes, and no more than a bound, so ``messages`` may be endless. ``on_published`` is called for
        each, in order. The first refusal is raised with ``data["index"]``, and nothing more is sent; an exception
        of ``messages`` itself is raised after everything before it is stored.
        """
        check_name(topic)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return await Bulk(self._publishing(), topic, timeout_s, on_published).publish(messages)

    def _publishing(self) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher(self._dial)
        return self._publisher

    # Topics, and what is stored

    async def create_topic(
        self, name: str, retention: Retention | None = None, *, exist_ok: bool = False
    ) -> bool:
        """Make a topic; with ``exist_ok`` an existing one (whatever its retention) is fine, and the answer false."""
        return await self._calling().create_topic(name, retention, exist_ok=exist_ok)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and everything stored in it."""
        check_name(name)
        await self._calling().delete_topic(name)

    async def topics(self) -> list[TopicSummary]:
        return await self._calling().topics()

    async def stats(self) -> Stats:
        return await self._calling().stats()

    async def health(self) -> Health:
        """How the server is. One that is unwell answers too; one that does not answer raises."""
        return await self._calling().health()

    async def confirm_clock(self) -> ClockConfirmed:
        """Say that the clock of the server's machine is right, after a warning in ``health`` that it jumped."""
        return await self._calling().confirm_clock()

    def read(
        self,
        topic: str,
        *,
        from_: int | None = None,
        since: str | float | None = None,
        last: int | None = None,
        limit: int | None = None,
        epoch: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """What is stored, from the oldest or from where you say, up to the end as it is now.

        Streamed: neither side holds more than a piece of it. With ``epoch``, raises ``EpochChanged`` if the topic
        is another one by now.
        """
        check_name(topic)
        return self._calling().read(
            topic, {"from": from_, "since": since, "last": last, "limit": limit, "epoch": epoch}
        )

    # Tables

    async def tables(self) -> list[TableSummary]:
        """The tables that the pipeline has made, with their columns; none if it has not run yet."""
        return await self._calling().tables()

    async def table(
        self,
        name: str,
        *,
        where: str | None = None,
        order: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> TableRows:
        """Rows of a table for which ``where``, a condition in SQL, holds; the newest first, at most 100.

        ``order`` names columns, each with ``asc`` or ``desc``; ``limit`` may be up to 10,000. Raises ``BadQuery`` with
        the engine's own words, ``TableNotFound``, or ``QueryTooLarge``.
        """
        wanted = None if columns is None else ",".join(columns)
        return await self._calling().table(
            name, {"where": where, "order": order, "columns": wanted, "limit": limit}
        )

    # Sessions

    async def sessions(self) -> list[SessionSummary]:
        """The browsers that are signed in: as you, or all of them with the right to manage everything."""
        return await self._calling().sessions()

    async def revoke_session(self, id: str) -> None:
        """Sign a browser out. Raises ``SessionNotFound``."""
        await self._calling().revoke_session(id)

    async def revoke_sessions(self, caller: str | None = None) -> int:
        """Sign out all browsers of a caller, or all that you may. Returns how many there were."""
        return await self._calling().revoke_sessions(caller)

    # Kernels

    async def kernels(self) -> list[Kernel]:
        """The kernels that run, as far as you may see them."""
        return await self._kernels().all()

    async def kernelspecs(self) -> KernelSpecs:
        """The kinds of kernel that ``start_kernel`` can start."""
        return await self._kernels().specs()

    async def kernel(self, kernel_id: str) -> Kernel:
        return await self._kernels().get(kernel_id)

    async def start_kernel(
        self,
        name: str | None = None,
        *,
        cwd: str | PathLike[str] | None = None,
        path: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Kernel:
        """Start a kernel; comes back when it answers. It works in ``cwd``, a directory of the server's machine, or
        as near to ``path`` as there is a directory."""
        return await self._kernels().start(name, cwd=cwd, path=path, env=env)

    async def attach_kernel(self, connection_file: str | PathLike[str]) -> Kernel:
        """Have the server listen to a kernel that something else started; its output is kept from then on.
        A name without a folder is looked for in Jupyter's runtime directory."""
        return await self._kernels().attach(connection_file)

    async def attach_all_kernels(self) -> Attached:
        """Have the server listen to every kernel of Jupyter's runtime directory that answers."""
        return await self._kernels().attach_all()

    async def stop_kernel(self, kernel_id: str) -> None:
        """End a kernel (one that was attached is only let go). Its topic stays."""
        await self._kernels().stop(kernel_id)

    async def interrupt_kernel(self, kernel_id: str) -> None:
        """What runs ends with a ``KeyboardInterrupt``, or whatever its language has for that."""
        await self._kernels().interrupt(kernel_id)

    async def restart_kernel(self, kernel_id: str) -> Kernel:
        """Start a new process for it. What waits or runs ends as ``aborted``; the id and the topic stay."""
        return await self._kernels().restart(kernel_id)

    @overload
    async def execute(
        self,
        kernel_id: str,
        code: str,
        *,
        wait: Literal[True] = True,
        timeout_s: float | None = None,
        priority: int = 0,
        silent: bool = False,
        store_history: bool = True,
        allow_stdin: bool = False,
        stop_on_error: bool = True,
    ) -> Execution: ...

    @overload
    async def execute(
        self,
        kernel_id: str,
        code: str,
        *,
        wait: Literal[False],
        timeout_s: float | None = None,
        priority: int = 0,
        silent: bool = False,
        store_history: bool = True,
        allow_stdin: bool = False,
        stop_on_error: bool = True,
    ) -> Submitted: ...

    async def execute(
        self,
        kernel_id: str,
        code: str,
        *,
        wait: bool = True,
        timeout_s: float | None = None,
        priority: int = 0,
        silent: bool = False,
        store_history: bool = True,
        allow_stdin: bool = False,
        stop_on_error: bool = True,
    ) -> Execution | Submitted:
        """Have a kernel run code. With ``wait``, what came of it, however long that takes and however it ended;
        without, at once where to watch it: ``subscribe(submitted.topic, from_=submitted.offset)``.

        ``timeout_s`` is how long the kernel may work on it before it is interrupted; it does not bound this call.
        Of what waits for the kernel, the highest ``priority`` goes first. With ``allow_stdin`` the code may ask for
        input; an ``input_request`` in the topic says so, and ``answer_input`` answers. Never retried: code may do
        anything.
        """
        options = {
            "code": code,
            "priority": priority,
            "timeout_s": timeout_s,
            "silent": silent,
            "store_history": store_history,
            "allow_stdin": allow_stdin,
            "stop_on_error": stop_on_error,
        }
        kernels = self._kernels()
        return await (kernels.execute(kernel_id, options) if wait else kernels.submit(kernel_id, options))

    async def execution(self, kernel_id: str, request_id: str, *, late: bool = False) -> Execution:
        """What has come of some code, for as long as the log keeps it: also while it runs, and after its kernel is
        gone. ``late`` adds what it said after it was done, as a thread may."""
        return await self._kernels().execution(kernel_id, request_id, late=late)

    async def cancel_execution(self, kernel_id: str, request_id: str) -> Execution:
        """End it as ``cancelled``: what waits never runs, what runs is interrupted."""
        return await self._kernels().cancel(kernel_id, request_id)

    async def answer_input(self, kernel_id: str, value: str) -> None:
        """Give the line that the running code asks for."""
        await self._kernels().answer_input(kernel_id, value)

    def _kernels(self) -> KernelCalls:
        from himalia.client.rest import KernelCalls

        return KernelCalls(self._calling())

    def _calling(self) -> Rest:
        if self._rest is None:
            # httpx takes long to import, and a subscriber or publisher does not need it.
            from himalia.client.rest import Rest

            self._rest = Rest(self._finder, self._tls, self._timeout_s)
        return self._rest


def _start(
    topic: str, from_: Start | None, epoch: str | None
) -> tuple[int | dict[str, Any] | None, str | None]:
    """``from`` and ``epoch`` as the protocol has them."""
    if isinstance(from_, Mapping):
        if is_pattern(topic):
            return {name: _as_json(at) for name, at in from_.items()}, epoch
        if topic not in from_:
            raise BadRequest(f"from_ has no position of {topic!r}", topic=topic)
        from_ = from_[topic]
    if isinstance(from_, Position):
        return from_.offset, from_.epoch or epoch
    return from_, epoch


def _as_json(at: int | Position) -> dict[str, Any]:
    if isinstance(at, Position):
        return {"offset": at.offset, "epoch": at.epoch or None}
    return {"offset": at}
