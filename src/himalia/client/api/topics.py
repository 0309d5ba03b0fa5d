"""Topics and stored records."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from himalia.client.api.resource import Resource, path
from himalia.client.events import Event
from himalia.errors import TopicExists
from himalia.protocol.models import (
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicResponse,
    StoredRecord,
    TopicList,
    TopicSummary,
)
from himalia.record import Retention
from himalia.topics import check_name

_decode_record = msgspec.json.Decoder(StoredRecord).decode


class TopicResource(Resource):
    async def create_topic(
        self, name: str, retention: Retention | None = None, *, exist_ok: bool = False
    ) -> bool:
        """Create a topic. With ``exist_ok``, return False if it exists, whatever its retention."""
        request = CreateTopicRequest(name=name, retention=retention)
        try:
            await self._rest().call("POST", "/topics", CreateTopicResponse, body=request)
        except TopicExists:
            if not exist_ok:
                raise
            return False
        return True

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        check_name(name)
        await self._rest().call("DELETE", path("topics", name), DeleteTopicResponse)

    async def topics(self) -> list[TopicSummary]:
        """List the topics that you may read or publish to."""
        return (await self._rest().call("GET", "/topics", TopicList)).topics

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
        """Read stored records, by default from the oldest, up to the current end of the topic.

        Records are streamed: neither side holds more than a chunk. With ``epoch``, raises ``EpochChanged`` if the
        topic has another epoch.
        """
        check_name(topic)
        query = {"from": from_, "since": since, "last": last, "limit": limit, "epoch": epoch}

        def decode(line: bytes) -> Event:
            record = _decode_record(line)
            return Event.of(topic, record.offset, record.ts, record.message)

        return self._rest().stream(path("topics", topic, "messages", **query), decode, topic=topic)
