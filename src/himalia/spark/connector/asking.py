"""What the driver asks a server before anything is read or written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from himalia.spark.connector.connection import Address, Connection, topic_path
from himalia.spark.connector.planning import TopicState

PLAIN_URL = re.compile(r"https?://[^/?#@]+(/[^?#]*)?")


def address_of(given: Mapping[str, str]) -> Address:
    """The server that the options, the environment or this machine name. For the driver: executors are told."""
    url, token = given.get("url") or os.environ.get("HIMALIA_URL"), given.get("token")
    token = token or os.environ.get("HIMALIA_TOKEN")
    if url and token and PLAIN_URL.fullmatch(url):
        return Address(url.rstrip("/"), token)
    # Imported here: it needs libraries that a cluster need not have.
    from himalia.client.discovery import Finder

    found = Finder(url, token).find()
    return Address(found.url, found.token)


def topic_states(connection: Connection) -> dict[str, TopicState]:
    """Every topic that the token may see."""
    told = connection.ask("GET", "/topics")["topics"]
    return {
        each["name"]: TopicState(each["name"], each["epoch"], each["first"], each["end"]) for each in told
    }


def offsets_at(
    connection: Connection, topics: Iterable[TopicState], moment: datetime | None
) -> dict[str, int]:
    """For each topic the first offset whose record is not older than a moment, its end if there is none."""
    if moment is None:
        return {}
    return {state.name: _offset_at(connection, state, moment) for state in topics}


def _offset_at(connection: Connection, state: TopicState, moment: datetime) -> int:
    query = {"since": moment.astimezone(UTC).isoformat(), "limit": 1, "epoch": state.epoch}
    found = connection.ask("GET", topic_path(state.name, "messages"), query)["messages"]
    return int(found[0]["offset"]) if found else state.end
