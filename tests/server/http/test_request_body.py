"""Bodies of requests: how long they may take, how much of them is held, and who waits for whom."""

from __future__ import annotations

import asyncio
import json
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from tests.server.raw_clients import CLOSE, CONT, TEXT, RawWebSocket, Wire, frame, until
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer

Serve = Callable[..., RunningServer]
MIB = 1 << 20
NDJSON = "application/x-ndjson"


def head(
    server: RunningServer | ServerProcess,
    length: int | None,
    *,
    path: str = "/topics/orders/messages",
    kind: str = "application/json",
    key: str | None = None,
) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}"]
    lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
    if token := key or server.token:
        lines.append(f"X-API-Key: {token}")
    return "\r\n".join([*lines, "", ""]).encode()


def refused(wire: Wire) -> tuple[int, str, str]:
    status, headers, body = wire.response()
    assert headers["connection"] == "close"
    assert wire.until_end() == b""
    error = json.loads(body)["error"]
    return status, error["code"], error["message"]


# Deadlines


@contextmanager
def trickling(wire: Wire, data: bytes) -> Iterator[None]:
    """Send this again and again meanwhile."""
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.05):
            try:
                wire.send(data)
            except OSError:
                return

    sending = threading.Thread(target=trickle)
    sending.start()
    try:
        yield
    finally:
        stop.set()
        sending.join()


@pytest.mark.parametrize("path", ["/topics", "/topics/orders/messages"])
@pytest.mark.parametrize("length", [1000, None])
def test_a_body_of_which_nothing_comes_is_given_up(serve: Serve, path: str, length: int | None) -> None:
    """After ``body_idle_timeout_s`` the request is answered with 408 and the connection closed."""
    server = serve(auth=False, body_idle_timeout_s=0.2)
    server.create("orders")
    with Wire(server.port) as wire:
        wire.send(head(server, length, path=path) + (b"x" if length else b"1\r\nx\r\n"))
        assert refused(wire) == (408, "BODY_TIMEOUT", "no byte of the body arrived for 0.2 s")


def test_a_body_that_trickles_is_given_up(serve: Serve) -> None:
    """A byte now and then does not keep a request open beyond ``body_timeout_s``."""
    server = serve(auth=False, body_timeout_s=0.5)
    server.create("orders")
    with Wire(server.port) as wire:
        wire.send(head(server, 1000))
        with trickling(wire, b" "):
            status, _, body = wire.response()
        assert (status, json.loads(body)["error"]["message"]) == (
            408,
            "the body was not complete after 0.5 s",
        )


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def test_lines_that_are_stored_as_they_come_may_take_their_time(serve: Serve) -> None:
    """NDJSON holds nothing, so only silence ends it; then the answer says how much is stored."""
    server = serve(auth=False, body_timeout_s=1.2, body_idle_timeout_s=1)
    server.create("orders")
    with Wire(server.port) as wire:
        wire.send(head(server, None, kind=NDJSON))
        for _ in range(4):
            time.sleep(0.4)
            wire.send(chunk(b'{"payload":1}\n' * 1000))
        assert refused(wire) == (
            408,
            "BODY_TIMEOUT",
            "no byte of the body arrived for 1 s (the first 4000 messages of the body are stored)",
        )
    with server.http() as http:
        assert http.get("/topics").json()["topics"][0]["messages"] == 4000


def test_lines_that_come_one_at_a_time_are_stored_before_their_time_is_over(serve: Serve) -> None:
    """However few they are, so that who sends slowly and steadily is not given up."""
    server = serve(auth=False, body_timeout_s=1)
    server.create("orders")
    with Wire(server.port) as wire:
        wire.send(head(server, None, kind=NDJSON))
        for _ in range(16):
            time.sleep(0.1)
            wire.send(chunk(b'{"payload":1}\n'))
        wire.send(chunk(b""))
        status, _, body = wire.response()
    assert (status, json.loads(body)["count"]) == (200, 16)


