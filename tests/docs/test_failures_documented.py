"""What docs/operations.md says of starting and stopping is what happens."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from himalia.errors import HimaliaError
from himalia.local_server import RunningServer, write_runtime_file
from himalia.log.sqlite.errors import translate
from himalia.server.context import ServerContext
from himalia.server.identity.token import TokenFile
from himalia.server.run import _config, listen
from himalia.settings import Settings
from tests.docs.markdown import code_spans, rows, section
from tests.log.processes import HOLDER, read_line, run
from tests.server.identity.credentials import write_keys
from tests.servers import DEADLINE_S

Provoke = Callable[[Path], None]


def start(directory: Path, **settings: Any) -> None:
    """As far as a server's start can fail before it listens."""
    settings.setdefault("log", f"sqlite://{directory}/log.db")

    async def main() -> None:
        context = ServerContext(Settings(**settings))
        await context.open()
        try:
            _config(context)
        finally:
            await context.close()

    asyncio.run(main())


def in_use(directory: Path) -> None:
    async def main() -> None:
        first, second = (ServerContext(Settings(log=f"sqlite://{directory}/log.db")) for _ in range(2))
        await first.open()
        try:
            await second.open()
        finally:
            await first.close()

    asyncio.run(main())


def crashed_under_another_name(directory: Path) -> None:
    process = run(HOLDER, directory / "first.db")
    assert read_line(process) == "ready"
    process.kill()
    process.communicate()
    (directory / "log.db").hardlink_to(directory / "first.db")
    start(directory)


def too_new(directory: Path) -> None:
    start(directory)
    with sqlite3.connect(directory / "log.db") as db:
        db.execute("PRAGMA user_version = 1000")
    db.close()
    start(directory)


def damaged(directory: Path) -> None:
    (directory / "log.db").write_bytes(b"not a database at all " * 1000)
    start(directory)


def foreign(directory: Path) -> None:
    with sqlite3.connect(directory / "log.db") as db:
        db.execute("CREATE TABLE addresses (name TEXT)")
    db.close()
    start(directory)


def failing(number: int) -> Provoke:
    # A full or read-only disk cannot be had everywhere, so the operating system's own error stands for it.
    def provoke(directory: Path) -> None:
        raise translate(OSError(number, "as the system says"), directory / "log.db")

    return provoke


