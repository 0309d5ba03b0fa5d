"""What a key, token or session has opened ends with it: WebSockets, event streams, reads and publishes under way."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from himalia.record import now_us
from himalia.server.http import middleware
from himalia.server.identity import sessions
from himalia.server.identity.credential import Failure
from himalia.server.identity.keys_file import KeysFile
from tests.server.identity.credentials import Serve, error_of, write_keys
from tests.server.raw_clients import Wire, until
from tests.servers import DEADLINE_S, RunningServer, ask, hear

ADMIN = {"X-API-Key": "admin-key-0123456789"}
SHOP = {"X-API-Key": "shop-key-0123456789"}
ADMIN_TABLE = """
[keys.admin]
key = "admin-key-0123456789"
publish = [">"]
subscribe = [">"]
manage = [">"]
"""
SHOP_TABLE = """
[keys.shop]
key = "shop-key-0123456789"
publish = [">"]
subscribe = [">"]
execute = [">"]
"""


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return write_keys(tmp_path / "keys.toml", ADMIN_TABLE + SHOP_TABLE)


@pytest.fixture
def server(serve: Serve, keys: Path) -> RunningServer:
    server = serve(keys_file=keys)
    with server.http(headers=ADMIN) as http:
        http.post("/topics", json={"name": "orders"}).raise_for_status()
    return server


@pytest.fixture
def remove_shop(server: RunningServer, keys: Path) -> Callable[[], None]:
    """Take the key out of the file; comes back when the server no longer knows it."""

    def remove() -> None:
        write_keys(keys, ADMIN_TABLE)
        deadline = time.monotonic() + DEADLINE_S
        with server.http(headers=SHOP) as http:
            while http.get("/topics").status_code == 200:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    return remove


async def test_a_websocket_is_told_and_closed(server: RunningServer, keys: Path) -> None:
    """An ``error`` says why, then close code 4401; what it subscribed to is gone."""
    async with server.connect(additional_headers=SHOP) as ws:
        await ask(ws, type="subscribe", topic="orders", client_id="v")
        write_keys(keys, ADMIN_TABLE)
        told = await hear(ws)
        assert told["error"] == {"code": "UNAUTHORIZED", "message": "this key was removed"}
        with pytest.raises(ConnectionClosed) as closed:
            await hear(ws)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4401, "UNAUTHORIZED")
    with server.http(headers=ADMIN) as http:
        assert http.get("/stats").json()["subscribers"] == []


async def test_a_websocket_cannot_publish_after_its_key_has_ended(server: RunningServer, keys: Path) -> None:
    """What comes after the end is not read, however quickly it is sent."""
    async with server.connect(additional_headers=SHOP) as ws:
        await ask(ws, type="ping")
        connection = server.on_loop(lambda: next(iter(server.context.connections)))
        server.on_loop(lambda: connection.principal.credential.end("over"))
        server.on_loop(
            lambda: connection.receive(
                b'{"type":"publish","topic":"orders","message":{"id":"7d9f2c1e-0b7a-4c58-9d43-0f6c8a1f2b3c","payload":1}}'
            )
        )
        server.on_loop(connection.end_of_input)
    with server.http(headers=ADMIN) as http:
        assert http.get("/topics/orders/messages").json()["messages"] == []


def test_an_event_stream_says_why_and_ends(server: RunningServer, remove_shop: Callable[[], None]) -> None:
    """The last event is the error; the stream ends in order."""
    with server.http(headers=SHOP) as http, http.stream("GET", "/topics/orders/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        remove_shop()
        rest = "\n".join(lines)
    assert "event: error" in rest and "this key was removed" in rest


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing is freed by the garbage collector meanwhile, which may not come by for a long time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("events?from=0", "text/event-stream"),
        ("messages", "application/json"),
        ("messages", "application/x-ndjson"),
        ("messages", "application/vnd.apache.arrow.stream"),
    ],
    ids=["events", "JSON", "NDJSON", "Arrow"],
)
def test_a_reader_that_takes_nothing_leaves_nothing_behind(
    server: RunningServer, remove_shop: Callable[[], None], path: str, accept: str
) -> None:
    """Its connection, its subscription and its places are free again, though its last piece was never taken."""
    with server.http(headers=ADMIN) as http:
        for _ in range(8):
            http.post("/topics/orders/messages", json=[{"payload": "x" * 900_000}] * 4).raise_for_status()
    context = server.context

    def in_use() -> int:
        places = sum(len(usage.slots) for usage in context.usages._usages.values())
        return context.manager.subscriber_count + context.connection_count + context.readers + places

    with Wire(server.port, receive_bytes=4096) as wire:
        head = f"GET /topics/orders/{path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
        wire.send(f"{head}X-API-Key: {SHOP['X-API-Key']}\r\n\r\n".encode())
        until(lambda: server.on_loop(in_use))
        remove_shop()
        until(lambda: not server.on_loop(in_use))
        until(lambda: not server.context.admission.count)


def test_a_read_under_way_is_cut_off(
    server: RunningServer, remove_shop: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader cannot take it for whole: the answer has no end."""
    monkeypatch.setattr(middleware, "GRACE_S", 0.0)
    with server.http(headers=ADMIN) as http:
        for _ in range(8):
            http.post("/topics/orders/messages", json=[{"payload": "x" * 900_000}] * 4).raise_for_status()
    with (
        server.http(headers=SHOP) as http,
        http.stream("GET", "/topics/orders/messages", params={"limit": 100}) as stream,
    ):
        parts = stream.iter_raw(65536)
        next(parts)
        remove_shop()
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in parts:
                pass


