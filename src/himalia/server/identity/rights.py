"""Rights and limits as the keys file and tokens write them: lists of topic patterns, and a table of numbers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from himalia.errors import BadRequest, ConfigurationError
from himalia.server.identity.principal import NO_LIMITS, OWN, CallerLimits, Right
from himalia.topics import check_pattern

Rights = dict[Right, tuple[str, ...]]
OWNABLE = (Right.EXECUTE, Right.SUBSCRIBE)
LIMITS = "limits"
LIMIT_MAX = (1 << 63) - 1


def read_rights(table: Mapping[str, object], where: str) -> Rights:
    """The patterns of each right; one that the table does not have is not given."""
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
