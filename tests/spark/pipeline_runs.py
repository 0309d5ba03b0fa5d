"""Run the pipeline in tests: put kernel traffic into a real server's log, and read the resulting tables."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from himalia.errors import TopicExists
from himalia.log.api import Batch
from himalia.record import Draft
from himalia.spark.pipeline.runner import Pipeline, PipelineOptions, Progress, Summary
from himalia.spark.pipeline.warehouse import TABLES
from tests.servers import DEADLINE_S, RunningServer
from tests.spark.traffic import Row, TopicBuilder


def feed(server: RunningServer, rows: Iterable[Row]) -> None:
    """Put a kernel's records into the log, which clients may not."""

    async def append(topic: str, drafts: Sequence[Draft]) -> None:
        try:
            await server.context.manager.create_topic(topic)
        except TopicExists:
            pass
        await server.context.manager.publish(Batch(topic, drafts))

    by_topic: dict[str, list[Draft]] = {}
    for row in rows:
        draft = Draft(row.id, row.value.encode(), json.dumps(row.headers).encode())
        by_topic.setdefault(row.topic, []).append(draft)
    assert server.loop is not None
    for topic, drafts in by_topic.items():
        asyncio.run_coroutine_threadsafe(append(topic, drafts), server.loop).result(DEADLINE_S)


def busy_kernel(kernel_id: str, requests: int = 4) -> list[Row]:
    """Requests that succeed, one that fails, output of an unknown request, and at the end a request that runs."""
    builder = TopicBuilder(kernel_id, epoch=kernel_id)
    for number in range(requests):
        builder.whole(f"{kernel_id}-r{number}", f"line {number}\n", "more\n")
    builder.queued(f"{kernel_id}-bad")
    builder.sent(f"{kernel_id}-bad")
    builder.busy(f"{kernel_id}-bad")
    builder.error(f"{kernel_id}-bad", evalue=kernel_id)
    builder.reply(f"{kernel_id}-bad", "error")
    builder.idle(f"{kernel_id}-bad")
    builder.closed(f"{kernel_id}-bad", "error")
    builder.stream("nobody", "who am I?")
    builder.queued(f"{kernel_id}-open")
    builder.sent(f"{kernel_id}-open")
    builder.busy(f"{kernel_id}-open")
    return builder.rows


def dead_kernel(kernel_id: str, requests: int = 4) -> list[Row]:
    """The same, of a kernel that then dies: its request is closed, output of the unknown request is an orphan."""
    return [*busy_kernel(kernel_id, requests), TopicBuilder(kernel_id, epoch="end").event("died")]


def run_once(
    server: RunningServer,
    warehouse: Path,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Summary:
    given = PipelineOptions(**options)
    with Pipeline(server.url, server.token, warehouse, given, on_progress=on_progress) as pipeline:
        return pipeline.run_once()


def contents(warehouse: Path, name: str) -> list[str]:
    """All rows of a table, in a form and an order that two tables can be compared in."""
    rows = DeltaTable(warehouse / name).to_pyarrow_table().to_pylist()
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


def all_contents(warehouse: Path) -> dict[str, list[str]]:
    return {name: contents(warehouse, name) for name in TABLES}


def offsets_of(warehouse: Path, topic: str) -> list[int]:
    """The offsets of a topic in ``messages``, each as often as it is there."""
    rows = DeltaTable(warehouse / "messages").to_pyarrow_table(columns=["topic", "offset"]).to_pylist()
    return sorted(row["offset"] for row in rows if row["topic"] == topic)


def stored(server: RunningServer, topic: str) -> list[Any]:
    """The payloads of a topic of the server."""
    with server.http(headers=server.headers) as http:
        answer = http.get(f"/topics/{topic}/messages?from=0&limit=100000").raise_for_status().json()
    return [found["message"]["payload"] for found in answer["messages"]]


def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
