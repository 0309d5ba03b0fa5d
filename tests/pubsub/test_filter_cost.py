"""What filters may cost: bounded before they run, whatever a publisher sends them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from himalia.errors import FilterFailed
from himalia.pubsub.backlog import FILTERING_S
from himalia.pubsub.filters import compile_filter
from himalia.pubsub.filters.cost import STEPS_MAX
from himalia.pubsub.subscription import Start
from himalia.record import Record
from tests.pubsub.conftest import Room, Viewer

SECONDS_MAX = 0.06
"""Six times what STEPS_MAX is meant to be, in processor time: the machine that runs the tests may be slow."""
DOCUMENTED = "message.payload.tags.exists(t, t == message.payload.wanted)"


def record(payload: bytes) -> Record:
    return Record("orders", 0, 0, "an-id", b"{}", payload)


def strings(count: int) -> Any:
    return {"tags": [f"{n:04d}" for n in range(count)], "wanted": [f"{n:04d}" for n in range(count)]}


def tagged(count: int) -> Any:
    return {"tags": [f"{n:04d}" for n in range(count)], "wanted": "none"}


def maps(count: int) -> Any:
    return {"tags": [{"a": {"b": "x"}}] * count, "wanted": "none"}


def keys(count: int) -> Any:
    return {"tags": {f"{n:05d}": "x" for n in range(count)}, "wanted": "none"}


def text(count: int) -> Any:
    return {"tags": "é" * count, "wanted": "none"}


def doubles(count: int) -> Any:
    """Numbers that take long to decode, for the bytes that they have."""
    return {"tags": [1.5e300] * count, "wanted": "none"}


def long_numbers(count: int) -> Any:
    """A number that JSON allows, and that takes more than in proportion to its digits."""
    return {"tags": [10**4000] * (count // 100 + 1), "wanted": "none"}


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that something held, whether it fails or not."""
    tracemalloc.start()
    try:
        with contextlib.suppress(FilterFailed):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [strings, maps, keys, text, doubles, long_numbers])
@pytest.mark.parametrize(
    "filter",
    [
        DOCUMENTED,
        "message.payload.tags.map(t, t) == []",
        "message.payload.tags.map(t, message.payload.wanted) == []",
        "message.payload.tags.all(t, t != 'a' && size(message.payload) > 0)",
        "message.payload.tags.exists(t, t.matches('[^a]*\\\\b!'))",
        "message.payload.tags.matches('(.?.?.?.?.?.?.?.?.?.?.?.?.?.?)*\\\\b!')",
        "(message.payload.tags + message.payload.tags).exists(t, [t, t] == [t])",
        "message == message && 'none' in message.payload.tags",
        "[" + ", ".join(["message.payload"] * 20) + "] == []",
    ],
)
def test_no_record_that_is_accepted_takes_long(filter: str, shape: Callable[[int], Any]) -> None:
    """The largest record that a filter is evaluated on takes milliseconds, and a larger one is refused."""
    judge = compile_filter(filter)

    def seconds(count: int) -> float | None:
        made = record(json.dumps(shape(count), ensure_ascii=False).encode())
        started = time.thread_time()
        try:
            judge.matches(made)
        except FilterFailed as error:
            if f"{STEPS_MAX:,} are allowed" in str(error):
                return None
        return time.thread_time() - started

    count, taken = 1, 0.0
    while count < 1 << 20 and (now := seconds(count)) is not None:
        count, taken = count * 2, max(taken, now)
    assert count > 1
    assert taken < SECONDS_MAX


@pytest.mark.parametrize("count", [4_000, 12_000, 130_000], ids=["30 KB", "90 KB", "1 MiB"])
def test_a_large_record_is_refused_in_passing(count: int) -> None:
    """Refusing a record costs about as much as reading its bytes, in time and in memory."""
    payload = json.dumps(tagged(count)).encode()
    judge = compile_filter(DOCUMENTED)
    started = time.thread_time()
    with pytest.raises(FilterFailed, match=r"could take [0-9,]+ steps on this record, 100,000 are allowed"):
        judge.matches(record(payload))
    assert time.thread_time() - started < SECONDS_MAX
    assert peak_bytes(lambda: judge.matches(record(payload))) < 3 * len(payload) + 400_000


def test_what_a_filter_does_not_read_costs_it_nothing() -> None:
    """One field of a large payload is as cheap as of a small one; headers need no payload at all."""
    payload = json.dumps({"other": [[]] * 200_000, "total": 120}).encode()
    large = record(payload)
    assert compile_filter("message.payload.total > 100 && has(message.payload.other)").matches(large)
    one_field = compile_filter("!has(headers.source) && message.payload.total > 100")
    assert one_field.matches(large)
    assert peak_bytes(lambda: one_field.matches(large)) < 100_000
    assert compile_filter("!has(headers.source)").matches(record(b'"' + b"x" * (64 << 20) + b'"'))


