"""The generated token: made once, kept beside the log, the same over restarts, replaced on demand."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from himalia.client import Client
from himalia.errors import ConfigurationError
from himalia.server.context import ServerContext
from himalia.server.identity.token import TokenFile
from himalia.settings import Settings
from tests.cli.command import assert_sentence, himalia
from tests.server.identity.credentials import Serve, error_of
from tests.server.raw_clients import until
from tests.server.server_process import run_serve
from tests.servers import ask, hear


def test_a_token_is_made_unless_one_is_given(serve: Serve, tmp_path: Path) -> None:
    """Without settings a server is closed to everybody who was not told its token, and two logs have two tokens."""
    one, two = serve(), serve(log=f"sqlite://{tmp_path}/two.db")
    assert one.token and two.token and one.token != two.token
    assert len(one.token) >= 32
    with one.http() as http:
        answer = http.get("/topics")
        assert error_of(answer) == (401, "UNAUTHORIZED")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert one.token not in answer.text
        assert error_of(http.get("/topics", headers=two.headers)) == (401, "UNAUTHORIZED")
        assert http.get("/topics", headers=one.headers).status_code == 200


def test_a_restart_keeps_the_token(serve: Serve, tmp_path: Path) -> None:
    """Whoever was let in before a restart is let in after it (W3); the file is for its owner only."""
    first = serve()
    token = first.token
    first.stop()
    second = serve()
    assert second.token == token
    mode = stat.S_IMODE(os.stat(tmp_path / "log.db.token").st_mode)
    assert mode == 0o600
    with second.http(headers={"X-API-Key": token or ""}) as http:
        assert http.get("/topics").status_code == 200


def test_a_token_that_others_could_read_is_not_used_again(serve: Serve, tmp_path: Path) -> None:
    """A copy of the file that lost its permissions costs a new token, not the server."""
    first = serve()
    token = first.token
    first.stop()
    (tmp_path / "log.db.token").chmod(0o644)
    assert serve().token != token


def test_a_log_in_memory_has_a_new_token_each_time() -> None:
    """Nothing of it is kept, so neither is its token."""
    one, two = (ServerContext(Settings(log="memory://")) for _ in range(2))
    assert one.token and two.token and one.token != two.token


@pytest.mark.parametrize("token", ["a", "fifteen-letters", "change-me-0123456789abcdef"])
def test_a_weak_token_is_refused(token: str, tmp_path: Path) -> None:
    """One that can be guessed, or read in the manual, does not start a server; the sentence does not show it (C8)."""
    with pytest.raises(ConfigurationError, match=r"16 characters|example of the manual") as failed:
        ServerContext(Settings(token=token, log=f"sqlite://{tmp_path}/log.db"))
    assert token not in failed.value.message or len(token) == 1


@pytest.mark.slow
def test_serve_with_a_weak_token_is_one_sentence(tmp_path: Path) -> None:
    code, said = run_serve("--token", "fifteen-letters", directory=tmp_path)
    assert code == 1 and "16 characters" in said
    assert "fifteen-letters" not in said and "Traceback" not in said


@pytest.mark.slow
def test_the_command_prints_the_token(serve: Serve, tmp_path: Path) -> None:
    """Of the server that runs, and of its log when it does not; without a log it says how one comes to be."""
    server = serve()
    assert himalia("token").stdout == f"{server.token}\n"
    server.stop()
    log = f"sqlite://{tmp_path}/log.db"
    assert himalia("token", "--log", log).stdout == f"{server.token}\n"
    assert_sentence(himalia("token", "--log", f"sqlite://{tmp_path}/none.db"), 1, "there is no token")


@pytest.mark.slow
async def test_a_rotated_token_replaces_the_old_one_while_the_server_runs(serve: Serve) -> None:
    """The new one works and the old one does not; what the old one opened ends; clients find the new one."""
    server = serve()
    old = server.token
    server.create("orders")
    browser = httpx.AsyncClient(base_url=server.url)
    (await browser.post("/session", headers=server.headers)).raise_for_status()
    async with server.connect() as ws:
        await ask(ws, type="subscribe", topic="orders", client_id="v")
        new = himalia("token", "--rotate").stdout.strip()
        assert new and new != old
        told = await hear(ws)
        assert told["error"]["code"] == "UNAUTHORIZED" and "replaced" in told["error"]["message"]
        with pytest.raises(ConnectionClosed) as closed:
            await hear(ws)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4401
    assert server.token == new
    assert error_of(await browser.get("/topics")) == (401, "UNAUTHORIZED")
    await browser.aclose()
    assert server.audit_trail("token_rotated") == [{"event": "token_rotated", "caller": "server"}]
    with server.http() as http:
        assert http.get("/topics", headers={"X-API-Key": new}).status_code == 200
        assert error_of(http.get("/topics", headers={"X-API-Key": old or ""})) == (401, "UNAUTHORIZED")
    async with Client() as client:
        assert [topic.name for topic in await client.topics()] == ["orders"]


@pytest.mark.slow
def test_a_token_that_is_rotated_while_the_server_reads_it_is_noticed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change in the moment of the start is one like any other."""
    read_or_make = TokenFile.read_or_make
    rotated: list[str] = []

    def overtaken(self: TokenFile) -> str:
        token = read_or_make(self)
        rotated.append(self.rotate())
        return token

    monkeypatch.setattr(TokenFile, "read_or_make", overtaken)
    with serve().http() as http:
        until(lambda: http.get("/topics", headers={"X-API-Key": rotated[0]}).status_code == 200)


def test_only_a_generated_token_can_be_rotated(serve: Serve) -> None:
    """A token that the operator chose is the operator's to change; one in memory is new at each start."""
    serve(token="correct-horse-battery-staple")
    assert_sentence(himalia("token", "--rotate"), 1, "HIMALIA_TOKEN")
    serve(log="memory://")
    assert_sentence(himalia("token", "--rotate"), 1, "memory://")


def test_a_damaged_token_file_is_replaced(tmp_path: Path) -> None:
    """An empty or cut off file is no token."""
    path = tmp_path / "log.db.token"
    path.touch(mode=0o600)
    token = TokenFile(path).read_or_make()
    assert len(token) >= 32 and TokenFile(path).read() == token
