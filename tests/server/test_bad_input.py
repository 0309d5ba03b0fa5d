"""Whatever a client sends wrong has its named error, or a clean close; nobody else notices anything."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from himalia.protocol import ClientMessage, Message
from himalia.server.websocket.subscription_request import PRIORITY_MAX
from tests.server.raw_clients import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    TEXT,
    RawWebSocket,
    Wire,
    Witness,
    frame,
    handshake,
    until,
)
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer

pytestmark = pytest.mark.usefixtures("witness", "no_errors_logged")

ID = "7d9f2c1e-0b7a-4c58-9d43-0f6c8a1f2b3c"
PUBLISH: dict[str, Any] = {"type": "publish", "topic": "orders", "message": {"id": ID, "payload": 1}}
SUBSCRIBE: dict[str, Any] = {"type": "subscribe", "topic": "orders", "client_id": "viewer"}
UNSUBSCRIBE: dict[str, Any] = {**SUBSCRIBE, "type": "unsubscribe"}
ERROR_LENGTH_MAX = 1000


def without(message: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != field}


def refused(raw: RawWebSocket, message: dict[str, Any]) -> dict[str, str]:
    """The error that answers this message, after which the connection lives on."""
    answer = raw.ask(**message)
    assert answer["type"] == "error", answer
    assert answer["ts"].endswith("Z")
    assert 0 < len(answer["error"]["message"]) <= ERROR_LENGTH_MAX
    assert raw.is_alive()
    return answer["error"]  # type: ignore[no-any-return]


def refused_bytes(raw: RawWebSocket, data: bytes, opcode: int = TEXT) -> dict[str, str]:
    """The error that answers a frame in which no request id can be found."""
    raw.send(frame(data, opcode))
    answer = raw.hear()
    assert answer["type"] == "error", answer
    assert 0 < len(answer["error"]["message"]) <= ERROR_LENGTH_MAX
    assert raw.is_alive()
    return answer["error"]  # type: ignore[no-any-return]


# Text that is not a message

MALFORMED = {
    "nothing": b"",
    "a brace": b"{",
    "a word": b"hello",
    "an unfinished object": b'{"type":"ping"',
    "an unfinished string": b'{"type":"pi',
    "two objects": b'{"type":"ping"}{"type":"ping"}',
    "single quotes": b"{'type':'ping'}",
    "a trailing comma": b'{"type":"ping",}',
    "a comment": b'{"type":"ping"} // hello',
    "a byte order mark": b'\xef\xbb\xbf{"type":"ping"}',
    "a list": b'[{"type":"ping"}]',
    "a string": b'"ping"',
    "a number": b"1",
    "null": b"null",
    "NUL": b"\0" * 10,
    "NaN": b'{"type":"publish","topic":"orders","message":{"id":"%b","payload":NaN}}' % ID.encode(),
    "a control character": b'{"type":"publish","topic":"orders","message":{"id":"%b","payload":"\n"}}'
    % ID.encode(),
    "half a surrogate pair": b'{"type":"publish","topic":"orders","message":{"id":"%b","payload":"\\ud800"}}'
    % ID.encode(),
    "half a surrogate pair as request id": b'{"type":"ping","request_id":"\\ud800"}',
    "half a surrogate pair as header": b'{"type":"publish","topic":"orders","message":'
    b'{"id":"%b","payload":1,"headers":{"a":"\\udfff"}}}' % ID.encode(),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_text_that_is_no_message_is_a_bad_request(raw: RawWebSocket, text: bytes) -> None:
    """Text that is not one JSON object of the protocol is BAD_REQUEST, and the connection lives on."""
    assert refused_bytes(raw, text)["code"] == "BAD_REQUEST"


@pytest.mark.parametrize(
    "text", [b"\xff", b'{"type":"ping","x":"\xc3\x28"}', b'{"type":"ping","x":"\xed\xa0\x80"}']
)
def test_text_that_is_not_utf_8_is_a_bad_request(raw: RawWebSocket, text: bytes) -> None:
    """Bytes that are not UTF-8 never reach the log, not even inside a part that nobody looks at."""
    error = refused_bytes(raw, text)
    assert error["code"] == "BAD_REQUEST" and "UTF-8" in error["message"]


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("place", [b'{"type":"ping","x":%b', b'{"type":"publish","message":{"payload":%b'])
def test_deep_nesting_is_a_bad_request(raw: RawWebSocket, place: bytes, opening: bytes) -> None:
    """A message nested deeper than a stack can go is refused, wherever it is nested."""
    error = refused_bytes(raw, place % (opening * 15_000))
    assert error["code"] == "BAD_REQUEST" and "deep" in error["message"]


def test_a_binary_frame_is_a_bad_request(raw: RawWebSocket) -> None:
    """Binary frames are not part of the protocol: told so, the client may go on with text."""
    error = refused_bytes(raw, json.dumps({"type": "ping"}).encode(), BINARY)
    assert error["code"] == "BAD_REQUEST" and "binary" in error["message"]


# Messages that are wrong in one field

WRONG_TYPES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "type": (PUBLISH, [1, None, ["ping"], "shout", "PING", "", "x" * 90_000]),
    "topic": (SUBSCRIBE, [1, ["orders"], {}, True]),
    "message": (PUBLISH, [1, "hello", [PUBLISH["message"]], True]),
    "client_id": (SUBSCRIBE, [1, ["viewer"], {}]),
    "last_n": (SUBSCRIBE, ["3", 1.5, True, [3]]),
    "start": (
        SUBSCRIBE,
        ["0", 1.5, True, [0], {"orders": "0"}, {"orders": None}, {"orders": {"offset": "0"}}],
    ),
    "epoch": (SUBSCRIBE, [1, ["x"]]),
    "since": (SUBSCRIBE, [[], {}, True]),
    "policy": (SUBSCRIBE, [1, "", "lossy", "DROP_OLDEST", ["lossless"]]),
    "limit": (SUBSCRIBE, ["3", 1.5, True]),
    "filter": (SUBSCRIBE, [1, ["true"], True]),
    "priority": (SUBSCRIBE, ["high", 1.5, None, True]),
}
# The request id of such a message cannot be told apart, so it has a test of its own.
WRONG_REQUEST_IDS: list[Any] = [1, ["1"], {}, True]
WRONG_PARTS: dict[str, list[Any]] = {
    "id": [1, None, ["x"], {"id": ID}],
    "headers": [1, "x", [], {"a": 1}, {"a": None}, {"a": {"b": "c"}}],
}


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [(message, field, value) for field, (message, values) in WRONG_TYPES.items() for value in values],
    ids=lambda given: repr(given)[:30] if not isinstance(given, dict) or "type" not in given else "",
)
def test_a_field_of_the_wrong_type_is_a_bad_request(
    raw: RawWebSocket, message: dict[str, Any], field: str, value: Any
) -> None:
    """Every field says what it takes; anything else is BAD_REQUEST with the request's id."""
    assert refused(raw, {**message, "from_" if field == "start" else field: value})["code"] == "BAD_REQUEST"


