"""Filters of a query that narrow what has to be read. Pure: no I/O.

Spark applies every filter again afterwards, so narrowing need not be exact; it must only never leave out a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

TICK = timedelta(microseconds=1)


@dataclass(frozen=True)
class Narrowed:
    """What the filters leave: each bound is inclusive below and exclusive above; None is no bound."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    offset_min: int | None = None
    offset_stop: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    def has_topic(self, name: str) -> bool:
        return (self.topics is None or name in self.topics) and name.startswith(self.topic_prefix)


def narrowed(filters: Sequence[Filter]) -> Narrowed:
    """What is left when all of the filters hold. Those that do not help are passed over."""
    found = Narrowed()
    for each in filters:
        column = getattr(each, "attribute", ())
        if column == ("topic",):
            found = _by_topic(found, each)
        elif column == ("offset",):
            low, stop = _bounds(each, int, 1)
            found = replace(
                found, offset_min=_higher(found.offset_min, low), offset_stop=_lower(found.offset_stop, stop)
            )
        elif column == ("timestamp",):
            low, stop = _bounds(each, datetime, TICK)
            found = replace(found, since=_higher(found.since, low), until=_lower(found.until, stop))
    return found


def _by_topic(found: Narrowed, each: Filter) -> Narrowed:
    match each:
        case EqualTo(value=str(name)) | EqualNullSafe(value=str(name)):
            names = frozenset([name])
        case In(value=listed):
            names = frozenset(name for name in listed if isinstance(name, str))
        case StringStartsWith(value=prefix) if prefix.startswith(found.topic_prefix):
            return replace(found, topic_prefix=prefix)
        case _:
            return found
    return replace(found, topics=names if found.topics is None else found.topics & names)


def _bounds(each: Filter, kind: type, tick: Any) -> tuple[Any, Any]:
    """The lowest value that a filter on one column lets through, and the first above all of them."""
    match each:
        case EqualTo(value=value) | EqualNullSafe(value=value) if isinstance(value, kind):
            return value, value + tick
        case In(value=listed):
            values: list[Any] = [value for value in listed if isinstance(value, kind)]
            return (min(values), max(values) + tick) if values else (None, None)
        case GreaterThan(value=value) if isinstance(value, kind):
            return value + tick, None
        case GreaterThanOrEqual(value=value) if isinstance(value, kind):
            return value, None
        case LessThan(value=value) if isinstance(value, kind):
            return None, value
        case LessThanOrEqual(value=value) if isinstance(value, kind):
            return None, value + tick
        case _:
            return None, None


def _higher(one: Any, other: Any) -> Any:
    return max((bound for bound in (one, other) if bound is not None), default=None)


def _lower(one: Any, other: Any) -> Any:
    return min((bound for bound in (one, other) if bound is not None), default=None)