def port_taken(_: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen("127.0.0.1", other.getsockname()[1])


def no_runtime_directory(directory: Path) -> None:
    (directory / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HIMALIA_RUNTIME_DIR", str(directory / "file" / "runtime"))
        write_runtime_file(RunningServer("http://127.0.0.1:1", None, 1, "memory://", 0))


def bad_keys(text: str) -> Provoke:
    def provoke(directory: Path) -> None:
        start(directory, keys_file=write_keys(directory / "keys.toml", text))

    return provoke


def readable_keys(directory: Path) -> None:
    path = write_keys(directory / "keys.toml", "[keys]")
    path.chmod(0o644)
    start(directory, keys_file=path)


def keys_of_another(directory: Path) -> None:
    path = write_keys(directory / "keys.toml", "[keys]")
    with pytest.MonkeyPatch.context() as patch:
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        else:  # which takes root, so this user is another one meanwhile
            patch.setattr(os, "geteuid", lambda: 65534)
        start(directory, keys_file=path)


def writable_jwks(directory: Path) -> None:
    path = directory / "jwks.json"
    path.touch()
    path.chmod(0o666)
    start(directory, jwt_jwks=str(path), **TOKENS)


TOKENS = {"jwt_issuer": "https://issuer.example", "jwt_audience": "himalia"}


def short_secret(directory: Path) -> None:
    start(directory, jwt_secret_file=write_keys(directory / "secret", "short"), **TOKENS)


def no_room_for_token(directory: Path) -> None:
    TokenFile(directory / "missing" / "log.db.token").read_or_make()


def unreadable_token(directory: Path) -> None:
    (directory / "log.db.token").mkdir(mode=0o700)
    start(directory)


PROVOCATIONS: dict[str, Provoke] = {
    "the log ... is in use by process ...": in_use,
    "the log ... was not closed when it was last used as ...": crashed_under_another_name,
    "the log ... has version ..., this Himalia knows ...": too_new,
    "the log ... is damaged": damaged,
    "... is a database of another program": foreign,
    "the log cannot be written": failing(errno.EROFS),
    "no space left for the log": failing(errno.ENOSPC),
    "..., where other programs look for this server, cannot be written": no_runtime_directory,
    "cannot listen on ...": port_taken,
    "--no-auth works on loopback only": lambda directory: start(directory, auth=False, host="0.0.0.0"),
    "cannot read the keys file": lambda directory: start(directory, keys_file=directory / "none.toml"),
    "the keys file ... is not TOML": bad_keys("[keys"),
    "the keys file ... has no keys": bad_keys(""),
    "needs hash = ...": bad_keys("[keys.shop]\npublish = ['>']"),
    "... belongs to another user": keys_of_another,
    "other users may change ...": writable_jwks,
    "other users may read the keys file ...": readable_keys,
    "... needs at least 16 characters": bad_keys("[keys.shop]\nkey = 'short'"),
    "... is an example of the manual": lambda directory: start(directory, token="change-me-0123456789"),
    "JSON Web Tokens need jwt_issuer and jwt_audience": lambda directory: start(
        directory, jwt_jwks="https://issuer.example/jwks"
    ),
    "jwt_issuer and jwt_audience need jwt_secret_file or jwt_jwks": lambda directory: start(
        directory, **TOKENS
    ),
    "jwt_jwks names ...": lambda directory: start(directory, jwt_jwks=str(directory / "none"), **TOKENS),
    "jwt_jwks is ...": lambda directory: start(directory, jwt_jwks="http://issuer.example/jwks", **TOKENS),
    "the secret of jwt_secret_file in ... has ... bytes": short_secret,
    "cannot store the token in ...": no_room_for_token,
    "cannot read the token in ...": unreadable_token,
    "the TLS certificate or key cannot be used": lambda directory: start(
        directory, ssl_certfile=directory / "none.pem"
    ),
    "ssl_keyfile, ssl_ca_certs and ssl_cert_reqs need ssl_certfile": lambda directory: start(
        directory, ssl_cert_reqs="required"
    ),
    "ssl_cert_reqs is ...": lambda directory: start(
        directory, ssl_certfile=directory / "cert.pem", ssl_cert_reqs="required"
    ),
    "ssl_ca_certs names ...": lambda directory: start(
        directory, ssl_certfile=directory / "cert.pem", ssl_ca_certs=directory / "ca.pem"
    ),
}


@pytest.mark.parametrize("says", PROVOCATIONS)
def test_a_start_that_fails_says_what_the_document_says(tmp_path: Path, says: str) -> None:
    """Who searches the document for the sentence on the screen finds it."""
    with pytest.raises(HimaliaError) as caught:
        PROVOCATIONS[says](tmp_path)
    assert re.search(re.escape(says).replace(r"\.\.\.", ".+"), caught.value.message)


def test_the_table_of_failures_is_complete(operations: str) -> None:
    """Each sentence of the table is provoked above."""
    table = rows(section(operations, "## Troubleshooting"))
    assert {says for cells in table for says in code_spans(cells[0])} == PROVOCATIONS.keys()


def test_a_second_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    """A peer that takes nothing holds the end up for ``shutdown_s``, but not after a second Ctrl-C."""
    command = [sys.executable, "-m", "himalia.cli", "serve", "--port", "0", "--no-auth", "--shutdown-s", "60"]
    log = f"sqlite://{tmp_path}/log.db"
    process = subprocess.Popen(
        [*command, "--log", log], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://[^/]+", process.stdout.readline())
        assert found is not None
        with httpx.Client(base_url=found[0], trust_env=False) as http:
            http.post("/topics", json={"name": "orders"}).raise_for_status()
            with connect(found[0].replace("http", "ws", 1) + "/ws", max_queue=1, close_timeout=0.1) as ws:
                ws.send(
                    '{"type": "subscribe", "topic": "orders", "client_id": "asleep", "policy": "lossless"}'
                )
                ws.recv(DEADLINE_S)
                for _ in range(10):
                    http.post("/topics/orders/messages", json={"payload": "x" * 1_000_000}).raise_for_status()
                process.send_signal(signal.SIGINT)
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.5)
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert "Traceback" not in errors
        assert not (tmp_path / "log.db-wal").exists()
    finally:
        process.kill()
        process.wait()
