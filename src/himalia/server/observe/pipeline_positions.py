"""How far the pipeline has read, as it tells in ``pipeline.positions``: retention waits for it, up to a bound."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from himalia.errors import HimaliaError, TopicNotFound
from himalia.log.api import Log
from himalia.protocol.models import PipelinePositions
from himalia.record import Position
from himalia.topics import PIPELINE_POSITIONS_TOPIC

logger = logging.getLogger("himalia.server")

LOOK_EVERY_S = 2.0


_decode = msgspec.json.Decoder(PipelinePositions).decode


class PipelineReading:
    """Keeps the log informed. A topic of which the pipeline tells nothing is not waited for."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seen: tuple[str, int] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Tell the log what is known; it has cut nothing before."""
        await self._look()
        self._looking = asyncio.create_task(self._look_on())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look()
            except HimaliaError as error:
                # The log is unwell, which others tell of.
                logger.debug("cannot read %s: %s", PIPELINE_POSITIONS_TOPIC, error)

    async def _look(self) -> None:
        try:
            info = await self._log.info(PIPELINE_POSITIONS_TOPIC)
        except TopicNotFound:
            self._forget()
            return
        if self._seen == (info.epoch, info.end):
            return
        records = (await self._log.read(PIPELINE_POSITIONS_TOPIC, max(info.end - 1, 0), limit=1)).records
        self._seen = (info.epoch, info.end)
        self._log.hold_retention(_positions(records[-1].payload) if records else {})

    def _forget(self) -> None:
        if self._seen != ("", 0):
            self._seen = ("", 0)
            self._log.hold_retention({})


def _positions(payload: bytes) -> dict[str, Position]:
    try:
        return _decode(payload).positions
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        logger.warning(
            "%s holds no positions: %s; retention does not wait for the pipeline",
            PIPELINE_POSITIONS_TOPIC,
            error,
        )
        return {}