def test_ordinary_filters_take_large_records() -> None:
    """The bound leaves room: thousands of elements, and text of a megabyte."""
    tags = json.dumps({"tags": [f"{n:04d}" for n in range(2_000)], "wanted": "1999"}).encode()
    assert compile_filter(DOCUMENTED).matches(record(tags))
    items = json.dumps({"items": [{"sku": f"A-{n}", "count": n} for n in range(400)]}).encode()
    assert compile_filter("message.payload.items.exists(i, i.sku == 'A-399' && i.count > 5)").matches(
        record(items)
    )
    image = json.dumps({"image": "x" * 1_000_000}).encode()
    assert compile_filter("message.payload.image.startsWith('xx')").matches(record(image))


async def longest_turn(until: Callable[[], object]) -> float:
    """The longest time, of the processor, in which the loop did one thing."""
    longest = 0.0
    before = time.thread_time()
    async with asyncio.timeout(30):
        while not until():
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, before = max(longest, now - before), now
    return longest


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "replayed"])
async def test_many_records_and_filters_leave_the_loop_free(room: Room, is_live: bool) -> None:
    """However much there is to evaluate, the loop looks at its sockets every few milliseconds."""
    await room.create("orders")
    viewers = [Viewer() for _ in range(5)]
    payloads = [tagged(400) for _ in range(20)]
    start = Start() if is_live else Start(offset=0)
    if not is_live:
        await room.publish("orders", *payloads)
    for number, viewer in enumerate(viewers):
        await room.subscribe(
            "orders", viewer, start, filter=f"{DOCUMENTED} || offset == {number}", client_id=str(number)
        )
    if is_live:
        room.send("orders", *payloads)
    taken = await longest_turn(lambda: all(viewer.events for viewer in viewers) and room.manager.is_idle)
    assert [viewer.offsets for viewer in viewers] == [[number] for number in range(5)]
    assert taken < FILTERING_S + SECONDS_MAX


async def test_a_costly_filter_delays_no_other(room: Room) -> None:
    """Subscribers without a filter, and those with a cheap one, get records while a costly one is evaluated."""
    await room.create("orders")
    plain, cheap, costly = Viewer(), Viewer(), Viewer()
    await room.subscribe("orders", plain, client_id="plain")
    await room.subscribe("orders", costly, client_id="costly", filter=f"{DOCUMENTED} || true")
    await room.subscribe("orders", cheap, client_id="cheap", filter="offset >= 0")
    await room.publish("orders", *[tagged(1_500)] * 30)
    await plain.until(lambda: len(plain.events) == 30)
    assert len(costly.events) < 30
    await cheap.until(lambda: len(cheap.events) == 30)
    assert len(costly.events) < 30
    await costly.until(lambda: len(costly.events) == 30)


async def test_a_publisher_cannot_turn_a_filter_against_the_server(room: Room) -> None:
    """A record that is too much for a filter is left out for its owner, who is told; nobody else notices."""
    await room.create("orders")
    owner, other = Viewer(), Viewer()
    await room.subscribe("orders", owner, client_id="owner", filter=DOCUMENTED)
    await room.subscribe("orders", other, client_id="other")
    room.send("orders", {"tags": ["a"], "wanted": "a"}, tagged(100_000), {"tags": ["b"], "wanted": "b"})
    taken = await longest_turn(lambda: len(owner.events) == 2 and len(other.events) == 3)
    assert taken < 2 * SECONDS_MAX
    assert owner.offsets == [0, 2]
    [error] = owner.errors
    assert error["error"]["code"] == "FILTER_FAILED"
    assert "steps on this record" in error["error"]["message"] and "offset 1" in error["error"]["message"]
    assert not other.errors


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "replayed"])
async def test_records_on_which_a_filter_fails_are_not_kept_in_memory(room: Room, is_live: bool) -> None:
    """What was decoded of a record is gone when the filter has failed on it; a sentence stays."""
    await room.create("orders")
    payloads = [{"items": [{"n": n} for n in range(200)]} for _ in range(300)]
    if not is_live:
        await room.publish("orders", *payloads)
    viewers = [Viewer() for _ in range(3)]
    start = Start() if is_live else Start(offset=0)
    tracemalloc.start()
    try:
        for number, viewer in enumerate(viewers):
            # Fails on every record, when all of it has been decoded.
            wanted = f"message.payload.items.exists(i, i.name == 'item {number}')"
            await room.subscribe("orders", viewer, start, filter=wanted, client_id=str(number))
        if is_live:
            room.send("orders", *payloads)
        for viewer in viewers:
            await viewer.until(lambda viewer=viewer: viewer.errors)  # type: ignore[misc]
        await room.settled()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # The records themselves, as the log in memory and the tail have them, and a sentence for each failure.
    assert held < 300 * (len(json.dumps(payloads[0])) + 3 * 2_000)
