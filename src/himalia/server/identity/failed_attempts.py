"""Wrong and expired keys and sessions: recorded and logged once a minute per address, and delayed if there are many."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Scope

from himalia.server.http.admission import address_group
from himalia.server.observe.audit import Audit, AuditEvent

logger = logging.getLogger("himalia.audit")

PERIOD_S = 60.0
FREE_MAX = 10
"""Wrong keys of an address in a minute that are refused at once: a program with an old key is not an attack."""
ADDRESSES_MAX = 1_000
OTHERS = "others"
"""Counts all addresses beyond the first ``ADDRESSES_MAX`` as one."""
WAITING_MAX = 1_000
"""Refusals that are delayed at a time: more would cost memory without slowing down an attack any further."""


class _Attempts:
    """The failed attempts of one address in this minute."""

    __slots__ = ("count", "unreported")

    def __init__(self) -> None:
        self.count = 0
        self.unreported = 0


class FailedAttempts:
    """Belongs to the event loop. The state is bounded, and freed a minute after an address's last failed attempt."""

    def __init__(self, audit: Audit, delay_s: float) -> None:
        self._audit = audit
        self._delay_s = delay_s
        self._attempts: dict[str, _Attempts] = {}
        self._waiting = 0

    async def count(self, scope: Scope) -> None:
        """Count a failed attempt; returns when its error may be sent. Valid credentials are never delayed."""
        address = address_of(scope)
        if address not in self._attempts and len(self._attempts) >= ADDRESSES_MAX:
            address = OTHERS
        attempts = self._attempts.get(address)
        if attempts is None:
            attempts = self._attempts[address] = _Attempts()
            self._report(address, 1)
            asyncio.get_running_loop().call_later(PERIOD_S, self._end_period, address)
        else:
            attempts.unreported += 1
        attempts.count += 1
        if attempts.count > FREE_MAX and self._delay_s and self._waiting < WAITING_MAX:
            self._waiting += 1
            try:
                await asyncio.sleep(self._delay_s)
            finally:
                self._waiting -= 1

    def close(self) -> None:
        """Record what was counted since the last record."""
        for address, attempts in self._attempts.items():
            if attempts.unreported:
                self._report(address, attempts.unreported)
        self._attempts.clear()

    def _end_period(self, address: str) -> None:
        attempts = self._attempts.get(address)
        if attempts is None:
            return
        if not attempts.unreported:
            del self._attempts[address]
            return
        self._report(address, attempts.unreported)
        attempts.count = attempts.unreported = 0
        asyncio.get_running_loop().call_later(PERIOD_S, self._end_period, address)

    def _report(self, address: str, count: int) -> None:
        what = (
            "a wrong or expired key or session"
            if count == 1
            else f"{count} wrong or expired keys or sessions"
        )
        logger.warning("refused %s from %s", what, address)
        self._audit.record(AuditEvent.KEY_REFUSED, "", address=address, count=count)


def address_of(scope: Scope) -> str:
    """Return the peer's address; for IPv6 the network of 64 bits, in which one host has as many as it likes."""
    client = scope.get("client")
    if not client:
        return "unknown"
    return address_group(str(client[0]))[:64]
