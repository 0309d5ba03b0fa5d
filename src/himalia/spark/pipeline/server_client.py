"""The server as the pipeline's driver calls it: lists topics, and publishes results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from himalia.client.discovery import ServerLocator
from himalia.errors import ConnectionFailed, TopicExists
from himalia.protocol.models import CreateTopicRequest
from himalia.record import Retention
from himalia.spark.connector.address import ServerAddress
from himalia.spark.connector.http import ServerConnection
from himalia.spark.connector.offset_ranges import TopicExtent
from himalia.spark.connector.topics import list_topics, topic_path
from himalia.spark.connector.write import NDJSON

JSON = "application/json"

T = TypeVar("T")


class ServerClient:
    """Keeps one connection, and discovers the server again after a failure. For one thread."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self._finder = ServerLocator(url, token)
        self._connection: ServerConnection | None = None

    @property
    def address(self) -> ServerAddress:
        """The server's current address; after a restart it may have another port and token."""
        found = self._finder.find()
        return ServerAddress(found.url, found.token)

    def topics(self) -> list[TopicExtent]:
        """Return every topic that the token may see."""
        return list(self._call(list_topics).values())

    def create_topic(self, name: str, retention: Retention | None = None) -> None:
        """Create a topic unless it exists."""
        body = msgspec.json.encode(CreateTopicRequest(name=name, retention=retention))
        try:
            self._post("/topics", body, JSON)
        except TopicExists:
            pass

    def publish(
        self, topic: str, payloads: Sequence[bytes], *, producer: str, sequence: int | None = None
    ) -> None:
        """Publish JSON payloads. A repeat with the same ``producer`` and ``sequence`` stores nothing."""
        body = b"".join(b'{"payload":%b}\n' % payload for payload in payloads)
        query = None if sequence is None else {"producer": producer, "sequence": sequence}
        self._post(topic_path(topic, "messages"), body, NDJSON, query)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(
        self, path: str, body: bytes, content_type: str, query: Mapping[str, Any] | None = None
    ) -> None:
        headers = {"Content-Type": content_type}
        self._call(
            lambda connection: connection.request("POST", path, _ignore_response, query, body, headers)
        )

    def _call(self, work: Callable[[ServerConnection], T]) -> T:
        if self._connection is not None:
            try:
                return work(self._connection)
            except ConnectionFailed:
                # The server closes idle connections. Every call of this class may be repeated.
                self.close()
        self._connection = ServerConnection(self.address)
        return work(self._connection)


def _ignore_response(_: Any) -> None:
    return None
