"""Passes the pipeline's read positions, from the topic ``pipeline.positions``, to retention, which waits for it."""

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

CHECK_INTERVAL_S = 2.0


_decode = msgspec.json.Decoder(PipelinePositions).decode


class PositionsForwarder:
    """Forwards positions to the log. Retention does not wait for topics without a position."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seen: tuple[str, int] | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Forward the current positions, before the log applies retention, and then all changes."""
        await self._forward()
        self._task = asyncio.create_task(self._forward_regularly())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _forward_regularly(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self._forward()
            except HimaliaError as error:
                # /health reports a log that fails.
                logger.debug("cannot read %s: %s", PIPELINE_POSITIONS_TOPIC, error)

    async def _forward(self) -> None:
        try:
            info = await self._log.info(PIPELINE_POSITIONS_TOPIC)
        except TopicNotFound:
            self._clear()
            return
        if self._seen == (info.epoch, info.end):
            return
        records = (await self._log.read(PIPELINE_POSITIONS_TOPIC, max(info.end - 1, 0), limit=1)).records
        self._seen = (info.epoch, info.end)
        self._log.hold_retention(_positions(records[-1].payload) if records else {})

    def _clear(self) -> None:
        if self._seen != ("", 0):
            self._seen = ("", 0)
            self._log.hold_retention({})


def _positions(payload: bytes) -> dict[str, Position]:
    try:
        return _decode(payload).positions
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        logger.warning(
            "%s has no valid positions: %s; retention does not wait for the pipeline",
            PIPELINE_POSITIONS_TOPIC,
            error,
        )
        return {}
