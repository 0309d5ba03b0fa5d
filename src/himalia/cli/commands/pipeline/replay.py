"""``himalia pipeline replay``: publish stored messages again, at their original pace."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from himalia.cli.options import (
    Json,
    Token,
    Url,
    WarehouseOption,
    connect,
    make_app,
    run_async,
    warehouse_path,
)
from himalia.cli.terminal.output import PublishedRange, print_json, write_line
from himalia.cli.terminal.tables import interruptible
from himalia.errors import HimaliaError
from himalia.topics import check_name

if TYPE_CHECKING:
    from himalia.client.events import Outgoing, Published

app = make_app()

COLUMNS = ("topic", "offset", "ts", "headers", "payload")
REPLAYED_FROM = "replayed_from"
"""The header with the topic and offset of the original record, joined by an @."""
_SPEED = re.compile(r"(\d+(?:\.\d+)?)x?\Z")


class StoredMessage(NamedTuple):
    """A row of the table ``messages``."""

    topic: str
    offset: int
    ts: datetime
    headers: dict[str, str]
    payload: str

    @property
    def position(self) -> str:
        return f"{self.topic}@{self.offset}"


@app.command("replay")
def replay(
    where: Annotated[
        str, typer.Option("--where", help="Messages for which this SQL condition is true.", metavar="SQL")
    ],
    to: Annotated[str, typer.Option("--to", help="The topic to publish them to.", metavar="TOPIC")],
    speed: Annotated[
        str,
        typer.Option("--speed", help="1x at the original pace, 10x ten times as fast, max without pauses."),
    ] = "1x",
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it is missing.")] = False,
    warehouse: WarehouseOption = None,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Publish stored messages again, in their original order and at their original pace.

    Payload and headers are the same, the id is new, and the header replayed_from names the original record.

    Examples:

        himalia pipeline replay --where "topic = 'orders' and date = '2026-11-16'" --to orders.again --create

        himalia pipeline replay --where "topic like 'sensors.%'" --to test --speed 10x

        himalia pipeline replay --where "publisher = 'shop'" --to test --speed max
    """
    factor = _parse_speed(speed)
    check_name(to)
    messages, total = _read_messages(warehouse_path(warehouse), where)
    replay = _Replay(messages)
    with _progress(total) as advance:
        try:
            run_async(replay.publish(to, (url, token), factor, advance, create=create))
        except HimaliaError as error:
            replay.add_position(error)
            raise
        except KeyboardInterrupt:
            print(f"stopped after {replay.count} of {total} messages", file=sys.stderr)
            raise
    replay.summarize(to, json=json)


def _parse_speed(text: str) -> float | None:
    """How many times as fast; None for without waiting."""
    if text == "max":
        return None
    found = _SPEED.match(text)
    if found is None or float(found[1]) == 0:
        raise typer.BadParameter(f"--speed {text!r} is not a speed such as 1x, 10x, 0.5x or max")
    return float(found[1])


def _read_messages(path: Path, where: str) -> tuple[Iterator[StoredMessage], int]:
    """Return the matching messages, ordered by time, and their number."""
    from himalia.tables import Tables

    tables = Tables(path)
    with interruptible():
        total = tables.count("messages", where)
        messages = _to_messages(
            tables.read("messages", where=where, order="ts, topic, offset", columns=COLUMNS)
        )
        # The engine sorts them before it returns the first one, which can take a while.
        first = list(islice(messages, 1))
    return chain(first, messages), total


def _to_messages(batches: Iterable[Any]) -> Iterator[StoredMessage]:
    from himalia.tables.result import columns_of

    for batch in batches:
        columns = columns_of(batch)
        yield from map(StoredMessage, *(columns[name] for name in COLUMNS))


class _Replay:
    """A replay in progress: the messages in flight, and the range that is stored. Used on the event loop."""

    def __init__(self, messages: Iterator[StoredMessage]) -> None:
        self._messages = messages
        self._in_flight: deque[str] = deque()
        self._first_stored = asyncio.Event()
        self._first: Published | None = None
        self._last: Published | None = None
        self.count = 0

    async def publish(
        self,
        topic: str,
        where: tuple[str | None, str | None],
        speed: float | None,
        advance: Callable[[], None],
        *,
        create: bool,
    ) -> None:
        def stored(published: Published) -> None:
            self._first, self._last = self._first or published, published
            self.count += 1
            self._in_flight.popleft()
            self._first_stored.set()
            advance()

        async with connect(*where) as client:
            if create:
                await client.create_topic(topic, exist_ok=True)
            await client.publish_many(topic, self._paced(speed), on_published=stored)

    async def _paced(self, speed: float | None) -> AsyncIterator[Outgoing]:
        from himalia.client.events import Outgoing

        loop = asyncio.get_running_loop()
        began_s, first_ts = 0.0, None
        for message in self._messages:
            if speed is not None and first_ts is not None:
                due_s = began_s + (message.ts - first_ts).total_seconds() / speed
                await asyncio.sleep(due_s - loop.time())
            self._in_flight.append(message.position)
            headers = {**message.headers, REPLAYED_FROM: message.position}
            yield Outgoing(msgspec.Raw(message.payload.encode()), headers=headers)
            if first_ts is None:
                # The pace counts from the first stored message, not from the attempt to connect.
                await self._first_stored.wait()
                began_s, first_ts = loop.time(), message.ts

    def add_position(self, error: HimaliaError) -> None:
        """Add to an error which message was refused, and how many before it were replayed."""
        if "index" in error.data and self._in_flight:
            error.message = f"{self._in_flight[0]}: {error.message} (replayed before it: {self.count})"

    def summarize(self, topic: str, *, json: bool) -> None:
        first, last = (self._first.offset, self._last.offset) if self._first and self._last else (None, None)
        if json:
            print_json(PublishedRange(topic, self.count, first, last))
        elif self.count == 0:
            write_line(f"{topic} nothing: no message matches")
        else:
            messages = "message" if self.count == 1 else "messages"
            write_line(f"{topic} {first}..{last} ({self.count} {messages})")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar if stderr is a terminal; yield a function to call for each message."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
