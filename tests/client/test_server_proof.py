"""A token is sent to loopback only after the server has proven that it knows it (C10)."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from himalia.client import Client
from himalia.errors import ConnectionFailed, HimaliaError, Unauthorized
from himalia.spark.connector.address import ServerAddress
from himalia.spark.connector.http import ServerConnection
from himalia.token_proof import Challenge, is_same_machine
from tests.cli.command import assert_sentence, himalia
from tests.servers import DEADLINE_S, RunningServer

Serve = Callable[..., RunningServer]
TOKEN = "correct-horse-battery-staple"


def answer(status: str, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def not_found() -> bytes:
    return answer("404 Not Found", b'{"error": {"code": "NOT_FOUND", "message": "there is nothing"}}')


ANSWERS: dict[str, bytes] = {
    "nothing": b"",
    "an error page": answer("404 Not Found", b"<html>"),
    "an older server": not_found(),
    "a wrong proof": answer("200 OK", json.dumps({"proof": "0" * 64}).encode()),
    "a proof of the wrong type": answer("200 OK", b'{"proof": 1}'),
    "something else": answer("200 OK", b"{}"),
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\n\r\n{}",
    "no end": b"x" * 200_000,
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
}


class Squatter:
    """A program that has taken the port: gives every connection the same answer, and remembers what it was sent."""

    def __init__(self, given: bytes, port: int = 0) -> None:
        self.heard = b""
        self._given = given
        self._listener = socket.create_server(("127.0.0.1", port), reuse_port=False)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                while data := peer.recv(65536):
                    self.heard += data
                    if not self._given:
                        return
                    peer.sendall(self._given)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def squat() -> Iterator[Callable[..., Squatter]]:
    found: list[Squatter] = []

    def start(given: bytes, port: int = 0) -> Squatter:
        found.append(Squatter(given, port))
        return found[-1]

    yield start
    for one in found:
        one.close()


async def rest(url: str) -> None:
    async with Client(url, TOKEN) as client:
        await client.topics()


async def read(url: str) -> None:
    async with Client(url, TOKEN) as client:
        async for _ in client.read("orders"):
            pass


async def publish(url: str, timeout_s: float = DEADLINE_S) -> None:
    async with Client(url, TOKEN, timeout_s=timeout_s) as client:
        await client.publish("orders", "a secret payload")


async def subscribe(url: str) -> None:
    async with Client(url, TOKEN) as client:
        await client._dial()


async def spark(url: str) -> None:
    def ask() -> None:
        with ServerConnection(ServerAddress(url, TOKEN)) as connection:
            connection.request("GET", "/topics", lambda told: told)

    await asyncio.to_thread(ask)


WAYS: dict[str, Callable[[str], Any]] = {
    "rest": rest,
    "read": read,
    "publish": publish,
    "subscribe": subscribe,
    "spark": spark,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("given", ANSWERS.values(), ids=ANSWERS.keys())
async def test_whoever_took_the_port_gets_nothing(
    squat: Callable[..., Squatter], given: bytes, way: Callable[[str], Any]
) -> None:
    """Neither the token nor a payload, whatever it answers; the error says that the token was not sent."""
    squatter = squat(given)
    # A publish retries until its time is over: what answers now may make room for the server.
    impatient = partial(publish, timeout_s=0.5) if way is publish else way
    with pytest.raises(HimaliaError) as failed:
        await impatient(squatter.url)
    assert isinstance(failed.value, ConnectionFailed)
    assert b"GET /proof?" in squatter.heard
    assert TOKEN.encode() not in squatter.heard and b"payload" not in squatter.heard
    assert TOKEN not in failed.value.message


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("host", ["0.0.0.0", "127.1", "2130706433"])
async def test_another_name_of_this_machine_is_asked_too(
    squat: Callable[..., Squatter], host: str, way: Callable[[str], Any]
) -> None:
    """Where the connection ends decides, not how the URL is spelt."""
    squatter = squat(not_found())
    impatient = partial(publish, timeout_s=0.5) if way is publish else way
    with pytest.raises(ConnectionFailed):
        await impatient(f"http://{host}:{squatter.port}")
    assert b"GET /proof?" in squatter.heard and TOKEN.encode() not in squatter.heard


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        ("127.0.0.1", "127.0.1.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_a_connection_within_a_machine_is_known_by_its_ends(own: str, peer: str, expected: bool) -> None:
    """The peer is loopback, or has the address that is our own."""
    assert is_same_machine(own, peer) is expected


async def test_a_proxy_is_not_asked_to_prove_anything(
    squat: Callable[..., Squatter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy on this machine passes requests on to a server elsewhere, which it cannot speak for."""
    proxy = squat(not_found())
    monkeypatch.setenv("http_proxy", proxy.url)
    with pytest.raises(HimaliaError):
        await rest("http://broker.example:8000")
    assert proxy.heard.startswith(b"GET http://broker.example:8000/topics ")