@pytest.mark.parametrize("value", WRONG_REQUEST_IDS, ids=repr)
def test_a_request_id_that_is_no_string_is_a_bad_request(raw: RawWebSocket, value: Any) -> None:
    """An error to a message without a usable request id has none either."""
    error = refused_bytes(raw, json.dumps({"type": "ping", "request_id": value}).encode())
    assert error["code"] == "BAD_REQUEST"


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in WRONG_PARTS.items() for value in values],
    ids=repr,
)
def test_a_part_of_a_message_of_the_wrong_type_is_a_bad_request(
    raw: RawWebSocket, field: str, value: Any
) -> None:
    """Id and headers of what is published are checked like every other field."""
    message = {**PUBLISH, "message": {**PUBLISH["message"], field: value}}
    assert refused(raw, message)["code"] == "BAD_REQUEST"


def test_every_field_has_a_case_of_the_wrong_type() -> None:
    """A field that is added to the protocol is added here as well."""
    assert set(WRONG_TYPES) | {"request_id"} == {
        field.name for field in msgspec.structs.fields(ClientMessage)
    }
    assert set(WRONG_PARTS) | {"payload"} == {field.name for field in msgspec.structs.fields(Message)}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (PUBLISH, "type"),
        (PUBLISH, "topic"),
        (PUBLISH, "message"),
        (SUBSCRIBE, "topic"),
        (SUBSCRIBE, "client_id"),
        (UNSUBSCRIBE, "topic"),
        (UNSUBSCRIBE, "client_id"),
    ],
    ids=lambda given: given if isinstance(given, str) else given["type"],
)
def test_a_missing_field_is_a_bad_request_that_names_it(
    raw: RawWebSocket, message: dict[str, Any], field: str
) -> None:
    """The error to an incomplete message says what is missing."""
    for incomplete in (without(message, field), {**message, field: None}):
        error = refused(raw, incomplete)
        assert error["code"] == "BAD_REQUEST" and field in error["message"]


@pytest.mark.parametrize("part", ["id", "payload"])
def test_a_published_message_without_a_part_is_a_bad_request(raw: RawWebSocket, part: str) -> None:
    """A message has an id and a payload."""
    error = refused(raw, {**PUBLISH, "message": without(PUBLISH["message"], part)})
    assert error["code"] == "BAD_REQUEST" and part in error["message"]


@pytest.mark.parametrize("id", ["", "1", "x" * 36, ID[:-1], ID + "0", "z" + ID[1:], "é" * 36, "x" * 90_000])
def test_a_message_id_that_is_no_uuid_is_a_bad_request(raw: RawWebSocket, id: str) -> None:
    """The id of a message is a UUID."""
    error = refused(raw, {**PUBLISH, "message": {"id": id, "payload": 1}})
    assert error["code"] == "BAD_REQUEST" and "UUID" in error["message"]


