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

POLL_INTERVAL_S = 0.5
STALLED_AFTER_S = 120.0
"""How long the other pipeline may commit nothing: one that reads other topics would be awaited without a limit."""


def wait_for_other(
    client: SyncClient,
    warehouse: Path,
    topics: Sequence[str],
    locked: WarehouseLocked,
) -> None:
    """Return when the pipeline that holds the warehouse has read all records that are in the log at this moment.

    Raises ``locked`` if it commits nothing for ``STALLED_AFTER_S``.
    """
    ends = {
        (topic.name, topic.epoch): topic.end
        for topic in client.topics()
        if topic.end > topic.first and _is_read(topic.name, topics)
    }
    seen, deadline_s = None, time.monotonic() + STALLED_AFTER_S
    while True:
        positions = _positions(warehouse)
        if all(positions.get(topic, 0) >= end for topic, end in ends.items()):
            return
        if positions != seen:
            seen, deadline_s = positions, time.monotonic() + STALLED_AFTER_S
        elif time.monotonic() > deadline_s:
            raise locked
        time.sleep(POLL_INTERVAL_S)


def _is_read(topic: str, patterns: Sequence[str]) -> bool:
    """Return whether a pipeline reads the topic; none reads topics of a pipeline."""
    return not topic.startswith(PIPELINE_TOPIC_PREFIX) and any(
        matches(pattern, topic) for pattern in patterns
    )


def _positions(warehouse: Path) -> dict[tuple[str, str], int]:
    """Return the offsets at which the last complete batch ends, by topic and epoch."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return read_positions(DeltaTable(warehouse / POSITIONS))
    except TableNotFoundError:
        return {}
