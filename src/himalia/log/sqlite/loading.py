"""Reading the writer's state from the file: at the start, and after a commit of which the end is not known."""

from __future__ import annotations

from himalia.log.ids import StoredId
from himalia.log.sqlite.store import Store
from himalia.log.staging import TopicState, World


def load_topics(store: Store, world: World) -> list[TopicState]:
    """Put the topics of the file into the world; returns those that are deleted but not erased yet."""
    states = store.topics()
    world.topics = {state.name: state for state in states if state.name}
    world.last_topic_id = store.last_topic_id()
    return [state for state in states if not state.name]


def load_ids(store: Store, world: World, now_us: int) -> None:
    """Remember the ids that count, in time that does not depend on the length of the history."""
    ids = world.ids
    ids.clear()
    if not ids.enabled:
        return
    cutoff_us = now_us - ids.window_us
    known = {state.id for state in world.topics.values()}
    found = [stored for stored in store.trimmed_ids(cutoff_us) if stored.topic in known]
    for state in world.topics.values():
        if state.last_ts_us <= cutoff_us:
            continue
        found += store.newest_ids(state.id, cutoff_us, ids.ids_max)
        if len(found) > 2 * ids.ids_max:
            found = _newest(found, ids.ids_max)
            cutoff_us = max(cutoff_us, found[0].ts_us - 1)
    ids.remember(_newest(found, ids.ids_max), now_us)


def _newest(found: list[StoredId], count: int) -> list[StoredId]:
    """The newest of these, the oldest of them first."""
    return sorted(found, key=lambda stored: (stored.ts_us, stored.topic, stored.offset))[-count:]
