"""Wrong and expired keys and sessions: recorded and logged once a minute for each address, answered slowly if many."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Scope

from himalia.server.http.admission import address_group
from himalia.server.observe.audit import Audit, AuditEvent

logger = logging.getLogger("himalia.audit")

PERIOD_S = 60.0
FREE_MAX = 10
"""Wrong keys of an address in a minute that are answered at once: a program with an old key is not an attack."""
ADDRESSES_MAX = 1_000
OTHERS = "others"
"""Stands for the addresses beyond those that are told apart."""
WAITING_MAX = 1_000
"""Answers that are held back at a time: more would cost memory without slowing anything down further."""


class _Seen:
    """What came from one address since its first wrong key of this minute."""

    __slots__ = ("count", "unsaid")

    def __init__(self) -> None:
        self.count = 0
        self.unsaid = 0


class Refusals:
    """Lives on the event loop. The state is bounded, and freed a minute after the last wrong key of an address."""

    def __init__(self, audit: Audit, delay_s: float) -> None:
        self._audit = audit
        self._delay_s = delay_s
        self._seen: dict[str, _Seen] = {}
        self._waiting = 0

    async def refuse(self, scope: Scope) -> None:
        """Note a wrong key; returns when its answer may be sent. A right key never waits."""
        address = address_of(scope)
        if address not in self._seen and len(self._seen) >= ADDRESSES_MAX:
            address = OTHERS
        seen = self._seen.get(address)
        if seen is None:
            seen = self._seen[address] = _Seen()
            self._say(address, 1)
            asyncio.get_running_loop().call_later(PERIOD_S, self._end_period, address)
        else:
            seen.unsaid += 1
        seen.count += 1
        if seen.count > FREE_MAX and self._delay_s and self._waiting < WAITING_MAX:
            self._waiting += 1
            try:
                await asyncio.sleep(self._delay_s)
            finally:
                self._waiting -= 1

    def close(self) -> None:
        """Record what was counted since the last record."""
        for address, seen in self._seen.items():
            if seen.unsaid:
                self._say(address, seen.unsaid)
        self._seen.clear()

    def _end_period(self, address: str) -> None:
        seen = self._seen.get(address)
        if seen is None:
            return
        if not seen.unsaid:
            del self._seen[address]
            return
        self._say(address, seen.unsaid)
        seen.count = seen.unsaid = 0
        asyncio.get_running_loop().call_later(PERIOD_S, self._end_period, address)

    def _say(self, address: str, count: int) -> None:
        what = (
            "a wrong or expired key or session"
            if count == 1
            else f"{count} wrong or expired keys or sessions"
        )
        logger.warning("refused %s from %s", what, address)
        self._audit.record(AuditEvent.KEY_REFUSED, "", address=address, count=count)


def address_of(scope: Scope) -> str:
    """The address of the peer; of IPv6 the network of 64 bits, of which one host has as many addresses as it likes."""
    client = scope.get("client")
    if not client:
        return "unknown"
    return address_group(str(client[0]))[:64]