def test_two_spellings_of_one_uuid_are_one_message(raw: RawWebSocket) -> None:
    """A repeat is recognised however its id is written."""
    id = uuid.uuid4()
    answers = [
        raw.ask(**{**PUBLISH, "message": {"id": spelling, "payload": 1}})
        for spelling in (str(id), str(id).upper(), id.hex, f"{{{id}}}", id.urn)
    ]
    assert len({answer["offset"] for answer in answers}) == 1


# Too much of anything


def test_a_topic_name_that_is_too_long_is_a_bad_request(raw: RawWebSocket) -> None:
    """A topic name has at most 255 characters, whoever speaks of it."""
    for message in (PUBLISH, SUBSCRIBE, UNSUBSCRIBE):
        for length in (256, 90_000):
            error = refused(raw, {**message, "topic": "x" * length})
            assert error["code"] == "BAD_REQUEST" and "255" in error["message"]
    assert raw.ask(**{**SUBSCRIBE, "topic": "x" * 255})["error"]["code"] == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize("message", [PUBLISH, SUBSCRIBE, UNSUBSCRIBE], ids=lambda message: message["type"])
def test_a_client_id_that_is_too_long_is_a_bad_request(raw: RawWebSocket, message: dict[str, Any]) -> None:
    """A client id has at most 256 characters, also where it only names the publisher."""
    for length in (257, 90_000):
        error = refused(raw, {**message, "client_id": "x" * length})
        assert error["code"] == "BAD_REQUEST" and "client_id" in error["message"]
    own = {**message, "client_id": "x" * 256}
    if message is PUBLISH:
        own["message"] = {"id": str(uuid.uuid4()), "payload": 1}
    assert raw.ask(**own)["type"] == "ack"


def test_a_request_id_that_is_too_long_is_a_bad_request(raw: RawWebSocket) -> None:
    """A request id has at most 256 characters; a longer one is not echoed."""
    raw.say(type="ping", request_id="x" * 257)
    answer = raw.hear()
    assert answer["error"]["code"] == "BAD_REQUEST" and "request_id" not in answer
    assert raw.ask(type="ping", request_id="x" * 256)["type"] == "pong"


def test_a_filter_that_is_too_long_is_a_bad_filter(raw: RawWebSocket) -> None:
    """A content filter has at most 2048 characters."""
    filter = "true" + " " * 2045
    assert refused(raw, {**SUBSCRIBE, "filter": filter})["code"] == "BAD_FILTER"
    assert raw.ask(**{**SUBSCRIBE, "filter": filter[:2048]})["type"] == "ack"


def test_headers_that_are_too_large_are_refused(raw: RawWebSocket) -> None:
    """Headers have at most 8 KiB, however they come by that."""
    for headers in ({"a": "x" * 8192}, {f"name-{i}": "" for i in range(2000)}, {"x" * 8192: ""}):
        message = {**PUBLISH, "message": {"id": ID, "payload": 1, "headers": headers}}
        assert refused(raw, message)["code"] == "MESSAGE_TOO_LARGE"


def test_a_payload_that_is_too_large_is_refused(shared: RunningServer, raw: RawWebSocket) -> None:
    """A payload has at most ``message_bytes_max`` bytes, to the byte."""
    size = shared.settings.message_bytes_max
    message = {**PUBLISH, "message": {"id": str(uuid.uuid4()), "payload": "x" * (size - 1)}}
    assert refused(raw, message)["code"] == "MESSAGE_TOO_LARGE"
    message["message"]["payload"] = "x" * (size - 2)
    assert raw.ask(**message)["type"] == "ack"


# Where to begin, and how

BAD_STARTS: dict[str, dict[str, Any]] = {
    "last_n below 0": {"last_n": -1},
    "last_n over the limit": {"last_n": 1_000_001},
    "last_n beyond any number": {"last_n": 10**400},
    "from below 0": {"from_": -1},
    "from beyond 63 bits": {"from_": 1 << 63},
    "from of a topic below 0": {"from_": {"orders": -1}},
    "from of a topic in a position below 0": {"from_": {"orders": {"offset": -1}}},
    "from of a position without offset": {"from_": {"orders": {"epoch": "x"}}},
    "from of a position with a bad epoch": {"from_": {"orders": {"offset": 0, "epoch": 1}}},
    "from of something that is no topic": {"from_": {"no topic": 0}},
    "last_n and from": {"last_n": 1, "from_": 0},
    "last_n and since": {"last_n": 1, "since": 0},
    "from and since": {"from_": 0, "since": 0},
    "all three": {"last_n": 1, "from_": 0, "since": 0},
    "epoch without from": {"epoch": "x"},
    "epoch with since": {"epoch": "x", "since": 0},
    "epoch with a map": {"epoch": "x", "from_": {"orders": 0}},
    "since in words": {"since": "yesterday"},
    "since empty": {"since": ""},
    "since before 1970": {"since": -1},
    "since in 1969": {"since": "1969-12-31T23:59:59Z"},
    "since too late": {"since": 1e300},
    "since not a number": {"since": "nan"},
    "since infinite": {"since": "inf"},
    "since out of the calendar": {"since": "2026-02-30"},
    "since at the calendar's end": {"since": "9999-12-31T23:59:59-23:59"},
    "since very long": {"since": "x" * 50_000},
    "limit 0": {"limit": 0},
    "limit below 0": {"limit": -1},
    "limit over the limit": {"limit": 1_000_001},
    "priority over the limit": {"priority": PRIORITY_MAX + 1},
    "priority under the limit": {"priority": -PRIORITY_MAX - 1},
    "priority beyond any number": {"priority": 10**400},
}