async def test_a_client_that_is_connected_asks_again_on_a_new_connection(
    serve: Serve, squat: Callable[..., Squatter]
) -> None:
    """The server ends, another program takes its port: the same client does not go on with that one."""
    server = serve(token=TOKEN)
    server.create("orders")
    async with Client(server.url, TOKEN, timeout_s=5) as client:
        assert len(await client.topics()) == 1
        await client.publish("orders", 1)
        port = server.port
        await asyncio.to_thread(server.stop)
        squatter = squat(not_found(), port)
        with pytest.raises(ConnectionFailed, match=r"was not sent|failed"):
            await client.topics()
        with pytest.raises(ConnectionFailed):
            await client.publish("orders", 2, timeout_s=1)
    assert TOKEN.encode() not in squatter.heard


async def test_each_connection_is_asked_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten calls over one connection cost one proof; the WebSocket has its own."""
    server = serve(token=TOKEN)
    server.create("orders")
    asked: list[str] = []
    prove = server.context.identity.prove

    async def counting(scope: Any, key_id: str, nonce: str) -> str:
        asked.append(nonce)
        return await prove(scope, key_id, nonce)

    monkeypatch.setattr(server.context.identity, "prove", counting)
    async with Client(server.url, TOKEN) as client:
        for _ in range(10):
            await client.topics()
        assert len(asked) == 1
        await client.publish("orders", 1)
        await client.publish("orders", 2)
        assert len(asked) == 2
    assert len(set(asked)) == 2, "each with a nonce of its own"

    def ask_twice() -> None:
        with ServerConnection(ServerAddress(server.url, TOKEN)) as connection:
            for _ in range(2):
                connection.request("GET", "/topics", lambda told: told)

    await asyncio.to_thread(ask_twice)
    assert len(asked) == 3


def test_a_proof_is_for_one_nonce_and_one_token() -> None:
    """One that was overheard proves nothing the next time."""
    one, two = Challenge(TOKEN), Challenge(TOKEN)
    assert one.path.partition("&")[0] == two.path.partition("&")[0] and one.path != two.path
    assert TOKEN not in one.path
    from himalia.token_proof import digest_of, proof_of

    nonce = one.path.rpartition("=")[2]
    assert one.is_met(proof_of(digest_of(TOKEN), nonce))
    assert not two.is_met(proof_of(digest_of(TOKEN), nonce))
    assert not one.is_met(proof_of(digest_of("another"), nonce))
    assert not any(one.is_met(wrong) for wrong in ("", None, 1, "ключ"))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
async def test_a_wrong_token_is_refused_without_being_sent(serve: Serve, way: Callable[[str], Any]) -> None:
    """The real server says that it does not know it, in the sentence that it always says."""
    server = serve(token="another-token-0123456789")
    with pytest.raises(Unauthorized, match="invalid key"):
        await way(server.url)


async def test_without_authentication_a_token_is_not_sent(serve: Serve) -> None:
    """A server that asks for none cannot prove anything, and says so; one that was given the same can."""
    with pytest.raises(Unauthorized, match="--no-auth"):
        await rest(serve(auth=False).url)
    await rest(serve(auth=False, token=TOKEN, log="memory://").url)


async def test_a_token_in_the_clear_over_a_network_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Once, when the client is entered; TLS and loopback are fine."""
    with caplog.at_level(logging.WARNING, "himalia.client"):
        for url in ("https://broker.example", "http://127.0.0.1:1", "http://localhost:1"):
            async with Client(url, TOKEN):
                pass
        async with Client("http://broker.example"):
            pass
        assert not caplog.records
        async with Client("http://192.0.2.1:8000", TOKEN):
            pass
    [record] = caplog.records
    assert "http://192.0.2.1:8000 without TLS" in record.getMessage() and TOKEN not in record.getMessage()


@pytest.mark.slow
def test_commands_keep_their_token_too(squat: Callable[..., Squatter]) -> None:
    """One sentence, exit code 1, and nothing for the other program."""
    squatter = squat(not_found())
    env = {"HIMALIA_TOKEN": TOKEN, "HIMALIA_URL": squatter.url}
    assert_sentence(himalia("topics", "list", env=env, deadline_s=DEADLINE_S), 1, "it was not sent")
    assert TOKEN.encode() not in squatter.heard
