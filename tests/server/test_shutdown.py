"""Ending a server, in order and by force: nothing that was acknowledged is ever lost."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from himalia.server.websocket.transport import CLOSE_GOING_AWAY, CLOSE_SERVICE_RESTART
from tests.server.raw_clients import CLOSE, TEXT, RawWebSocket, Wire, frame, handshake, until
from tests.server.server_process import ServerProcess
from tests.servers import DEADLINE_S, RunningServer

pytestmark = pytest.mark.slow
NDJSON = {"Content-Type": "application/x-ndjson"}
Serve = Callable[..., RunningServer]


class Publisher:
    """Publishes without waiting for anything, from a thread of its own, until the connection ends.

    ``acknowledged`` maps offsets to payloads that the server says it has.
    """

    def __init__(self, server: ServerProcess, topic: str = "orders", name: str = "p") -> None:
        self.acknowledged: dict[int, str] = {}
        self.refusals: list[str] = []
        self.notices: list[str] = []
        self.close_code: int | None = None
        self._socket = RawWebSocket(server)  # type: ignore[arg-type]
        self._topic = topic
        self._name = name
        self._threads = [threading.Thread(target=self._speak), threading.Thread(target=self._listen)]
        for thread in self._threads:
            thread.start()

    def _speak(self) -> None:
        number = 0
        try:
            while self.close_code is None:
                bodies = []
                for _ in range(20):
                    payload = f"{self._name}-{number}"
                    body = {"id": str(uuid.uuid4()), "payload": payload}
                    bodies.append(
                        {"type": "publish", "topic": self._topic, "message": body, "request_id": payload}
                    )
                    number += 1
                self._socket.send(b"".join(frame(json.dumps(body).encode()) for body in bodies))
        except OSError:
            pass

    def _listen(self) -> None:
        try:
            while True:
                opcode, payload = self._socket.next_frame()
                if opcode == CLOSE:
                    self.close_code = int.from_bytes(payload[:2], "big")
                    self._socket.send(frame(payload, CLOSE))
                    return
                if opcode == TEXT:
                    self._take(json.loads(payload))
        except (OSError, EOFError):
            pass

    def _take(self, answer: dict[str, Any]) -> None:
        if answer["type"] == "ack":
            self.acknowledged[answer["offset"]] = answer["request_id"]
        elif answer["type"] == "error":
            self.refusals.append(answer["error"]["code"])
        elif answer["type"] == "info":
            self.notices.append(answer["msg"])

    def join(self) -> None:
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        self._socket.socket.close()


def records_of(server: ServerProcess | RunningServer, topic: str = "orders") -> list[dict[str, Any]]:
    """Everything in a topic, which must be offsets 0, 1, 2, ... without a hole."""
    with server.http(headers=server.headers | {"Accept": "application/x-ndjson"}) as http:
        text = http.get(f"/topics/{topic}/messages").text
    records = [json.loads(line) for line in text.splitlines()]
    assert [record["offset"] for record in records] == list(range(len(records)))
    return records


def check_nothing_lost(server: ServerProcess | RunningServer, publishers: list[Publisher]) -> None:
    """Every acknowledged message is at its offset, nothing is there twice, and each publisher's are in order."""
    stored = [record["message"]["payload"] for record in records_of(server)]
    for publisher in publishers:
        for offset, payload in publisher.acknowledged.items():
            assert stored[offset] == payload
    assert len(set(stored)) == len(stored)
    for publisher in publishers:
        own = [
            int(payload.rpartition("-")[2]) for payload in stored if payload.startswith(publisher._name + "-")
        ]
        assert own == sorted(own)


# In order


