"""``himalia audit``: the audit trail of the server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from himalia.cli.options import Json, Token, Url, connect, make_app, run_async
from himalia.cli.process.signals import run_until_pipe_closes
from himalia.cli.terminal.output import abandon_stdout, escape_controls, print_json, print_notice, write_line
from himalia.cli.terminal.units import parse_since
from himalia.client.events import Event
from himalia.topics import AUDIT_TOPIC

app = make_app()

LAST = 20


@app.command("audit")
def audit(
    last: Annotated[
        int | None, typer.Option("--last", help="The newest N entries; 20 by default.", min=0)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Begin at a time (ISO 8601, seconds since 1970) or an age: 10m, 2d."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then print new entries until Ctrl-C.")
    ] = False,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Print the audit trail: sign-ins, refused keys, topics, kernels, executed code, queried tables.

    Needs a key with 'manage' on 'audit.events', or the server's own token.

    Examples:

        himalia audit --last 50

        himalia audit --since 2d --json

        himalia audit --follow
    """
    if last is not None and since is not None:
        raise typer.BadParameter("give one of --last and --since, not both")
    start: dict[str, Any] = {"since": parse_since(since)} if since is not None else {"last": last}
    if start == {"last": None}:
        start = {"last": LAST}
    try:
        run_async(run_until_pipe_closes(_print(url, token, start, follow=follow, json=json)))
    except BrokenPipeError:
        abandon_stdout()
    except KeyboardInterrupt:
        pass


async def _print(
    url: str | None, token: str | None, start: dict[str, Any], *, follow: bool, json: bool
) -> None:
    show = _print_json if json else _print_line
    async with connect(url, token) as client:
        if not follow:
            async for record in client.read(AUDIT_TOPIC, **start):
                show(record)
            return
        begin = {"last_n": start["last"]} if "last" in start else start
        async with client.subscribe(AUDIT_TOPIC, notices=True, policy="lossless", **begin) as items:
            async for item in items:
                if isinstance(item, Event):
                    show(item)
                else:
                    print_notice(item)


def _print_json(record: Event) -> None:
    print_json({"offset": record.offset, "ts": record.ts, **record.payload})


def _print_line(record: Event) -> None:
    """Print time, event and caller, and the other fields as ``name=value``."""
    payload = dict(record.payload)
    event, caller = payload.pop("event", "?"), payload.pop("caller", "")
    payload.pop("at", None)
    time = record.time.astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]
    rest = " ".join(f"{name}={value}" for name, value in payload.items())
    write_line(escape_controls(f"{time} {event:<20} {caller or '-':<20} {rest}".rstrip()))
