"""Whatever bytes come in, the server lives, and a healthy client beside them notices nothing."""

from __future__ import annotations

import json
import random
import string
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from himalia.errors import ErrorCode
from tests.server.raw_clients import (
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    RawWebSocket,
    Wire,
    Witness,
    frame,
    handshake,
)
from tests.servers import RunningServer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_errors_logged")]

ID = "7d9f2c1e-0b7a-4c58-9d43-0f6c8a1f2b3c"
EXAMPLES: list[dict[str, Any]] = [
    {"type": "subscribe", "topic": "orders", "client_id": "v", "last_n": 3, "request_id": "1"},
    {"type": "subscribe", "topic": "orders", "client_id": "v", "from": 0, "policy": "lossless", "limit": 5},
    {"type": "subscribe", "topic": ">", "client_id": "v", "filter": "offset > 1", "priority": 1},
    {"type": "unsubscribe", "topic": "orders", "client_id": "v"},
    {
        "type": "publish",
        "topic": "orders",
        "message": {"id": ID, "payload": {"a": [1]}, "headers": {"b": "c"}},
    },
    {"type": "ping", "request_id": "2"},
]
quick = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


def is_answer(message: dict[str, Any]) -> bool:
    """Whether it answers something; a filter that fails names the topic instead."""
    return message["type"] in ("ack", "pong") or (message["type"] == "error" and "topic" not in message)


def answers(raw: RawWebSocket, count: int) -> list[dict[str, Any]]:
    """What the server says up to the last of so many answers, or up to its close.

    A publish is answered when it is stored, which may be after the answer to what came behind it.
    """
    heard: list[dict[str, Any]] = []
    try:
        while sum(map(is_answer, heard)) < count:
            opcode, payload = raw.next_frame()
            if opcode == CLOSE:
                assert int.from_bytes(payload[:2], "big") in (1000, 1002, 1007, 1009) or len(payload) == 0
                return heard
            if opcode == TEXT:
                heard.append(json.loads(payload))
            else:
                assert opcode in (PING, PONG)
    except (EOFError, ConnectionError):
        pass
    return heard


def check(heard: list[dict[str, Any]]) -> None:
    """Whatever was answered is of the protocol."""
    for one in heard:
        assert one["type"] in ("ack", "event", "error", "pong", "info")
        if one["type"] == "error":
            assert one["error"]["code"] in set(ErrorCode) - {ErrorCode.INTERNAL}, one


def test_random_bytes_after_the_handshake(shared: RunningServer, witness: Witness) -> None:
    """Noise instead of frames ends in a close, or is skipped; it never ends in a server that hangs."""

    @quick
    @given(st.binary(min_size=1, max_size=300))
    def noise(data: bytes) -> None:
        with RawWebSocket(shared) as raw:
            raw.send(data)
            raw.socket.shutdown(1)  # what is unfinished stays so
            raw.until_end()
        witness.check()

    noise()


def test_random_bytes_instead_of_a_handshake(shared: RunningServer, witness: Witness) -> None:
    """Noise instead of HTTP is answered with an error or a close."""

    @quick
    @given(st.one_of(st.binary(min_size=1, max_size=300), st.integers(0, 200)), st.binary(max_size=20))
    def noise(data: bytes | int, more: bytes) -> None:
        whole = handshake(shared.port)
        request = whole[:data] + more + whole[data:] if isinstance(data, int) else data
        with Wire(shared.port) as wire:
            wire.send(request)
            wire.socket.shutdown(1)
            answer = wire.until_end()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            assert not answer.startswith(b"HTTP/1.1 5")
        witness.check()

    noise()


def test_mutated_frames(shared: RunningServer, witness: Witness) -> None:
    """Valid frames with bytes changed, removed, repeated, and cut anywhere between reads."""
    seed = random.Random(20261115)
    for _ in range(300):
        with RawWebSocket(shared) as raw:
            data = bytearray()
            for _ in range(seed.randrange(1, 5)):
                text = json.dumps(seed.choice(EXAMPLES)).encode()
                if seed.random() < 0.3:
                    at = seed.randrange(len(text))
                    data += frame(text[:at], TEXT, fin=False) + frame(b"", PING) + frame(text[at:], CONT)
                else:
                    data += frame(text, seed.choice([TEXT, TEXT, TEXT, PING, 2, 3]))
            for _ in range(seed.randrange(4)):
                at = seed.randrange(len(data))
                match seed.randrange(3):
                    case 0:
                        data[at] ^= 1 << seed.randrange(8)
                    case 1:
                        del data[at]
                    case 2:
                        data[at:at] = data[at : at + seed.randrange(10)]
            at = seed.randrange(len(data))
            try:
                raw.send(bytes(data[:at]))
                raw.send(bytes(data[at:]))
                raw.socket.shutdown(1)
            except OSError:  # closed already, because of the first half
                pass
            raw.until_end()
        witness.check()


