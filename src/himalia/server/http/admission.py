"""Limits on open TCP connections: on all of them, on the anonymous ones of an address, and on those of a caller.

A connection is anonymous until a request on it has authenticated. Where a limit is reached, the anonymous connection
that has been idle longest is closed for the new one, so that silent sockets cannot keep out other clients. An
authenticated connection counts for its caller, and the last ones are reserved for other callers.
"""

from __future__ import annotations

import logging
import resource
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.types import Scope

from himalia.errors import TooManyConnections
from himalia.throttle import WarningThrottle

logger = logging.getLogger("himalia.server")

STATE_KEY = "connection"
"""Where ``scope["state"]`` has the connection of a request."""
HTTP_CONNECTIONS_SPARE = 1000
"""Plain HTTP connections in addition to those that connections_max counts, so that operators can still connect."""
CALLER_SHARE = 8
"""One connection in so many, but at most half of the spare ones, is reserved for callers other than the largest."""
LOOPBACK_FACTOR = 4
"""How many times more connections the loopback address may have, which a proxy and all local programs share."""
DESCRIPTORS_MAX = 1 << 20
LOOPBACK_IPV6 = "::1"
IPV6_NETWORK_BITS = 64
"""A customer of a provider has a network of at least this size, so it counts as one address."""


class Refusal(StrEnum):
    """Why a connection was refused, or closed for another one. Label of ``himalia_connections_refused_total``."""

    ADDRESS = "address"
    """The address had too many anonymous ones."""
    FULL = "full"
    """Too many in all."""
    DESCRIPTORS = "descriptors"
    """The process, or the system, had no file descriptor left."""
    TLS = "tls"
    """The TLS handshake failed or took too long."""


class Admitted:
    """One open connection. The owner of the transport calls ``release`` when the connection is lost."""

    __slots__ = ("_admission", "abort", "busy", "caller", "group", "open")

    def __init__(self, admission: Admission, group: str) -> None:
        self._admission = admission
        self.group = group
        self.caller: str | None = None
        """The caller of the latest request that authenticated."""
        self.abort: Callable[[], object] | None = None
        self.busy = False
        """Whether a request is being handled: such a connection is the last to be closed for another."""
        self.open = True

    def identify(self, caller: str) -> None:
        """Count the connection for this caller, who has authenticated; ``TooManyConnections`` beyond its share."""
        if self.open and caller != self.caller:
            self._admission.identify(self, caller)

    def release(self) -> None:
        """Count the connection no longer. Idempotent."""
        if self.open:
            self.open = False
            self.abort = None
            self._admission.release(self)


