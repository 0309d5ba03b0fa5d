"""Answers that are made one step ahead of those who read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from himalia.server.rest.record_stream import prefetch


class Source:
    """Counts what it made, and knows whether it was closed."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.made, self.is_closed = 0, False
        self._count, self._fails_at = count, fails_at

    async def numbers(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._count):
                await asyncio.sleep(0)
                if number == self._fails_at:
                    raise OSError("the disk is gone")
                self.made += 1
                yield number
        finally:
            self.is_closed = True


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_all_come_and_in_order() -> None:
    source = Source(5)
    assert [number async for number in prefetch(source.numbers())] == [0, 1, 2, 3, 4]
    assert source.is_closed


async def test_one_is_made_ahead_and_no_more() -> None:
    source = Source(5)
    numbers = prefetch(source.numbers())
    assert await anext(numbers) == 0
    await settled()
    assert source.made == 2
    await numbers.aclose()


async def test_a_reader_that_goes_away_ends_the_work() -> None:
    source = Source(5)
    numbers = prefetch(source.numbers())
    assert await anext(numbers) == 0
    await numbers.aclose()
    assert source.is_closed and source.made <= 2


async def test_a_failure_comes_after_what_was_made_before_it() -> None:
    source = Source(5, fails_at=2)
    numbers = prefetch(source.numbers())
    assert [await anext(numbers), await anext(numbers)] == [0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        await anext(numbers)
    assert source.is_closed
