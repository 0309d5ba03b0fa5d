"""Content filters."""

from __future__ import annotations

import uuid

import pytest

from himalia.errors import BadFilter, TooManySubscriptions
from himalia.pubsub.filters import VARIABLES, Filter, compile_filter, filter
from himalia.pubsub.subscription import Start
from himalia.record import Record
from himalia.settings import DeliverySettings
from tests.pubsub.conftest import Room, Viewer, make_room


async def test_a_filter_sees_message_headers_and_topic(room: Room) -> None:
    """Only records for which the filter is true are delivered."""
    await room.create("orders")
    viewer = Viewer()
    wanted = 'message.payload.price > 10 && topic == "orders" && !has(headers.secret)'
    await room.subscribe("orders", viewer, filter=wanted)
    await room.publish("orders", {"price": 5}, {"price": 15}, {"price": 20})
    await viewer.until(lambda: len(viewer.events) == 2)
    assert viewer.offsets == [1, 2]


async def test_a_filter_may_use_macros(room: Room) -> None:
    """The variable of a macro is the filter's own, not an unknown name."""
    await room.create("orders")
    viewer = Viewer()
    await room.subscribe("orders", viewer, filter='message.payload.tags.exists(tag, tag == "new")')
    await room.publish("orders", {"tags": ["old"]}, {"tags": ["old", "new"]})
    await viewer.until(lambda: viewer.events)
    assert viewer.offsets == [1]


async def test_replay_is_filtered_like_live(room: Room) -> None:
    """A filter holds for records from the log as for those from the tail."""
    await room.create("orders")
    await room.publish("orders", *({"n": n} for n in range(20)))
    viewer = Viewer()
    await room.subscribe("orders", viewer, Start(offset=0), filter="message.payload.n % 5 == 0")
    await room.publish("orders", {"n": 99}, {"n": 100})
    await viewer.until(lambda: len(viewer.events) == 5)
    assert viewer.offsets == [0, 5, 10, 15, 21]