@pytest.mark.parametrize("trickle", [b" ", b"\n"])
def test_lines_of_which_nothing_can_be_stored_are_given_up(serve: Serve, trickle: bytes) -> None:
    """A line that never ends, or only empty ones: the body has ``body_timeout_s`` from what was stored last."""
    server = serve(auth=False, body_timeout_s=0.5, body_idle_timeout_s=10)
    server.create("orders")
    with Wire(server.port) as wire:
        wire.send(head(server, None, kind=NDJSON) + chunk(b'{"payload":1}\n' * 1000))
        with trickling(wire, chunk(trickle)):
            status, _, body = wire.response()
        assert (status, json.loads(body)["error"]["message"]) == (
            408,
            "no message of the body could be stored for 0.5 s (the first 1000 messages of the body are stored)",
        )


def test_a_body_that_is_read_slowly_by_the_server_is_not_late(serve: Serve) -> None:
    """Time in which the log is behind is the server's, not the client's."""
    server = serve(auth=False, body_idle_timeout_s=0.3, body_timeout_s=0.3, in_flight_bytes_max=1)
    server.create("orders")
    admitted = threading.Event()

    async def wait_for_room() -> None:
        admitted.set()
        await asyncio.sleep(1)

    server.context.wait_for_room = wait_for_room  # type: ignore[method-assign]
    line = json.dumps({"payload": "x" * 10_000}).encode() + b"\n"
    with server.http() as http:
        headers = {"Content-Type": NDJSON}
        answer = http.post("/topics/orders/messages", content=line * 300, headers=headers)
    assert admitted.is_set()
    assert (answer.status_code, answer.json()["count"]) == (200, 300)


# The budget


def test_a_body_that_does_not_fit_waits_and_is_stored(serve: Serve) -> None:
    """Two bodies that would exceed the budget come one after the other; no error is seen."""
    server = serve(auth=False, bodies_bytes_max=4 * MIB)
    server.create("orders")
    text = json.dumps([{"payload": "x" * 500_000}] * 4).encode()
    assert 2 * len(text) > 2 * MIB
    with Wire(server.port) as first, Wire(server.port) as second:
        first.send(head(server, len(text)) + text[:-1])
        until(lambda: server.on_loop(lambda: server.context.bodies.used_bytes) == len(text))
        second.send(head(server, len(text)))
        until(lambda: server.on_loop(lambda: server.context.bodies.waiting_count) == 1)
        sending = threading.Thread(target=second.send, args=(text,))
        sending.start()
        with server.http() as http:  # a small one passes
            assert http.post("/topics/orders/messages", json={"payload": 0}).json()["offset"] == 0
        first.send(text[-1:])
        assert json.loads(first.response()[2])["offsets"] == [1, 2, 3, 4]
        assert json.loads(second.response()[2])["offsets"] == [5, 6, 7, 8]
        sending.join()
    until(lambda: server.on_loop(lambda: server.context.bodies.used_bytes) == 0)


def test_waiting_for_room_ends_in_a_named_error(serve: Serve) -> None:
    """A body for which there is no room in time is refused with 503, and may be sent again."""
    server = serve(auth=False, bodies_bytes_max=2 * MIB, body_idle_timeout_s=0.3)
    server.create("orders")
    with Wire(server.port) as first, Wire(server.port) as second:
        first.send(head(server, MIB))
        with trickling(first, b" "):
            until(lambda: server.on_loop(lambda: server.context.bodies.used_bytes) == MIB)
            second.send(head(server, MIB - 1) + b"[")
            status, code, message = refused(second)
        assert (status, code) == (503, "TOO_MANY_BODIES")
        assert "within 0.3 s" in message