names = st.one_of(
    st.sampled_from(["orders", "orders.*", ">", "kernels.x", "pipeline.x", "missing", "", "a..b", "ä"]),
    st.text(string.ascii_letters + ".*>", max_size=20),
)
anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def or_anything(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what belongs there, sometimes something else."""
    return st.one_of(strategy, strategy, strategy, anything)


messages = st.fixed_dictionaries(
    {"type": or_anything(st.sampled_from(["subscribe", "unsubscribe", "publish", "ping"]))},
    optional={
        "topic": or_anything(names),
        "message": or_anything(
            st.fixed_dictionaries(
                {"id": or_anything(st.uuids().map(str)), "payload": anything},
                optional={"headers": or_anything(st.dictionaries(st.text(max_size=5), st.text(max_size=5)))},
            )
        ),
        "client_id": or_anything(st.text(min_size=1, max_size=10)),
        "last_n": or_anything(st.integers(-2, 10)),
        "request_id": or_anything(st.text(max_size=10)),
        "from": or_anything(
            st.one_of(st.integers(-2, 10), st.dictionaries(names, st.integers(-1, 5), max_size=2))
        ),
        "epoch": or_anything(st.text(max_size=16)),
        "since": or_anything(st.one_of(st.integers(), st.floats(allow_nan=False), st.datetimes().map(str))),
        "policy": or_anything(st.sampled_from(["drop_oldest", "disconnect", "lossless"])),
        "limit": or_anything(st.integers(-1, 10)),
        "filter": or_anything(
            st.sampled_from(
                [
                    "true",
                    "offset > 2",
                    "message.payload.a == 1",
                    "headers.x == 'y'",
                    "size(topic)",
                    "1/0 == 1",
                    "(",
                    "offset + 9223372036854775807 > 0",
                    "topic.matches('(')",
                ]
            )
        ),
        "priority": or_anything(st.integers(-5, 5)),
    },
)


def test_random_messages_of_the_protocol(shared: RunningServer, witness: Witness) -> None:
    """Any mix of the protocol's fields is answered by something of the protocol, never by INTERNAL."""

    @settings(quick, max_examples=120)
    @given(st.lists(messages, min_size=1, max_size=6))
    def talk(several: list[dict[str, Any]]) -> None:
        with RawWebSocket(shared) as raw:
            raw.send(b"".join(frame(json.dumps(one).encode()) for one in several))
            check(answers(raw, len(several)))
            assert raw.is_alive()
        witness.check()

    talk()


def test_random_filters(shared: RunningServer, witness: Witness) -> None:
    """Text that looks like a filter either compiles or is BAD_FILTER, and no record makes it crash."""
    words = [
        "message",
        "headers",
        "topic",
        "offset",
        "payload",
        "in",
        "true",
        "null",
        "size",
        "has",
        "all",
        "map",
    ]
    pieces = [*words, *".()[]{}+-*/%!<>?:,1", "&&", "||", "==", "'a'", "0u", "1.5", "b'a'", "duration('1s')"]
    filters = st.lists(st.sampled_from(pieces), min_size=1, max_size=12).map(" ".join)

    with RawWebSocket(shared) as raw:

        @settings(quick, max_examples=300)
        @given(filters)
        def follow(filter: str) -> None:
            answer = raw.ask(type="subscribe", topic="orders", client_id="v", filter=filter, last_n=3)
            assert answer["type"] == "ack" or answer["error"]["code"] == "BAD_FILTER", answer
            raw.say(type="ping")
            check(answers(raw, 1))

        raw.ask(type="publish", topic="orders", message={"id": ID, "payload": {"a": [1, None, {"b": "c"}]}})
        follow()
    witness.check()


def test_random_requests_to_rest(shared: RunningServer, witness: Witness) -> None:
    """Random paths, queries, headers and bodies never end in a 5xx."""
    methods = st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"])
    paths = st.sampled_from(
        ["/", "/topics", "/topics/orders", "/topics/orders/messages", "/stats", "/health", "/x"]
    )
    queries = st.dictionaries(
        st.sampled_from(["from", "since", "last", "limit", "epoch", "producer", "sequence", "token", "x"]),
        st.one_of(st.integers(-5, 2**70).map(str), st.text(max_size=10)),
        max_size=3,
    )
    types = st.sampled_from(["application/json", "application/x-ndjson", "text/plain", "", "a/b;c=d", "\xe9"])
    bodies = st.one_of(st.binary(max_size=50), anything.map(json.dumps).map(str.encode))
    accepts = st.sampled_from(
        ["*/*", "application/x-ndjson", "application/vnd.apache.arrow.stream", "", ";q=x", "a"]
    )

    with shared.http() as http:

        @settings(quick, max_examples=300)
        @given(methods, paths, queries, types, accepts, bodies)
        def call(method: str, path: str, query: dict[str, str], type: str, accept: str, body: bytes) -> None:
            headers = {"Content-Type": type.encode("latin-1"), "Accept": accept.encode()}
            answer = http.request(
                method,
                path,
                params=query,
                content=body,
                headers=list(headers.items()),
                follow_redirects=False,
            )
            assert answer.status_code < 500, answer.text
            if answer.status_code >= 400 and method != "HEAD":
                assert set(answer.json()["error"]) == {"code", "message"}

        call()
    witness.check()
