"""``himalia pipeline replay``: stored messages, published again at their own pace."""

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

from himalia.cli.options import Json, Token, Url, WarehouseOption, connect, make_app, run, warehouse_path
from himalia.cli.terminal.output import PublishedRange, print_json, write_line
from himalia.cli.terminal.tables import asking
from himalia.errors import HimaliaError
from himalia.topics import check_name

if TYPE_CHECKING:
    from himalia.client.events import Outgoing, Published

app = make_app()

COLUMNS = ("topic", "offset", "ts", "headers", "payload")
REPLAYED_FROM = "replayed_from"
"""The header that says which record this is a copy of: its topic and offset, joined by an @."""
_SPEED = re.compile(r"(\d+(?:\.\d+)?)x?\Z")


class Stored(NamedTuple):
    """A message as the table has it."""

    topic: str
    offset: int
    ts: datetime
    headers: dict[str, str]
    payload: str

    @property
    def place(self) -> str:
        return f"{self.topic}@{self.offset}"


@app.command("replay")
def replay(
    where: Annotated[
        str, typer.Option("--where", help="Messages for which this SQL condition holds.", metavar="SQL")
    ],
    to: Annotated[str, typer.Option("--to", help="The topic to publish them to.", metavar="TOPIC")],
    speed: Annotated[
        str,
        typer.Option("--speed", help="1x as they came, 10x ten times as fast, max without waiting."),
    ] = "1x",
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it is missing.")] = False,
    warehouse: WarehouseOption = None,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Publish stored messages again, in the order and at the pace in which they came.

    Payload and headers are the same, the id is new, and the header replayed_from says which record it is a copy of.

    Examples:

        himalia pipeline replay --where "topic = 'orders' and date = '2026-11-16'" --to orders.again --create

        himalia pipeline replay --where "topic like 'sensors.%'" --to test --speed 10x

        himalia pipeline replay --where "publisher = 'shop'" --to test --speed max
    """
    factor = _parse_speed(speed)
    check_name(to)
    messages, total = _stored(warehouse_path(warehouse), where)
    replaying = _Replay(messages)
    with _progress(total) as advance:
        try:
            run(replaying.publish(to, (url, token), factor, advance, create=create))
        except HimaliaError as error:
            replaying.name_the_message(error)
            raise
        except KeyboardInterrupt:
            print(f"stopped after {replaying.count} of {total} messages", file=sys.stderr)
            raise
    replaying.summarize(to, json=json)


def _parse_speed(text: str) -> float | None:
    """How many times as fast; None for without waiting."""
    if text == "max":
        return None
    found = _SPEED.match(text)
    if found is None or float(found[1]) == 0:
        raise typer.BadParameter(f"--speed {text!r} is not a speed such as 1x, 10x, 0.5x or max")
    return float(found[1])


def _stored(path: Path, where: str) -> tuple[Iterator[Stored], int]:
    """The messages, in the order they came, and how many there are."""
    from himalia.tables import Tables

    tables = Tables(path)
    with asking():
        total = tables.count("messages", where)
        messages = _messages(tables.read("messages", where=where, order="ts, topic, offset", columns=COLUMNS))
        # They are sorted before the first one comes, which can take a while.
        first = list(islice(messages, 1))
    return chain(first, messages), total


def _messages(batches: Iterable[Any]) -> Iterator[Stored]:
    from himalia.tables.result import columns_of

    for batch in batches:
        columns = columns_of(batch)
        yield from map(Stored, *(columns[name] for name in COLUMNS))


class _Replay:
    """What was published so far. Nothing is asked of the server that it has not acknowledged when it ends."""

    def __init__(self, messages: Iterator[Stored]) -> None:
        self._messages = messages
        self._under_way: deque[str] = deque()
        self._begun = asyncio.Event()
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
            self._under_way.popleft()
            self._begun.set()
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
            self._under_way.append(message.place)
            headers = {**message.headers, REPLAYED_FROM: message.place}
            yield Outgoing(msgspec.Raw(message.payload.encode()), headers=headers)
            if first_ts is None:
                # From here on: until there is a connection, time does not count.
                await self._begun.wait()
                began_s, first_ts = loop.time(), message.ts

    def name_the_message(self, error: HimaliaError) -> None:
        """Which message was refused, and what became of those before it."""
        if "index" in error.data and self._under_way:
            error.message = f"{self._under_way[0]}: {error.message} (replayed before it: {self.count})"

    def summarize(self, topic: str, *, json: bool) -> None:
        first, last = (self._first.offset, self._last.offset) if self._first and self._last else (None, None)
        if json:
            print_json(PublishedRange(topic, self.count, first, last))
        elif self.count == 0:
            write_line(f"{topic} nothing: no message fits")
        else:
            messages = "message" if self.count == 1 else "messages"
            write_line(f"{topic} {first}..{last} ({self.count} {messages})")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, if somebody is there to see it; yields what to call for each message."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