class Admission:
    """Counts connections from the moment they are accepted, TLS handshakes included."""

    def __init__(self, connections_max: int, anonymous_max: int) -> None:
        self.connections_max = connections_max
        self.refused: Counter[str] = Counter()
        self._anonymous_max = anonymous_max
        self._count = 0
        # The oldest first; each connection is in both as long as it is anonymous.
        self._anonymous: dict[Admitted, None] = {}
        self._of_group: dict[str, dict[Admitted, None]] = {}
        self._of_caller: Counter[str] = Counter()
        self._caller_max = connections_max - min(HTTP_CONNECTIONS_SPARE // 2, connections_max // CALLER_SHARE)
        self._warnings = WarningThrottle(logger)

    @property
    def count(self) -> int:
        return self._count

    @property
    def anonymous_count(self) -> int:
        return len(self._anonymous)

    def admit(self, address: str) -> Admitted | None:
        """Count a new connection from this address; return None if it must be refused."""
        group = address_group(address)
        if self._count >= self.connections_max and not self._make_room(self._anonymous, Refusal.FULL, group):
            self.refuse(
                Refusal.FULL,
                "%d connections are open, all of them with a valid key; refused one from %s",
                self._count,
                group,
            )
            return None
        members = self._of_group.setdefault(group, {})
        if len(members) >= self._limit(group):
            self._make_room(members, Refusal.ADDRESS, group)
        admitted = Admitted(self, group)
        self._count += 1
        self._anonymous[admitted] = None
        self._of_group.setdefault(group, {})[admitted] = None
        return admitted

    def _limit(self, group: str) -> int:
        is_loopback = group == LOOPBACK_IPV6 or group.startswith("127.")
        return self._anonymous_max * (LOOPBACK_FACTOR if is_loopback else 1)

    def _make_room(self, among: dict[Admitted, None], reason: Refusal, group: str) -> bool:
        """Close the longest idle of these; a busy one only if all are. Return False if there is none."""
        chosen = next((one for one in among if not one.busy), None) or next(iter(among), None)
        if chosen is None:
            return False
        abort = chosen.abort
        chosen.release()
        if abort is not None:
            abort()
        if reason is Refusal.ADDRESS:
            text = "%s has %d connections without a valid key; closing the longest idle for each new one"
            self.refuse(reason, text, group, self._limit(group))
        else:
            text = "%d connections are open; closing the longest idle without a valid key for each new one"
            self.refuse(reason, text, self.connections_max)
        return True

    def refuse(self, reason: Refusal, message: str, *args: object) -> None:
        """Count a refusal, and log it once a minute."""
        self.refused[reason] += 1
        self._warnings.warn(reason, message, *args)

    def _forget_anonymous(self, admitted: Admitted) -> None:
        if self._anonymous.pop(admitted, admitted) is None:
            members = self._of_group[admitted.group]
            del members[admitted]
            if not members:
                del self._of_group[admitted.group]

    def identify(self, admitted: Admitted, caller: str) -> None:
        """Count the connection for this caller. Beyond the caller's share it stays anonymous and may be closed."""
        if self._of_caller[caller] >= self._caller_max:
            raise TooManyConnections(
                f"{caller!r} has {self._of_caller[caller]} connections open, and the last of {self.connections_max} "
                "are reserved for others; close one first",
                limit=self._caller_max,
            )
        self._forget_anonymous(admitted)
        self._forget_caller(admitted)
        admitted.caller = caller
        self._of_caller[caller] += 1

    def _forget_caller(self, admitted: Admitted) -> None:
        caller = admitted.caller
        if caller is not None:
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]

    def release(self, admitted: Admitted) -> None:
        self._count -= 1
        self._forget_anonymous(admitted)
        self._forget_caller(admitted)


def identify(scope: Scope, caller: str) -> None:
    """Count the connection of this request for its caller; does nothing on another ASGI server."""
    admitted = scope.get("state", {}).get(STATE_KEY)
    if isinstance(admitted, Admitted):
        admitted.identify(caller)


def abort(scope: Scope) -> bool:
    """Abort the connection of this request, so that its response is not mistaken for complete.

    Returns False on another ASGI server, where this is not possible.
    """
    admitted = scope.get("state", {}).get(STATE_KEY)
    if not isinstance(admitted, Admitted) or admitted.abort is None:
        return False
    admitted.abort()
    return True


def address_group(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return LOOPBACK_IPV6
    return str(ip_network((parsed, IPV6_NETWORK_BITS), strict=False))


def raise_descriptor_limit() -> int:
    """Let this process open as many files as the system allows. Returns the old limit, or 0 if it has not changed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


def connections_within_descriptors(connections_max: int) -> int:
    """Return how many connections may be open, such that file descriptors are left for the log and kernels."""
    wanted = connections_max + HTTP_CONNECTIONS_SPARE
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return wanted
    possible = limit - min(limit // 4, 1024)
    if possible < wanted:
        logger.warning(
            "this process may open %d files, so at most %d connections are accepted, not connections_max (%d) and %d "
            "more; raise `ulimit -n` (systemd: LimitNOFILE)",
            limit,
            possible,
            connections_max,
            HTTP_CONNECTIONS_SPARE,
        )
    return min(wanted, possible)