@pytest.mark.parametrize("fields", BAD_STARTS.values(), ids=BAD_STARTS.keys())
def test_a_subscription_that_cannot_be_is_a_bad_request(raw: RawWebSocket, fields: dict[str, Any]) -> None:
    """What a subscription asks for is checked before anything is subscribed."""
    assert refused(raw, {**SUBSCRIBE, **fields})["code"] == "BAD_REQUEST"


@pytest.mark.parametrize("with_epoch", [False, True])
def test_a_start_beyond_the_end_is_waited_for(shared: RunningServer, with_epoch: bool) -> None:
    """The ack repeats the offset; no earlier record comes, and the first event is the one asked for."""
    topic = f"short-{with_epoch}"
    shared.create(topic)
    with RawWebSocket(shared) as reader, RawWebSocket(shared) as publisher:

        def publish() -> dict[str, Any]:
            return publisher.ask(
                **{**PUBLISH, "topic": topic, "message": {"id": str(uuid.uuid4()), "payload": 1}}
            )

        position = {"from_": 3, "epoch": publish()["epoch"]} if with_epoch else {"from_": 3}
        ack = reader.ask(**{**SUBSCRIBE, "topic": topic, **position})
        assert (ack["type"], ack["offset"]) == ("ack", 3)
        while publish()["offset"] < 4:
            pass
        assert [reader.hear()["offset"] for _ in range(2)] == [3, 4]


def test_a_start_in_another_epoch_is_answered_with_a_gap(raw: RawWebSocket) -> None:
    """A position of a topic that was deleted and made again is never answered with wrong data."""
    raw.ask(**{**PUBLISH, "message": {"id": str(uuid.uuid4()), "payload": 1}})
    ack = raw.ask(**SUBSCRIBE, from_=0, epoch="0123456789abcdef")
    assert ack["type"] == "ack" and ack["epoch"] != "0123456789abcdef"
    assert raw.hear()["msg"] == "gap"


BAD_PATTERNS = [
    "",
    ".",
    "a.",
    ".a",
    "a..b",
    "a b",
    "a/b",
    "a*",
    "*a.b",
    "a.>.b",
    "ä",
    "a\0",
    ">.a",
    "a\n",
    "$x",
]


@pytest.mark.parametrize("topic", BAD_PATTERNS, ids=repr)
def test_a_name_that_is_no_topic_is_a_bad_request(raw: RawWebSocket, topic: str) -> None:
    """Names that are not allowed are refused, not looked for."""
    for message in (PUBLISH, SUBSCRIBE, UNSUBSCRIBE):
        assert refused(raw, {**message, "topic": topic})["code"] == "BAD_REQUEST"


def test_publishing_to_a_pattern_is_a_bad_request(raw: RawWebSocket) -> None:
    """A message goes to one topic."""
    assert refused(raw, {**PUBLISH, "topic": "orders.*"})["code"] == "BAD_REQUEST"


@pytest.mark.parametrize("message", [PUBLISH, SUBSCRIBE], ids=lambda message: message["type"])
def test_an_unknown_topic_is_not_found(raw: RawWebSocket, message: dict[str, Any]) -> None:
    """Topics are made on purpose, not by a typing error."""
    error = refused(raw, {**message, "topic": "nothing.here"})
    assert error["code"] == "TOPIC_NOT_FOUND" and "nothing.here" in error["message"]


BAD_FILTERS = ["", "(", "message.", "1 +", "nobody == 1", "(" * 1000 + ")" * 1000, "\0", '"', "true; true"]


@pytest.mark.parametrize("filter", BAD_FILTERS, ids=lambda filter: repr(filter)[:20])
def test_a_filter_that_does_not_compile_is_a_bad_filter(raw: RawWebSocket, filter: str) -> None:
    """A content filter is refused when it is given, not when the first record comes."""
    assert refused(raw, {**SUBSCRIBE, "filter": filter})["code"] == "BAD_FILTER"


def test_a_filter_that_fails_on_a_record_is_told_and_the_next_record_comes(raw: RawWebSocket) -> None:
    """FILTER_FAILED names the record; the subscription goes on."""
    raw.ask(**SUBSCRIBE, filter="message.payload.sku == 'A'")
    raw.ask(**{**PUBLISH, "message": {"id": str(uuid.uuid4()), "payload": {"price": 1}}})
    raw.ask(**{**PUBLISH, "message": {"id": str(uuid.uuid4()), "payload": 1}})
    raw.say(**{**PUBLISH, "message": {"id": str(uuid.uuid4()), "payload": {"sku": "A"}}})
    while (heard := raw.hear())["type"] != "event":
        if heard["type"] == "error":
            assert heard["error"]["code"] == "FILTER_FAILED"
    assert heard["message"]["payload"] == {"sku": "A"}


