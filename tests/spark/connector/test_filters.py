"""What filters of a query leave out before anything is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from himalia.spark.connector.offset_ranges import PushedBounds, extract_bounds

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("topic",), "a")], PushedBounds(topics=frozenset("a"))),
        ([In(("topic",), ("a", "b")), EqualNullSafe(("topic",), "b")], PushedBounds(topics=frozenset("b"))),
        ([StringStartsWith(("topic",), "kernels.")], PushedBounds(topic_prefix="kernels.")),
        (
            [GreaterThan(("offset",), 4), LessThanOrEqual(("offset",), 8)],
            PushedBounds(offset_min=5, offset_stop=9),
        ),
        (
            [GreaterThanOrEqual(("offset",), 4), LessThan(("offset",), 8)],
            PushedBounds(offset_min=4, offset_stop=8),
        ),
        ([GreaterThan(("offset",), 4), GreaterThan(("offset",), 6)], PushedBounds(offset_min=7)),
        ([In(("offset",), (3, 9, 5))], PushedBounds(offset_min=3, offset_stop=10)),
        ([EqualTo(("timestamp",), NOON)], PushedBounds(since=NOON, until=NOON + TICK)),
        ([GreaterThan(("timestamp",), NOON)], PushedBounds(since=NOON + TICK)),
        ([LessThan(("timestamp",), NOON)], PushedBounds(until=NOON)),
    ],
)
def test_filters_on_topic_offset_and_timestamp_narrow(filters: list[Filter], expected: PushedBounds) -> None:
    assert extract_bounds(filters) == expected


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(("topic",), "a")),
        IsNotNull(("offset",)),
        StringContains(("topic",), "a"),
        EqualTo(("value",), "1"),
        EqualTo(("headers", "topic"), "a"),
        GreaterThan(("offset",), 1.5),
        EqualTo(("topic",), None),
        In(("offset",), (None,)),
    ],
)
def test_other_filters_change_nothing(each: Filter) -> None:
    """What is not understood leaves nothing out: Spark applies it afterwards."""
    assert extract_bounds([each]) == PushedBounds()


def test_topics_have_to_pass_every_filter() -> None:
    found = extract_bounds(
        [In(("topic",), ("kernels.a", "orders")), StringStartsWith(("topic",), "kernels.")]
    )
    assert found.has_topic("kernels.a")
    assert not found.has_topic("orders")
    assert not found.has_topic("kernels.b")