GREEDY, OTHER = "greedy-0123456789abcdef", "other-0123456789abcdef"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A keys file with two callers."""
    path = tmp_path / "keys.toml"
    path.write_text(
        "".join(
            f'[keys.{key.partition("-")[0]}]\nkey = "{key}"\npublish = [">"]\nmanage = [">"]\n'
            for key in (GREEDY, OTHER)
        )
    )
    path.chmod(0o600)
    return path


def test_one_caller_does_not_keep_another_out(serve: Serve, keys: Path) -> None:
    """Large bodies that never end hold at most half; another key's large body is stored meanwhile."""
    server = serve(keys_file=keys, bodies_bytes_max=16 * MIB)
    with server.http(headers={"X-API-Key": OTHER}) as http, ExitStack() as stack:
        http.post("/topics", json={"name": "orders"}).raise_for_status()
        for _ in range(4):
            wire = stack.enter_context(Wire(server.port))
            wire.send(head(server, 4 * MIB, key=GREEDY) + b"[")
        until(lambda: server.on_loop(lambda: server.context.bodies.waiting_count) == 2)
        text = json.dumps([{"payload": "x" * 900_000}] * 4)
        headers = {"Content-Type": "application/json"}
        assert http.post("/topics/orders/messages", content=text, headers=headers).status_code == 200
        assert "himalia_receiving_bytes 8.388608e+06" in http.get("/metrics").text


@pytest.mark.parametrize("count", [1, 3])
def test_lists_that_grow_do_not_keep_another_out(serve: Serve, keys: Path, count: int) -> None:
    """Lists of tiny messages take more and more until they are refused; others publish all along."""
    server = serve(keys_file=keys, bodies_bytes_max=4 * MIB, body_idle_timeout_s=5)
    text = b'{"payload":1},' * 1000
    with server.http(headers={"X-API-Key": OTHER}) as http, ExitStack() as stack:
        http.post("/topics", json={"name": "orders"}).raise_for_status()
        wires = [stack.enter_context(Wire(server.port)) for _ in range(count)]
        for wire in wires:
            wire.send(head(server, 50 * len(text), key=GREEDY) + b"[")
        while not (told := select.select([wire.socket for wire in wires], [], [], 0)[0]):
            for wire in wires:
                wire.send(text)
            assert http.post("/topics/orders/messages", json={"payload": 0}).status_code == 200
        assert refused(next(wire for wire in wires if wire.socket in told))[:2] == (503, "TOO_MANY_BODIES")


def test_a_body_that_names_a_length_beyond_its_limit_is_refused_unread(serve: Serve) -> None:
    """The head says enough: 413 before a byte of the body."""
    server = serve(auth=False, bulk_bytes_max=MIB, message_bytes_max=1000)
    server.create("orders")
    for path in ("/topics", "/topics/orders/messages"):
        with Wire(server.port) as wire:
            wire.send(head(server, 2 * MIB, path=path))
            assert refused(wire)[:2] == (413, "MESSAGE_TOO_LARGE")


def test_small_messages_count_with_what_they_take_in_memory(serve: Serve) -> None:
    """A list of little text and many messages does not pass the budget by being decoded."""
    server = serve(auth=False, bodies_bytes_max=4 * MIB)
    server.create("orders")
    with server.http() as http:
        for count, status in ((10_000, 200), (40_000, 503)):
            text = "[" + ",".join(['{"payload":1}'] * count) + "]"
            assert len(text) < MIB
            headers = {"Content-Type": "application/json"}
            answer = http.post("/topics/orders/messages", content=text, headers=headers)
            assert answer.status_code == status, answer.text
        assert http.get("/topics").json()["topics"][0]["messages"] == 10_000
    assert server.on_loop(lambda: server.context.bodies.used_bytes) == 0


def test_what_is_open_to_all_reads_no_body(serve: Serve) -> None:
    """``/health`` with an announced body is answered by its head, and the connection closed."""
    server = serve(token="correct-horse-battery-staple")
    with Wire(server.port) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\nx")
        status, headers, _ = wire.response()
        assert (status, headers["connection"]) == (200, "close")
        assert server.on_loop(lambda: server.context.bodies.used_bytes) == 0


