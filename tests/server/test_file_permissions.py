"""What other users of the machine can see of a server: nothing, whatever its umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.server_process import ServerProcess


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Processes that are started meanwhile make files that all users may change, unless they see to it themselves."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.slow
def test_everything_is_for_its_user_only(tmp_path: Path, open_umask: None) -> None:
    """The log, the token, sessions, runtime files, and what a kernel and its keeper have: below private directories."""
    tmp_path.chmod(0o755)
    with (
        ServerProcess(tmp_path, log=f"sqlite://{tmp_path}/data/deep/log.db") as server,
        server.http() as http,
    ):
        http.post("/topics", json={"name": "orders"}).raise_for_status()
        http.post("/session").raise_for_status()
        kernel = http.post("/api/kernels", json={}).raise_for_status().json()["id"]
        http.post(
            f"/api/kernels/{kernel}/execute", json={"code": "print(1)", "wait": True}
        ).raise_for_status()
        found = [
            path for top in ("data", "runtime") for path in [tmp_path / top, *(tmp_path / top).rglob("*")]
        ]
        names = {path.name for path in found}
        assert {"log.db", "log.db-wal", "log.db.token", "log.db.sessions", "connection.json", kernel} <= names
        open_to_others = [
            (str(path), oct(found_stat.st_mode))
            for path in found
            if (found_stat := os.lstat(path)).st_mode & 0o077 and not stat.S_ISSOCK(found_stat.st_mode)
        ]
        assert open_to_others == []
        http.delete(f"/api/kernels/{kernel}").raise_for_status()


@pytest.mark.slow
def test_no_command_line_has_a_secret(tmp_path: Path) -> None:
    """Every user may read the command lines of the server and of what it starts."""
    with ServerProcess(tmp_path) as server, server.http() as http:
        kernel = http.post("/api/kernels", json={}).raise_for_status().json()
        keys = [path.read_text() for path in (tmp_path / "runtime").rglob("connection.json")]
        assert keys and server.token
        shown = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
        assert str(server.pid).encode() and b"himalia" in shown
        assert server.token.encode() not in shown
        for text in keys:
            key = text.partition('"key": "')[2].partition('"')[0]
            assert key and key.encode() not in shown
        http.delete(f"/api/kernels/{kernel['id']}").raise_for_status()
