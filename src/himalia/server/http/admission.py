"""Which TCP connections may be open: a limit on all of them, and one on those of an address that showed no key.

A connection counts as anonymous until a request on it has authenticated. Where a limit is reached, the anonymous
connection that has been idle longest makes room for the new one, so that sockets which say nothing cannot keep out a
client that has something to say. From then on it counts for its caller, who cannot have the last ones.
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
from himalia.server.observe.log_config import RareWarnings

logger = logging.getLogger("himalia.server")

STATE_KEY = "connection"
"""Where ``scope["state"]`` has the connection of a request."""
HTTP_CONNECTIONS_SPARE = 1000
"""Plain HTTP connections beside those that connections_max counts, so that operators still get through."""
CALLER_SHARE = 8
"""One place in so many, but at most half of the spare ones, is for other callers than the one that has most."""
LOOPBACK_FACTOR = 4
"""A proxy in front of the server, and every program of this machine, share the loopback address."""
DESCRIPTORS_MAX = 1 << 20
LOOPBACK_IPV6 = "::1"
IPV6_NETWORK_BITS = 64
"""One customer of a provider has at least that many IPv6 addresses."""


class Refusal(StrEnum):
    """Why a connection was not taken, or was closed for another one."""

    ADDRESS = "address"
    """The address had too many that showed no key."""
    FULL = "full"
    """Too many in all."""
    DESCRIPTORS = "descriptors"
    """The process, or the system, had no file descriptor left."""
    TLS = "tls"
    """The TLS handshake failed or took too long."""


class Admitted:
    """One open connection. Whoever holds the transport calls ``closed`` when it is lost."""

    __slots__ = ("_admission", "abort", "busy", "caller", "group", "open")

    def __init__(self, admission: Admission, group: str) -> None:
        self._admission = admission
        self.group = group
        self.caller: str | None = None
        """Who has authenticated on it last."""
        self.abort: Callable[[], object] | None = None
        self.busy = False
        """Whether a request is being answered: such a connection is the last to make room for another."""
        self.open = True

    def identified(self, caller: str) -> None:
        """A request on this connection has shown a valid key; ``TooManyConnections`` if its caller has too many."""
        if self.open and caller != self.caller:
            self._admission.identify(self, caller)

    def closed(self) -> None:
        """May be called more than once."""
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
        self._warnings = RareWarnings(logger)

    @property
    def count(self) -> int:
        return self._count

    @property
    def anonymous_count(self) -> int:
        return len(self._anonymous)

    def admit(self, address: str) -> Admitted | None:
        """A place for a new connection from this address; None if there is none."""
        group = address_group(address)
        if self._count >= self.connections_max and not self._make_room(self._anonymous, Refusal.FULL, group):
            self.refuse(
                Refusal.FULL,
                "%d connections are open and none of them is idle without a key; one from %s was refused",
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
        """Close the longest idle of these; one that is being answered only if all are."""
        chosen = next((one for one in among if not one.busy), None) or next(iter(among), None)
        if chosen is None:
            return False
        abort = chosen.abort
        chosen.closed()
        if abort is not None:
            abort()
        if reason is Refusal.ADDRESS:
            text = "%s has %d connections that showed no key; the longest idle is closed for each new one"
            self.refuse(reason, text, group, self._limit(group))
        else:
            text = "%d connections are open; the longest idle without a key is closed for each new one"
            self.refuse(reason, text, self.connections_max)
        return True

    def refuse(self, reason: Refusal, message: str, *args: object) -> None:
        """Count it, and say so once a minute."""
        self.refused[reason] += 1
        self._warnings.warn(reason, message, *args)

    def forget_anonymous(self, admitted: Admitted) -> None:
        if self._anonymous.pop(admitted, admitted) is None:
            members = self._of_group[admitted.group]
            del members[admitted]
            if not members:
                del self._of_group[admitted.group]

    def identify(self, admitted: Admitted, caller: str) -> None:
        """It is this caller's from now on. One that the caller may not have stays as it is, and can make room."""
        if self._of_caller[caller] >= self._caller_max:
            raise TooManyConnections(
                f"{caller!r} has {self._of_caller[caller]} connections open; the last of {self.connections_max} are "
                "kept for others",
                limit=self._caller_max,
            )
        self.forget_anonymous(admitted)
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
        self.forget_anonymous(admitted)
        self._forget_caller(admitted)


def identified(scope: Scope, caller: str) -> None:
    """Note on the connection of this request whose it is; nothing on another ASGI server."""
    admitted = scope.get("state", {}).get(STATE_KEY)
    if isinstance(admitted, Admitted):
        admitted.identified(caller)


def abort(scope: Scope) -> bool:
    """Cut the connection of this request, whose answer must not be taken for whole. False on another ASGI server."""
    admitted = scope.get("state", {}).get(STATE_KEY)
    if not isinstance(admitted, Admitted) or admitted.abort is None:
        return False
    admitted.abort()
    return True


def address_group(address: str) -> str:
    """What counts as one address: an IPv4 address, or an IPv6 network of 64 bits."""
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
    """Let this process open as many files as the system allows it to. Returns the limit of before; 0 if it stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


def connections_within_descriptors(connections_max: int) -> int:
    """The connections that may be open at a time, so that the log and kernels still find file descriptors."""
    wanted = connections_max + HTTP_CONNECTIONS_SPARE
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return wanted
    possible = limit - min(limit // 4, 1024)
    if possible < wanted:
        logger.warning(
            "this process may open %d files, so at most %d connections are taken, not connections_max (%d) and %d "
            "more; raise `ulimit -n` (systemd: LimitNOFILE)",
            limit,
            possible,
            connections_max,
            HTTP_CONNECTIONS_SPARE,
        )
    return min(wanted, possible)
