"""Working one step ahead of whoever takes the results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TypeVar

T = TypeVar("T")


async def one_ahead(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """What the source gives, of which the next is made while the last is still being sent. None ends it."""
    async with aclosing(source):
        making = asyncio.ensure_future(anext(source, None))
        try:
            while (made := await making) is not None:
                making = asyncio.ensure_future(anext(source, None))
                yield made
        finally:
            making.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await making