# Saying the same again


def test_subscribing_again_replaces_and_delivers_once(raw: RawWebSocket) -> None:
    """Two subscriptions with the same client id and topic are one: no event comes twice."""
    for _ in range(3):
        assert raw.ask(**SUBSCRIBE)["type"] == "ack"
    raw.say(**{**PUBLISH, "message": {"id": str(uuid.uuid4()), "payload": 1}})
    raw.say(type="ping", request_id="end")
    heard = []
    while not heard or heard[-1]["type"] != "event":
        heard.append(raw.hear())
    assert raw.is_alive()
    assert [message["type"] for message in heard].count("event") == 1


def test_unsubscribing_what_was_not_subscribed_is_acknowledged(raw: RawWebSocket) -> None:
    """Unsubscribing is idempotent, also for topics that do not exist and for patterns."""
    for topic in ("orders", "nothing.here", "orders.*", ">"):
        answer = raw.ask(**{**UNSUBSCRIBE, "topic": topic})
        assert (answer["type"], answer["topic"], answer["status"]) == ("ack", topic, "ok")


def test_unknown_fields_are_ignored(raw: RawWebSocket) -> None:
    """A newer client may say more than this server understands."""
    assert raw.ask(type="ping", colour="red", nested={"a": [1]})["type"] == "pong"


# The handshake


