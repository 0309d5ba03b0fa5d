"""The budget that all bodies share: who gets in, who waits, and that nothing of it is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from himalia.errors import TooManyBodies
from himalia.server.http.body_budget import SMALL_SHARE, WAITING_MAX, BodyBudget, Reservation
from tests.servers import DEADLINE_S

MIB = 1 << 20


async def held(budget: BodyBudget, caller: str, size: int) -> Reservation:
    hold = budget.reservation(caller)
    await hold.grow(size)
    return hold


def waiting_for(budget: BodyBudget, caller: str, size: int) -> asyncio.Task[Reservation]:
    return asyncio.create_task(held(budget, caller, size))


def can_extend(hold: Reservation, size: int) -> bool:
    """Take so much more, if it may."""
    try:
        hold.extend(size)
    except TooManyBodies:
        return False
    return True


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_caller_gets_at_most_half() -> None:
    """What a caller holds never exceeds what is free for others."""
    budget = BodyBudget(100 * MIB, DEADLINE_S)
    await held(budget, "a", 30 * MIB)
    more = waiting_for(budget, "a", 21 * MIB)
    await settle()
    assert not more.done()
    more.cancel()
    await held(budget, "a", 20 * MIB)
    assert budget.used_bytes == 50 * MIB


async def test_there_is_always_something_left_for_another_caller() -> None:
    """Each of many greedy callers gets half of what the ones before it left."""
    budget = BodyBudget(1024, DEADLINE_S)
    for caller in range(9):
        await held(budget, str(caller), 1024 >> (caller + 1))
    assert budget.used_bytes == 1022


async def test_a_body_that_is_alone_may_take_everything() -> None:
    """The largest body that the settings allow is received when nothing else is."""
    budget = BodyBudget(100, DEADLINE_S)
    hold = await held(budget, "a", 100)
    hold.release()
    hold.release()
    assert budget.used_bytes == 0


async def test_small_bodies_pass_a_caller_of_their_own_who_waits() -> None:
    """A message is published while large bodies of the same caller hold half of the budget, or wait."""
    budget = BodyBudget(100 * MIB, DEADLINE_S)
    await held(budget, "a", 50 * MIB)
    large = waiting_for(budget, "a", 40 * MIB)
    await settle()
    await asyncio.wait_for(held(budget, "a", 50 * MIB // SMALL_SHARE), DEADLINE_S)
    assert not large.done()
    large.cancel()


async def test_many_small_bodies_leave_a_quarter_to_others() -> None:
    """A caller that sends many small bodies at once waits when it holds three quarters; another one does not."""
    budget = BodyBudget(100 * MIB, DEADLINE_S)
    small = [waiting_for(budget, "a", MIB) for _ in range(200)]
    await settle()
    assert 50 * MIB <= budget.used_bytes <= 75 * MIB
    await asyncio.wait_for(held(budget, "b", 10 * MIB), DEADLINE_S)
    for task in small:
        task.cancel()
    await asyncio.wait(small)


async def test_those_of_a_caller_are_let_in_in_their_order() -> None:
    """A body does not overtake a larger one of the same caller that came before it; another caller's may."""
    budget = BodyBudget(100 * MIB, DEADLINE_S)
    first = await held(budget, "a", 50 * MIB)
    second, third = waiting_for(budget, "a", 40 * MIB), waiting_for(budget, "a", 10 * MIB)
    await settle()
    other = await asyncio.wait_for(held(budget, "b", 20 * MIB), DEADLINE_S)
    assert not second.done() and not third.done()
    first.release()
    (await asyncio.wait_for(second, DEADLINE_S)).release()
    (await asyncio.wait_for(third, DEADLINE_S)).release()
    other.release()
    assert (budget.used_bytes, budget.waiting_count) == (0, 0)


async def test_waiting_ends_with_a_named_error() -> None:
    """After its time the body is refused, and holds nothing."""
    budget = BodyBudget(100, 0.01)
    await held(budget, "a", 50)
    with pytest.raises(TooManyBodies, match=r"within 0\.01 s"):
        await held(budget, "a", 50)
    assert (budget.used_bytes, budget.waiting_count) == (50, 0)


