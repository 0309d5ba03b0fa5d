"""A caller: its qualified name, rights and limits, and their form in the keys file and in tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from himalia.errors import BadRequest, ConfigurationError, Forbidden
from himalia.server.identity.credential import Credential
from himalia.topics import AUDIT_TOPIC, check_pattern, matches

OWN = "own"
"""The pattern of ``execute`` and ``subscribe`` for the kernels that the caller itself started. It is not the topic
``own``: no right can be given on a topic of exactly that name but by ``*`` or ``>``."""

KNOWN_MAX = 4_000
"""Decisions about topics that are cached for a caller, about 400 bytes each."""


class Right(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    MANAGE = "manage"
    EXECUTE = "execute"


class CallerLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one caller may use at a time, over all its connections. None: only the server's limits apply."""

    publishes_per_s: float | None = None
    bytes_per_s: float | None = None
    connections: int | None = None
    subscriptions: int | None = None
    kernels: int | None = None
    queries: int | None = None


NO_LIMITS = CallerLimits()


class Principal:
    """An authenticated caller and its rights.

    ``name`` is qualified and stable: ``key:reports`` for every secret that the key ``reports`` ever had,
    ``jwt:<iss>/<sub>`` for all tokens of one subject, ``token`` for the generated token, ``anonymous`` with
    ``--no-auth``. ``named`` is false for the last two: there the client names itself. ``credential`` is the one
    that authenticated the caller; everything that the caller opens ends with it.
    """

    def __init__(
        self,
        name: str,
        rights: Mapping[Right, Sequence[str]],
        *,
        named: bool = True,
        limits: CallerLimits = NO_LIMITS,
        credential: Credential | None = None,
    ) -> None:
        self.name = name
        self.named = named
        self.limits = limits
        self.credential = credential or Credential()
        self._rights = rights
        self._known: dict[tuple[Right, str], bool] = {}

    def with_credential(self, credential: Credential) -> Principal:
        """Return the same caller, authenticated by another credential."""
        other = Principal(
            self.name, self._rights, named=self.named, limits=self.limits, credential=credential
        )
        other._known = self._known
        return other

    @property
    def short_name(self) -> str:
        """The name without its qualifier, as in the header ``publisher``."""
        return self.name.partition(":")[2] or self.name

    def may(self, right: Right, topic: str, owner: str | None = None) -> bool:
        """Whether a pattern of this right matches the topic, or the right covers what this caller owns.

        ``owner`` is the topic's, where it has one. To read the audit trail is to manage it.
        """
        if owner is not None and owner == self.name and self.owns(right):
            return True
        if topic == AUDIT_TOPIC and right is Right.SUBSCRIBE:
            right = Right.MANAGE
        known = self._known.get((right, topic))
        if known is None:
            patterns = self._rights.get(right, ())
            known = any(pattern != OWN and matches(pattern, topic) for pattern in patterns)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()  # topics come and go: what is used now is known again at once
            self._known[right, topic] = known
        return known

    def owns(self, right: Right) -> bool:
        """Whether this right covers the kernels that the caller itself started."""
        return OWN in self._rights.get(right, ())

    def may_some(self, right: Right) -> bool:
        return bool(self._rights.get(right))

    def may_all(self, right: Right) -> bool:
        """Whether this right covers every topic."""
        return ">" in self._rights.get(right, ())

    def require(self, right: Right, topic: str, owner: str | None = None) -> None:
        if not self.may(right, topic, owner):
            if topic == AUDIT_TOPIC:
                raise Forbidden(
                    f"{self.name!r} has no right to read {topic!r}: that is manage on {topic!r}, "
                    "which '>' does not cover",
                    right=Right.MANAGE,
                    topic=topic,
                )
            raise Forbidden(f"{self.name!r} has no right to {right} on {topic!r}", right=right, topic=topic)


def everything(name: str, credential: Credential | None = None) -> Principal:
    rights = dict.fromkeys(Right, (">", AUDIT_TOPIC))
    return Principal(name, rights, named=False, credential=credential)


Rights = dict[Right, tuple[str, ...]]
OWNABLE = (Right.EXECUTE, Right.SUBSCRIBE)
LIMITS = "limits"
LIMIT_MAX = (1 << 63) - 1


def read_rights(table: Mapping[str, object], where: str) -> Rights:
    """Return the patterns of each right; a right that the table does not have has none."""
    return {right: _patterns(table.get(right, []), right, where) for right in Right}


def _patterns(given: object, right: Right, where: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(pattern, str) for pattern in given):
        raise ConfigurationError(f"{right} of {where} is not a list of topic patterns")
    if OWN in given and right not in OWNABLE:
        raise ConfigurationError(
            f"{right} of {where}: {OWN!r} stands for the kernels that a caller started, in {' and '.join(OWNABLE)} only"
        )
    try:
        return tuple(check_pattern(pattern) for pattern in given)
    except BadRequest as error:
        raise ConfigurationError(f"{right} of {where}: {error.message}") from None


def read_limits(given: object, where: str) -> CallerLimits:
    if given is None:
        return NO_LIMITS
    try:
        limits = msgspec.convert(given, CallerLimits)
    except msgspec.ValidationError as error:
        names = ", ".join(CallerLimits.__struct_fields__)
        raise ConfigurationError(f"{LIMITS} of {where}: {error}; limits are {names}") from None
    for name, value in msgspec.structs.asdict(limits).items():
        # Written so that NaN is refused too. A limit beyond what a float holds could not be computed with.
        if value is not None and not 0 <= value <= LIMIT_MAX:
            raise ConfigurationError(f"{LIMITS} of {where}: {name} is not a number from 0 to {LIMIT_MAX}")
    return limits
