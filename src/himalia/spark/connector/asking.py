"""What the driver asks a server before anything is read or written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from himalia.errors import BadRequest
from himalia.spark.connector.connection import Address, Connection, topic_path
from himalia.spark.connector.planning import TopicState

PLAIN_URL = re.compile(r"https?://[^/?#@]+(/[^?#]*)?")


def address_of(given: Mapping[str, str]) -> Address:
    """The server that the options, the environment or this machine name. For the driver: executors are told."""
    url = _said(given.get("url")) or _said(os.environ.get("HIMALIA_URL"))
    token = _said(given.get("token"))
    if url and PLAIN_URL.fullmatch(url):
        # There is no token in such a URL, which would go before the environment's.
        known = token or _said(os.environ.get("HIMALIA_TOKEN"))
        if known:
            return Address(url.rstrip("/"), known)
    return _found(url, token)


def _said(value: str | None) -> str | None:
    """Without the line break that comes along from a file."""
    return value.strip() or None if value is not None else None


def _found(url: str | None, token: str | None) -> Address:
    try:
        # Imported here: it needs libraries that a cluster need not have.
        from himalia.client.discovery import Finder
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"give the options url, such as http://10.0.0.1:8000, and token: without the module {error.name!r}, "
            "as here, no server can be looked for"
        ) from None
    found = Finder(url, token).find()
    return Address(found.url, found.token)


def topic_states(connection: Connection) -> dict[str, TopicState]:
    """Every topic that the token may see."""
    return connection.ask("GET", "/topics", _states_in)


def _states_in(told: Any) -> dict[str, TopicState]:
    states = [
        TopicState(str(each["name"]), str(each["epoch"]), int(each["first"]), int(each["end"]))
        for each in told["topics"]
    ]
    return {state.name: state for state in states}


def offsets_at(
    connection: Connection, topics: Iterable[TopicState], moment: datetime | None
) -> dict[str, int]:
    """For each topic the first offset whose record is not older than a moment, its end if there is none."""
    if moment is None:
        return {}
    return {state.name: _offset_at(connection, state, moment) for state in topics}


def _offset_at(connection: Connection, state: TopicState, moment: datetime) -> int:
    query = {"since": moment.astimezone(UTC).isoformat(), "limit": 1, "epoch": state.epoch}
    found = connection.ask("GET", topic_path(state.name, "messages"), _offsets_in, query)
    return found[0] if found else state.end


def _offsets_in(told: Any) -> list[int]:
    return [int(each["offset"]) for each in told["messages"]]