def denied(wire: Wire, request: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of a handshake that is refused, after which the connection ends."""
    wire.send(request)
    status, headers, body = wire.response()
    assert headers["content-type"] == "application/json"
    assert wire.until_end() == b""
    return status, json.loads(body)["error"]


@pytest.fixture(scope="module")
def locked(serve_all: Callable[..., RunningServer]) -> RunningServer:
    return serve_all(token="correct horse battery")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/ws", {}),
        ("/ws", {"X_API_Key": "wrong"}),
        ("/ws", {"Authorization": "Bearer wrong"}),
        ("/ws", {"Authorization": "Basic Y29ycmVjdCBob3JzZSBiYXR0ZXJ5"}),
        ("/ws?token=wrong", {}),
        ("/ws?token=", {}),
        ("/ws", {"Cookie": "himalia_session_8000=wrong"}),
        ("/ws", {"X_API_Key": "correct horse batterÿ"}),
    ],
)
def test_a_wrong_token_is_401_with_an_error(
    locked: RunningServer, path: str, headers: dict[str, str]
) -> None:
    """Who has no key, or a wrong one, is told so in JSON instead of being let in."""
    with Wire(locked.port) as wire:
        status, error = denied(wire, handshake(locked.port, path, **headers))
    assert (status, error["code"]) == (401, "UNAUTHORIZED")


FOREIGN = [
    "null",
    "https://evil.example",
    "http://127.0.0.1:1",
    "http://localhost.evil.example",
    "file://",
    "http://[bad",
    "x",
    "http://\xe9vil.example",
    "http://2130706433:{port}",
    "http://0x7f000001:{port}",
    "http://127.0.0.1:{port}@evil.example",
    "http://evil.example@127.0.0.1:{port}",
]


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_foreign_origin_is_403_with_an_error(shared: RunningServer, origin: str) -> None:
    """A page of another site cannot open a WebSocket, not even where no token is asked for."""
    with Wire(shared.port) as wire:
        status, error = denied(wire, handshake(shared.port, Origin=origin.format(port=shared.port)))
    assert (status, error["code"]) == (403, "FORBIDDEN")


HOSTS = [
    "evil.example",
    "evil.example:80",
    "127.0.0.1.evil.example",
    "[bad",
    "a b",
    "localhost.",
    "@",
    "x" * 5000,
    "2130706433",
    "0x7f000001",
    "127.0.0.1:{port}@evil.example",
]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host[:30])
def test_a_foreign_host_is_403_with_an_error(shared: RunningServer, host: str) -> None:
    """A name that was made to point here is not answered: DNS rebinding gets nowhere."""
    with Wire(shared.port) as wire:
        status, error = denied(wire, handshake(shared.port, Host=host.format(port=shared.port)))
    assert (status, error["code"]) == (403, "FORBIDDEN")


@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_a_forwarded_host_makes_a_foreign_one_no_better(shared: RunningServer, name: str) -> None:
    """``X-Forwarded-Host`` is not believed, whichever of the two names it is to help."""
    foreign = {
        "Host": {"Host": "evil.example", "X_Forwarded_Host": f"127.0.0.1:{shared.port}"},
        "Origin": {"Origin": "http://evil.example", "X_Forwarded_Host": "evil.example"},
    }
    with Wire(shared.port) as wire:
        status, error = denied(wire, handshake(shared.port, **foreign[name]))
    assert (status, error["code"]) == (403, "FORBIDDEN")


def test_our_own_origin_is_let_in(shared: RunningServer) -> None:
    """The server's own page may talk to it."""
    with Wire(shared.port) as wire:
        wire.send(handshake(shared.port, Origin=f"http://127.0.0.1:{shared.port}"))
        assert wire.response()[0] == 101


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_WebSocket_Key": ""},
        {"Sec_WebSocket_Key": "short"},
        {"Sec_WebSocket_Version": "12"},
        {"Sec_WebSocket_Version": ""},
        {"X_Long": "x" * 9000},
        {"X_Long": "x" * 60_000},
        {f"X_{i}": "x" for i in range(200)},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_handshake_that_is_wrong_is_refused_and_closed(
    shared: RunningServer, headers: dict[str, str]
) -> None:
    """A request that cannot become a WebSocket has a 4xx answer, and its connection ends."""
    with Wire(shared.port) as wire:
        wire.send(handshake(shared.port, **headers))
        assert wire.until_end()[:10] == b"HTTP/1.1 4"


def test_a_path_that_is_too_long_is_refused_and_closed(shared: RunningServer) -> None:
    """The request line has a limit as well."""
    with Wire(shared.port) as wire:
        wire.send(handshake(shared.port, "/ws?x=" + "x" * 20_000))
        assert wire.until_end()[:10] == b"HTTP/1.1 4"


def test_a_websocket_elsewhere_is_refused(shared: RunningServer) -> None:
    """There is one WebSocket, at /ws."""
    with Wire(shared.port) as wire:
        wire.send(handshake(shared.port, "/elsewhere"))
        assert wire.response()[0] in (403, 404)
        assert wire.until_end() == b""


@pytest.mark.parametrize("part", [b"", b"GET", b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgr"])
def test_half_a_handshake_is_closed(serve: Callable[..., RunningServer], part: bytes) -> None:
    """Who does not say what it wants in ``handshake_timeout_s`` is let go."""
    server = serve(auth=False, handshake_timeout_s=0.2)
    with Wire(server.port) as wire, RawWebSocket(server) as other:
        wire.send(part)
        assert wire.until_end() == b""
        assert other.is_alive()


def test_a_handshake_without_end_is_closed_before_it_fills_the_memory(
    serve: Callable[..., RunningServer],
) -> None:
    """The head of a request has a limit in bytes; it does not take the limit in time to end it."""
    server = serve(auth=False, handshake_timeout_s=3600)
    sent = 0
    with Wire(server.port) as wire:
        try:
            wire.send(b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            for i in range(20_000):
                wire.send(b"X-%d: %b\r\n" % (i, b"x" * 1000))
                sent += 1000
            assert wire.until_end()[:10] in (b"HTTP/1.1 4", b"")
        except ConnectionError:
            pass
    assert sent < 20_000_000


@pytest.mark.parametrize(
    "data", [b"\0" * 100, b"\x16\x03\x01\x02\x00", b"SSH-2.0-OpenSSH\r\n", b"GET\r\n\r\n"]
)
def test_another_protocol_is_closed(shared: RunningServer, data: bytes) -> None:
    """What is not HTTP is not talked to."""
    with Wire(shared.port) as wire:
        wire.send(data)
        answer = wire.until_end()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")


# Frames


def test_a_message_in_fragments_is_a_message(raw: RawWebSocket) -> None:
    """A text message may come in any number of fragments, also empty ones and across characters."""
    text = json.dumps({"type": "ping", "request_id": "größe"}, ensure_ascii=False).encode()
    raw.send(frame(b"", TEXT, fin=False))
    for i in range(len(text)):
        raw.send(frame(text[i : i + 1], CONT, fin=False))
    raw.send(frame(b"", CONT))
    assert raw.hear()["request_id"] == "größe"


def test_pings_between_fragments_are_answered(raw: RawWebSocket) -> None:
    """Control frames may come between the fragments of a message and do not disturb it."""
    first, second = b'{"type":"ping",', b'"request_id":"1"}'
    raw.send(frame(first, TEXT, fin=False) + frame(b"still there?", PING))
    assert raw.hear_pong() == b"still there?"
    raw.send(frame(b"again", PING) + frame(second, CONT))
    assert raw.hear_pong() == b"again"
    assert raw.hear()["request_id"] == "1"


def test_frames_in_pieces_of_one_byte_are_frames(raw: RawWebSocket) -> None:
    """Where a read ends has nothing to do with where a frame ends."""
    long = json.dumps({"type": "ping", "request_id": "1", "x": "y" * 300}).encode()
    for data in (frame(b'{"type":"ping"}'), frame(b"", PING), frame(long)):
        for i in range(len(data)):
            raw.send(data[i : i + 1])
    assert raw.hear()["type"] == "pong"
    assert raw.hear()["request_id"] == "1"


def test_many_frames_in_one_piece_are_all_answered_in_order(raw: RawWebSocket) -> None:
    """Messages that come together are answered one by one, in the order they came."""
    frames = [
        frame(json.dumps({"type": "ping", "request_id": str(i)}).encode()) + frame(b"", PING)
        for i in range(500)
    ]
    raw.send(b"".join(frames))
    assert [raw.hear()["request_id"] for _ in range(500)] == [str(i) for i in range(500)]


PROTOCOL_ERRORS = {
    "an unmasked frame": frame(b'{"type":"ping"}', masked=False),
    "an unmasked ping": frame(b"", PING, masked=False),
    "reserved bit 1": frame(b'{"type":"ping"}', reserved=4),
    "reserved bit 2": frame(b'{"type":"ping"}', reserved=2),
    "reserved bit 3": frame(b'{"type":"ping"}', reserved=1),
    "a reserved opcode": frame(b"x", 0x3),
    "a reserved control opcode": frame(b"x", 0xB),
    "a continuation of nothing": frame(b"x", CONT),
    "a message inside a message": frame(b'{"type":', fin=False) + frame(b'{"type":"ping"}'),
    "a fragmented ping": frame(b"x", PING, fin=False),
    "a long ping": frame(b"x" * 126, PING),
    "a long close": frame(b"\x03\xe8" + b"x" * 200, CLOSE),
    "a close with half a code": frame(b"\x03", CLOSE),
    "a close with a forbidden code": frame((1005).to_bytes(2, "big"), CLOSE),
}


@pytest.mark.parametrize("data", PROTOCOL_ERRORS.values(), ids=PROTOCOL_ERRORS.keys())
def test_a_frame_against_the_rules_closes_with_1002(raw: RawWebSocket, data: bytes) -> None:
    """A peer that does not speak WebSocket is told so, and the connection ends."""
    raw.send(data)
    assert raw.close_code() == 1002


def test_what_came_before_a_broken_frame_is_stored(shared: RunningServer, raw: RawWebSocket) -> None:
    """A publish that was whole is handled, whatever follows it in the same packet."""
    message = {**PUBLISH, "message": {"id": str(uuid.uuid4()), "payload": "before"}}
    raw.send(frame(json.dumps(message).encode()) + frame(b"", masked=False))
    assert raw.close_code() == 1002

    def stored() -> bool:
        with shared.http() as http:
            found = http.get("/topics/orders/messages", params={"last": 1}).json()["messages"]
        return bool(found) and found[0]["message"]["payload"] == "before"

    until(stored)


def test_a_close_is_answered_with_the_same_code(raw: RawWebSocket) -> None:
    """The closing handshake is the client's to begin as well."""
    raw.send(frame((1000).to_bytes(2, "big") + b"bye", CLOSE))
    assert raw.close_code() == 1000


@pytest.mark.parametrize("size", [300_000, 5_000_000])
def test_a_frame_that_is_too_large_is_skipped(shared: RunningServer, raw: RawWebSocket, size: int) -> None:
    """MESSAGE_TOO_LARGE, and the connection lives on; the frame is never held in memory."""
    raw.send(frame(b"x" * size))
    answer = raw.hear()
    assert answer["error"]["code"] == "MESSAGE_TOO_LARGE" and str(size) in answer["error"]["message"]
    assert raw.is_alive()


def test_a_frame_that_claims_to_be_endless_is_refused_at_once(
    shared: RunningServer, raw: RawWebSocket
) -> None:
    """The header is enough to refuse a frame: nothing is set aside for what it announces."""
    raw.send(b"\x81\xff" + (1 << 62).to_bytes(8, "big") + b"mask" + b"x" * 1000)
    assert raw.hear()["error"]["code"] == "MESSAGE_TOO_LARGE"
    for _ in range(20):
        raw.send(b"x" * 100_000)
    kept = shared.on_loop(
        lambda: [c.transport._protocol._parser.buffered_bytes for c in shared.context.connections]
    )
    assert max(kept) < 1000


def test_fragments_that_are_too_large_together_close_with_1009(raw: RawWebSocket) -> None:
    """A message that grows beyond the limit in fragments is cut off."""
    raw.send(frame(b"x" * 60_000, TEXT, fin=False))
    for _ in range(4):
        raw.send(frame(b"x" * 60_000, CONT, fin=False))
    assert raw.close_code() == 1009


def test_a_binary_frame_that_is_too_large_closes_with_1009(raw: RawWebSocket) -> None:
    """What is neither text nor small is not waited for."""
    raw.send(frame(b"x" * 400_000, BINARY)[:1000])
    assert raw.close_code() == 1009


# Vanishing


def ghosts(server: RunningServer, client_id: str) -> int:
    with server.http() as http:
        found = http.get("/stats").json()["subscribers"]
    return sum(one["client_id"] == client_id for one in found)


@pytest.mark.parametrize(
    "data",
    [b"\x81", b"\x81\xfe\x01", frame(b'{"type":"ping"}')[:10], b""],
    ids=["one byte", "no mask", "half a message", "nothing"],
)
@pytest.mark.parametrize("how", ["reset", "end", "half"])
def test_half_a_frame_and_then_nothing_leaves_no_ghost(shared: RunningServer, data: bytes, how: str) -> None:
    """A client that vanishes is unsubscribed, however it goes and wherever it stopped."""
    client_id = str(uuid.uuid4())
    with RawWebSocket(shared) as raw:
        raw.ask(**{**SUBSCRIBE, "client_id": client_id})
        assert ghosts(shared, client_id) == 1
        raw.send(data)
        if how == "reset":
            raw.reset()
        elif how == "end":
            raw.socket.close()
        else:
            raw.socket.shutdown(1)
        until(lambda: ghosts(shared, client_id) == 0)


def test_vanishing_during_the_handshake_leaves_no_ghost(shared: RunningServer) -> None:
    """Connections that were never completed do not count."""
    before = shared.on_loop(lambda: len(shared.context.connections))
    for size in range(0, 160, 20):
        wire = Wire(shared.port)
        wire.send(handshake(shared.port)[:size])
        wire.reset()
        wire = Wire(shared.port)
        wire.send(handshake(shared.port))
        wire.reset()
    until(lambda: shared.on_loop(lambda: len(shared.context.connections)) == before)


def test_vanishing_while_subscribing_leaves_no_ghost(shared: RunningServer) -> None:
    """A subscription whose client went away meanwhile is never made."""
    client_id = str(uuid.uuid4())
    since = {**SUBSCRIBE, "client_id": client_id, "since": "1970-01-01T00:00:00Z"}
    for message in (since, {**since, "topic": ">"}, {**SUBSCRIBE, "client_id": client_id}):
        for _ in range(10):
            raw = RawWebSocket(shared)
            raw.say(**message)
            raw.reset()
    with RawWebSocket(shared) as raw:
        assert raw.is_alive()
    until(lambda: ghosts(shared, client_id) == 0)


# Never reading


def test_a_subscriber_that_never_reads_costs_a_bounded_amount(
    serve: Callable[..., RunningServer],
) -> None:
    """What a subscriber does not take stays in the log, not in the server's memory."""
    server = serve(auth=False, heartbeat_s=3600)
    server.create("flood")
    other = Witness(server)
    with RawWebSocket(server, receive_bytes=4096) as raw, server.http() as http:
        raw.ask(type="subscribe", topic="flood", client_id="stone", policy="lossless")
        lines = b"".join(b'{"payload":"%b"}\n' % (b"x" * 10_000) for _ in range(2000))
        for _ in range(2):
            answer = http.post(
                "/topics/flood/messages", content=lines, headers={"Content-Type": "application/x-ndjson"}
            )
            assert answer.status_code == 200
        other.check()
        settings = server.settings
        stats = http.get("/stats").json()
        assert stats["topics"]["flood"]["lag"] > 0
        assert stats["queue_bytes"] <= settings.write_buffer_bytes + 2 * settings.chunk_bytes
    other.close()


def test_a_client_that_never_reads_its_answers_is_not_read_either(
    serve: Callable[..., RunningServer],
) -> None:
    """Answers wait for the client; until it takes them, what it sends waits as well."""
    server = serve(auth=False, heartbeat_s=3600)
    other = Witness(server)
    ping = frame(json.dumps({"type": "ping", "request_id": "x" * 200}).encode())
    with RawWebSocket(server, receive_bytes=4096) as raw:
        raw.socket.settimeout(1.0)
        sent = 0
        try:
            while sent < 100_000_000:
                sent += raw.socket.send(ping * 1000)
        except TimeoutError:
            pass
        assert sent < 100_000_000
        unsent = server.on_loop(lambda: max(c.transport.unsent_bytes for c in server.context.connections))
        assert unsent < 2_000_000
        other.check()
        # Nothing of it is lost: once the client reads, everything is answered.
        raw.socket.settimeout(20)
        answered = 0
        while answered < sent // len(ping):
            assert raw.hear()["type"] == "pong"
            answered += 1
    other.close()


def test_a_body_of_fields_is_small(server: RunningServer) -> None:
    """What is checked at one stroke has at most 64 KiB, and the first of many wrong fields are named."""
    with server.http() as http:
        many = {"name": "many", "retention": {f"f{n}": 1 for n in range(3000)}}
        answer = http.post("/topics", json=many)
        assert answer.status_code == 422
        assert answer.json()["error"]["message"].count("retention.") == 5
        assert answer.json()["error"]["message"].endswith("; and 2995 more")
        many["retention"] = {f"f{n}": 1 for n in range(30_000)}  # type: ignore[dict-item]
        answer = http.post("/topics", json=many)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "MESSAGE_TOO_LARGE")


@pytest.mark.slow
def test_pings_whose_answers_are_not_read_take_no_memory(tmp_path: Path) -> None:
    """A peer that sends pings and reads nothing is not read either, when its answers wait."""
    with (
        ServerProcess(tmp_path, "--no-auth", "--no-kernels") as server,
        RawWebSocket(server, receive_bytes=4096) as ws,  # type: ignore[arg-type]
    ):
        ws.ask(type="ping")
        before = server.memory_bytes()
        ws.socket.settimeout(1.0)
        pings, sent = frame(b"x" * 100, PING) * 1000, 0
        with contextlib.suppress(TimeoutError):
            while sent < 100_000_000:
                sent += ws.socket.send(pings)
        assert sent < 100_000_000, "it was read on and on"
        assert server.memory_bytes() - before < 16_000_000
