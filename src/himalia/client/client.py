"""The asynchronous client."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from himalia.client.api.kernels import KernelResource
from himalia.client.api.server import ServerResource
from himalia.client.api.tables import TableResource
from himalia.client.api.topics import TopicResource
from himalia.client.connection import WebSocketConnection
from himalia.client.discovery import ServerLocator
from himalia.client.events import Event, Notice, Outgoing, Published
from himalia.client.options import SubscribeOptions, subscribe_request
from himalia.client.publisher import BulkPublish, Publisher
from himalia.client.subscription import Subscription
from himalia.errors import Unauthorized
from himalia.topics import check_name

logger = logging.getLogger("himalia.client")


class Client(TopicResource, TableResource, KernelResource, ServerResource):
    """A client of one server::

        async with Client() as client:
            await client.publish("orders", {"sku": "A-17"})
            async with client.subscribe("orders", last_n=5) as events:
                async for event in events:
                    print(event.offset, event.payload)

    Without ``url`` it uses ``HIMALIA_URL`` and ``HIMALIA_TOKEN``, or else the server that runs on this machine and its
    token. The token is sent in a header, never in a URL. ``timeout_s`` bounds each publish, including its retries, and
    each REST call. Connections are opened on first use.

    Use it on one event loop only. Every failure is a ``himalia.errors.HimaliaError``.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(ServerLocator(url, token), tls, timeout_s)
        self._publisher: Publisher | None = None

    async def __aenter__(self) -> Self:
        address = self._locator.find()
        if address.is_overheard:
            logger.warning(
                "sending the token to %s without TLS: others on the network can read it", address.url
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections for publishing and REST; a subscription closes with its own ``async with``.

        Pending publishes fail. The client may be used again, and then reconnects.
        """
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.close()
        await self._close_rest()

    @property
    def url(self) -> str:
        """The current URL of the server."""
        return self._locator.find().url

    async def _dial(self) -> WebSocketConnection:
        address = self._locator.find()
        try:
            return await WebSocketConnection.open(address, self._tls)
        except Unauthorized:
            # A server that restarted between finding and connecting may have another token.
            current = self._locator.find()
            if current == address:
                raise
            return await WebSocketConnection.open(current, self._tls)

    # Subscribing

    @overload
    def subscribe(
        self, topic: str, *, notices: Literal[False] = False, **options: Unpack[SubscribeOptions]
    ) -> Subscription[Event]: ...

    @overload
    def subscribe(
        self, topic: str, *, notices: Literal[True], **options: Unpack[SubscribeOptions]
    ) -> Subscription[Event | Notice]: ...

    def subscribe(
        self, topic: str, *, notices: bool = False, **options: Unpack[SubscribeOptions]
    ) -> Subscription[Any]:
        """Subscribe to a topic or a pattern (``orders.*``, ``orders.>``). See ``SubscribeOptions``.

        Notices (``Dropped``, ``Gap``, ``TopicCreated``, ...) arrive at their place among the events: the iteration
        yields them with ``notices=True``, and ``on_notice`` is called with them. With neither, a loss is logged as a
        warning.
        """
        return Subscription(
            self._dial,
            subscribe_request(topic, **options),
            notices=notices,
            on_notice=options.get("on_notice"),
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
        """Publish a message, and return when it is stored.

        ``payload`` is anything that JSON can represent, or ``msgspec.Raw`` with JSON, which is sent unchanged.
        Decimals, UUIDs and times become strings, bytes become base64, a dataclass an object, a numpy scalar its
        number. Raises ``BadRequest`` for what JSON cannot represent: NaN, infinities, sets, arrays, other objects, and
        keys of a dict that are neither strings nor numbers.

        After a lost connection, or while the server cannot store, the publish is retried until ``timeout_s``. That is
        safe: a message has an id (a UUID, generated by default), and the server stores an id once. Concurrent calls
        share one connection and are sent in the order of the calls.
        """
        check_name(topic)
        publisher = self._get_publisher()
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return await publisher.wait(publisher.submit(topic, Outgoing(payload, id, headers), timeout_s))

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[Any] | AsyncIterable[Any],
        *,
        on_published: Callable[[Published], None] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Publish many messages in order, without waiting for each. Returns their number.

        An item is a payload, or an ``Outgoing`` with its own id and headers. The number of messages in flight is
        bounded, so ``messages`` may be endless. ``on_published`` is called for each message, in order. The first error
        is raised with ``data["index"]``, and nothing more is sent; an exception of ``messages`` itself is raised after
        all messages before it are stored.
        """
        check_name(topic)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return await BulkPublish(self._get_publisher(), topic, timeout_s, on_published).publish(messages)

    def _get_publisher(self) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher(self._dial)
        return self._publisher
