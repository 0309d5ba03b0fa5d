"""The public protocol without I/O: what clients and servers say to each other, as bytes in and values out.

``messages`` is the WebSocket protocol; ``frames`` turns its JSON into WebSocket frames and back.
"""

from himalia.protocol.frames import text_frame, text_payloads
from himalia.protocol.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    ErrorBody,
    Message,
    ServerMessage,
    clipped,
    decode_client_message,
    encode,
    encode_event,
    request_id_of,
)
from himalia.record import Policy

__all__ = [
    "PROTOCOL_VERSION",
    "ClientMessage",
    "ErrorBody",
    "Message",
    "Policy",
    "ServerMessage",
    "clipped",
    "decode_client_message",
    "encode",
    "encode_event",
    "request_id_of",
    "text_frame",
    "text_payloads",
]
