"""Callers: their credentials, how these are checked, and their rights. ``Authenticator`` is the entry."""

from himalia.server.identity.credential import Credential
from himalia.server.identity.keys import KeySpec, read_keys
from himalia.server.identity.origin import OriginCheck, is_loopback
from himalia.server.identity.principal import NO_LIMITS, OWN, CallerLimits, Principal, Right, everything

__all__ = [
    "NO_LIMITS",
    "OWN",
    "CallerLimits",
    "Credential",
    "KeySpec",
    "OriginCheck",
    "Principal",
    "Right",
    "everything",
    "is_loopback",
    "read_keys",
]
