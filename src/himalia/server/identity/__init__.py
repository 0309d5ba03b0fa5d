"""Who calls, how it is known, and what it may do. ``authenticator`` puts it all together."""

from himalia.server.identity.credential import Credential
from himalia.server.identity.keys import KeySpec, read_keys
from himalia.server.identity.origin import Frontier, is_loopback
from himalia.server.identity.principal import NO_LIMITS, OWN, CallerLimits, Principal, Right, everything

__all__ = [
    "NO_LIMITS",
    "OWN",
    "CallerLimits",
    "Credential",
    "Frontier",
    "KeySpec",
    "Principal",
    "Right",
    "everything",
    "is_loopback",
    "read_keys",
]
