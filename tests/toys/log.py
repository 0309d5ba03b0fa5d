"""A toy log: a list of records per topic. It becomes ``himalia/log/toy.py`` in a copy of the package."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from himalia.errors import BadRequest, EpochChanged, TopicNotFound
from himalia.log import Appended, Batch, Chunk, LogOptions
from himalia.log.cache import limit_bytes
from himalia.record import Record, Retention, TopicInfo, total_bytes


def open_url(url: str, options: LogOptions | None = None) -> ToyLog:
    return ToyLog(url, options or LogOptions())


class ToyLog:
    """So much of ``himalia.log.api.Log`` as appending and reading need."""

    def __init__(self, url: str, options: LogOptions) -> None:
        self.url = url
        self._clock = options.clock
        self._epochs: dict[str, str] = {}
        self._records: dict[str, list[Record]] = {}

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def create(self, topic: str) -> TopicInfo:
        self._epochs[topic], self._records[topic] = secrets.token_hex(8), []
        return await self.info(topic)

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._append(batch))
        except (BadRequest, EpochChanged, TopicNotFound) as error:
            future.set_exception(error)
        return future

    def _append(self, batch: Batch) -> Appended:
        records, epoch = self._records_of(batch.topic), self._epochs[batch.topic]
        if batch.epoch not in (None, epoch):
            raise EpochChanged(batch.topic, str(batch.epoch), epoch)
        if any(draft.id.encode(errors="ignore").decode() != draft.id for draft in batch.drafts):
            raise BadRequest("an id is not text")
        ts_us = max(self._clock.wall_us(), records[-1].ts_us if records else 0)
        offsets = range(len(records), len(records) + len(batch.drafts))
        records += [
            Record(batch.topic, offset, ts_us, draft.id, draft.headers, draft.payload)
            for offset, draft in zip(offsets, batch.drafts, strict=True)
        ]
        return Appended(epoch, offsets, ts_us)

    async def read(self, topic: str, start: int, *, limit: int, bytes_max: int = 1 << 20) -> Chunk:
        records = self._records_of(topic)
        found = limit_bytes(records[max(start, 0) :][:limit], bytes_max)
        return Chunk(found, 0, len(records), self._epochs[topic])

    def recent(self, topic: str, start: int, epoch: str) -> list[Record] | None:
        return self._records[topic][start:] if self._epochs.get(topic) == epoch else None

    async def info(self, topic: str) -> TopicInfo:
        records = self._records_of(topic)
        ts_us = records[-1].ts_us if records else 0
        size = total_bytes(records)
        return TopicInfo(topic, self._epochs[topic], 0, len(records), size, 0, ts_us, Retention())

    def _records_of(self, topic: str) -> list[Record]:
        if topic not in self._records:
            raise TopicNotFound(topic)
        return self._records[topic]

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"the toy log has no {name}")
