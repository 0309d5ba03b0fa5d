"""``himalia token``: print or replace the token that a server made for its log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from himalia.cli.options import Json, make_app
from himalia.cli.terminal.output import print_json, print_warning, write_line
from himalia.errors import ConfigurationError
from himalia.local_server import RunningServer, find_running_servers, page_url

if TYPE_CHECKING:
    from himalia.server.identity.token import TokenFile

app = make_app()

APPLIED_WITHIN_S = 10.0


@app.command("token")
def token_command(
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate", help="Replace it. Sessions and connections of the old token end within seconds."
        ),
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            help="The log that the token belongs to; by default that of the server on this machine.",
            envvar="HIMALIA_LOG",
            show_envvar=True,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print the token that the server made, which has all rights, or replace it.

    The token is stored next to the log and survives restarts.

    Examples:

        himalia token

        himalia token --rotate

        curl -H "Authorization: Bearer $(himalia token)" http://127.0.0.1:8000/topics
    """
    server = _find_server(log)
    token = _rotate(server, log) if rotate else _read(server, log)
    if json:
        url = server.url if server is not None else None
        page = page_url(url, token) if url else None
        print_json({"token": token, "url": url, "page": page})
    else:
        write_line(token)


def _find_server(log: str | None) -> RunningServer | None:
    """Return the running server with this log, or the newest one; None if there is none."""
    from himalia.log import open_log

    servers = find_running_servers()
    if log is not None:
        url = open_log(log).url
        servers = [server for server in servers if server.log == url]
    return servers[0] if servers else None


def _file(server: RunningServer | None, log: str | None) -> TokenFile | None:
    from himalia.server.identity.token import TokenFile
    from himalia.settings import default_log_url

    return TokenFile.of_log(server.log if server is not None else log or default_log_url())


def _read(server: RunningServer | None, log: str | None) -> str:
    if server is not None:
        if server.token is None:
            raise ConfigurationError(
                f"the server at {server.url} has no token: it uses a keys file, or no authentication"
            )
        return server.token
    file = _file(server, log)
    token = None if file is None else file.read()
    if token is None:
        raise ConfigurationError(
            "there is no token: 'himalia serve' makes one when it first starts on a log in a file without --token "
            "and --keys-file"
        )
    return token


def _rotate(server: RunningServer | None, log: str | None) -> str:
    file = _file(server, log)
    if file is None:
        raise ConfigurationError("a server on memory:// makes a new token at each start: restart it")
    if server is not None and (server.token is None or server.token != file.read()):
        raise ConfigurationError(
            f"the server at {server.url} does not use a token that it made: change its keys file, --token or "
            "HIMALIA_TOKEN instead"
        )
    token = file.rotate()
    if server is not None and not _wait_until_applied(server, token):
        print_warning(
            f"the server at {server.url} has not applied the new token yet; it does so within seconds"
        )
    return token


def _wait_until_applied(server: RunningServer, token: str) -> bool:
    """Wait until the server has announced the new token; return whether it has."""
    deadline = time.monotonic() + APPLIED_WITHIN_S
    while time.monotonic() < deadline:
        if any(found.pid == server.pid and found.token == token for found in find_running_servers()):
            return True
        time.sleep(0.1)
    return False
