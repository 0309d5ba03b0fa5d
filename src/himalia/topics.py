"""Topic names and patterns: what is allowed, what is reserved, what matches."""

from __future__ import annotations

import re
from functools import lru_cache

from himalia.errors import BadRequest

NAME_LENGTH_MAX = 255
KERNEL_TOPIC_PREFIX = "kernels."
"""Followed by the kernel's id: the topic of its output."""
PIPELINE_TOPIC_PREFIX = "pipeline."
"""Followed by the name of a table: the topic of its changes."""
RESERVED = ("kernels", "pipeline")
"""First segments of topics that only the server publishes to; clients may read them."""
AUDIT_TOPIC = "audit.events"
"""The server's audit trail. Wildcards do not reach it: a pattern covers it only if it begins with ``audit.``."""
PIPELINE_POSITIONS_TOPIC = "pipeline.positions"
"""How far the pipeline has read, see ``protocol.models.PipelinePositions``."""

_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\Z")
_PATTERN = re.compile(r"(?:(?:[A-Za-z0-9_-]+|\*)(?:\.(?:[A-Za-z0-9_-]+|\*))*(?:\.>)?|>)\Z")


def is_pattern(text: str) -> bool:
    return "*" in text or ">" in text


@lru_cache(maxsize=4096)
def check_name(name: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """Return the name; raise ``BadRequest`` if it is not valid."""
    _check_length(name, length_max)
    if not _NAME.match(name):
        raise BadRequest(
            f"{_abbreviate(name)} is not a topic name: use letters, digits, '_' and '-', in segments joined by dots",
            topic=name,
        )
    return name


@lru_cache(maxsize=4096)
def check_pattern(pattern: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """Return the pattern (or plain name); raise ``BadRequest`` if it is not valid.

    ``*`` matches one segment, a final ``>`` the rest.
    """
    _check_length(pattern, length_max)
    if not _PATTERN.match(pattern):
        raise BadRequest(
            f"{_abbreviate(pattern)} is not a topic pattern: '*' matches one segment, a final '>' the rest",
            topic=pattern,
        )
    return pattern


@lru_cache(maxsize=4096)
def matches(pattern: str, name: str) -> bool:
    """Whether a valid pattern matches a topic name. ``a.>`` matches ``a.b`` and ``a.b.c``, not ``a``."""
    if name == AUDIT_TOPIC and not pattern.startswith("audit."):
        return False
    wanted, given = pattern.split("."), name.split(".")
    for i, segment in enumerate(wanted):
        if segment == ">":
            return len(given) > i
        if i >= len(given) or segment not in ("*", given[i]):
            return False
    return len(wanted) == len(given)


def is_reserved(name: str) -> bool:
    return name.split(".", 1)[0] in RESERVED


def _check_length(text: str, length_max: int) -> None:
    if not 0 < len(text) <= length_max:
        raise BadRequest(
            f"a topic name has 1 to {length_max} characters, this one has {len(text)}", length=len(text)
        )


def _abbreviate(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
