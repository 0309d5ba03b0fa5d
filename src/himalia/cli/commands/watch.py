"""``himalia watch``: a kernel's whole session, and its output from now on."""

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
    run_async,
)
from himalia.cli.process.signals import run_until_pipe_closes
from himalia.cli.terminal.kernel_output import ConsoleRenderer, Images, KernelRecord
from himalia.cli.terminal.output import abandon_stdout, make_event_printer, print_notice
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
"""After this silence, once a kernel has ended, the server is queried for the end of its topic."""
WIDGET_BYTES_MAX = 8 << 20

Show = Callable[[Event], None]


@app.command("watch")
def watch(
    kernel: KernelId,
    last: Annotated[
        int | None,
        typer.Option("--last", help="Begin with the last N records instead of the first.", min=0),
    ] = None,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Show a kernel's session from its start, and its output as it comes, until it ends or Ctrl-C.

    Shows everything that the log keeps, in order: code, output, errors, and events of the kernel. The kernel may have
    ended long ago.

    Examples:

        himalia watch 2f1c

        himalia watch 2f1c --last 0 --json
    """
    try:
        run_async(run_until_pipe_closes(_watch((url, token), kernel, last, _make_printer(json=json))))
    except BrokenPipeError:
        abandon_stdout()
    except KeyboardInterrupt:
        pass


def _make_printer(*, json: bool) -> Show:
    if json:
        return make_event_printer(json=True)
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
    """Show each record until the kernel has ended and the last one is shown."""
    may_have_ended = not await _is_running(client, topic)
    while True:
        try:
            async with asyncio.timeout(QUIET_S if may_have_ended else None):
                item = await anext(items)
        except TimeoutError:
            if await _has_ended(client, topic, items):
                return
            continue
        except StopAsyncIteration:
            return
        if not isinstance(item, Event):
            print_notice(item)
            continue
        show(item)
        may_have_ended = may_have_ended or KernelRecord.of(item).event in LAST_EVENTS


async def _has_ended(client: Client, topic: str, items: Subscription[Any]) -> bool:
    """Return whether the kernel has ended and the last record of its topic has been shown."""
    if await _is_running(client, topic):
        return False
    ends = {found.name: found.end for found in await client.topics()}
    return topic in items.positions and items.positions[topic].offset >= ends.get(topic, 0)


async def _is_running(client: Client, topic: str) -> bool:
    try:
        return (await client.kernel(topic.removeprefix(KERNEL_TOPIC_PREFIX))).execution_state != "dead"
    except KernelNotFound:
        return False
