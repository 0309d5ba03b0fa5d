"""uvicorn's HTTP class as we use it: what it takes from uvicorn's inside, and what a peer cannot do with it."""

from __future__ import annotations

import ast
import gzip
import inspect
import json
import logging
import re
import textwrap
import time
from collections.abc import Callable

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from himalia.pubsub.time_slices import SLICE_S, TimeSlices
from himalia.server.http import protocol as http_protocol_module
from himalia.server.http.protocol import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    LINGER_S,
    PIECE_BYTES,
    PIPELINED_MAX,
    URL_BYTES_MAX,
    HttpOptions,
    HttpProtocol,
    ResponseTransport,
)
from himalia.throttle import WarningThrottle
from tests.server.raw_clients import Wire
from tests.server.websocket.test_uvicorn_protocol import attributes_used, config_of
from tests.servers import DEADLINE_S, RunningServer

Serve = Callable[..., RunningServer]
TOKEN = "correct-horse-battery-staple"


def test_every_method_that_is_replaced_is_there_with_the_same_arguments() -> None:
    """A method that uvicorn no longer calls, or calls otherwise, would be replaced in vain."""
    replaced = {
        "connection_made",
        "connection_lost",
        "data_received",
        "eof_received",
        "on_message_begin",
        "on_url",
        "on_header",
        "on_headers_complete",
        "on_body",
        "on_response_complete",
        "_should_upgrade",
        "_start_asgi_task",
    }
    functions = {name for name, member in vars(HttpProtocol).items() if inspect.isfunction(member)}
    assert {name for name in functions if hasattr(HttpToolsProtocol, name)} == {"__init__", *replaced}
    for name in replaced:
        ours, theirs = (getattr(cls, name) for cls in (HttpProtocol, HttpToolsProtocol))
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def test_an_answer_is_made_from_what_uvicorn_makes_it_from() -> None:
    """``on_headers_complete`` is written anew here: uvicorn's own has to make its cycle of the same parts."""
    [call] = [
        node
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(HttpProtocol.on_headers_complete))))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "HttpCycle"
    ]
    parameters = list(inspect.signature(RequestResponseCycle).parameters)
    assert [keyword.arg for keyword in call.keywords] == parameters
    used = attributes_used(RequestResponseCycle, ("self",))
    assert {
        "transport",
        "keep_alive",
        "more_body",
        "response_started",
        "disconnected",
        "message_event",
    } <= used
    calls = re.findall(r"self\.transport\.(\w+)", inspect.getsource(RequestResponseCycle))
    assert set(calls) == {name for name in vars(ResponseTransport) if not name.startswith("_")}


async def test_every_attribute_that_is_used_is_there() -> None:
    """Everything that our class reads of uvicorn's exists on its objects from the start."""
    config: uvicorn.Config = config_of()
    http = HttpProtocol(config, ServerState(), {}, HttpOptions(1.0, 1.0, TimeSlices()))
    assert {name for name in attributes_used(HttpProtocol) if not hasattr(http, name)} == {"url"}
    assert "self.url = " in inspect.getsource(HttpToolsProtocol.on_message_begin)


# On a real server


@pytest.fixture(scope="module")
def locked(serve_all: Callable[..., RunningServer]) -> RunningServer:
    server = serve_all(token=TOKEN)
    server.create("orders")
    return server


def chunked(*trailers: str, method: str = "POST", path: str = "/topics/orders/messages") -> bytes:
    """A request with a chunked body and these lines behind it."""
    body = b'{"payload":1}'
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    end = "".join(f"{line}\r\n" for line in trailers)
    return (
        f"{head}Content-Type: application/json\r\n\r\n{len(body):x}\r\n".encode()
        + body
        + f"\r\n0\r\n{end}\r\n".encode()
    )


