"""Encode events and notices for each kind of transport."""

from __future__ import annotations

from himalia.errors import HimaliaError
from himalia.protocol import (
    ErrorBody,
    NoticeKind,
    ServerMessage,
    encode,
    encode_event,
    text_frame,
    truncate_error,
)
from himalia.record import Record, format_ts, now_us


def error_message(
    error: HimaliaError, request_id: str | None = None, topic: str | None = None
) -> ServerMessage:
    return ServerMessage(
        "error",
        request_id=request_id,
        topic=topic,
        error=ErrorBody(error.code, truncate_error(error.message)),
        ts=format_ts(now_us()),
    )


class JsonCodec:
    """Encodes notices as messages; subclasses frame them."""

    def frame(self, message: ServerMessage) -> bytes:
        raise NotImplementedError

    def encode_dropped(self, topic: str, client_id: str, first: int, last: int) -> bytes:
        return self.info(
            NoticeKind.DROPPED,
            topic=topic,
            client_id=client_id,
            first=first,
            last=last,
            count=last - first + 1,
        )

    def encode_gap(self, topic: str, client_id: str, requested: int, first: int, end: int) -> bytes:
        return self.info(
            NoticeKind.GAP, topic=topic, client_id=client_id, requested=requested, first=first, end=end
        )

    def encode_topic_created(self, topic: str, client_id: str, epoch: str) -> bytes:
        return self.info(NoticeKind.TOPIC_CREATED, topic=topic, client_id=client_id, offset=0, epoch=epoch)

    def encode_topic_deleted(self, topic: str, client_id: str) -> bytes:
        return self.info(NoticeKind.TOPIC_DELETED, topic=topic, client_id=client_id)

    def encode_replaced(self, topic: str, client_id: str) -> bytes:
        return self.info(NoticeKind.REPLACED, topic=topic, client_id=client_id)

    def encode_error(self, error: HimaliaError, topic: str | None = None) -> bytes:
        return self.frame(error_message(error, topic=topic))

    def info(
        self,
        kind: NoticeKind,
        *,
        topic: str | None = None,
        client_id: str | None = None,
        first: int | None = None,
        last: int | None = None,
        count: int | None = None,
        requested: int | None = None,
        end: int | None = None,
        offset: int | None = None,
        epoch: str | None = None,
    ) -> bytes:
        return self.frame(
            ServerMessage(
                "info",
                msg=kind,
                topic=topic,
                client_id=client_id,
                first=first,
                last=last,
                count=count,
                requested=requested,
                end=end,
                offset=offset,
                epoch=epoch,
                ts=format_ts(now_us()),
            )
        )


class WebSocketCodec(JsonCodec):
    """Encodes messages as complete WebSocket text frames."""

    def frame(self, message: ServerMessage) -> bytes:
        return text_frame(encode(message))

    def encode_event(self, record: Record) -> bytes:
        return text_frame(encode_event(record))


class SseCodec(JsonCodec):
    """Server-Sent Events: an offset is the event's id, so that ``Last-Event-ID`` resumes behind it.

    Events of a pattern have no ids: one offset cannot be the position of each of its topics.
    """

    def __init__(self, *, ids: bool = True) -> None:
        self._ids = ids

    def frame(self, message: ServerMessage) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (message.type.encode(), encode(message))

    def encode_event(self, record: Record) -> bytes:
        id = b"id: %d\n" % record.offset if self._ids else b""
        return b"%bdata: %b\n\n" % (id, encode_event(record))


WEBSOCKET = WebSocketCodec()
SSE = SseCodec()
SSE_WITHOUT_IDS = SseCodec(ids=False)