async def test_what_grows_while_it_holds_something_does_not_wait() -> None:
    """It gets what its caller may have, or fails at once: several that waited so would wait for ever."""
    budget = BodyBudget(1600, DEADLINE_S)
    one, two, other = [await held(budget, caller, 400) for caller in "aab"]
    with pytest.raises(TooManyBodies, match=r"800 of them from 'a'"):
        one.extend(26)
    one.extend(25)
    other.extend(20)
    one.release()
    two.extend(100)
    two.release()
    other.release()
    assert budget.used_bytes == 0


async def test_a_caller_whose_bodies_grow_leaves_a_quarter_to_others() -> None:
    """Lists that are let in small and grow as they are decoded take no more than bodies that come whole."""
    budget = BodyBudget(100 * MIB, DEADLINE_S)
    lists = [await held(budget, "a", 100) for _ in range(3)]
    while any(can_extend(each, MIB) for each in lists):
        pass
    assert 50 * MIB <= budget.used_bytes <= 75 * MIB
    await asyncio.wait_for(held(budget, "b", MIB), DEADLINE_S)


async def test_a_body_that_grows_all_alone_leaves_room_for_small_ones() -> None:
    """It may never end, and nobody knows beforehand how much it will take."""
    budget = BodyBudget(100 * MIB, DEADLINE_S)
    hold = await held(budget, "a", 100)
    while can_extend(hold, MIB):
        pass
    assert budget.used_bytes > 86 * MIB
    await asyncio.wait_for(held(budget, "b", MIB // 2), DEADLINE_S)


async def test_only_so_many_wait() -> None:
    """Beyond that a body is refused at once: each that waits costs what was read of it before."""
    budget = BodyBudget(100, DEADLINE_S)
    await held(budget, "a", 50)
    tasks = [waiting_for(budget, str(number), 50) for number in range(WAITING_MAX)]
    await settle()
    with pytest.raises(TooManyBodies, match="256 bodies are waiting to be received, 0 of them from 'b'"):
        await held(budget, "b", 40)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (budget.used_bytes, budget.waiting_count) == (50, 0)


async def test_one_caller_does_not_take_all_places_to_wait() -> None:
    """Its bodies are refused at once when half of the places are theirs; another caller's wait for room."""
    budget = BodyBudget(100, DEADLINE_S)
    await held(budget, "a", 50)
    tasks = [waiting_for(budget, "a", 50) for _ in range(WAITING_MAX // 2)]
    await settle()
    with pytest.raises(TooManyBodies, match="128 bodies are waiting to be received, 128 of them from 'a'"):
        await asyncio.wait_for(held(budget, "a", 50), 1)
    tasks.append(waiting_for(budget, "b", 40))
    await settle()
    assert budget.waiting_count == WAITING_MAX // 2 + 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (budget.used_bytes, budget.waiting_count) == (50, 0)


async def test_nothing_is_lost_and_nothing_exceeded_whatever_happens() -> None:
    """Random callers, sizes, cancellations and ends: never above the budget, and nothing held at the end."""
    chance = random.Random(13)
    budget = BodyBudget(1000, 0.005)
    peak = 0

    async def body() -> None:
        nonlocal peak
        hold = budget.reservation(chance.choice("abcd"))
        try:
            for _ in range(chance.randint(1, 3)):
                await hold.grow(chance.randint(1, 600))
                peak = max(peak, budget.used_bytes)
                await asyncio.sleep(chance.random() * 0.004)
        except TooManyBodies:
            pass
        finally:
            hold.release()

    tasks = []
    for _ in range(600):
        tasks.append(asyncio.create_task(body()))
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
        await asyncio.sleep(0.0005)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert 500 < peak <= 1000
    assert (budget.used_bytes, budget.waiting_count, budget._used_by) == (0, 0, {})
