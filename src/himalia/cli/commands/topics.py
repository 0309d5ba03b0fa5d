"""``himalia topics``: list, create, delete, rename."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from himalia.cli.commands.backup import LogUrl, log_path
from himalia.cli.options import Json, Token, Url, connect, make_app, run_async
from himalia.cli.terminal.output import print_json, print_table, write_line
from himalia.cli.terminal.units import format_duration, format_size, parse_duration, parse_size
from himalia.errors import HimaliaError, TopicNotFound
from himalia.protocol.models import DeleteTopicResponse, TopicSummary
from himalia.record import Retention

app = make_app()


@app.callback()
def topics() -> None:
    """List, create, delete and rename topics.

    Example:

        himalia topics list
    """


@app.command("list")
def list_topics(url: Url = None, token: Token = None, json: Json = False) -> None:
    """List the topics that you may see.

    Examples:

        himalia topics list

        himalia topics list --json
    """

    async def fetch() -> list[TopicSummary]:
        async with connect(url, token) as client:
            return await client.topics()

    found = sorted(run_async(fetch()), key=lambda topic: topic.name)
    if json:
        print_json(found)
        return
    columns = ["topic", "messages", "kept", "first..end", "bytes", "subscribers", "retention"]
    print_table(
        columns,
        [_row(topic) for topic in found],
        empty="no topics yet; see 'himalia topics create --help'",
    )


def _row(topic: TopicSummary) -> list[str]:
    return [
        topic.name,
        f"{topic.messages}",
        f"{topic.end - topic.first}",
        f"{topic.first}..{topic.end}",
        format_size(topic.bytes),
        f"{topic.subscribers}",
        _retention(topic.retention),
    ]


def _retention(retention: Retention) -> str:
    parts = [
        format_duration(retention.age_s) if retention.age_s else "",
        format_size(retention.bytes) if retention.bytes else "",
        f"{retention.count} records" if retention.count else "",
    ]
    return ", ".join(part for part in parts if part) or "default"


@app.command("create")
def create_topic(
    name: Annotated[str, typer.Argument(help="Letters, digits, '_' and '-', in segments joined by dots.")],
    retention_age: Annotated[
        str | None,
        typer.Option(help="Keep records this long: 3600, 15m, 12h, 7d; 0 for no limit.", metavar="DURATION"),
    ] = None,
    retention_bytes: Annotated[
        str | None, typer.Option(help="Keep at most this much: 500MB, 1GB; 0 for no limit.", metavar="SIZE")
    ] = None,
    retention_count: Annotated[
        int | None, typer.Option(help="Keep at most this many records; 0 for no limit.", min=0)
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if the topic exists already.")
    ] = False,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Create a topic. Retention limits that are not given are those of the server's settings.

    Examples:

        himalia topics create orders

        himalia topics create orders.eu --retention-age 7d --retention-bytes 1GB
    """
    retention = Retention(
        age_s=None if retention_age is None else parse_duration(retention_age),
        bytes=None if retention_bytes is None else parse_size(retention_bytes),
        count=retention_count,
    )

    async def create() -> bool:
        async with connect(url, token) as client:
            return await client.create_topic(
                name, None if retention == Retention() else retention, exist_ok=exist_ok
            )

    status = "created" if run_async(create()) else "exists"
    if json:
        print_json({"status": status, "topic": name})
    else:
        write_line(f"{status} {name}")


@app.command("delete")
def delete_topic(
    name: Annotated[str, typer.Argument(help="The topic.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Delete a topic and everything stored in it. On a terminal it asks for confirmation.

    Example:

        himalia topics delete orders --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter(f"there is no terminal to confirm the deletion of {name!r}; give --yes")
        typer.confirm(f"Delete topic {name!r} and everything stored in it?", abort=True, err=True)

    async def delete() -> None:
        async with connect(url, token) as client:
            try:
                await client.delete_topic(name)
            except TopicNotFound:
                raise HimaliaError(f"topic {name!r} does not exist") from None

    run_async(delete())
    if json:
        print_json(DeleteTopicResponse(topic=name))
    else:
        write_line(f"deleted {name}")


@app.command("rename")
def rename(
    old: Annotated[str, typer.Argument(help="The topic.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
    log: LogUrl = None,
    json: Json = False,
) -> None:
    """Rename a topic in a log file. The server must not be running.

    Records and offsets stay as they are. The topic gets a new epoch, so that a subscriber that resumes gets an error.

    Examples:

        himalia topics rename audit.events my-audit

        himalia topics rename orders orders.old --log sqlite:///var/lib/himalia/log.db
    """
    from himalia.log.sqlite.rename import rename_topic

    path = log_path(log)
    try:
        records = rename_topic(path, old, new)
    except TopicNotFound:
        raise HimaliaError(f"the log {path} has no topic {old!r}") from None
    if json:
        print_json({"status": "renamed", "topic": new, "records": records})
    else:
        write_line(f"renamed {old} to {new}")