def sent_until_cut(wire: Wire, data: bytes, bytes_max: float, *, pause_s: float = 0) -> int:
    """Send the same again and again until the server has closed the connection; how much that was."""
    sent = 0
    try:
        while sent < bytes_max:
            wire.send(data)
            sent += len(data)
            time.sleep(pause_s)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize(
    "trailer",
    [f"X-API-Key: {TOKEN}", f"Authorization: Bearer {TOKEN}"],
)
def test_a_trailer_is_no_credential(locked: RunningServer, trailer: str) -> None:
    """Only the head of a request says who calls: a key behind its body authenticates nothing."""
    with Wire(locked.port) as wire:
        wire.send(chunked(trailer))
        assert wire.response()[0] == 401


def test_a_trailer_does_not_change_the_host(locked: RunningServer) -> None:
    """A foreign origin behind the body of a request that was let in is not looked at, and neither is a host."""
    with Wire(locked.port) as wire:
        wire.send(
            chunked(
                "Origin: http://evil.example",
                "Host: evil.example",
                path=f"/topics/orders/messages?token={TOKEN}",
            )
        )
        assert wire.response()[0] == 200


@pytest.mark.parametrize("head", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_a_caller_without_a_key_is_refused_before_its_body_is_read(locked: RunningServer, head: str) -> None:
    """The 401 comes on the head alone, and the connection ends."""
    with Wire(locked.port) as wire:
        wire.send(f"POST /topics HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
        status, headers, _ = wire.response()
        assert (status, headers["connection"]) == (401, "close")
        assert wire.until_end() == b""


def test_a_caller_without_a_key_is_not_asked_for_its_body(locked: RunningServer) -> None:
    """``Expect: 100-continue`` is answered with the refusal, not with ``100 Continue``."""
    with Wire(locked.port) as wire:
        wire.send(
            b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
        )
        assert wire.response()[0] == 401


def test_the_refusal_reaches_a_peer_that_still_sends(locked: RunningServer) -> None:
    """Closing on unread bytes would reset the connection and take the answer away from the peer."""
    with Wire(locked.port) as wire:
        wire.send(b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n")
        wire.send(b" " * 3_000_000)
        assert wire.response()[0] == 401
        assert wire.until_end() == b""


def test_a_peer_that_goes_on_sending_after_its_answer_is_cut_off(locked: RunningServer) -> None:
    """It has a moment to read the answer; a trickle does not prolong it."""
    with Wire(locked.port) as wire:
        wire.send(b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n")
        assert wire.response()[0] == 401
        began = time.monotonic()
        assert sent_until_cut(wire, b"x", DEADLINE_S * 20, pause_s=0.05) < DEADLINE_S * 20
        assert time.monotonic() - began < LINGER_S + 5


def test_an_empty_line_does_not_keep_a_connection_open(serve: Serve) -> None:
    """What begins no request does not end the wait for one: the connection is closed all the same."""
    server = serve(auth=False, handshake_timeout_s=0.2)
    with Wire(server.port) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.response()[0] == 200
        wire.send(b"\r\n")
        assert wire.until_end() == b""


def test_a_handshake_with_a_body_is_a_request_like_any_other(locked: RunningServer) -> None:
    """It is refused by its head, and the connection ends: its body is not waited for."""
    lines = ["Host: localhost", "Connection: Upgrade", "Upgrade: websocket", "Content-Length: 1000000"]
    with Wire(locked.port) as wire:
        wire.send("\r\n".join(["GET /ws HTTP/1.1", *lines, "", ""]).encode())
        assert wire.response()[0] == 401
        assert wire.until_end() == b""


@pytest.mark.parametrize("kind", ["header", "trailer", "chunk extension"])
def test_a_part_without_end_is_cut_off(shared: RunningServer, kind: str) -> None:
    """The parser keeps a header to itself until it ends; beyond 64 KiB the peer is refused."""
    head = b"POST /topics/orders/messages HTTP/1.1\r\nHost: localhost\r\n"
    body = head + b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    begins = {
        "header": head + b"X-Long: ",
        "trailer": body + b"0\r\nX-Long: ",
        "chunk extension": body + b"1;x=",
    }
    with Wire(shared.port) as wire:
        wire.send(begins[kind])
        assert sent_until_cut(wire, b"x" * 10_000, 200_000_000) < 200_000_000


# Pipelining, and what is not HTTP


def requests(count: int, path: str = "/health") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Pad: {'x' * 1000}\r\n\r\n".encode() * count


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * (HEADERS_MAX + 1), 431),
        (b"GET /" + b"a" * URL_BYTES_MAX + b" HTTP/1.1\r\n", 414),
    ],
    ids=["many headers", "a long address"],
)
def test_a_head_that_would_cost_much_is_refused(shared: RunningServer, head: bytes, status: int) -> None:
    """However few bytes it has: each header takes time and memory, and so does each byte of an address."""
    with Wire(shared.port) as wire:
        wire.send(head + b"\r\n")
        assert wire.response()[0] == status
        assert wire.receive() == b""
    with Wire(shared.port) as wire:
        wire.send(b"GET /health?x=" + b"a" * (URL_BYTES_MAX - 100) + b" HTTP/1.1\r\nHost: localhost\r\n")
        wire.send(b"a:b\r\n" * (HEADERS_MAX - 1) + b"\r\n")
        assert wire.response()[0] == 200


def test_the_heads_of_pipelined_requests_count_together(shared: RunningServer) -> None:
    """Requests that wait may not hold more than one head may have; those before are answered."""
    large = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 30_000 + b"\r\n\r\n"
    with Wire(shared.port) as wire:
        wire.send(large * 20)
        answers = wire.until_end().count(b"HTTP/1.1 200")
    assert 1 <= answers <= 5


def test_small_chunks_of_many_connections_take_turns(shared: RunningServer) -> None:
    """A body in chunks of one byte is much work for its size: it is done a piece at a time, and none of it is lost."""
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"payload":1}' + b" " * 20_000) + b"0\r\n\r\n"
    head = b"POST /topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    turns = shared.context.manager.time_slices
    assert len(chunks) > 5 * PIECE_BYTES
    with shared.http() as http, Wire(shared.port) as other:
        http.post("/topics", json={"name": "orders"})
        shared.on_loop(lambda: setattr(turns, "slice_s", 0.0))
        try:
            with Wire(shared.port) as wire:
                wire.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
                other.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert other.response()[0] == 200
                status, _, body = wire.response()
        finally:
            shared.on_loop(lambda: setattr(turns, "slice_s", SLICE_S))
    assert (status, json.loads(body)["count"]) == (200, 1), body


