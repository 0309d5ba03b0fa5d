"""Streaming reads: each record once, whatever happens to topics, server and query meanwhile."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from himalia.errors import BadRequest, ConnectionFailed, DataLost, TopicNotFound
from himalia.settings import Settings
from himalia.spark.connector.offset_ranges import OffsetRange
from himalia.spark.connector.read import RangesPartition
from himalia.spark.connector.stream import StreamReader
from tests.servers import DEADLINE_S, RunningServer
from tests.spark.connector.test_reading import recreate, shorten, state_of
from tests.spark.pipeline_runs import until

Publish = Callable[..., None]
ALL = ReadAllAvailable()


def reader_of(server: RunningServer, **options: str) -> StreamReader:
    return StreamReader({"url": server.url, "token": server.token or "", **options})


def values_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """The rows of one micro-batch."""
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += batch.column("value").to_pylist()
    return found


def ranges_of(partitions: Sequence[InputPartition]) -> list[Sequence[OffsetRange]]:
    return [each.ranges for each in partitions if isinstance(each, RangesPartition)]


def offsets_in(position: dict[str, Any]) -> dict[str, int]:
    return {topic: place["offset"] for topic, place in position.items()}


class Sink:
    """Takes the batches of a query, and tells when a value has come."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def __call__(self, batch: DataFrame, number: int) -> None:
        self.values += [row.value for row in batch.collect()]

    def until(self, value: str, query: StreamingQuery) -> None:
        deadline = time.monotonic() + 4 * DEADLINE_S
        while value not in self.values:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, self.values[-5:]
            time.sleep(0.02)


def test_a_new_stream_begins_at_the_end(server: RunningServer, publish: Publish) -> None:
    """As Kafka's does, unless an option says otherwise; the position holds the epoch."""
    publish("begin", 1, 2, 3)
    position = reader_of(server, subscribe="begin").initialOffset()
    assert offsets_in(position) == {"begin": 3}
    assert set(position["begin"]) == {"offset", "epoch"}
    for option, offset in (
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"begin": 2}'}, 2),
        ({"startingTimestamp": "2020-01-01"}, 0),
        ({"startingTimestamp": "2100-01-01"}, 3),
    ):
        assert offsets_in(reader_of(server, subscribe="begin", **option).initialOffset()) == {"begin": offset}


def test_a_stream_from_beyond_the_end_waits_there(server: RunningServer, publish: Publish) -> None:
    """It is refused, or begins at the offset that was asked for when the topic reaches it: nothing below is sent."""
    publish("ahead", 0, 1, 2)
    options = {"subscribe": "ahead", "startingOffsets": '{"ahead": 5}'}
    with pytest.raises(DataLost, match="ends at offset 3, before offset 5"):
        reader_of(server, **options).initialOffset()
    reader = reader_of(server, **options, failOnDataLoss="false")
    start = reader.initialOffset()
    assert offsets_in(start) == {"ahead": 5}
    publish("ahead", 3, 4)
    assert reader.latestOffset(start, ALL) == start
    publish("ahead", 5, 6)
    assert values_of(reader, start, reader.latestOffset(start, ALL)) == ["5", "6"]


def test_each_record_is_in_one_batch(server: RunningServer, publish: Publish) -> None:
    """Batch follows batch without a hole; nothing new gives the same position, to the letter."""
    publish("flow", 1, 2)
    reader = reader_of(server, subscribe="flow", startingOffsets="earliest")
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ALL)
    assert reader.latestOffset(middle, ALL) == middle
    assert reader.partitions(middle, middle) == []
    publish("flow", 3)
    end = reader.latestOffset(middle, ALL)
    assert values_of(reader, start, middle) + values_of(reader, middle, end) == ["1", "2", "3"]
    assert values_of(reader, start, end) == ["1", "2", "3"]


def test_a_limit_holds_for_a_batch(server: RunningServer, publish: Publish) -> None:
    """Topics share it; what Spark says goes before what the option says; the whole way is reported beside it."""
    publish("limit.a", *range(10))
    publish("limit.b", *range(2))
    reader = reader_of(
        server, subscribePattern="limit.*", startingOffsets="earliest", maxOffsetsPerTrigger="6"
    )
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    position = reader.initialOffset()
    seen = []
    for _ in range(3):
        position = reader.latestOffset(position, limit)
        seen.append(offsets_in(position))
    assert seen == [
        {"limit.a": 4, "limit.b": 2},
        {"limit.a": 10, "limit.b": 2},
        {"limit.a": 10, "limit.b": 2},
    ]
    reader.latestOffset(reader.initialOffset(), limit)
    assert offsets_in(reader.reportLatestOffset() or {}) == {"limit.a": 10, "limit.b": 2}
    everything = reader.latestOffset(reader.initialOffset(), ALL)
    assert offsets_in(everything) == {"limit.a": 10, "limit.b": 2}