def test_a_publish_under_way_is_refused(server: RunningServer, remove_shop: Callable[[], None]) -> None:
    """A body that is still coming is not read on; nothing of it is stored."""
    with Wire(server.port) as wire:
        head = (
            "POST /topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        wire.send(
            f'{head}Content-Length: 1000\r\nX-API-Key: {SHOP["X-API-Key"]}\r\n\r\n{{"payload":'.encode()
        )
        remove_shop()
        status, _, body = wire.response()
    assert status == 401 and b"this key was removed" in body
    with server.http(headers=ADMIN) as http:
        assert http.get("/topics/orders/messages").json()["messages"] == []


class Gate:
    """Something the server does, which is held until the test lets it go on."""

    def __init__(self, server: RunningServer, of: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = server
        self._open = asyncio.Event()
        self.reached = threading.Event()
        do = getattr(of, name)

        async def held(*args: Any, **options: Any) -> Any:
            self.reached.set()
            await self._open.wait()
            return await do(*args, **options)

        monkeypatch.setattr(of, name, held)

    def open(self) -> None:
        self._server.on_loop(self._open.set)


def held_kernel(server: RunningServer, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Gate, str]:
    with server.http(headers=SHOP) as http:
        id = http.post("/api/kernels").json()["id"]
    return Gate(server, type(server.context.kernels.get(id)), name, monkeypatch), f"/api/kernels/{id}"


@pytest.mark.parametrize("event", ["topic_created", "topic_deleted", "clock_confirmed", "kernel_interrupted"])
def test_what_its_caller_does_not_see_the_end_of_is_recorded(
    serve: Serve, keys: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """The key ends while the log commits: the caller is answered 401, it happens, and the trail says so."""
    shop = SHOP_TABLE + 'manage = [">"]\n'
    server = serve(keys_file=write_keys(keys, ADMIN_TABLE + shop))
    context = server.context
    method, path, body = "DELETE", "/topics/orders", None
    if event == "kernel_interrupted":
        gate, kernel = held_kernel(server, "interrupt", monkeypatch)
        method, path = "POST", f"{kernel}/interrupt"
    elif event == "clock_confirmed":

        async def warned() -> str:
            return "the clock jumped"

        monkeypatch.setattr(context.log, "confirm_clock", warned)
        gate = Gate(server, context.log, "confirm_clock", monkeypatch)
        method, path = "POST", "/clock/confirm"
    elif event == "topic_created":
        gate = Gate(server, context.manager, "create_topic", monkeypatch)
        method, path, body = "POST", "/topics", {"name": "orders"}
    else:
        with server.http(headers=ADMIN) as http:
            http.post("/topics", json={"name": "orders"}).raise_for_status()
        gate = Gate(server, context.manager, "delete_topic", monkeypatch)
    with server.http(headers=SHOP) as http, ThreadPoolExecutor() as pool:
        answer = pool.submit(http.request, method, path, json=body)
        assert gate.reached.wait(DEADLINE_S)
        write_keys(keys, ADMIN_TABLE)
        assert error_of(answer.result()) == (401, "UNAUTHORIZED")
    gate.open()
    until(lambda: [one for one in server.audit_trail(event) if one["caller"] == "key:shop"])


def hold_storing(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The disk takes its time with sessions: set when it is asked, and to be set when it may go on."""
    reached, opened = threading.Event(), threading.Event()
    write_private = sessions.write_private

    def held(path: Path, content: bytes) -> None:
        reached.set()
        assert opened.wait(DEADLINE_S)
        write_private(path, content)

    monkeypatch.setattr(sessions, "write_private", held)
    return reached, opened


def end_key(server: RunningServer, name: str) -> None:
    keyring = server.context.identity._source.keyring
    [key] = [key for key in keyring if key.principal.name == name]
    server.on_loop(lambda: key.principal.credential.end("this key was removed"))


async def test_a_revocation_goes_on_when_its_own_caller_is_cut_off(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that is forgotten ends with all that it opened, whoever waits for that."""
    with server.http() as http:
        http.post("/session", headers=SHOP).raise_for_status()
        cookie = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
    with server.http(headers=ADMIN) as http, ThreadPoolExecutor() as pool:
        [session] = http.get("/sessions").json()["sessions"]
        async with server.connect(additional_headers={"Cookie": cookie}) as ws:
            await ask(ws, type="ping")
            reached, opened = hold_storing(monkeypatch)
            answer = pool.submit(http.delete, f"/sessions/{session['id']}")
            assert await asyncio.to_thread(reached.wait, DEADLINE_S)
            end_key(server, "key:admin")
            ended = await asyncio.to_thread(answer.result)
            assert error_of(ended) == (401, "UNAUTHORIZED")
            opened.set()
            assert (await hear(ws))["error"]["message"] == "this session was revoked; sign in again"
    [revoked] = server.audit_trail("session_revoked")
    assert (revoked["caller"], revoked["session"]) == ("key:admin", session["id"])


def test_a_session_whose_maker_is_cut_off_is_recorded(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there before it is stored, so the trail has it then."""
    reached, opened = hold_storing(monkeypatch)
    with server.http() as http, ThreadPoolExecutor() as pool:
        answer = pool.submit(http.post, "/session", headers=SHOP)
        assert reached.wait(DEADLINE_S)
        end_key(server, "key:shop")
        assert error_of(answer.result()) == (401, "UNAUTHORIZED")
    opened.set()
    [created] = server.audit_trail("session_created")
    assert created["caller"] == "key:shop"


def test_nothing_is_logged_as_a_bug(
    server: RunningServer, remove_shop: Callable[[], None], no_errors_logged: None
) -> None:
    """Cutting off a reader who does not read is no error of the server."""
    with server.http(headers=ADMIN) as http:
        for _ in range(8):
            http.post("/topics/orders/messages", json=[{"payload": "x" * 900_000}] * 4).raise_for_status()
    with Wire(server.port) as wire:
        wire.send(
            "GET /topics/orders/messages?limit=100 HTTP/1.1\r\nHost: localhost\r\n"
            f"X-API-Key: {SHOP['X-API-Key']}\r\n\r\n".encode()
        )
        remove_shop()
        wire.until_end()


def test_an_expired_key_ends_what_it_opened(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the time in the file, without anybody doing anything; from then on the key says that it has expired."""
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3))
    table = SHOP_TABLE.replace("publish", f"expires = {soon}\npublish", 1)
    server = serve(keys_file=write_keys(tmp_path / "keys.toml", ADMIN_TABLE + table))
    with server.http(headers=ADMIN) as http:
        http.post("/topics", json={"name": "orders"}).raise_for_status()
    with server.http(headers=SHOP) as http:
        with http.stream("GET", "/topics/orders/events") as stream:
            assert stream.status_code == 200
            assert "this key has expired" in "".join(stream.iter_text())
        answer = http.get("/topics")
        assert error_of(answer) == (401, "UNAUTHORIZED") and "expired" in answer.text
    assert server.context.identity.failures[Failure.EXPIRED] == 1
    assert "refused a wrong or expired key or session from 127.0.0.1" in caplog.text
    [expired] = server.audit_trail("key_expired")
    assert expired == {"event": "key_expired", "caller": "server", "name": "key:shop"}


def test_what_expired_earlier_is_not_recorded_again(serve: Serve, tmp_path: Path) -> None:
    """A restart records nothing of keys that have expired; nor is the end of an old secret that of its key."""
    table = SHOP_TABLE.replace("publish", "expires = 2026-01-01T00:00:00Z\npublish", 1)
    keys = write_keys(tmp_path / "keys.toml", ADMIN_TABLE + table)
    server = serve(keys_file=keys)
    with server.http(headers=ADMIN) as http:
        assert http.get("/topics").status_code == 200
        KeysFile(keys).rotate("admin", keep_until_us=now_us() + 1_500_000)
        until(lambda: http.get("/topics").status_code == 401)
    assert server.audit_trail("key_expired") == []


def test_a_removed_key_ends_its_sessions(server: RunningServer, remove_shop: Callable[[], None]) -> None:
    """Whoever signed in with it is signed out."""
    with server.http() as http:
        http.post("/session", headers=SHOP).raise_for_status()
        with http.stream("GET", "/topics/orders/events") as stream:
            remove_shop()
            assert "sign in again" in "".join(stream.iter_text())
        assert error_of(http.get("/topics")) == (401, "UNAUTHORIZED")
    [made] = server.audit_trail("session_created")
    [ended] = server.audit_trail("session_revoked")
    assert ended == {
        "event": "session_revoked",
        "caller": "server",
        "session": made["session"],
        "of": "key:shop",
    }


def test_a_session_has_the_rights_of_now(server: RunningServer, keys: Path) -> None:
    """A key that loses a right takes it from those who are signed in with it; they stay signed in."""
    with server.http() as http:
        http.post("/session", headers=SHOP).raise_for_status()
        assert http.post("/topics/orders/messages", json={"payload": 1}).status_code == 200
        write_keys(keys, ADMIN_TABLE + SHOP_TABLE.replace('publish = [">"]', ""))
        deadline = time.monotonic() + DEADLINE_S
        while http.post("/topics/orders/messages", json={"payload": 1}).status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert error_of(http.post("/topics/orders/messages", json={"payload": 1})) == (403, "FORBIDDEN")
        assert http.get("/session").json()["caller"] == "key:shop"
