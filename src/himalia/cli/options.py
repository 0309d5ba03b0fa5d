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
    typer.Argument(metavar="KERNEL", help="The id of a kernel, or a unique beginning of it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class _WarningHandler(logging.Handler):
    """Prints warnings of the client library in the form of a command's own."""

    def emit(self, record: logging.LogRecord) -> None:
        print_warning(record.getMessage())


def make_app() -> typer.Typer:
    """Make the Typer application of one command. Its help is plain text, also in narrow terminals and in pipes."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def connect(url: str | None, token: str | None) -> Client:
    """Return a client for the server that the options name, else for the one on this machine."""
    # Imported here: some commands with these options do not connect to a server.
    from himalia.client.client import Client, logger

    if not logger.handlers:
        logger.addHandler(_WarningHandler())
        logger.propagate = False
    return Client(url or None, token or None)


async def find_kernel(client: Client, text: str) -> str:
    """Return the id of the running kernel that a text names: its id, or a unique beginning of it."""
    return _match_id(text, [kernel.id for kernel in await client.kernels()], "runs")


async def find_kernel_topic(client: Client, text: str) -> str:
    """Return the id of a kernel that has a topic in the log, whether it still runs or not."""
    prefix = KERNEL_TOPIC_PREFIX
    ids = [
        topic.name.removeprefix(prefix) for topic in await client.topics() if topic.name.startswith(prefix)
    ]
    return _match_id(text.removeprefix(prefix), ids, "is known")


def _match_id(text: str, ids: Sequence[str], verb: str) -> str:
    if text in ids:
        return text
    found = sorted(id for id in ids if text and id.startswith(text))
    if not found:
        raise HimaliaError(
            f"no kernel {verb} whose id is or begins with {text!r}; 'himalia kernel list' lists the running ones"
        )
    if len(found) > 1:
        raise HimaliaError(f"{len(found)} kernels have ids that begin with {text!r}: {', '.join(found)}")
    return found[0]


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's coroutine. An error that names a REST call is reworded to name the command."""
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
        help="The directory of the tables; by default next to the default log.",
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
    """Return the directory of the tables that an option names, else the default one."""
    return validate_warehouse_path(given or default_warehouse_path()).expanduser()