def test_topics_that_appear_and_vanish(
    server: RunningServer, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    """A new one is read from its first record; one that is deleted is a loss, and told."""
    publish("come.a", "a1")
    reader = reader_of(server, subscribePattern="come.*", failOnDataLoss="false")
    strict = reader_of(server, subscribePattern="come.*")
    start = reader.initialOffset()
    publish("come.b", "b1", "b2")
    server.create("come.empty")
    end = reader.latestOffset(start, ALL)
    assert offsets_in(end) == {"come.a": 1, "come.b": 2}
    assert values_of(reader, start, end) == ['"b1"', '"b2"']
    with server.http(headers=server.headers) as http:
        http.delete("/topics/come.b").raise_for_status()
    with pytest.raises(DataLost, match=r"topic 'come.b' was deleted: what it held from offset 2 on is gone"):
        strict.latestOffset(end, ALL)
    with caplog.at_level(logging.WARNING):
        after = reader.latestOffset(end, ALL)
    assert offsets_in(after) == {"come.a": 1}
    assert "topic 'come.b' was deleted" in caplog.text


def test_a_new_topic_whose_beginning_is_gone_is_no_loss(server: RunningServer, publish: Publish) -> None:
    """A topic without a position is read from its first record."""
    first = shorten(server, "begun.a", publish)
    reader = reader_of(server, subscribePattern="begun.*")
    end = reader.latestOffset({}, ALL)
    assert values_of(reader, {}, end) == [str(number) for number in range(first, 20)]


def test_a_batch_with_a_new_topic_is_cut_the_same_when_it_is_run_again(
    server: RunningServer, publish: Publish
) -> None:
    """Though retention took more of the topic meanwhile: what is missing of the batch then is a loss."""
    first = shorten(server, "recut.a", publish)
    reader = reader_of(server, subscribePattern="recut.*", minPartitions="2")
    end = reader.latestOffset({}, ALL)
    planned = ranges_of(reader.partitions({}, end))
    publish("recut.a", *range(40))
    until(lambda: state_of(server, "recut.a")["first"] > first)
    assert (
        ranges_of(reader_of(server, subscribePattern="recut.*", minPartitions="2").partitions({}, end))
        == planned
    )
    assert planned[0][0].start == first
    with pytest.raises(DataLost, match=f"topic 'recut.a': offsets {first} to"):
        values_of(reader, {}, end)


def test_a_name_that_is_added_to_a_query_has_to_exist(
    server: RunningServer, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    """As it has to when a query is new; where losses are accepted, it is reported once and skipped."""
    publish("added", 1)
    start = reader_of(server, subscribe="added").initialOffset()
    with pytest.raises(TopicNotFound, match="topic 'mispelt' does not exist"):
        reader_of(server, subscribe="added,mispelt").latestOffset(start, ALL)
    lenient = reader_of(server, subscribe="added,mispelt", failOnDataLoss="false")
    for _ in range(3):
        assert lenient.latestOffset(start, ALL) == start
    assert caplog.text.count("topic 'mispelt' does not exist") == 1


def test_a_name_that_is_taken_from_a_query_was_not_deleted(server: RunningServer, publish: Publish) -> None:
    """What is left unread is a loss, and the sentence says why."""
    publish("taken.a", 1)
    publish("taken.b", 1)
    start = reader_of(server, subscribe="taken.a,taken.b").initialOffset()
    with pytest.raises(DataLost, match=r"^topic 'taken.b' is no longer selected: it is not read from"):
        reader_of(server, subscribe="taken.a").latestOffset(start, ALL)


def test_a_topic_that_is_lost_and_empty_is_told_once(
    server: RunningServer, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at each trigger, nor again with new records; a further loss is reported."""
    publish("hollow", 1)
    reader = reader_of(server, subscribe="hollow", failOnDataLoss="false")
    start = reader.initialOffset()
    recreate(server, "hollow")
    for _ in range(3):
        assert reader.latestOffset(start, ALL) == start
    publish("hollow", 2)
    end = reader.latestOffset(start, ALL)
    assert caplog.text.count("created again") == 1
    recreate(server, "hollow")
    reader.latestOffset(end, ALL)
    assert caplog.text.count("created again") == 2


def test_a_topic_that_is_created_again_begins_anew(
    server: RunningServer, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    """Its records are all read, though the position was beyond their offsets; the loss is reported."""
    publish("anew", 1, 2, 3)
    reader = reader_of(server, subscribe="anew", failOnDataLoss="false")
    start = reader.initialOffset()
    recreate(server, "anew")
    publish("anew", 4)
    with pytest.raises(DataLost, match=r"'anew' was deleted and created again.*from offset 3 on is gone"):
        reader_of(server, subscribe="anew").latestOffset(start, ALL)
    end = reader.latestOffset(start, ALL)
    assert values_of(reader, start, end) == ["4"]
    assert "created again" in caplog.text


def test_available_now_ends_where_it_began(server: RunningServer, publish: Publish) -> None:
    """What is published after the start waits for the next run, so that a run ends on a busy topic too."""
    publish("now", 1, 2)
    reader = reader_of(server, subscribe="now", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    publish("now", 3)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert values_of(reader, start, end) == ["1", "2"]
    assert reader.latestOffset(end, ALL) == end
    newest = reader_of(server, subscribe="now")
    newest.prepareForTriggerAvailableNow()
    publish("now", 4)
    start = newest.initialOffset()
    assert newest.latestOffset(start, ALL) == start


def test_what_cannot_work_is_told_at_once(server: RunningServer, publish: Publish) -> None:
    with pytest.raises(BadRequest, match="a stream has no endingOffsets"):
        reader_of(server, subscribe="x", endingOffsets="latest")
    with pytest.raises(TopicNotFound, match="topic 'nowhere' does not exist"):
        reader_of(server, subscribe="nowhere").initialOffset()
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match=r"no server answers at http://127\.0\.0\.1:1;"):
        StreamReader({"url": "http://127.0.0.1:1", "subscribe": "x"}).initialOffset()
    assert time.monotonic() - began < 5


@pytest.fixture
def follow(spark: SparkSession, server: RunningServer) -> Iterator[Callable[..., StreamingQuery]]:
    """Start queries that end with the test."""
    queries: list[StreamingQuery] = []

    def start(sink: Sink, checkpoint: Path, **options: str) -> StreamingQuery:
        trigger: dict[str, Any] = {"availableNow": True}
        if options.pop("trigger", "") == "often":
            trigger = {"processingTime": "100 milliseconds"}
        given = {"url": server.url, "token": server.token or "", **options}
        query = (
            spark.readStream.format("himalia")
            .options(**given)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(checkpoint))
            .trigger(**trigger)
            .start()
        )
        queries.append(query)
        return query

    yield start
    for query in queries:
        query.stop()


@pytest.mark.slow
def test_a_query_resumes_from_its_checkpoint(
    follow: Callable[..., StreamingQuery], publish: Publish, tmp_path: Path
) -> None:
    """Each record comes once, over all runs; limits make several batches of one run."""
    publish("resume", *range(5))
    sink = Sink()
    options = {
        "subscribePattern": "resume.>,resume",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "3",
    }
    assert follow(sink, tmp_path, **options).awaitTermination(60)
    publish("resume", 5)
    publish("resume.late", 6)
    query = follow(sink, tmp_path, **options)
    assert query.awaitTermination(60)
    assert sorted(sink.values) == [str(number) for number in range(7)]
    end = query.recentProgress[-1]["sources"][0]["endOffset"]
    assert '"resume.late": {"offset": 1, "epoch":' in end


@pytest.mark.slow
def test_a_server_that_restarts_is_waited_for(
    spark: SparkSession, follow: Callable[..., StreamingQuery], tmp_path: Path
) -> None:
    """The query continues where it was, with nothing lost and nothing twice."""

    def start(port: int) -> RunningServer:
        log = f"sqlite://{tmp_path}/log.db"
        return RunningServer(
            Settings(port=port, log=log, token="the-token-of-a-test", kernels=False, log_level="warning")
        )

    def publish(number: int) -> None:
        with first.http(headers=first.headers) as http:
            http.post("/topics/lasting/messages", json={"payload": number}).raise_for_status()

    first = start(0)
    first.create("lasting")
    sink = Sink()
    query = follow(
        sink,
        tmp_path / "checkpoint",
        url=first.url,
        token="the-token-of-a-test",
        subscribe="lasting",
        startingOffsets="earliest",
        trigger="often",
    )
    publish(1)
    sink.until("1", query)
    port = first.port
    first.stop()
    with socket.create_server(("127.0.0.1", port)) as nobody:
        # The query requests new records, and gets no response.
        nobody.settimeout(DEADLINE_S)
        nobody.accept()[0].close()
    second = start(port)
    try:
        publish(2)
        sink.until("2", query)
    finally:
        query.stop()
        second.stop()
    assert sink.values == ["1", "2"]


@pytest.mark.slow
def test_a_query_that_lost_records_says_which(
    follow: Callable[..., StreamingQuery], server: RunningServer, publish: Publish, tmp_path: Path
) -> None:
    """In one sentence, without the frames of the process that found out."""
    publish("losing", 1, 2, 3)
    sink = Sink()
    options = {"subscribe": "losing", "startingOffsets": "earliest"}
    assert follow(sink, tmp_path, **options).awaitTermination(60)
    recreate(server, "losing")
    publish("losing", 4)
    query = follow(sink, tmp_path, **options)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    told = str(caught.value)
    assert "himalia.errors.DataLost: topic 'losing' was deleted and created again" in told
    assert "what it held from offset 3 on is gone (set failOnDataLoss to false" in told
    assert "Traceback" not in told
    assert sink.values == ["1", "2", "3"]
    assert follow(sink, tmp_path, failOnDataLoss="false", **options).awaitTermination(60)
    assert sink.values == ["1", "2", "3", "4"]


def test_partitions_carry_the_address(server: RunningServer, publish: Publish) -> None:
    """A server that moved is discovered again on the driver; executors get its address."""
    publish("moved", 1)
    reader = reader_of(server, subscribe="moved", startingOffsets="earliest")
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ALL))
    assert isinstance(partition, RangesPartition)
    assert partition.address.url == server.url
