from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from himalia.client import Client
from himalia.client.discovery import ServerLocator
from himalia.errors import BadRequest, ConnectionFailed
from himalia.local_server import RunningServer as Announced
from himalia.local_server import write_runtime_file
from tests.servers import RunningServer


def _announce(url: str, token: str | None, log: str, started_us: int) -> None:
    write_runtime_file(Announced(url, token, os.getpid(), log, started_us))


async def test_a_client_finds_the_server_of_this_machine(serve: Callable[..., RunningServer]) -> None:
    """Without any argument a client finds the running server and its token."""
    server = serve()
    assert server.token
    async with Client() as client:
        assert client.url == server.url
        assert await client.create_topic("orders")
        assert (await client.publish("orders", 1)).offset == 0


async def test_no_server_says_how_to_start_one() -> None:
    """Where no server runs, entering a client fails with a sentence that says what to do."""
    with pytest.raises(ConnectionFailed, match="himalia serve"):
        async with Client():
            pass


def test_the_argument_wins_over_the_environment_over_the_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """URL and token each come from the argument, else the environment, else a running server."""
    _announce("http://127.0.0.1:1", "announced", "log", 1)
    assert _found() == ("http://127.0.0.1:1", "announced")
    monkeypatch.setenv("HIMALIA_TOKEN", "environment")
    assert _found() == ("http://127.0.0.1:1", "environment")
    monkeypatch.setenv("HIMALIA_URL", "http://elsewhere:2/")
    assert _found() == ("http://elsewhere:2", "environment")
    assert _found("http://argued:3", "argued") == ("http://argued:3", "argued")


def test_the_token_of_a_running_server_goes_only_to_it() -> None:
    """A URL that is not the announced one does not get the announced token."""
    _announce("http://127.0.0.1:1", "announced", "log", 1)
    assert _found("http://127.0.0.1:1") == ("http://127.0.0.1:1", "announced")
    assert _found("http://127.0.0.1:2") == ("http://127.0.0.1:2", None)


def test_the_newest_of_several_and_then_the_same_log() -> None:
    """Of several servers the newest is found first; afterwards only one with the same log will do."""
    _announce("http://127.0.0.1:1", "a", "log-a", 1)
    _announce("http://127.0.0.1:2", "b", "log-b", 2)
    finder = ServerLocator()
    assert finder.find().url == "http://127.0.0.1:2"
    _announce("http://127.0.0.1:3", "c", "log-c", 3)
    assert finder.find().url == "http://127.0.0.1:2"
    _announce("http://127.0.0.1:4", "b2", "log-b", 4)
    assert (finder.find().url, finder.find().token) == ("http://127.0.0.1:4", "b2")


@pytest.mark.parametrize(
    ("given", "url", "token"),
    [
        ("http://h:1/?token=abc", "http://h:1", "abc"),
        ("https://h/prefix/", "https://h/prefix", None),
        ("ws://h:1", "http://h:1", None),
        ("wss://h", "https://h", None),
        ("localhost:8000", "http://localhost:8000", None),
        ("http://[::1]:8000", "http://[::1]:8000", None),
    ],
)
def test_a_url_as_people_paste_it(given: str, url: str, token: str | None) -> None:
    """The address that ``himalia serve`` prints works as it is; its token does not stay in the URL."""
    assert _found(given) == (url, token)


@pytest.mark.parametrize("given", ["ftp://h", "http://", "http://h:notaport", "://"])
def test_what_is_no_url_is_refused(given: str) -> None:
    """A URL that cannot work is refused before anything is connected."""
    with pytest.raises(BadRequest, match="http://127"):
        ServerLocator(given)


def _found(url: str | None = None, token: str | None = None) -> tuple[str, str | None]:
    address = ServerLocator(url, token).find()
    return address.url, address.token
