"""Reading the writer's state from the file: at the start, and after a commit of which the end is not known."""

from __future__ import annotations

import msgspec

from himalia.log.clock import LogClock
from himalia.log.ids import StoredId, scoped
from himalia.log.sqlite.store import Store
from himalia.log.staging import TopicState, World
from himalia.topics import AUDIT_TOPIC


def load_topics(store: Store, world: World) -> list[TopicState]:
    """Put the topics of the file into the world; returns those that are deleted but not erased yet."""
    states = store.topics()
    world.topics = {state.name: state for state in states if state.name}
    world.last_topic_id = store.last_topic_id()
    world.producers.counts = store.producer_counts()
    return [state for state in states if not state.name]


def load_ids(store: Store, world: World, clock: LogClock) -> None:
    """Remember the ids that count, in time that does not depend on the length of the history."""
    ids = world.ids
    ids.clear()
    if not ids.enabled:
        return
    age_us, shift_us = clock.now().age_us, clock.shift_us
    cutoff_us = age_us - ids.window_us
    known = {state.id for state in world.topics.values()}
    found = [stored for stored in store.trimmed_ids(cutoff_us, shift_us) if stored.topic in known]
    for state in world.topics.values():
        if state.age_us(state.end - 1, state.last_ts_us, shift_us) <= cutoff_us:
            continue
        is_own = state.name == AUDIT_TOPIC or state.name.startswith("kernels.")
        for id, offset, ts_us, headers in store.newest_ids(state.id, ids.ids_max):
            # Not later than now: the times of a topic that was dated wrongly say nothing.
            stored_us = min(state.age_us(offset, ts_us, shift_us), age_us)
            if stored_us <= cutoff_us:
                break
            key = id if is_own else scoped(_caller(headers), id)
            found.append(StoredId(state.id, key, offset, ts_us, stored_us))
        if len(found) > 2 * ids.ids_max:
            found = _newest(found, ids.ids_max)
            cutoff_us = max(cutoff_us, found[0].age_us - 1)
    ids.remember(_newest(found, ids.ids_max), age_us)


class _Stamp(msgspec.Struct):
    caller: str | None = None


_decode_stamp = msgspec.json.Decoder(_Stamp).decode


def _caller(headers: bytes) -> str | None:
    """Who published a record, as the server has stamped it; None for one of an earlier version."""
    try:
        return _decode_stamp(headers).caller
    except msgspec.MsgspecError:
        return None


def _newest(found: list[StoredId], count: int) -> list[StoredId]:
    """The newest of these, the oldest of them first."""
    return sorted(found, key=lambda stored: (stored.age_us, stored.topic, stored.offset))[-count:]
