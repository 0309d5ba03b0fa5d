"""The AsyncAPI document of ``/ws``, generated from the message types of ``himalia.protocol``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from himalia import __version__
from himalia.errors import ErrorCode
from himalia.protocol import PROTOCOL_VERSION, ClientMessage, ServerMessage
from himalia.protocol.messages import CLIENT_FIELDS, SERVER_FIELDS

_ID = "7d9f2c1e-0b7a-4c58-9d43-0f6c8a1f2b3c"
_TS = "2026-11-15T20:17:03.000123Z"
_EPOCH = "5f0c9d1e2b3a4c5d"

CLIENT_EXAMPLES: dict[str, dict[str, Any]] = {
    "subscribe": {
        "type": "subscribe",
        "topic": "orders",
        "client_id": "viewer-1",
        "last_n": 3,
        "request_id": "1",
    },
    "unsubscribe": {"type": "unsubscribe", "topic": "orders", "client_id": "viewer-1", "request_id": "2"},
    "publish": {
        "type": "publish",
        "topic": "orders",
        "message": {"id": _ID, "payload": {"sku": "A-17"}},
        "request_id": "3",
    },
    "ping": {"type": "ping", "request_id": "4"},
}
SERVER_EXAMPLES: dict[str, dict[str, Any]] = {
    "ack": {
        "type": "ack",
        "request_id": "3",
        "topic": "orders",
        "status": "ok",
        "offset": 12,
        "epoch": _EPOCH,
        "ts": _TS,
    },
    "event": {
        "type": "event",
        "topic": "orders",
        "offset": 12,
        "ts": _TS,
        "message": {
            "id": _ID,
            "payload": {"sku": "A-17"},
            "headers": {"publisher": "shop", "caller": "key:shop"},
        },
    },
    "error": {
        "type": "error",
        "request_id": "1",
        "error": {"code": ErrorCode.TOPIC_NOT_FOUND, "message": "topic 'orders' does not exist"},
        "ts": _TS,
    },
    "pong": {"type": "pong", "request_id": "4", "ts": _TS},
    "info": {
        "type": "info",
        "msg": "dropped",
        "topic": "orders",
        "first": 5,
        "last": 9,
        "count": 5,
        "ts": _TS,
    },
}


def _message(name: str, example: dict[str, Any], schema: str, fields: Sequence[str]) -> dict[str, Any]:
    return {
        "name": name,
        "payload": {
            "allOf": [{"$ref": f"#/components/schemas/{schema}"}, {"required": ["type", *fields]}],
        },
        "examples": [{"payload": example}],
    }


def asyncapi_document() -> dict[str, Any]:
    """Describe the WebSocket protocol as an AsyncAPI 3 document."""
    _, schemas = msgspec.json.schema_components(
        (ClientMessage, ServerMessage), ref_template="#/components/schemas/{name}"
    )
    messages = {
        **{
            name: _message(name, example, "ClientMessage", CLIENT_FIELDS[name])
            for name, example in CLIENT_EXAMPLES.items()
        },
        **{
            name: _message(name, example, "ServerMessage", SERVER_FIELDS[name])
            for name, example in SERVER_EXAMPLES.items()
        },
    }

    def operation(action: str, names: dict[str, Any], summary: str) -> dict[str, Any]:
        return {
            "action": action,
            "summary": summary,
            "channel": {"$ref": "#/channels/ws"},
            "messages": [{"$ref": f"#/channels/ws/messages/{name}"} for name in names],
        }

    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Himalia",
            "version": __version__,
            "description": f"Protocol version {PROTOCOL_VERSION}. Error codes: {', '.join(ErrorCode)}.",
        },
        "channels": {
            "ws": {
                "address": "/ws",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
                "bindings": {"ws": {"method": "GET"}},
            }
        },
        # AsyncAPI describes this application: it receives what clients send.
        "operations": {
            "receive": operation("receive", CLIENT_EXAMPLES, "What a client may send."),
            "send": operation("send", SERVER_EXAMPLES, "What the server may send."),
        },
        "components": {"messages": messages, "schemas": schemas},
    }
