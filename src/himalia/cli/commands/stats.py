"""``himalia stats``: counters and rates of the server."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from himalia.cli.options import Json, Token, Url, connect, make_app, run_async
from himalia.cli.terminal.output import make_table, print_json
from himalia.cli.terminal.units import format_duration, format_size
from himalia.protocol.models import Stats, SubscriberStats, TopicStats

app = make_app()

REFRESH_S = 1.0


@app.command("stats")
def stats(
    watch: Annotated[bool, typer.Option("--watch", help="Update every second until Ctrl-C.")] = False,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Show counters and rates of the server, its topics and its subscribers.

    Examples:

        himalia stats --watch

        himalia stats --json
    """
    run_async(_watch(url, token, json=json) if watch else _show(url, token, json=json))


async def _show(url: str | None, token: str | None, *, json: bool) -> None:
    async with connect(url, token) as client:
        found = await client.stats()
    if json:
        print_json(found)
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)
    console.print(_render(found))


async def _watch(url: str | None, token: str | None, *, json: bool) -> None:
    async with connect(url, token) as client:
        if json:
            while True:
                print_json(await client.stats())
                await asyncio.sleep(REFRESH_S)
        from rich.live import Live

        with Live(_render(await client.stats()), auto_refresh=False) as live:
            while True:
                await asyncio.sleep(REFRESH_S)
                live.update(_render(await client.stats()), refresh=True)


def _render(stats: Stats) -> Any:
    """Return the tables that have rows, one below the other."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [make_table(["", "total", "a second"], _totals(stats)), Text(_state(stats))]
    if stats.topics:
        columns = ["topic", "messages", "first..end", "bytes", "subscribers", "lag"]
        parts.append(
            make_table(columns, [_topic_row(name, stats.topics[name]) for name in sorted(stats.topics)])
        )
    if stats.subscribers:
        columns = ["subscriber", "topic", "policy", "sent", "dropped", "lag"]
        parts.append(make_table(columns, [_subscriber_row(one) for one in stats.subscribers]))
    return Group(*parts)


def _state(stats: Stats) -> str:
    return (
        f"up {format_duration(stats.uptime_s)}, {stats.connections} connections, "
        f"{stats.in_flight} publishes in flight, {format_size(stats.queue_bytes)} unsent, {stats.duplicates} duplicates"
    )


def _topic_row(name: str, topic: TopicStats) -> list[str]:
    span, size = f"{topic.first}..{topic.end}", format_size(topic.bytes)
    return [name, f"{topic.messages}", span, size, f"{topic.subscribers}", f"{topic.lag}"]


def _subscriber_row(one: SubscriberStats) -> list[str]:
    return [one.client_id, one.topic, one.policy, f"{one.sent}", f"{one.dropped}", f"{one.lag}"]


def _totals(stats: Stats) -> list[list[str]]:
    return [
        ["published", f"{stats.published}", f"{stats.rates.published:.1f}"],
        ["delivered", f"{stats.delivered}", f"{stats.rates.delivered:.1f}"],
        ["dropped", f"{stats.dropped}", f"{stats.rates.dropped:.1f}"],
    ]
