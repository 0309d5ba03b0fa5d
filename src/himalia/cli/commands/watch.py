"""``himalia watch``: all that a kernel has said, and what it says from now on."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Callable
from typing import Annotated, Any

import typer

from himalia.cli.options import (
    Json,
    KernelId,
    Token,
    Url,
    connect,
    find_kernel_topic,
    make_app,
    run,
)
from himalia.cli.process.signals import run_until_pipe_closes
from himalia.cli.terminal.kernel_output import ConsoleRenderer, Images, KernelRecord
from himalia.cli.terminal.output import abandon_stdout, event_printer, print_notice
from himalia.cli.terminal.screen import Screen
from himalia.cli.terminal.widgets import Widgets
from himalia.client.client import Client
from himalia.client.events import Event
from himalia.client.subscription import Subscription
from himalia.errors import KernelNotFound
from himalia.topics import KERNEL_TOPIC_PREFIX

app = make_app()

LAST_EVENTS = ("stopped", "died")
QUIET_S = 0.3
"""Silence after a kernel's end, after which it is worth to ask whether there is more to come."""
WIDGET_BYTES_MAX = 8 << 20

Show = Callable[[Event], None]


@app.command("watch")
def watch(
    kernel: KernelId,
    last: Annotated[
        int | None,
        typer.Option("--last", help="Begin with the last so many records, not with the first.", min=0),
    ] = None,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Show all that a kernel has said since it started, and what it says, until it ends or Ctrl-C.

    However late you come, you see everything that the log keeps, in order: code, output, errors, and what happened
    to the kernel. It may have ended long ago.

    Examples:

        himalia watch 2f1c

        himalia watch 2f1c --last 0 --json
    """
    try:
        run(run_until_pipe_closes(_watch((url, token), kernel, last, _shower(json=json))))
    except BrokenPipeError:
        abandon_stdout()
    except KeyboardInterrupt:
        pass


def _shower(*, json: bool) -> Show:
    if json:
        return event_printer(json=True)
    screen, widgets = Screen(sys.stdout, sys.stderr), Widgets(WIDGET_BYTES_MAX)
    renderer = ConsoleRenderer(screen, Images(), widgets)
    return lambda event: renderer.show(KernelRecord.of(event))


async def _watch(where: tuple[str | None, str | None], text: str, last: int | None, show: Show) -> None:
    async with connect(*where) as client:
        topic = KERNEL_TOPIC_PREFIX + await find_kernel_topic(client, text)
        start: dict[str, Any] = {"from_": 0} if last is None else {"last_n": last}
        async with client.subscribe(
            topic, policy="lossless", notices=True, client_id=f"watch-{uuid.uuid4()}", **start
        ) as items:
            await _follow(client, topic, items, show)


async def _follow(client: Client, topic: str, items: Subscription[Any], show: Show) -> None:
    """Show each, until the kernel has ended and all of it is shown."""
    may_be_over = not await _runs(client, topic)
    while True:
        try:
            async with asyncio.timeout(QUIET_S if may_be_over else None):
                item = await anext(items)
        except TimeoutError:
            if await _is_over(client, topic, items):
                return
            continue
        except StopAsyncIteration:
            return
        if not isinstance(item, Event):
            print_notice(item)
            continue
        show(item)
        may_be_over = may_be_over or KernelRecord.of(item).event in LAST_EVENTS


async def _is_over(client: Client, topic: str, items: Subscription[Any]) -> bool:
    """Whether the kernel is gone, and the last record of its topic has been shown."""
    if await _runs(client, topic):
        return False
    ends = {found.name: found.end for found in await client.topics()}
    return topic in items.positions and items.positions[topic].offset >= ends.get(topic, 0)


async def _runs(client: Client, topic: str) -> bool:
    try:
        return (await client.kernel(topic.removeprefix(KERNEL_TOPIC_PREFIX))).execution_state != "dead"
    except KernelNotFound:
        return False
