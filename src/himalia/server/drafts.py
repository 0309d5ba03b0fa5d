"""Makes drafts for the log from published messages: checks, limits, and the headers ``publisher`` and ``caller``."""

from __future__ import annotations

from himalia.errors import Forbidden, MessageTooLarge
from himalia.protocol import Message, encode
from himalia.record import Draft
from himalia.server.identity import Principal, Right
from himalia.settings import Settings
from himalia.topics import AUDIT_TOPIC, KERNEL_TOPIC_PREFIX, PIPELINE_TOPIC_PREFIX, check_name

TOPICS_CACHED_MAX = 1000
HEADERS_CACHED_MAX = 100


class Drafter:
    """Makes drafts for one caller, over WebSocket and REST alike."""

    __slots__ = ("_allowed", "_own_headers", "_principal", "_settings")

    def __init__(self, settings: Settings, principal: Principal) -> None:
        self._settings = settings
        self._principal = principal
        # Topics that the caller may publish to; rights do not change while a caller is connected.
        self._allowed: set[str] = set()
        # The headers of messages that have none of their own, by publisher.
        self._own_headers: dict[str, bytes] = {}

    def draft(self, topic: str, message: Message, client_id: str | None = None) -> Draft:
        """Return a draft for this topic, or raise the error that refuses it."""
        if topic not in self._allowed:
            self.check_topic(topic)
        # Line breaks in JSON are always white space; without them a payload fits on one line.
        payload = bytes(message.payload)
        if b"\n" in payload or b"\r" in payload:
            payload = payload.replace(b"\n", b" ").replace(b"\r", b" ")
        if len(payload) > self._settings.message_bytes_max:
            raise MessageTooLarge(
                f"a payload has at most {self._settings.message_bytes_max} bytes, this one has {len(payload)}"
            )
        return Draft(message.id, payload, self._headers(message.headers, client_id))

    def check_topic(self, topic: str) -> None:
        """Raise ``Forbidden`` or ``BadRequest`` unless the caller may publish to this topic."""
        check_name(topic, self._settings.topic_length_max)
        if topic == AUDIT_TOPIC:
            raise Forbidden(f"{topic!r} is reserved: only the server writes its audit trail", topic=topic)
        self._principal.require(Right.PUBLISH, topic)
        if topic.startswith(KERNEL_TOPIC_PREFIX):
            raise Forbidden(f"{topic!r} is reserved: only a kernel's own output goes there", topic=topic)
        if topic.startswith(PIPELINE_TOPIC_PREFIX):
            self._principal.require(Right.MANAGE, topic)
        if len(self._allowed) < TOPICS_CACHED_MAX:
            self._allowed.add(topic)

    def _headers(self, headers: dict[str, str] | None, client_id: str | None) -> bytes:
        """Return the client's headers, with ``publisher`` and ``caller`` overwritten by the server."""
        principal = self._principal
        publisher = principal.short_name
        if not principal.named and client_id:
            publisher = client_id
        if headers:
            encoded = encode({**headers, "publisher": publisher, "caller": principal.name})
            if len(encoded) > self._settings.headers_bytes_max:
                raise MessageTooLarge(
                    f"headers have at most {self._settings.headers_bytes_max} bytes as JSON, these have {len(encoded)}"
                )
            return encoded
        cached = self._own_headers.get(publisher)
        if cached is None:
            if len(self._own_headers) >= HEADERS_CACHED_MAX:
                self._own_headers.clear()
            cached = self._own_headers[publisher] = encode({"publisher": publisher, "caller": principal.name})
        return cached
