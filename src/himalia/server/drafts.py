"""From what a client published to what the log stores: checks, limits, and the publisher's stamp."""

from __future__ import annotations

from himalia.errors import Forbidden, MessageTooLarge
from himalia.protocol import Message, encode
from himalia.record import Draft
from himalia.server.identity import Principal, Right
from himalia.settings import Settings
from himalia.topics import AUDIT_TOPIC, KERNEL_TOPIC_PREFIX, PIPELINE_TOPIC_PREFIX, check_name

TOPICS_REMEMBERED_MAX = 1000
STAMPS_REMEMBERED_MAX = 100


class Drafter:
    """Makes drafts for one caller, over WebSocket and REST alike."""

    __slots__ = ("_allowed", "_principal", "_settings", "_stamps")

    def __init__(self, settings: Settings, principal: Principal) -> None:
        self._settings = settings
        self._principal = principal
        # Topics that were found to be allowed; rights do not change while a caller is connected.
        self._allowed: set[str] = set()
        # The headers of messages that have none of their own, by publisher.
        self._stamps: dict[str, bytes] = {}

    def draft(self, topic: str, message: Message, client_id: str | None = None) -> Draft:
        """A draft for this topic, or the error that says why not."""
        if topic not in self._allowed:
            self.check_topic(topic)
        # Line breaks in JSON are only ever white space; without them a payload fits on one line anywhere.
        payload = bytes(message.payload)
        if b"\n" in payload or b"\r" in payload:
            payload = payload.replace(b"\n", b" ").replace(b"\r", b" ")
        if len(payload) > self._settings.message_bytes_max:
            raise MessageTooLarge(
                f"a payload has at most {self._settings.message_bytes_max} bytes, this one has {len(payload)}"
            )
        return Draft(message.id, payload, self._headers(message.headers, client_id))

    def check_topic(self, topic: str) -> None:
        """Whether the caller may publish there at all."""
        check_name(topic, self._settings.topic_length_max)
        if topic == AUDIT_TOPIC:
            raise Forbidden(f"{topic!r} is reserved: only the server writes its audit trail", topic=topic)
        self._principal.require(Right.PUBLISH, topic)
        if topic.startswith(KERNEL_TOPIC_PREFIX):
            raise Forbidden(f"{topic!r} is reserved: only a kernel's own output goes there", topic=topic)
        if topic.startswith(PIPELINE_TOPIC_PREFIX):
            self._principal.require(Right.MANAGE, topic)
        if len(self._allowed) < TOPICS_REMEMBERED_MAX:
            self._allowed.add(topic)

    def _headers(self, headers: dict[str, str] | None, client_id: str | None) -> bytes:
        """The client's headers, stamped with who published: what a client says of that itself is overwritten."""
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
        stamp = self._stamps.get(publisher)
        if stamp is None:
            if len(self._stamps) >= STAMPS_REMEMBERED_MAX:
                self._stamps.clear()
            stamp = self._stamps[publisher] = encode({"publisher": publisher, "caller": principal.name})
        return stamp
