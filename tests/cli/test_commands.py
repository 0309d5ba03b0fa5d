"""What holds for every command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from himalia import __version__
from himalia.cli.lazy import COMMANDS
from tests.cli.command import assert_sentence, himalia
from tests.servers import RunningServer

EVERY = [
    *([name] for name in COMMANDS),
    *(["topics", name] for name in ("list", "create", "delete")),
    *(["kernel", name] for name in ("start", "list", "stop", "interrupt", "restart")),
    *(["pipeline", name] for name in ("run", "show", "sql", "forget", "replay")),
]
CLIENTS = [
    ["topics", "list"],
    ["topics", "create", "x"],
    ["topics", "delete", "x", "--yes"],
    ["publish", "x", "1"],
    ["tail", "x"],
    ["stats"],
    ["run", "1"],
    ["kernel", "start"],
    ["kernel", "list"],
    ["kernel", "stop", "x"],
    ["watch", "x"],
    ["attach", "--all"],
    ["pipeline", "run", "--once"],
]


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_help_has_an_example(command: list[str]) -> None:
    """The help of every command shows at least one whole command line of it, unbroken."""
    done = himalia(*command, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert any(
        line.strip().startswith(("himalia " + " ".join(command), "cat ")) for line in done.stdout.splitlines()
    )


def test_the_help_of_the_whole_names_every_command() -> None:
    """``himalia --help`` lists the commands, and ``himalia`` alone shows the same help."""
    done, bare = himalia("--help"), himalia()
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    assert bare.returncode == 2
    assert "Commands:" in bare.stderr


def test_the_version() -> None:
    """``--version`` prints it."""
    assert himalia("--version").stdout == f"himalia {__version__}\n"


def test_an_unknown_command_is_wrong_usage() -> None:
    """A command that does not exist is told so; exit code 2."""
    assert_sentence(himalia("tial", "orders"), 2, "tial", "himalia --help")


@pytest.mark.parametrize("command", CLIENTS, ids=" ".join)
def test_without_a_server_each_command_says_what_to_do(command: list[str]) -> None:
    """Where no server runs, one sentence says how to start one; exit code 1."""
    assert_sentence(himalia(*command), 1, "himalia serve")
    assert_sentence(
        himalia(*command, "--url", "http://127.0.0.1:1"), 1, "himalia serve", "http://127.0.0.1:1"
    )


def test_a_wrong_token_is_one_sentence(serve: Callable[..., RunningServer]) -> None:
    """A refused token is told as the server says it."""
    server = serve()
    for command in CLIENTS:
        assert_sentence(himalia(*command, "--url", server.url, "--token", "wrong"), 1, "invalid key")


def test_url_and_token_from_the_environment(serve: Callable[..., RunningServer]) -> None:
    """HIMALIA_URL and HIMALIA_TOKEN are the same as --url and --token."""
    server = serve()
    env = {"HIMALIA_RUNTIME_DIR": "/nowhere", "HIMALIA_URL": server.url, "HIMALIA_TOKEN": server.token or ""}
    assert himalia("topics", "list", env=env).returncode == 0


def test_the_printed_address_works_as_a_url(serve: Callable[..., RunningServer]) -> None:
    """What ``himalia serve`` prints, with its token, can be given to --url as it is."""
    server = serve()
    url = f"{server.url}/?token={server.token}"
    assert himalia("topics", "list", "--url", url, env={"HIMALIA_RUNTIME_DIR": "/nowhere"}).returncode == 0


def test_a_client_command_does_not_load_the_server(server: RunningServer) -> None:
    """``himalia tail`` starts without importing FastAPI, pydantic, uvicorn or httpx."""
    code = (
        "import sys; sys.argv = ['himalia', 'tail', 'orders', '--last', '0']\n"
        "import himalia.cli.commands.tail\n"
        "print([name for name in ('fastapi', 'pydantic', 'uvicorn', 'httpx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "[]\n", done.stderr
