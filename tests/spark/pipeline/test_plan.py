"""Planning a batch: what is read, what is left for the next, and what is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from himalia.spark.connector.offset_ranges import OffsetRange, TopicExtent
from himalia.spark.pipeline.plan import Plan, cap_ends, compute_backlog, is_selected, plan_batch

ENOUGH = 10**9

topics = st.lists(
    st.builds(
        lambda name, first, length: TopicExtent(name, "e1", first, first + length, 10 * length),
        st.sampled_from([f"t{i}" for i in range(8)]),
        st.integers(0, 50),
        st.integers(0, 1000),
    ),
    max_size=8,
    unique_by=lambda topic: topic.name,
)


@pytest.mark.parametrize(
    ("topic", "patterns", "expected"),
    [
        ("orders", [">"], True),
        ("kernels.k1", ["kernels.>"], True),
        ("orders", ["kernels.>"], False),
        ("pipeline.errors", [">"], False),
        ("pipeline.errors", ["*.errors"], False),
        ("pipeline.errors", [">", "pipeline.>"], True),
        ("pipeline.errors", ["pipeline.errors"], True),
        ("pipelines", [">"], True),
        ("audit.events", [">"], False),
        ("audit.events", ["*.events"], False),
    ],
)
def test_own_topics_are_read_only_by_name(topic: str, patterns: list[str], expected: bool) -> None:
    """The pipeline reads its own topics only if a pattern names them."""
    assert is_selected(topic, patterns) is expected


def test_a_batch_begins_where_the_last_ended() -> None:
    backlog = compute_backlog([TopicExtent("orders", "e1", 0, 100)], {("orders", "e1"): 40})
    assert plan_batch(backlog, records_max=ENOUGH, bytes_max=ENOUGH).ranges == [
        OffsetRange("orders", "e1", 40, 100)
    ]


def test_nothing_new_is_no_batch() -> None:
    backlog = compute_backlog([TopicExtent("orders", "e1", 0, 100)], {("orders", "e1"): 100})
    assert not plan_batch(backlog, records_max=ENOUGH, bytes_max=ENOUGH).records


def test_a_new_epoch_begins_at_its_first_record() -> None:
    """A topic that was deleted and created again is another one, whatever was read of the old."""
    backlog = compute_backlog([TopicExtent("orders", "e2", 3, 10)], {("orders", "e1"): 40})
    assert backlog.ranges == [OffsetRange("orders", "e2", 3, 10)]
    assert not backlog.losses


def test_what_retention_took_is_told() -> None:
    backlog = compute_backlog([TopicExtent("orders", "e1", 60, 100)], {("orders", "e1"): 40})
    assert backlog.ranges == [OffsetRange("orders", "e1", 60, 100)]
    assert backlog.losses == ["topic 'orders': offsets 40 to 59 are gone"]
    assert backlog.lost == 20


def test_a_topic_with_much_does_not_keep_out_others() -> None:
    """Those with little are read whole, the others share what is left."""
    backlog = compute_backlog(
        [TopicExtent("a", "e", 0, 10_000), TopicExtent("b", "e", 0, 10), TopicExtent("c", "e", 0, 500)], {}
    )
    plan = plan_batch(backlog, records_max=300, bytes_max=ENOUGH)
    assert {each.topic: len(each) for each in plan.ranges} == {"a": 145, "b": 10, "c": 145}


def test_large_records_make_a_batch_shorter() -> None:
    """The bound on bytes goes by the average size of a topic's records."""
    backlog = compute_backlog([TopicExtent("a", "e", 0, 1000, 1_000_000)], {("a", "e"): 500})
    plan = plan_batch(backlog, records_max=ENOUGH, bytes_max=100_000)
    assert plan.records == 100
    assert plan.bytes == 100_000


def test_no_small_rest_is_left() -> None:
    """What is little more than one batch is one batch; what is more is not."""
    for there, taken in ((1000, 1000), (1100, 1100), (1101, 1000)):
        backlog = compute_backlog([TopicExtent("a", "e", 0, there)], {})
        assert plan_batch(backlog, records_max=1000, bytes_max=ENOUGH).records == taken


@given(topics, st.integers(1, 2000))
def test_batches_cover_the_backlog_without_a_hole_or_an_overlap(
    found: list[TopicExtent], records_max: int
) -> None:
    """Batch after batch each record is planned once, in order, and no batch is larger than it may be."""
    positions: dict[tuple[str, str], int] = {}
    read: dict[str, list[int]] = {}
    while (
        plan := plan_batch(compute_backlog(found, positions), records_max=records_max, bytes_max=ENOUGH)
    ).records:
        assert plan.records <= records_max * 1.1
        for each in plan.ranges:
            read.setdefault(each.topic, []).extend(range(each.start, each.stop))
            positions[each.topic, each.epoch] = each.stop
    assert read == {
        topic.name: list(range(topic.first, topic.end)) for topic in found if topic.end > topic.first
    }


def test_one_pass_ends_where_the_log_ended() -> None:
    """Records and topics that came later are left out; an epoch that came later is a topic that came later."""
    ends = {("orders", "e1"): 5, ("gone", "e1"): 5, ("again", "e1"): 5}
    now = [
        TopicExtent("orders", "e1", 0, 9),
        TopicExtent("new", "e1", 0, 9),
        TopicExtent("again", "e2", 0, 9),
    ]
    assert cap_ends(now, ends) == [TopicExtent("orders", "e1", 0, 5)]


def test_a_plan_is_the_same_after_it_was_written_down() -> None:
    plan = Plan([OffsetRange("orders", "e1", 3, 10), OffsetRange("kernels.k", "e2", 0, 1)], 17)
    assert Plan.from_json(plan.to_json()) == plan
