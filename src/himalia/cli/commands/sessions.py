"""``himalia sessions``: list the browsers that are signed in, and sign them out."""

from __future__ import annotations

from typing import Annotated

import typer

from himalia.cli.options import Json, Token, Url, connect, make_app, run_async
from himalia.cli.terminal.output import escape_controls, print_json, print_table, write_line
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
    """List your sessions, or all sessions with a key that may manage everything.

    Examples:

        himalia sessions list

        himalia sessions list --json
    """

    async def fetch() -> list[SessionSummary]:
        async with connect(url, token) as client:
            return await client.sessions()

    found = run_async(fetch())
    if json:
        print_json(found)
        return
    rows = [
        [one.id, escape_controls(one.caller), one.created[:19], one.expires[:19], escape_controls(one.agent)]
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
    """Sign browsers out. Their open pages lose their connections and show the sign-in form.

    Examples:

        himalia sessions revoke 9f2c4e1ab07d

        himalia sessions revoke --caller key:reports

        himalia sessions revoke --all
    """
    if sum((bool(ids), caller is not None, all)) != 1:
        raise typer.BadParameter("give ids of sessions, --caller or --all")

    async def revoke() -> int:
        async with connect(url, token) as client:
            for id in ids or ():
                await client.revoke_session(id)
            return len(ids) if ids else await client.revoke_sessions(caller)

    count = run_async(revoke())
    if json:
        print_json(RevokedResponse(count=count))
    else:
        write_line(f"revoked {count} session{'' if count == 1 else 's'}")