@pytest.mark.slow
def test_unfinished_bodies_stay_within_the_budget_of_memory(tmp_path: Path) -> None:
    """Six bodies of 40 MB, all but their last byte sent, with a budget of 64 MiB: the process grows by less."""
    with (
        ServerProcess(tmp_path, "--bodies-bytes-max", str(64 * MIB), "--no-kernels") as server,
        ExitStack() as stack,
    ):
        server.create("orders")
        before = server.memory_bytes()
        text = json.dumps([{"payload": "x" * 10_000}] * 4000).encode()
        for _ in range(6):
            wire = stack.enter_context(Wire(server.port))
            wire.socket.settimeout(0.5)
            wire.send(head(server, len(text)))
            try:
                wire.send(text[:-1])
            except TimeoutError:
                pass  # it waits, and its sender with it
        assert server.memory_bytes() - before < 64 * MIB
        with server.http() as http:
            assert http.post("/topics/orders/messages", json={"payload": 0}).status_code == 200


# Time slices


def test_a_large_list_takes_turns_with_everything_else(serve: Serve) -> None:
    """No turn of the event loop decodes more than a piece of it: the longest takes a fraction of the whole."""
    server = serve(auth=False)
    server.create("orders")
    text = json.dumps([{"payload": {"text": "x" * 1000, "items": [{"a": 1}, {"b": 2}]}}] * 40_000)
    turns: list[float] = []
    assert server.loop is not None

    def tick() -> None:
        # Of this thread alone, so that a busy machine does not count.
        turns.append(time.thread_time())
        assert server.loop is not None
        server.loop.call_later(0.001, tick)

    server.on_loop(tick)
    with server.http() as http:
        answer = http.post(
            "/topics/orders/messages", content=text, headers={"Content-Type": "application/json"}
        )
    assert answer.json()["count"] == 40_000
    spent = server.on_loop(lambda: turns[-1] - turns[0])
    longest = max(later - earlier for earlier, later in pairwise(turns))
    assert longest < spent / 8, (longest, spent)


def test_messages_that_are_not_whole_count_in_the_same_budget(serve: Serve) -> None:
    """Frames and fragments of WebSockets too: beyond the budget a connection is told and closed, others live on."""
    server = serve(auth=False, bodies_bytes_max=2 * MIB)
    server.create("orders")
    part = frame(b"x" * 900_000)[:800_000]
    fragments = b"".join(frame(b"x" * 100_000, TEXT if n == 0 else CONT, fin=False) for n in range(8))
    held = server.context.bodies
    with ExitStack() as stack:
        sockets = [stack.enter_context(RawWebSocket(server)) for _ in range(6)]
        for number, ws in enumerate(sockets):
            ws.send(part if number % 2 else fragments)
        told = until(lambda: select.select([ws.socket for ws in sockets], [], [], 0)[0])
        assert server.on_loop(lambda: held.used_bytes) <= 2 * MIB
        for ws in [ws for ws in sockets if ws.socket in told]:
            assert ws.hear()["error"]["code"] == "TOO_MANY_BODIES"
            assert ws.next_frame() == (CLOSE, struct.pack("!H", 1013) + b"TOO_MANY_BODIES")
        small = {"type": "publish", "topic": "orders", "message": {"id": str(uuid4()), "payload": 1}}
        with RawWebSocket(server) as another:
            assert another.ask(**small)["type"] == "ack"
    until(lambda: server.on_loop(lambda: held.used_bytes) == 0)


def test_a_message_that_never_ends_is_given_up(serve: Serve) -> None:
    """A WebSocket message has as long as the body of a request."""
    server = serve(auth=False, body_timeout_s=0.3, heartbeat_s=0.1, heartbeat_timeout_s=60)
    with RawWebSocket(server) as ws:
        ws.send(frame(b"x" * 900_000)[:500_000])
        assert ws.hear()["error"]["code"] == "BODY_TIMEOUT"
        assert ws.next_frame() == (CLOSE, struct.pack("!H", 1008) + b"BODY_TIMEOUT")
