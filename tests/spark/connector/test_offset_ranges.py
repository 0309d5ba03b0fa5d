"""From options and topics to ranges, partitions and positions: all without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from himalia.errors import BadRequest
from himalia.spark.connector import stream_offsets
from himalia.spark.connector.offset_ranges import (
    RANGE_COST,
    OffsetRange,
    TopicExtent,
    find_missing_topics,
    partition_ranges,
    resolve_batch_ranges,
    resolve_range,
    select_topics,
)
from himalia.spark.connector.options import EARLIEST, LATEST, OffsetSpec, parse_read_options
from himalia.spark.connector.stream_offsets import StreamPosition

ORDERS = TopicExtent("orders", "e1", first=10, end=50)

lengths = st.lists(st.integers(0, 1000), max_size=30)


def ranges_of(lengths: list[int]) -> list[OffsetRange]:
    return [OffsetRange(f"topic-{i}", "e", 5, 5 + length) for i, length in enumerate(lengths)]


@given(lengths, st.integers(1, 500), st.integers(1, 20))
def test_grouping_loses_nothing_and_repeats_nothing(
    lengths: list[int], records_max: int, groups_min: int
) -> None:
    """Every offset of every range is in exactly one group, in order; groups are neither empty nor too long."""
    ranges = ranges_of(lengths)
    groups = partition_ranges(ranges, records_max=records_max, groups_min=groups_min)
    spread = [
        (part.topic, offset) for group in groups for part in group for offset in range(part.start, part.stop)
    ]
    assert spread == [(each.topic, offset) for each in ranges for offset in range(each.start, each.stop)]
    assert all(0 < sum(map(len, group)) <= records_max for group in groups)
    assert len(groups) >= min(groups_min, sum(lengths))


def test_many_small_topics_share_a_partition() -> None:
    """But not so many that one task would ask for all of them one after the other."""
    groups = partition_ranges(ranges_of([1] * 1000), records_max=100_000, groups_min=1)
    assert [len(group) for group in groups] == [400, 400, 200]
    assert 400 * RANGE_COST == 100_000


def test_a_large_topic_has_several_partitions() -> None:
    groups = partition_ranges([OffsetRange("orders", "e", 0, 250_000)], records_max=100_000, groups_min=1)
    assert [len(group[0]) for group in groups] == [83_333, 83_333, 83_334]
    assert len(partition_ranges([OffsetRange("orders", "e", 0, 100)], records_max=100_000, groups_min=4)) == 4


@pytest.mark.parametrize(
    ("start", "stop", "expected", "loss"),
    [
        (EARLIEST, LATEST, (10, 50), ""),
        (OffsetSpec(20), OffsetSpec(30), (20, 30), ""),
        (OffsetSpec(20, "e1"), OffsetSpec(30, "e1"), (20, 30), ""),
        (OffsetSpec(3), LATEST, (10, 50), "topic 'orders': offsets 3 to 9 are gone"),
        (OffsetSpec(9), LATEST, (10, 50), "topic 'orders': offset 9 is gone"),
        (OffsetSpec(3), OffsetSpec(7), (10, 10), "topic 'orders': offsets 3 to 6 are gone"),
        (OffsetSpec(3), OffsetSpec(3), (10, 10), ""),
        (OffsetSpec(60), LATEST, (60, 60), "topic 'orders' ends at offset 50, before offset 60"),
        (EARLIEST, OffsetSpec(60), (10, 50), "topic 'orders' ends at offset 50, before offset 60"),
        (
            OffsetSpec(20, "e0"),
            LATEST,
            (10, 50),
            "topic 'orders' was deleted and created again, or restored (its epoch is e1, not e0): "
            "what it held from offset 20 on is gone",
        ),
        (
            OffsetSpec(20, "e0"),
            OffsetSpec(30, "e0"),
            (10, 10),
            "topic 'orders' was deleted and created again, or restored (its epoch is e1, not e0): "
            "what it held before offset 30 is gone",
        ),
    ],
)
def test_a_range_is_what_there_is_of_what_was_asked(
    start: OffsetSpec, stop: OffsetSpec, expected: tuple[int, int], loss: str
) -> None:
    """What is gone is named to the offset."""
    losses: list[str] = []
    found = resolve_range(ORDERS, start, stop, losses)
    assert (found.start, found.stop) == expected
    assert losses == ([loss] if loss else [])


def test_a_range_beyond_the_end_is_empty() -> None:
    """Both places are named as missing, and nothing below the first one is read."""
    losses: list[str] = []
    assert resolve_range(ORDERS, OffsetSpec(60), OffsetSpec(70), losses) == OffsetRange(
        "orders", "e1", 60, 60
    )
    assert len(losses) == 2


@pytest.mark.parametrize(("start", "stop"), [(30, 20), (70, 60), (60, 20)])
def test_a_range_that_ends_before_it_starts_is_a_slip(start: int, stop: int) -> None:
    """Also where the topic does not reach so far."""
    with pytest.raises(BadRequest, match=f"from offset {start} to offset {stop}, which is before it"):
        resolve_range(ORDERS, OffsetSpec(start), OffsetSpec(stop), [])


def test_topics_are_chosen_by_name_and_by_pattern() -> None:
    states = {name: TopicExtent(name, "e", 0, 1) for name in ("kernels.b", "kernels.a", "orders", "other")}
    options = parse_read_options({"subscribe": "orders,gone", "subscribePattern": "kernels.>"})
    assert list(select_topics(options, states)) == ["kernels.a", "kernels.b", "orders"]
    assert find_missing_topics(options, states) == ["gone"]


def test_offsets_of_a_topic_that_is_not_read_are_a_slip() -> None:
    options = parse_read_options({"subscribe": "orders", "endingOffsets": '{"payments": 3}'})
    with pytest.raises(
        BadRequest, match="endingOffsets names topic 'payments', which is not selected for reading"
    ):
        find_missing_topics(options, {})


def test_a_time_decides_where_a_batch_starts() -> None:
    options = parse_read_options({"subscribe": "orders", "startingTimestamp": "2026-11-16"})
    assert resolve_batch_ranges(options, [ORDERS], {"orders": 33}, []) == [
        OffsetRange("orders", "e1", 33, 50)
    ]


@given(lengths, st.integers(1, 3000))
def test_a_limit_is_kept_and_shared_out_evenly(lengths: list[int], limit: int) -> None:
    """The limit is used up; no topic gets more than another one that has records left."""
    ranges = ranges_of(lengths)
    taken = {each.topic: len(each) for each in stream_offsets.limit_ranges(ranges, limit)}
    assert sum(taken.values()) == min(limit, sum(lengths))
    cut = [
        taken[each.topic] for each in ranges if taken.get(each.topic, 0) < len(each) and each.topic in taken
    ]
    assert all(count <= min(cut) + len(ranges) for count in taken.values() if cut)


def test_with_more_topics_than_records_those_that_wait_longest_come_first() -> None:
    ranges = ranges_of([1, 9, 3])
    assert [each.topic for each in stream_offsets.limit_ranges(ranges, 1)] == ["topic-1"]


def test_positions_survive_the_checkpoint() -> None:
    """Spark compares checkpoints as text, so equal positions are equal text."""
    positions = {"b": StreamPosition(3, "e", begin=1), "a": StreamPosition(0, "f")}
    checkpoint = stream_offsets.encode(positions)
    assert list(checkpoint) == ["a", "b"]
    assert checkpoint["a"] == {"offset": 0, "epoch": "f"}
    assert stream_offsets.decode(checkpoint) == positions
    assert stream_offsets.encode(stream_offsets.decode(checkpoint)) == checkpoint


def test_a_stream_from_beyond_the_end_waits_there() -> None:
    """No record below the offset that was asked for is read, whether or not the topic has reached it by then."""
    options = parse_read_options({"subscribe": "orders", "startingOffsets": '{"orders": 60}'})
    losses: list[str] = []
    begin = stream_offsets.resolve_initial_positions(options, {"orders": ORDERS}, {}, losses)
    assert begin == {"orders": StreamPosition(60, "e1")}
    assert losses == ["topic 'orders' ends at offset 50, before offset 60"]
    for end, expected in ((50, 60), (60, 60), (62, 62)):
        topics = {"orders": TopicExtent("orders", "e1", 10, end)}
        reached = stream_offsets.advance(
            begin, stream_offsets.find_new_ranges(begin, topics, [], None), topics
        )
        assert stream_offsets.resolve_ranges_between(begin, reached) == [
            OffsetRange("orders", "e1", 60, expected)
        ]


def test_a_topic_that_appears_is_read_from_its_first_record() -> None:
    """An empty one is not mentioned before it has something, so that it makes no batch."""
    topics = {"orders": ORDERS, "empty": TopicExtent("empty", "e", 0, 0)}
    losses: list[str] = []
    ranges = stream_offsets.find_new_ranges({}, topics, losses, None)
    reached = stream_offsets.advance({}, ranges, topics)
    assert reached == {"orders": StreamPosition(50, "e1", begin=10)}
    assert stream_offsets.resolve_ranges_between({}, reached) == [OffsetRange("orders", "e1", 10, 50)]
    assert not losses


def test_where_a_topic_began_is_known_for_as_long_as_nothing_follows() -> None:
    """The position stays the same, to the letter, until there is more to read; then what was before says it."""
    topics, longer = {"orders": ORDERS}, {"orders": TopicExtent("orders", "e1", 10, 60)}
    first = stream_offsets.advance({}, stream_offsets.find_new_ranges({}, topics, [], None), topics)
    assert (
        stream_offsets.advance(first, stream_offsets.find_new_ranges(first, topics, [], None), topics)
        == first
    )
    second = stream_offsets.advance(first, stream_offsets.find_new_ranges(first, longer, [], None), longer)
    assert second == {"orders": StreamPosition(60, "e1")}
    assert stream_offsets.resolve_ranges_between(first, second) == [OffsetRange("orders", "e1", 50, 60)]


def test_a_topic_that_vanishes_is_a_loss_and_forgotten() -> None:
    positions = {"orders": StreamPosition(20, "e1")}
    assert (
        stream_offsets.advance(positions, stream_offsets.find_new_ranges(positions, {}, [], None), {}) == {}
    )
    assert stream_offsets.describe_departures(positions, {}, {}) == [
        "topic 'orders' was deleted: what it held from offset 20 on is gone"
    ]


def test_a_topic_that_is_not_asked_for_any_more_was_not_deleted() -> None:
    positions = {"orders": StreamPosition(20, "e1"), "other": StreamPosition(3, "e")}
    assert stream_offsets.describe_departures(positions, {"other"}, {"orders", "other"}) == [
        "topic 'orders' is no longer selected: it is not read from offset 20 on"
    ]


def test_a_topic_that_was_created_again_is_a_loss_and_begins_anew() -> None:
    losses: list[str] = []
    positions = {"orders": StreamPosition(20, "e0")}
    ranges = stream_offsets.find_new_ranges(positions, {"orders": ORDERS}, losses, None)
    reached = stream_offsets.advance(positions, ranges, {"orders": ORDERS})
    assert reached == {"orders": StreamPosition(50, "e1", begin=10)}
    assert stream_offsets.resolve_ranges_between(positions, reached) == [OffsetRange("orders", "e1", 10, 50)]
    assert losses == [
        "topic 'orders' was deleted and created again, or restored (its epoch is e1, not e0): "
        "what it held from offset 20 on is gone"
    ]


def test_retention_that_overtakes_a_stream_is_a_loss() -> None:
    losses: list[str] = []
    stream_offsets.find_new_ranges({"orders": StreamPosition(4, "e1")}, {"orders": ORDERS}, losses, None)
    assert losses == ["topic 'orders': offsets 4 to 9 are gone"]


def test_a_stream_that_is_to_end_goes_no_further() -> None:
    """Neither later records, nor later topics, nor a topic that was created again meanwhile."""
    until = {"orders": TopicExtent("orders", "e1", 10, 30), "other": TopicExtent("other", "e0", 0, 9)}
    topics = {
        "orders": ORDERS,
        "new": TopicExtent("new", "e", 0, 5),
        "other": TopicExtent("other", "e2", 0, 99),
    }
    positions = {"orders": StreamPosition(20, "e1"), "other": StreamPosition(3, "e0")}
    reached = stream_offsets.advance(
        positions, stream_offsets.find_new_ranges(positions, topics, [], until), topics
    )
    assert reached == {"orders": StreamPosition(30, "e1"), "other": StreamPosition(3, "e0")}
    assert (
        stream_offsets.advance(reached, stream_offsets.find_new_ranges(reached, topics, [], until), topics)
        == reached
    )
