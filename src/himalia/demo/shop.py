"""A shop that publishes one order after the other to ``demo.orders``."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from himalia.client import Client
from himalia.client.events import Outgoing

TOPIC = "demo.orders"
"""Not ``orders``, which the README and the tutorial create."""
EARLIER_ORDERS = 40
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 0.7
PRICES = {"A-17": 31.5, "B-2": 12.0, "C-40": 87.9, "D-8": 4.25}
COUNTRIES = ("DE", "FR", "IT", "PT", "SE")


class Shop:
    """Publishes random orders."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._chance = random.Random()

    async def run(self) -> None:
        """Publish some orders at once, then one every few tenths of a second, until cancelled."""
        await self._client.create_topic(TOPIC, exist_ok=True)
        await self._client.publish_many(TOPIC, [self._order() for _ in range(EARLIER_ORDERS)])
        while True:
            await asyncio.sleep(self._chance.uniform(PAUSE_MIN_S, PAUSE_MAX_S))
            order = self._order()
            await self._client.publish(TOPIC, order.payload, headers=order.headers)

    def _order(self) -> Outgoing:
        sku, quantity = self._chance.choice(list(PRICES)), self._chance.randint(1, 5)
        order: dict[str, Any] = {
            "sku": sku,
            "quantity": quantity,
            "total": round(quantity * PRICES[sku], 2),
            "country": self._chance.choice(COUNTRIES),
        }
        return Outgoing(order, headers={"source": self._chance.choice(("web", "app"))})
