"""Himalia: a message broker on one durable log. Every reader is a cursor on it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from himalia.client import Client, SyncClient
    from himalia.errors import ErrorCode, HimaliaError
    from himalia.protocol import ClientMessage, ServerMessage
    from himalia.protocol.models import CreateTopicRequest, CreateTopicResponse
    from himalia.pubsub import PubSubManager, Subscriber, Topic
    from himalia.record import Position, Record, Retention

# Imported on first use: a client need not load a server, nor a server a client.
_HOMES = {
    "Client": "himalia.client",
    "SyncClient": "himalia.client",
    "ErrorCode": "himalia.errors",
    "HimaliaError": "himalia.errors",
    "ClientMessage": "himalia.protocol",
    "ServerMessage": "himalia.protocol",
    "PubSubManager": "himalia.pubsub",
    "Subscriber": "himalia.pubsub",
    "Topic": "himalia.pubsub",
    "Position": "himalia.record",
    "Record": "himalia.record",
    "Retention": "himalia.record",
    "CreateTopicRequest": "himalia.protocol.models",
    "CreateTopicResponse": "himalia.protocol.models",
}

__all__ = [
    "Client",
    "ClientMessage",
    "CreateTopicRequest",
    "CreateTopicResponse",
    "ErrorCode",
    "HimaliaError",
    "Position",
    "PubSubManager",
    "Record",
    "Retention",
    "ServerMessage",
    "Subscriber",
    "SyncClient",
    "Topic",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'himalia' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
