"""``himalia pipeline run --once`` beside a pipeline that runs: wait until that one has read what is in the log now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from himalia.client import SyncClient
from himalia.errors import WarehouseLocked
from himalia.tables.catalog import POSITIONS
from himalia.tables.delta_tables import read_positions
from himalia.topics import PIPELINE_TOPIC_PREFIX, matches

LOOK_EVERY_S = 0.5
PATIENCE_S = 120.0
"""How long the other pipeline may commit nothing: one that reads other topics would be waited for without end."""


def wait_for_other(
    client: SyncClient,
    warehouse: Path,
    topics: Sequence[str],
    locked: WarehouseLocked,
) -> None:
    """Return when the pipeline that holds the warehouse has read all records that are in the log at this moment.

    Raises ``locked`` if it commits nothing for a while.
    """
    wanted = {
        (topic.name, topic.epoch): topic.end
        for topic in client.topics()
        if topic.end > topic.first and _is_read(topic.name, topics)
    }
    seen, deadline_s = None, time.monotonic() + PATIENCE_S
    while True:
        positions = _positions(warehouse)
        if all(positions.get(topic, 0) >= end for topic, end in wanted.items()):
            return
        if positions != seen:
            seen, deadline_s = positions, time.monotonic() + PATIENCE_S
        elif time.monotonic() > deadline_s:
            raise locked
        time.sleep(LOOK_EVERY_S)


def _is_read(topic: str, patterns: Sequence[str]) -> bool:
    """Whether a pipeline reads the topic: not its own."""
    return not topic.startswith(PIPELINE_TOPIC_PREFIX) and any(
        matches(pattern, topic) for pattern in patterns
    )


def _positions(warehouse: Path) -> dict[tuple[str, str], int]:
    """The next offset to read, by topic and epoch, of the last batch that is complete."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return read_positions(DeltaTable(warehouse / POSITIONS))
    except TableNotFoundError:
        return {}
