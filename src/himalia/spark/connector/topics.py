"""Requests about topics: which there are, and the offsets at a time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from himalia.spark.connector.http import ServerConnection
from himalia.spark.connector.offset_ranges import TopicExtent


def topic_path(topic: str, *rest: str) -> str:
    return "/".join(("/topics", quote(topic, safe=""), *rest))


def list_topics(connection: ServerConnection) -> dict[str, TopicExtent]:
    """Return every topic that the token may see, by name."""
    return connection.request("GET", "/topics", _parse_topics)


def _parse_topics(body: Any) -> dict[str, TopicExtent]:
    topics = [
        TopicExtent(
            str(topic["name"]),
            str(topic["epoch"]),
            int(topic["first"]),
            int(topic["end"]),
            int(topic.get("bytes", 0)),
        )
        for topic in body["topics"]
    ]
    return {topic.name: topic for topic in topics}


def fetch_offsets_at(
    connection: ServerConnection, topics: Iterable[TopicExtent], time: datetime | None
) -> dict[str, int]:
    """Return, for each topic, the first offset whose record is not older than ``time``, or the end of the topic."""
    if time is None:
        return {}
    return {topic.name: _fetch_offset_at(connection, topic, time) for topic in topics}


def _fetch_offset_at(connection: ServerConnection, topic: TopicExtent, time: datetime) -> int:
    query = {"since": time.astimezone(UTC).isoformat(), "limit": 1, "epoch": topic.epoch}
    path = topic_path(topic.name, "messages")
    offsets = connection.request("GET", path, _parse_offsets, query)
    return offsets[0] if offsets else topic.end


def _parse_offsets(body: Any) -> list[int]:
    return [int(record["offset"]) for record in body["messages"]]
