"""Counts of the last minute, by topic and second."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from himalia.log.api import Batch
from himalia.pubsub.stats import SECONDS, Activity
from himalia.record import Draft
from tests.pubsub.conftest import Room


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_count_is_in_its_second_for_a_minute() -> None:
    """It appears when its second is over, moves to the front, and is gone after sixty."""
    clock = Clock()
    activity = Activity(clock)
    activity.count("orders", "e", 3)
    activity.count("orders", "e", 4)
    assert activity.last_minute("orders", "e") == []
    for age in range(1, SECONDS + 1):
        clock.now += 1
        assert activity.last_minute("orders", "e") == [0] * (SECONDS - age) + [7] + [0] * (age - 1)
    clock.now += 1
    assert activity.last_minute("orders", "e") == []


@given(
    st.lists(
        st.tuples(st.floats(min_value=0, max_value=90), st.integers(min_value=1, max_value=5)), max_size=30
    )
)
def test_every_count_is_where_a_list_of_all_would_have_it(steps: list[tuple[float, int]]) -> None:
    """Whatever the pauses between commits are."""
    clock = Clock()
    activity = Activity(clock)
    counted: list[tuple[int, int]] = []
    for pause_s, messages in steps:
        clock.now += pause_s
        activity.count("orders", "e", messages)
        counted.append((int(clock.now), messages))
        now = int(clock.now)
        wanted = [
            sum(messages for second, messages in counted if second == at) for at in range(now - SECONDS, now)
        ]
        assert activity.last_minute("orders", "e") == (wanted if any(wanted) else [])


def test_a_topic_that_was_created_again_begins_at_nothing() -> None:
    """Another epoch is another topic."""
    clock = Clock()
    activity = Activity(clock)
    activity.count("orders", "first", 3)
    clock.now += 1
    assert activity.last_minute("orders", "second") == []
    activity.count("orders", "second", 1)
    clock.now += 1
    assert sum(activity.last_minute("orders", "second")) == 1


def test_idle_topics_take_no_memory() -> None:
    """Also if their figures are read all the time."""
    clock = Clock()
    activity = Activity(clock)
    for number in range(100):
        activity.count(f"topic.{number}", "e", 1)
    clock.now += 30
    activity.count("topic.7", "e", 1)
    clock.now += 31
    assert [activity.last_minute(f"topic.{number}", "e") for number in (0, 1)] == [[], []]
    activity.drop_idle()
    assert len(activity) == 1


async def test_what_is_stored_is_counted_and_a_repeat_is_not(room: Room) -> None:
    """The counts are the log's: a message that was recognised as a repeat did not come again."""
    clock = Clock()
    room.manager.activity = Activity(clock)
    await room.create("orders")
    drafts = [Draft(str(uuid.uuid4()), b"1", b"{}") for _ in range(3)]
    await room.manager.publish(Batch("orders", drafts))
    await room.manager.publish(Batch("orders", drafts[:2]))
    await room.settled()
    clock.now += 1
    assert (await room.manager.stats()).topics["orders"].last_minute[-1] == 3
