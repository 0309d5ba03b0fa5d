"""Options that several commands share, and how a command finds the server and the tables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from himalia.cli.terminal.output import print_warning
from himalia.errors import HimaliaError, TopicNotFound
from himalia.local_server import default_warehouse_path, validate_warehouse_path
from himalia.topics import KERNEL_TOPIC_PREFIX

if TYPE_CHECKING:
    from himalia.client.client import Client


Result = TypeVar("Result")
"""The topic of a kernel is this and its id."""

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
KernelId = Annotated[
    str,
    typer.Argument(metavar="KERNEL", help="The id of a kernel, or as much of its beginning as is unique."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class _Warnings(logging.Handler):
    """What the client library warns of, as a command says it."""

    def emit(self, record: logging.LogRecord) -> None:
        print_warning(record.getMessage())


def make_app() -> typer.Typer:
    """One command's module. Plain help: it keeps its shape in narrow terminals and in pipes."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def connect(url: str | None, token: str | None) -> Client:
    # Imported here: not every command that is described by these options talks to a server.
    from himalia.client.client import Client, logger

    if not logger.handlers:
        logger.addHandler(_Warnings())
        logger.propagate = False
    return Client(url or None, token or None)


async def find_kernel(client: Client, text: str) -> str:
    """The id of the running kernel that is meant: an id, or as much of its beginning as no other has."""
    return _only_match(text, [kernel.id for kernel in await client.kernels()], "runs")


async def find_kernel_topic(client: Client, text: str) -> str:
    """The id of a kernel that runs, or of one that has gone and of which the log still tells."""
    prefix = KERNEL_TOPIC_PREFIX
    kept = [
        topic.name.removeprefix(prefix) for topic in await client.topics() if topic.name.startswith(prefix)
    ]
    return _only_match(text.removeprefix(prefix), kept, "is known")


def _only_match(text: str, ids: Sequence[str], verb: str) -> str:
    if text in ids:
        return text
    found = sorted(id for id in ids if text and id.startswith(text))
    if not found:
        raise HimaliaError(
            f"no kernel {verb} whose id is or begins with {text!r}; 'himalia kernel list' shows those that run"
        )
    if len(found) > 1:
        raise HimaliaError(f"{len(found)} kernels have ids that begin with {text!r}: {', '.join(found)}")
    return found[0]


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


WarehouseOption = Annotated[
    Path | None,
    typer.Option(
        "--warehouse",
        help="The directory of the tables; by default beside the default log.",
        envvar="HIMALIA_WAREHOUSE",
        show_envvar=True,
        metavar="PATH",
    ),
]
Where = Annotated[
    str | None,
    typer.Option("--where", help="Only rows for which this SQL condition holds.", metavar="SQL"),
]


def warehouse_path(given: Path | None) -> Path:
    return validate_warehouse_path(given or default_warehouse_path()).expanduser()
