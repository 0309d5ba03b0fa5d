from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import httpx
import pytest

from himalia.cli.settings_options import read_settings
from himalia.settings import Settings
from tests.cli.command import ServeCommand, assert_sentence, himalia


@pytest.fixture
def log(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/log.db"


def test_it_serves_and_says_where(log: str) -> None:
    """The first line on stdout is the address with the token, and with it everything is open."""
    with ServeCommand("--port", "0", "--log", log) as server:
        assert httpx.get(f"{server.url}/topics").status_code == 401
        answer = httpx.get(f"{server.url}/topics", headers={"X-API-Key": server.token})
        assert answer.json() == {"topics": []}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(log: str, number: int) -> None:
    """Ctrl-C and SIGTERM end the server with exit code 0 and no traceback."""
    with ServeCommand("--port", "0", "--log", log) as server:
        server.signal(number)
        assert server.end() == 0
        assert server.process.stderr is not None
        assert b"Traceback" not in server.process.stderr.read()


def test_every_setting_is_a_flag_with_its_description() -> None:
    """The help names each setting's flag and environment variable, and says what it does."""
    text = re.sub(r"\s+", " ", himalia("serve", "--help").stdout)
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in text
        assert f"HIMALIA_{name.upper()}" in text
        assert field.description is not None and field.description in text, name


def test_flags_win_over_the_environment_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting is the flag's, else the variable's, else the default; of the type that Settings says."""
    assert read_settings({}).port == 8000
    monkeypatch.setenv("HIMALIA_PORT", "9000")
    assert read_settings({"port": None}).port == 9000
    assert read_settings({"port": "9001"}).port == 9001
    assert read_settings({"auth": False}).auth is False
    assert read_settings({"keys_file": "/k"}).keys_file == Path("/k")


@pytest.mark.parametrize(
    "text", ["a.example,b.example", "a.example, b.example", '["a.example", "b.example"]']
)
def test_a_list_in_the_environment(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A list may be JSON or separated by commas; as a flag it is repeated."""
    monkeypatch.setenv("HIMALIA_ALLOWED_HOSTS", text)
    assert read_settings({}).allowed_hosts == ["a.example", "b.example"]
    assert read_settings({"allowed_hosts": ["c.example"]}).allowed_hosts == ["c.example"]


@pytest.mark.parametrize(
    ("arguments", "env", "parts"),
    [
        (["--port", "70000"], {}, ["--port '70000'", "65535"]),
        (["--port", "x"], {}, ["--port 'x'", "integer"]),
        ([], {"HIMALIA_PORT": "x"}, ["HIMALIA_PORT 'x'"]),
        (["--log-level", "loud"], {}, ["--log-level 'loud'", "'debug'"]),
        (["--subscriber-limit", "0"], {}, ["--subscriber-limit"]),
        (["--no-such-flag"], {}, ["--no-such-flag"]),
        ([], {"HIMALIA_ALLOWED_HOSTS": "[1,"}, ["allowed_hosts"]),
    ],
)
def test_a_wrong_setting_is_wrong_usage(arguments: list[str], env: dict[str, str], parts: list[str]) -> None:
    """A value that cannot be is told by flag or variable, with what it should be; exit code 2."""
    assert_sentence(himalia("serve", *arguments, env=env), 2, *parts, "himalia serve --help")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--workers", "2"], "--workers"),
        (["--no-auth", "--host", "0.0.0.0"], "loopback"),
        (["--log", "ftp://x"], "ftp://x"),
        (["--keys-file", "/no/such/file"], "/no/such/file"),
    ],
)
def test_what_cannot_be_started_is_one_sentence(arguments: list[str], part: str) -> None:
    """A server that cannot start says why and exits 1."""
    assert_sentence(himalia("serve", "--port", "0", "--log", "memory://", *arguments), 1, part)


def test_a_port_in_use_and_a_log_in_use(log: str, tmp_path: Path) -> None:
    """Two servers cannot have one port, nor one log; the second says so."""
    with ServeCommand("--port", "0", "--log", log) as server:
        taken = himalia("serve", "--port", server.port, "--log", f"sqlite://{tmp_path}/other.db")
        assert_sentence(taken, 1, "--port")
        locked = himalia("serve", "--port", "0", "--log", log)
        assert locked.returncode == 1
        assert "Traceback" not in locked.stderr
        assert "log.db" in locked.stderr.splitlines()[-1]


def test_logs_for_programs(log: str) -> None:
    """With --log-format json every line of the server's log is a JSON object."""
    with ServeCommand("--port", "0", "--log", log, "--log-format", "json") as server:
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert server.process.stderr is not None
        lines = server.process.stderr.read().decode().splitlines()
    assert lines and all("message" in json.loads(line) for line in lines)
