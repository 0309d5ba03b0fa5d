"""Orphans: kept in order, within bounds, and claimed by their parent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from himalia.iopub.orphans import OrphanBuffer
from himalia.jupyter.wire import KernelMessage
from tests.jupyter.kernel_messages import message

PARENTS = ["", "a", "b", "c"]


def buffer(messages_max: int = 1000, bytes_max: int = 1 << 20) -> OrphanBuffer:
    return OrphanBuffer(messages_max, bytes_max)


def kept(orphans: OrphanBuffer) -> list[KernelMessage]:
    return [orphan.message for orphan in orphans.snapshot(0.0)]


steps = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(PARENTS), st.integers(0, 300)),
    st.tuples(st.just("claim"), st.sampled_from(PARENTS), st.just(0)),
    st.tuples(st.just("expire"), st.just(""), st.integers(0, 40)),
)


@given(st.lists(steps, max_size=60), st.integers(0, 8), st.integers(0, 1500))
def test_it_behaves_like_a_plain_list(plan: list[tuple[str, str, int]], count: int, size: int) -> None:
    """After any series of calls it holds what a simple list with the same rules would hold."""
    orphans = buffer(count, size)
    model: list[tuple[float, KernelMessage]] = []
    for now_s, (step, parent, number) in enumerate(plan):
        if step == "add":
            one = message(parent_id=parent, text="x" * number)
            evicted = orphans.add(one, now_s)
            model.append((now_s, one))
            before = len(model)
            while len(model) > count or (
                len(model) > 1 and sum(other.size_bytes for _, other in model) > size
            ):
                model.pop(0)
            assert evicted == before - len(model)
        elif step == "claim":
            assert orphans.claim(parent) == [one for _, one in model if one.parent_id == parent]
            model = [(at_s, one) for at_s, one in model if one.parent_id != parent]
        else:
            before_s = now_s - number
            assert orphans.expire(before_s) == [one for at_s, one in model if at_s < before_s]
            model = [(at_s, one) for at_s, one in model if at_s >= before_s]
        assert kept(orphans) == [one for _, one in model]
        assert len(orphans) == len(model)
        assert orphans.size_bytes == sum(one.size_bytes for _, one in model)


def test_the_oldest_go_when_it_is_full() -> None:
    """The newest messages_max are kept."""
    orphans = buffer(messages_max=3)
    sent = [message(parent_id=str(number)) for number in range(10)]
    assert [orphans.add(one, 0) for one in sent] == [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert kept(orphans) == sent[-3:]


def test_large_orphans_push_out_older_ones() -> None:
    """The bound in bytes holds, but for a single message."""
    orphans = buffer(bytes_max=1000)
    orphans.add(message(), 0)
    large = message(text="x" * 5000)
    assert orphans.add(large, 0) == 1
    assert kept(orphans) == [large]


def test_with_no_room_nothing_is_kept() -> None:
    """A buffer of zero is a buffer that is switched off."""
    orphans = buffer(messages_max=0)
    assert orphans.add(message(parent_id="a"), 0) == 1
    assert len(orphans) == 0
    assert orphans.claim("a") == []


def test_orphans_tell_their_age() -> None:
    """Listing says how long each has been there."""
    orphans = buffer()
    orphans.add(message(), 10.0)
    orphans.add(message(), 12.0)
    assert [orphan.age_s for orphan in orphans.snapshot(15.0)] == [5.0, 3.0]
