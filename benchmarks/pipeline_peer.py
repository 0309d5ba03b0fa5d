"""Logs of kernel traffic, their server, and a Spark session, for measurements on the pipeline."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.generator import Endpoint
from benchmarks.kernel_traffic import START_US, drafts_by_topic, traffic
from benchmarks.peers.himalia import HIMALIA
from himalia.log import Batch, LogOptions, open_log
from himalia.record import now_us
from himalia.spark.session import start_session

MASTER = "local[2]"
CHUNK = 1_000
AGO_US = 6 * 3_600_000_000
QUEUED = b'"event":"request_queued"'


class PastTime:
    """A clock in the past."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us

    def wall_us(self) -> int:
        return self.now_us

    def steady_us(self) -> int:
        return self.now_us

    def boot_id(self) -> None:
        return None


class Filled:
    """A filled log, with its number of records and requests."""

    def __init__(self, path: Path, records: int) -> None:
        self.records = records
        self.requests = 0
        asyncio.run(self._fill(path))

    async def _fill(self, path: Path) -> None:
        clock = PastTime(now_us() - AGO_US)
        began_us = clock.now_us
        log = open_log(f"sqlite://{path}", LogOptions(clock=clock))
        await log.open()
        messages = traffic(self.records)
        known: set[str] = set()
        while chunk := list(islice(messages, CHUNK)):
            # At the traffic's own pace, because late messages, and so the state, depend on it.
            clock.now_us = began_us + chunk[-1].ts_us - START_US
            for topic, drafts in drafts_by_topic(chunk).items():
                if topic not in known:
                    await log.create(topic)
                    known.add(topic)
                await log.append(Batch(topic, drafts))
                self.requests += sum(QUEUED in draft.payload for draft in drafts)
        await log.close()


@contextmanager
def serve(directory: Path) -> Iterator[Endpoint]:
    """Run a server on the log in this directory, which other programs cannot discover."""
    os.environ["HIMALIA_RUNTIME_DIR"] = str(directory / "runtime")
    with HIMALIA.start(directory) as endpoint:
        yield endpoint


@contextmanager
def spark(scratch: Path) -> Iterator[SparkSession]:
    session = start_session(MASTER, app="benchmarks", conf={"spark.local.dir": str(scratch)})
    try:
        yield session
    finally:
        session.stop()


def url(endpoint: Endpoint) -> str:
    return f"http://127.0.0.1:{endpoint.port}"