@pytest.mark.parametrize(
    ("number", "close_code"), [(signal.SIGTERM, CLOSE_SERVICE_RESTART), (signal.SIGINT, CLOSE_GOING_AWAY)]
)
def test_a_signal_ends_the_server_in_order(tmp_path: Path, number: signal.Signals, close_code: int) -> None:
    """Who is connected is told and closed with a code that says whether to come back; the exit code is 0."""
    with ServerProcess(tmp_path) as server:
        server.create("orders")
        with RawWebSocket(server) as spoke, RawWebSocket(server) as silent:  # type: ignore[arg-type]
            spoke.ask(type="subscribe", topic="orders", client_id="v")
            server.signal(number)
            heard = spoke.hear()
            assert (heard["type"], heard["msg"]) == ("info", "server_shutdown")
            assert spoke.close_code() == close_code
            # The server says nothing to who has not spoken, but closes in order all the same.
            opcode, payload = silent.next_frame()
            assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, close_code)
            silent.send(frame(payload, CLOSE))
        assert server.exit_code() == 0
        assert "Traceback" not in server.stderr()


def test_a_stream_ends_with_the_server(tmp_path: Path) -> None:
    """Server-Sent Events come to an end, not to a reset; their clients reconnect by themselves."""
    with ServerProcess(tmp_path, "--no-auth") as server:
        server.create("orders")
        with server.http() as http, http.stream("GET", "/topics/orders/events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": connected"
            server.signal(signal.SIGTERM)
            assert [line for line in lines if line] == []
        assert server.exit_code() == 0


def test_everything_acknowledged_is_there_after_a_restart(tmp_path: Path, serve: Serve) -> None:
    """Publishers are pipelining when SIGTERM comes; what was acknowledged is stored, and they are told the rest."""
    with ServerProcess(tmp_path) as server:
        server.create("orders")
        publishers = [Publisher(server, name=name) for name in "abc"]
        until(lambda: all(len(publisher.acknowledged) > 300 for publisher in publishers))
        assert server.stop() == 0
        for publisher in publishers:
            publisher.join()
            assert publisher.close_code == CLOSE_SERVICE_RESTART
            assert publisher.notices == ["server_shutdown"]
            assert set(publisher.refusals) <= {"SHUTTING_DOWN"}
        assert "Traceback" not in server.stderr()
    check_nothing_lost(serve(log=server.log), publishers)


def test_a_subscriber_gets_everything_before_the_end(tmp_path: Path) -> None:
    """What was acknowledged before the signal is delivered before the close."""
    with ServerProcess(tmp_path) as server:
        server.create("orders")
        with RawWebSocket(server) as raw, server.http() as http:  # type: ignore[arg-type]
            raw.ask(type="subscribe", topic="orders", client_id="v", policy="lossless")
            lines = b"".join(b'{"payload":"%05d%b"}\n' % (i, b"x" * 1000) for i in range(5000))
            answer = http.post("/topics/orders/messages", content=lines, headers=NDJSON)
            assert answer.json()["count"] == 5000
            server.signal(signal.SIGTERM)
            offsets = []
            while True:
                opcode, payload = raw.next_frame()
                if opcode == CLOSE:
                    raw.send(frame(payload, CLOSE))
                    break
                if opcode == TEXT and (heard := json.loads(payload))["type"] == "event":
                    offsets.append(heard["offset"])
            assert offsets == list(range(5000))
        assert server.exit_code() == 0


@pytest.mark.parametrize("kind", ["websocket", "stream"])
def test_a_slow_subscriber_holds_the_end_up_no_longer_than_shutdown_s(tmp_path: Path, kind: str) -> None:
    """Somebody who does not read is waited for as long as the setting says, and then no longer."""
    with ServerProcess(tmp_path, "--no-auth", "--shutdown-s", "0.5") as server:
        server.create("orders")
        with Wire(server.port, receive_bytes=4096) as stream, server.http() as http:
            if kind == "stream":
                stream.send(b"GET /topics/orders/events?policy=lossless HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert stream.response()[0] == 200
            else:
                stream.socket.close()
                raw = RawWebSocket(server, receive_bytes=4096)  # type: ignore[arg-type]
                raw.ask(type="subscribe", topic="orders", client_id="v", policy="lossless")
            line = json.dumps({"payload": "x" * 10_000}) + "\n"
            http.post("/topics/orders/messages", content=line * 2000, headers=NDJSON).raise_for_status()
            until(lambda: http.get("/stats").json()["topics"]["orders"]["lag"])
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 0.5 + 5
        assert "Traceback" not in server.stderr()


def test_a_second_ctrl_c_waits_for_nobody(tmp_path: Path, serve: Serve) -> None:
    """A person who is in a hurry does not wait for a slow subscriber; what was acknowledged is stored all the same."""
    with ServerProcess(tmp_path, "--no-auth", "--shutdown-s", "60") as server:
        server.create("orders")
        with RawWebSocket(server, receive_bytes=4096) as raw, server.http() as http:  # type: ignore[arg-type]
            raw.ask(type="subscribe", topic="orders", client_id="v", policy="lossless")
            line = json.dumps({"payload": "x" * 10_000}) + "\n"
            http.post("/topics/orders/messages", content=line * 2000, headers=NDJSON).raise_for_status()
            until(lambda: http.get("/stats").json()["topics"]["orders"]["lag"])
            server.signal(signal.SIGINT)
            until(lambda: "shutting down" in server.stderr())
            server.signal(signal.SIGINT)
            assert server.exit_code() == 0
        assert "Traceback" not in server.stderr()
    assert len(records_of(serve(log=server.log))) == 2000


def test_publishing_and_connecting_during_the_end_is_refused_by_name(
    serve: Serve,
) -> None:
    """While a server drains it takes nothing new: SHUTTING_DOWN, on REST with 503."""
    server = serve(auth=False)
    server.create("orders")
    with RawWebSocket(server) as raw, server.http() as http:
        server.on_loop(lambda: setattr(server.context, "draining", True))
        message = {"id": str(uuid.uuid4()), "payload": 1}
        answer = raw.ask(type="publish", topic="orders", message=message)
        assert answer["error"]["code"] == "SHUTTING_DOWN"
        for answer in (
            http.post("/topics/orders/messages", json={"payload": 1}),
            http.post("/topics/orders/messages", content='{"payload":1}', headers=NDJSON),
            http.get("/topics/orders/events"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SHUTTING_DOWN")
        with Wire(server.port) as wire:
            wire.send(handshake(server.port))
            assert wire.response()[0] == 503
        assert http.get("/topics").json()["topics"][0]["messages"] == 0


def test_half_a_frame_does_not_disturb_the_closing_handshake(serve: Serve) -> None:
    """A client that is in the middle of a frame when the server closes can finish it and close in order."""
    server = serve(auth=False)
    whole = frame(json.dumps({"type": "ping", "request_id": "x" * 100}).encode())
    with RawWebSocket(server) as raw:
        assert raw.is_alive()
        raw.send(whole[:50])
        until(
            lambda: server.on_loop(
                lambda: any(c.transport._protocol._parser.buffered_bytes for c in server.context.connections)
            )
        )
        server.on_loop(lambda: [c.close(1012, "bye") for c in list(server.context.connections)])
        opcode, payload = raw.next_frame()
        assert opcode == CLOSE
        # Were the rest of the frame taken for the beginning of another, the server would end here at once.
        raw.send(whole[50:] + whole)
        assert server.on_loop(lambda: len(server.context.connections)) == 1
        raw.send(frame(payload, CLOSE))
        assert raw.until_end() == b""
    until(lambda: server.on_loop(lambda: len(server.context.connections)) == 0)


# By force


def test_kill_9_in_mid_traffic_loses_nothing_acknowledged(tmp_path: Path, serve: Serve) -> None:
    """Three times: publishers pipeline, the server is killed, and what it acknowledged is there, without holes."""
    everyone: list[Publisher] = []
    seed = random.Random(7)
    for round in range(3):
        with ServerProcess(tmp_path) as server:
            if round == 0:
                server.create("orders")
            else:
                check_nothing_lost(server, everyone)
            publishers = [Publisher(server, name=f"{round}{name}") for name in "ab"]
            enough = len(records_of(server)) + seed.randrange(200, 3000)

            def acknowledged(publishers: list[Publisher] = publishers, enough: int = enough) -> bool:
                return max((max(p.acknowledged, default=0) for p in publishers), default=0) > enough

            until(acknowledged)
            server.kill()
            for publisher in publishers:
                publisher.join()
            everyone += publishers
    check_nothing_lost(serve(log=server.log), everyone)
    assert sum(len(publisher.acknowledged) for publisher in everyone) > 600
