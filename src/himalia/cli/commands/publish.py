"""``himalia publish``: one message, or many from a pipe."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from himalia.cli.options import Json, Token, Url, connect, make_app, run_async
from himalia.cli.stdin_messages import StdinMessages
from himalia.cli.terminal.output import PublishedRange, print_json, write_line
from himalia.client.events import Published
from himalia.errors import BadRequest, HimaliaError

app = make_app()


@app.command("publish")
def publish(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    message: Annotated[
        str | None,
        typer.Argument(help="JSON; a plain word is sent as a string. '-' reads one JSON a line from a pipe."),
    ] = None,
    header: Annotated[list[str] | None, typer.Option("--header", help="NAME=VALUE; repeatable.")] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="A UUID: a message with the same id is stored once.")
    ] = None,
    envelope: Annotated[
        bool,
        typer.Option(
            "--envelope", help='StdinMessages are {"payload", "id"?, "headers"?}, as tail --json prints them.'
        ),
    ] = False,
    text: Annotated[
        bool,
        typer.Option("--text", help="Send the message, or each line, as text, even if it looks like JSON."),
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it is missing.")] = False,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Publish a message and print its topic and offset.

    Returns when the message is stored on disk. A lost connection is retried, and no message is stored twice.

    Examples:

        himalia publish orders '{"sku": "A-17", "quantity": 2}'

        himalia publish orders hello --header source=shop --create

        himalia publish notes '[draft] call back' --text

        cat orders.ndjson | himalia publish orders -
    """
    headers = _parse_headers(header or [])
    if message is None:
        if sys.stdin.isatty():
            raise typer.BadParameter("give a MESSAGE, or '-' to read lines from a pipe")
        message = "-"
    if message != "-":
        if envelope:
            raise typer.BadParameter("--envelope needs '-': it describes lines from a pipe")
        payload = message if text else _as_payload(message)
        _publish_one(topic, payload, headers, _check_id(id), (url, token), create=create, json=json)
        return
    if id is not None:
        raise typer.BadParameter("--id is for one message; with '-' use --envelope and an id in each line")
    if text and envelope:
        raise typer.BadParameter("--envelope and --text exclude each other: an envelope is JSON")
    lines = StdinMessages(sys.stdin.fileno(), envelope=envelope, headers=headers, text=text)
    _publish_lines(topic, lines, (url, token), create=create, json=json)


def _parse_headers(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair.lstrip("="):
            raise typer.BadParameter(f"--header {pair!r} is not NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _check_id(id: str | None) -> str | None:
    try:
        return None if id is None else str(uuid.UUID(id))
    except ValueError:
        raise typer.BadParameter(f"--id {id!r} is not a UUID") from None


def _as_payload(text: str) -> Any:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "["):
            raise BadRequest(
                f"this message begins like JSON but is not valid ({error}); correct it, or send it as text with --text"
            ) from None
        return text
    # The bytes as given: decoding and encoding them would change large numbers.
    return msgspec.Raw(text.encode())


def _publish_one(
    topic: str,
    payload: Any,
    headers: dict[str, str],
    id: str | None,
    where: tuple[str | None, str | None],
    *,
    create: bool,
    json: bool,
) -> None:
    async def send() -> Published:
        async with connect(*where) as client:
            if create:
                await client.create_topic(topic, exist_ok=True)
            return await client.publish(topic, payload, id=id, headers=headers)

    published = run_async(send())
    if json:
        print_json(published)
    else:
        write_line(f"{published.topic} {published.offset}")


def _publish_lines(
    topic: str, lines: StdinMessages, where: tuple[str | None, str | None], *, create: bool, json: bool
) -> None:
    first: Published | None = None
    last: Published | None = None

    async def send() -> None:
        nonlocal first, last

        def stored(published: Published) -> None:
            nonlocal first, last
            first, last = first or published, published
            lines.acknowledge()
            advance()

        async with connect(*where) as client:
            if create:
                await client.create_topic(topic, exist_ok=True)
            await client.publish_many(topic, lines.messages(), on_published=stored)

    with _progress() as advance:
        try:
            run_async(send())
        except HimaliaError as error:
            _add_line_number(error, lines)
            raise
    _summarize(topic, first, last, lines.count, json=json)


def _add_line_number(error: HimaliaError, lines: StdinMessages) -> None:
    """Add to an error which line was refused, and how many before it are stored."""
    if "index" in error.data:
        error.message = f"line {lines.current_line}: {error.message} (stored before it: {lines.count})"


def _summarize(
    topic: str, first: Published | None, last: Published | None, count: int, *, json: bool
) -> None:
    offsets = (first.offset, last.offset) if first and last else (None, None)
    if json:
        print_json(PublishedRange(topic, count, *offsets))
    elif count == 0:
        write_line(f"{topic} nothing")
    else:
        write_line(f"{topic} {offsets[0]}..{offsets[1]} ({count} {'message' if count == 1 else 'messages'})")


@contextmanager
def _progress() -> Iterator[Callable[[], None]]:
    """Show a progress bar if stderr is a terminal; yield a function to call for each message."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed} messages, {task.fields[rate]} a second"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None, rate="-")

        def advance() -> None:
            progress.advance(task)
            speed = progress.tasks[0].speed
            progress.update(task, rate=f"{speed:.0f}" if speed else "-")

        yield advance if console.is_terminal else lambda: None
