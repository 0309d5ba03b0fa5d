"""``himalia sessions``: the browsers that are signed in, listed and signed out."""

from __future__ import annotations

from typing import Annotated

import typer

from himalia.cli.options import Json, Token, Url, connect, make_app, run
from himalia.cli.terminal.output import print_json, print_table, printable, write_line
from himalia.protocol.models import RevokedResponse, SessionSummary

app = make_app()


@app.callback()
def sessions() -> None:
    """List the browsers that are signed in, and sign them out.

    Example:

        himalia sessions list
    """


@app.command("list")
def list_sessions(url: Url = None, token: Token = None, json: Json = False) -> None:
    """List sessions: your own, or all of them with a key that may manage everything.

    Examples:

        himalia sessions list

        himalia sessions list --json
    """

    async def fetch() -> list[SessionSummary]:
        async with connect(url, token) as client:
            return await client.sessions()

    found = run(fetch())
    if json:
        print_json(found)
        return
    rows = [
        [one.id, printable(one.caller), one.created[:19], one.expires[:19], printable(one.agent)]
        for one in found
    ]
    print_table(["session", "caller", "created", "expires", "browser"], rows, empty="no browser is signed in")


@app.command("revoke")
def revoke_sessions(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[SESSION]...", help="Ids, as 'sessions list' shows them.")
    ] = None,
    caller: Annotated[
        str | None, typer.Option("--caller", help="All sessions of this caller, such as key:reports.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="All sessions that you may end.")] = False,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Sign browsers out: their open pages lose their connections, and ask for a key again.

    Examples:

        himalia sessions revoke 9f2c4e1ab07d

        himalia sessions revoke --caller key:reports

        himalia sessions revoke --all
    """
    if sum((bool(ids), caller is not None, all)) != 1:
        raise typer.BadParameter("name sessions, or say --caller or --all")

    async def revoke() -> int:
        async with connect(url, token) as client:
            for id in ids or ():
                await client.revoke_session(id)
            return len(ids) if ids else await client.revoke_sessions(caller)

    count = run(revoke())
    if json:
        print_json(RevokedResponse(count=count))
    else:
        write_line(f"revoked {count} session{'' if count == 1 else 's'}")
