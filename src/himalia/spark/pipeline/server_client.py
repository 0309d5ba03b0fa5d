"""The server as the driver speaks to it: which topics there are, and publishing what the pipeline found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from himalia.client.discovery import ServerLocator
from himalia.errors import ConnectionFailed, TopicExists
from himalia.spark.connector.http import Address, Connection, topic_path
from himalia.spark.pipeline.plan import TopicEnd

NDJSON = "application/x-ndjson"

T = TypeVar("T")


class _Listed(msgspec.Struct):
    topics: list[TopicEnd]


class Server:
    """For one thread. Each call answers or raises; the server is looked for anew after a failure."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self._finder = ServerLocator(url, token)
        self._connection: Connection | None = None

    @property
    def address(self) -> Address:
        """Where it is now; one that was restarted may have another port and token."""
        found = self._finder.find()
        return Address(found.url, found.token)

    def topics(self) -> list[TopicEnd]:
        """Every topic that the token may see."""
        return self._ask("GET", "/topics", _topics_in)

    def create_topic(self, name: str, retention: Mapping[str, Any] | None = None) -> None:
        """Make sure that it is there."""
        body = {"name": name} if retention is None else {"name": name, "retention": retention}
        try:
            self._ask("POST", "/topics", _anything, body=body)
        except TopicExists:
            pass

    def publish(
        self, topic: str, payloads: Sequence[bytes], *, producer: str, sequence: int | None = None
    ) -> None:
        """Publish JSON payloads; the same ``producer`` and ``sequence`` again are one publish."""
        body = b"".join(b'{"payload":%b}\n' % payload for payload in payloads)
        query = None if sequence is None else {"producer": producer, "sequence": sequence}
        self._ask("POST", topic_path(topic, "messages"), _anything, query, raw=body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(
        self,
        method: str,
        path: str,
        read: Callable[[Any], T],
        query: Mapping[str, Any] | None = None,
        *,
        body: Any = None,
        raw: bytes | None = None,
    ) -> T:
        given = raw if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": NDJSON if body is None else "application/json"}
        if self._connection is not None:
            try:
                return self._connection.ask(method, path, read, query, given, headers)
            except ConnectionFailed:
                # A server ends connections that were idle for a while. Every call may be repeated.
                self.close()
        self._connection = Connection(self.address)
        return self._connection.ask(method, path, read, query, given, headers)


def _topics_in(told: Any) -> list[TopicEnd]:
    return msgspec.convert(told, _Listed).topics


def _anything(told: Any) -> Any:
    return told
