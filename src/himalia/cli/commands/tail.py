"""``himalia tail``: print the records of a topic or pattern."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Annotated, Any

import typer

from himalia.cli.options import Json, Token, Url, connect, make_app, run_async
from himalia.cli.process.signals import run_until_pipe_closes
from himalia.cli.terminal.output import abandon_stdout, make_event_printer, print_notice
from himalia.cli.terminal.units import parse_since
from himalia.client.events import Event

app = make_app()


@app.command("tail")
def tail(
    pattern: Annotated[str, typer.Argument(help="A topic, or a pattern: 'orders.*', 'orders.>'.")],
    last: Annotated[int | None, typer.Option("--last", help="Begin with the last N records.", min=0)] = None,
    start: Annotated[
        int | None, typer.Option("--from", help="Begin at this offset; wait for one beyond the end.", min=0)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Begin at a time (ISO 8601, seconds since 1970) or an age: 10m."),
    ] = None,
    filter: Annotated[
        str | None, typer.Option("--filter", help="Only records for which this CEL expression is true.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="If this command reads too slowly: drop_oldest, disconnect, lossless.",
            metavar="drop_oldest|disconnect|lossless",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="The lag in records at which the policy applies.", min=1)
    ] = None,
    count: Annotated[int | None, typer.Option("--count", help="Stop after N records.", min=1)] = None,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Print the records of a topic or pattern as they come, until Ctrl-C.

    Reconnects automatically and resumes at its position. Dropped or missing records are reported on stderr.

    Examples:

        himalia tail orders --last 10

        himalia tail 'orders.>' --since 10m --filter 'message.payload.total > 100'

        himalia tail orders --from 0 --json --count 100
    """
    if sum(given is not None for given in (last, start, since)) > 1:
        raise typer.BadParameter("give only one of --last, --from and --since")
    if policy not in (None, "drop_oldest", "disconnect", "lossless"):
        raise typer.BadParameter(f"--policy {policy!r} is not one of drop_oldest, disconnect, lossless")
    options: dict[str, Any] = {
        "last_n": last,
        "from_": start,
        "since": None if since is None else parse_since(since),
        "filter": filter,
        "policy": policy,
        "limit": limit,
    }
    try:
        run_async(
            run_until_pipe_closes(_follow(url, token, pattern, options, make_event_printer(json=json), count))
        )
    except BrokenPipeError:
        abandon_stdout()
    except KeyboardInterrupt:
        pass


async def _follow(
    url: str | None,
    token: str | None,
    pattern: str,
    options: dict[str, Any],
    show: Callable[[Event], None],
    count: int | None,
) -> None:
    async with (
        connect(url, token) as client,
        client.subscribe(pattern, notices=True, client_id=f"tail-{uuid.uuid4()}", **options) as items,
    ):
        shown = 0
        async for item in items:
            if not isinstance(item, Event):
                print_notice(item)
                continue
            show(item)
            shown += 1
            if shown == count:
                return
