"""Receiving from a subscription, and waiting for a condition, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from himalia.client import Event, Subscription
from tests.servers import DEADLINE_S


async def receive(items: Subscription[Any], count: int) -> list[Any]:
    """Return the next ``count`` items of a subscription."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(items) for _ in range(count)]


async def receive_events(items: Subscription[Any], count: int) -> list[Event]:
    """Return the next ``count`` events, without notices."""
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(events) < count:
            item = await anext(items)
            if isinstance(item, Event):
                events.append(item)
    return events


async def receive_until(items: Subscription[Any], kind: type) -> list[Any]:
    """Return all items up to and including the first of a kind."""
    found: list[Any] = []
    async with asyncio.timeout(DEADLINE_S):
        while not found or not isinstance(found[-1], kind):
            found.append(await anext(items))
    return found


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Poll until a condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            held = condition()
            if held is True or (not isinstance(held, bool) and await held):
                return
            await asyncio.sleep(0.005)