async def test_a_filter_is_evaluated_once_per_record(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many subscribers share a filter, each record is judged once."""
    calls = 0
    judge = Filter.matches

    def counting(self: Filter, record: Record) -> bool:
        nonlocal calls
        calls += 1
        return judge(self, record)

    monkeypatch.setattr(Filter, "matches", counting)
    await room.create("orders")
    viewers = [Viewer() for _ in range(50)]
    for number, viewer in enumerate(viewers):
        await room.subscribe("orders", viewer, client_id=f"v{number}", filter="message.payload > 4")
    await room.publish("orders", *range(10))
    for viewer in viewers:
        await viewer.until(lambda viewer=viewer: len(viewer.events) == 5)  # type: ignore[misc]
    assert calls == 10


async def test_a_failing_filter_is_an_error_to_its_owner_only(room: Room) -> None:
    """A record on which a filter fails is skipped for its owner, who is told; others notice nothing."""
    await room.create("orders")
    careless, careful = Viewer(), Viewer()
    await room.subscribe("orders", careless, client_id="careless", filter="message.payload.price > 10")
    await room.subscribe("orders", careful, client_id="careful")
    await room.publish("orders", {"price": 11}, {"cost": 3}, {"price": 12})
    await careless.until(lambda: careless.errors and len(careless.events) == 2)
    await careful.until(lambda: len(careful.events) == 3)
    assert careless.offsets == [0, 2]
    [error] = careless.errors
    assert error["error"]["code"] == "FILTER_FAILED"
    assert "offset 1" in error["error"]["message"]
    assert careful.errors == []


@pytest.mark.parametrize(
    "text",
    [
        "message.payload >",
        "nonsense == 1",
        "(" * 500 + "1" + ")" * 500,
        "",
        "message.payload ===",
        # What would hold up everybody else: loops inside loops, and regular expressions that explode.
        "[1, 2].all(a, [1, 2].all(b, a == b))",
        'message.payload.map(a, a.filter(b, b > ")")) == []',
        'topic.matches("(\\\\pL{50}){4}")',
        "topic.matches(headers.pattern)",
        "[1].exists (topic, [1].exists (offset, true))",
        "[1].exists /* no comment in CEL */ (t, true)",
        'topic.matches("(")',
        'topic.matches("' + "\\\\w" * 50 + '")',
        'topic.matches("(?i)' + "[\\u0100-\\uffff]" * 5 + '")',
        " + ".join(["topic"] * 300) + " == topic",
        "unknown(1) == 1",
        "topic.lowerAscii() == topic",
        "has(topic)",
        "1 == 99999999999999999999",
        "message" + ".a" * 900 + " == 1",
        'topic.matches("' + "a" * 200 + '")',
    ],
)
def test_a_malformed_filter_is_refused(text: str) -> None:
    """What does not compile, or names a variable that does not exist, is refused with a reason."""
    with pytest.raises(BadFilter):
        compile_filter(text)


async def test_a_filter_that_is_no_condition_fails(room: Room) -> None:
    """A filter that gives something other than true or false is told to its owner."""
    await room.create("orders")
    viewer = Viewer()
    await room.subscribe("orders", viewer, filter="message.payload")
    await room.publish("orders", 1)
    await viewer.until(lambda: viewer.errors)
    assert viewer.errors[0]["error"]["code"] == "FILTER_FAILED"


async def test_a_filter_that_takes_too_long_is_not_tried_again(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the bound on steps ever be wrong, one slow evaluation is the last, for the filter's owners only."""
    monkeypatch.setattr(filter, "SECONDS_MAX", -1.0)
    await room.create("orders")
    viewer, other = Viewer(), Viewer()
    await room.subscribe("orders", viewer, filter=f"offset >= 0 || topic == '{uuid.uuid4()}'")
    await room.subscribe("orders", other, client_id="other")
    await room.publish("orders", 1, 2, 3)
    await viewer.until(lambda: viewer.errors)
    await other.until(lambda: len(other.events) == 3)
    assert viewer.offsets == [0]
    assert "took more than" in viewer.errors[0]["error"]["message"]


async def test_distinct_filters_are_bounded(tmp_path: object) -> None:
    """Filters that nobody shares cost each record; there is a limit to how many are in use."""
    async for room in make_room("memory", None, DeliverySettings(filters_max=2)):  # type: ignore[arg-type]
        await room.create("orders")
        viewer = Viewer()
        for number in range(2):
            await room.subscribe("orders", viewer, filter=f"offset == {number}", client_id=str(number))
        await room.subscribe("orders", viewer, filter="offset == 1", client_id="shares")
        with pytest.raises(TooManySubscriptions):
            await room.subscribe("orders", viewer, filter="offset == 2", client_id="one too many")
        room.manager.disconnect(viewer)
        await room.subscribe("orders", Viewer(), filter="offset == 2")


@pytest.mark.parametrize(
    "other", ["offset==7", " offset\t==\n7 ", "offset == 7 // days", "(offset == (7))", "offset == 0x7"]
)
def test_equal_expressions_are_one_filter(other: str) -> None:
    """Neither a blank nor a comment makes another filter, so what is known of one is known of the other."""
    assert compile_filter(other) is compile_filter("offset == 7")


def test_the_variables_are_those_of_the_documents() -> None:
    assert {"message", "headers", "topic", "offset"} == VARIABLES


async def subscribe_as(owner: str, room: Room, number: int) -> None:
    await room.subscribe("orders", Viewer(), Start(), f"offset == {number}", f"{owner}-{number}", owner=owner)


async def test_one_caller_does_not_take_all_filters() -> None:
    """The last of them are for callers that have none, of which each gets one."""
    async for room in make_room("memory", None, DeliverySettings(filters_max=16)):  # type: ignore[arg-type]
        await room.create("orders")
        for number in range(14):
            await subscribe_as("greedy", room, number)
        with pytest.raises(TooManySubscriptions, match="kept for callers that have none"):
            await subscribe_as("greedy", room, 14)
        await subscribe_as("greedy", room, 13)
        await subscribe_as("modest", room, 15)
        with pytest.raises(TooManySubscriptions, match="kept for callers"):
            await subscribe_as("modest", room, 16)
        await subscribe_as("another", room, 17)
        with pytest.raises(TooManySubscriptions, match="16 distinct filters are in use"):
            await subscribe_as("late", room, 18)


def test_expressions_that_are_too_costly_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted together before any is compiled, and what was found out is remembered."""
    compiled: list[str] = []
    evaluate = filter.cel.evaluate

    def counting(text: str) -> object:
        compiled.append(text)
        return evaluate(text)

    monkeypatch.setattr(filter.cel, "evaluate", counting)
    each = '"".matches("(?i)[a-\U0010ffff]")'
    assert compile_filter(f"offset == 1 || {each}") is compile_filter(f"offset==1||{each}")
    assert len(compiled) == 1
    for _ in range(2):
        with pytest.raises(BadFilter, match="too costly"):
            compile_filter(f"offset == 2 || {' || '.join([each] * 40)}")
    for _ in range(2):
        with pytest.raises(BadFilter, match="not valid"):
            compile_filter('message.payload.x.matches("(")')
    assert len(compiled) == 2