@pytest.mark.slow
def test_a_connection_that_stays_idle_is_closed(shared: RunningServer) -> None:
    """After its answer a connection is kept for the next request, but for seconds only."""
    with Wire(shared.port) as wire:
        for _ in range(2):
            wire.send(requests(1))
            assert wire.response()[0] == 200
        began_s = time.monotonic()
        assert wire.until_end() == b""
        assert time.monotonic() - began_s < 15


def test_pipelined_requests_are_answered_in_order(shared: RunningServer) -> None:
    """Up to 64 may wait on one connection; each has its own answer, and it stays open."""
    with Wire(shared.port) as wire:
        wire.send(b"".join(requests(1, path) for path in ["/health", "/nothing"] * (PIPELINED_MAX // 2)))
        assert [wire.response()[0] for _ in range(PIPELINED_MAX)] == [200, 404] * (PIPELINED_MAX // 2)
        wire.send(requests(1))
        assert wire.response()[0] == 200


@pytest.mark.usefixtures("no_errors_logged")
def test_more_pipelined_requests_than_that_end_the_connection(shared: RunningServer) -> None:
    """Those that were taken are answered, the others can be sent again; nothing looks like a bug of the server."""
    count = 2 * HEAD_BYTES_MAX // 1000
    with Wire(shared.port) as wire:
        wire.send(requests(count))
        answered = 0
        try:
            while True:
                assert wire.response()[0] == 200
                answered += 1
        except EOFError:
            pass
    assert PIPELINED_MAX <= answered < count


@pytest.mark.usefixtures("no_errors_logged")
def test_a_malformed_request_behind_others_leaves_their_answers_alone(shared: RunningServer) -> None:
    """What was asked before it is answered whole, then the connection ends: no answer stands inside another."""
    with Wire(shared.port) as wire:
        wire.send(requests(3) + b"nonsense\r\n\r\n")
        assert [wire.response()[0] for _ in range(3)] == [200] * 3
        assert wire.until_end() == b""


@pytest.mark.usefixtures("no_errors_logged")
def test_a_malformed_body_is_a_400(shared: RunningServer) -> None:
    """The application learns that its peer is gone, and answers nothing behind the refusal."""
    with Wire(shared.port) as wire:
        wire.send(chunked().partition(b"\r\n\r\n")[0] + b"\r\n\r\n3\r\n123")
        wire.send(b"nonsense\r\n")
        status, headers, body = wire.response()
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["error"]["code"] == "BAD_REQUEST"
        assert wire.until_end() == b""


def test_malformed_requests_are_one_line_a_minute(
    shared: RunningServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer cannot fill the server's log; how often it happened is in the next line."""
    now_s = 0.0
    rare = WarningThrottle(logging.getLogger("himalia.server"), clock=lambda: now_s)
    monkeypatch.setattr(http_protocol_module, "warnings", rare)

    def malformed() -> None:
        with Wire(shared.port) as wire:
            wire.send(b"nonsense\r\n\r\n")
            assert wire.response()[0] == 400
            assert wire.until_end() == b""

    for _ in range(20):
        malformed()
    now_s = 61.0
    malformed()
    lines = [record.getMessage() for record in caplog.records if "HTTP request" in record.getMessage()]
    assert len(lines) == 2
    assert "19 times" in lines[1]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("protocol", ["h2c", "h2c, websocket", "TLS/1.0"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_request_for_another_protocol_smuggles_no_second_request(
    shared: RunningServer, protocol: str, apart: bool
) -> None:
    """The request is answered as HTTP/1.1 and the connection ends; what follows it is not parsed."""
    first = f"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    with Wire(shared.port) as wire:
        wire.send(first.encode() + (b"" if apart else requests(1)))
        status, headers, _ = wire.response()
        assert (status, headers["connection"]) == (200, "close")
        if apart:
            wire.send(requests(1))
        assert wire.until_end() == b""


BODY = b'{"name":"smuggled"}'
HIDDEN = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 19\r\n\r\n" + BODY


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 0\r\nContent-Length: 90\r\n",
        b"Content-Length: 90\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Content-Length: +0\r\n",
        b"X: a\r\n Content-Length: 90\r\n",
        b"X: a\nContent-Length: 90\r\n",
        b"X: a\x00b\r\n",
    ],
)
def test_no_second_request_is_smuggled(shared: RunningServer, fields: bytes) -> None:
    """Where two readers could see the end of a body in two places, there is no next request on that connection."""
    head = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + fields
    with Wire(shared.port) as wire:
        wire.send(head + b"\r\n0\r\n\r\n" + HIDDEN)
        answers = wire.until_end()
    assert answers.count(b"HTTP/1.1 ") == 1 and answers.startswith(b"HTTP/1.1 4"), answers
    with shared.http() as http:
        assert "smuggled" not in http.get("/topics").text


def test_a_compressed_body_is_not_inflated(shared: RunningServer) -> None:
    """A few bytes cannot become very many: what is not JSON as it comes is refused."""
    with shared.http() as http:
        body = gzip.compress(b'{"name":"' + b"a" * 10_000_000 + b'"}')
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        assert http.post("/topics", content=body, headers=headers).status_code == 422


def test_a_body_of_a_request_for_another_protocol_is_its_body(shared: RunningServer) -> None:
    """A request in the body of one that asks for ``h2c`` is a payload, not a request."""
    body = b'{"name": "smuggled"}' + requests(1)
    head = f"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    lines = "Content-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with Wire(shared.port) as wire:
        wire.send((head + lines).encode() + body)
        assert wire.response()[0] == 422
        assert wire.until_end() == b""
