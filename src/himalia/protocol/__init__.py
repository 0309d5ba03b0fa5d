"""The public protocol without I/O: bytes in and messages out, for clients and servers.

``messages`` is the WebSocket protocol: its JSON and its frames; ``models`` has the JSON shapes of REST.
"""

from himalia.protocol.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    ErrorBody,
    Message,
    NoticeKind,
    ServerMessage,
    StartPosition,
    decode_client_message,
    encode,
    encode_event,
    encode_record,
    request_id_of,
    text_frame,
    text_payloads,
    truncate_error,
)
from himalia.record import Policy

__all__ = [
    "PROTOCOL_VERSION",
    "ClientMessage",
    "ErrorBody",
    "Message",
    "NoticeKind",
    "Policy",
    "ServerMessage",
    "StartPosition",
    "decode_client_message",
    "encode",
    "encode_event",
    "encode_record",
    "request_id_of",
    "text_frame",
    "text_payloads",
    "truncate_error",
]
