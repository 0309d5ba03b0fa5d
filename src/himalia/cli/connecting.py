"""What the commands that talk to a server have in common: how to find it, and how to run on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

from himalia.client.client import Client
from himalia.errors import HimaliaError, TopicNotFound

Result = TypeVar("Result")

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The server, such as http://127.0.0.1:8000; by default the one that runs on this machine.",
        envvar="HIMALIA_URL",
        show_envvar=True,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        help="Token or key; by default that of the server on this machine.",
        envvar="HIMALIA_TOKEN",
        show_envvar=True,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def make_app() -> typer.Typer:
    """One command's module. Plain help: it keeps its shape in narrow terminals and in pipes."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def connect(url: str | None, token: str | None) -> Client:
    return Client(url or None, token or None)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's coroutine. Errors that a command can answer better than the server are reworded."""
    try:
        return asyncio.run(work)
    except TopicNotFound as error:
        topic = error.data.get("topic")
        if topic is None:
            raise
        raise HimaliaError(
            f"topic {topic!r} does not exist; create it with 'himalia topics create {topic}'"
        ) from None
