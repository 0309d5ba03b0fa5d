"""Real kernels' traffic, to the live broker and to the fold: they have to agree."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import SparkSession

from himalia.iopub.broker import IopubBroker
from himalia.iopub.channels import RequestChannels
from himalia.jupyter.channels import Channel
from himalia.jupyter.records import read_headers, to_message
from himalia.record import Record
from himalia.spark.transforms.iopub import iopub
from tests.servers import DEADLINE_S, RunningServer
from tests.shared_kernel_server import kernel_server
from tests.spark.pipeline_runs import until
from tests.spark.traffic import rows_of, stored
from tests.spark.transforms.fold_checks import FoldResult, fold, interpreted

IOPUB = tuple(Channel)
CODES = (
    "for i in range(50): print('line', i, flush=True)",
    "1 + 1",
    "raise KeyError('gone')",
    "import sys; print('to stderr', file=sys.stderr)",
    "from IPython.display import HTML, display; h = display(HTML('<b>'), display_id='d'); h.update(HTML('<i>'))",
    # Cells come in any order, so the one that waits for the thread may come first.
    "import threading, time\n"
    "t = threading.Thread(target=lambda: (time.sleep(0.3), print('late', flush=True)))\n"
    "t.start()",
    "globals().get('t') and t.join()",
    "from ipykernel.comm import Comm; Comm(target_name='nobody').send({'a': 1})",
    "get_ipython().display_pub.clear_output(wait=True)",
)
DEATH = "import os; print('last words', flush=True); os._exit(3)"


class Recorded:
    """The records of two kernels, and the state of each request that the server reported while they ran."""

    def __init__(self, server: RunningServer) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.topics: dict[str, list[Record]] = {}
        with server.http() as http, ThreadPoolExecutor(8) as pool:
            kernels = [http.post("/api/kernels", json={}).raise_for_status().json()["id"] for _ in range(2)]
            list(pool.map(lambda one: self._run(server, *one), [(k, c) for c in CODES for k in kernels]))
            for kernel in kernels:
                self._run(server, kernel, DEATH)
        for kernel in kernels:
            topic = f"kernels.{kernel}"
            # The death of a kernel is reported after the results of its requests.
            until(lambda topic=topic: has_died(read(server, topic)))  # type: ignore[misc]
            self.topics[topic] = read(server, topic)

    def _run(self, server: RunningServer, kernel_id: str, code: str) -> None:
        with server.http() as http:
            asked = {"code": code, "wait": True}
            answer = http.post(f"/api/kernels/{kernel_id}/execute", json=asked).raise_for_status().json()
        self.answers[answer["request_id"]] = answer


def read(server: RunningServer, topic: str) -> list[Record]:
    async def all_of_it() -> list[Record]:
        chunk = await server.context.manager.log.read(topic, 0, limit=100_000, bytes_max=1 << 30)
        return list(chunk.records)

    assert server.loop is not None
    return asyncio.run_coroutine_threadsafe(all_of_it(), server.loop).result(DEADLINE_S)


def has_died(records: list[Record]) -> bool:
    return to_message(records[-1]).decoded_content().get("event") == "died"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with kernel_server(tmp_path_factory.mktemp("live")) as server:
        yield Recorded(server)


@pytest.fixture(scope="module")
def folded(spark: SparkSession, recorded: Recorded) -> FoldResult:
    """The fold, over batches that cut the traffic in three."""
    batches: list[list[Any]] = [[], [], []]
    for records in recorded.topics.values():
        rows = rows_of(records, "e")
        third = len(rows) // 3
        for batch, part in zip(
            batches, (rows[:third], rows[third : 2 * third], rows[2 * third :]), strict=True
        ):
            batch += part
    with interpreted(spark):
        return fold(spark, batches)


class Counting:
    """A sink of the live broker that counts by channel."""

    def __init__(self) -> None:
        self.channels: Counter[str] = Counter()
        self.request = RequestChannels(limit=100_000)

    def deliver(self, message: Any, channel: Channel, sequence: int) -> bool:
        self.channels[channel] += 1
        return self.request.deliver(message, channel, sequence)

    def expire(self) -> None:
        self.request.expire()


def routed(recorded: Recorded) -> tuple[dict[str, Counter[str]], set[str]]:
    """What the live broker routes to each request, from when it is queued until it is closed, and its orphans."""
    sinks: dict[str, Counting] = {}
    orphans: set[str] = set()
    for records in recorded.topics.values():
        broker = IopubBroker()
        for record in records:
            headers, message = read_headers(record), to_message(record)
            event = message.decoded_content().get("event") if headers.channel == "kernel" else None
            if event == "request_queued":
                sinks[message.parent_id] = Counting()
                broker.register_request(message.parent_id, sinks[message.parent_id])
            elif event == "request_closed":
                broker.unregister_request(message.parent_id)
            elif headers.channel in IOPUB:
                broker.route_message(message)
        # Those of no parent, and those that come late, the tables do not call orphans.
        orphans |= {
            orphan.message.msg_id
            for orphan in broker.orphans()
            if orphan.message.parent_id and orphan.message.parent_id not in sinks
        }
    return {request_id: sink.channels for request_id, sink in sinks.items()}, orphans


@pytest.mark.slow
def test_messages_per_request_and_channel(recorded: Recorded, folded: FoldResult) -> None:
    live, _ = routed(recorded)
    counted = {
        row["request_id"]: Counter(
            {str(channel): row[f"{channel}_messages"] for channel in IOPUB if row[f"{channel}_messages"]}
        )
        for row in folded.closed
    }
    assert counted == live
    assert len(live) == 2 * (len(CODES) + 1)
    assert {channel for one in live.values() for channel in one} == set(IOPUB)


@pytest.mark.slow
def test_how_each_request_ended(recorded: Recorded, folded: FoldResult) -> None:
    """As the server reported it to callers while it ran."""
    told = {row["request_id"]: (row["status"], row["execution_count"], row["ename"]) for row in folded.closed}
    answered = {
        request_id: (answer["status"], answer["execution_count"], (answer.get("error") or {}).get("ename"))
        for request_id, answer in recorded.answers.items()
    }
    assert told == answered
    assert Counter(status for status, _, _ in told.values()) == {
        "ok": 2 * (len(CODES) - 1),
        "error": 2,
        "died": 2,
    }


@pytest.mark.slow
def test_what_each_request_printed(recorded: Recorded, folded: FoldResult) -> None:
    for row in folded.closed:
        for name in ("stdout", "stderr"):
            outputs = recorded.answers[row["request_id"]]["outputs"]
            printed = [each["text"] for each in outputs if each.get("name") == name]
            assert row[name] == "".join("".join(text) for text in printed), row["code"]


@pytest.mark.slow
def test_what_belongs_to_no_request(recorded: Recorded, folded: FoldResult) -> None:
    """The same messages: those with which the kernels answered what Himalia itself asked them when they started."""
    _, live = routed(recorded)
    assert {row["id"] for row in folded.orphans} == live and live
    assert not folded.running
    assert "waiting" not in folded.outcomes, "the kernels are dead"


@pytest.mark.slow
def test_channels_without_those_that_the_server_noted(spark: SparkSession, recorded: Recorded) -> None:
    """The pipeline's own routing says of each message what the live broker said."""
    rows = [row for records in recorded.topics.values() for row in rows_of(records, "e")]
    noted = {row.id: row.headers.pop("channel") for row in rows}
    found = {row.id: row.channel for row in iopub(stored(spark, rows)).select("id", "channel").collect()}
    assert {id: found[id] for id, channel in noted.items() if channel in IOPUB} == {
        id: channel for id, channel in noted.items() if channel in IOPUB
    }
