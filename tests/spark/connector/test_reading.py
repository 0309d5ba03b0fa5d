"""Batch reads: from a real server, mostly without a JVM, by calling what Spark would call."""

from __future__ import annotations

import logging
import pickle
import socket
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import _parse_datatype_string

from himalia.errors import ConnectionFailed, DataLost, TopicNotFound, Unauthorized
from himalia.spark.connector.address import ServerAddress
from himalia.spark.connector.http import ServerConnection
from himalia.spark.connector.offset_ranges import OffsetRange
from himalia.spark.connector.read import (
    ARROW_SCHEMA,
    READ_SCHEMA,
    BatchReader,
    PushdownReader,
    RangesPartition,
    fetch,
)
from tests.servers import DEADLINE_S, RunningServer
from tests.spark.connector.cutting_proxy import cutting

Publish = Callable[..., None]


def reader_of(server: RunningServer, **options: str) -> BatchReader:
    return BatchReader({"url": server.url, "token": server.token or "", **options})


def rows_of(reader: BatchReader) -> list[dict[str, Any]]:
    """What Spark would get. Partitions and reader are pickled on their way to executors."""
    rows = []
    for partition in reader.partitions():
        reader, partition = pickle.loads(pickle.dumps((reader, partition)))
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema == ARROW_SCHEMA
            rows += batch.to_pylist()
    return rows


def offsets_of(reader: BatchReader) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows_of(reader):
        found.setdefault(row["topic"], []).append(row["offset"])
    return found


def state_of(server: RunningServer, topic: str) -> Mapping[str, Any]:
    with server.http(headers=server.headers) as http:
        topics = http.get("/topics").json()["topics"]
    return next(each for each in topics if each["name"] == topic)


def shorten(server: RunningServer, topic: str, publish: Publish) -> int:
    """A topic whose first records retention has deleted; returns its first offset."""
    server.create(topic, count=5)
    publish(topic, *range(20))
    deadline = time.monotonic() + DEADLINE_S
    while not (first := state_of(server, topic)["first"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(first)


def recreate(server: RunningServer, topic: str) -> None:
    with server.http(headers=server.headers) as http:
        http.delete(f"/topics/{topic}").raise_for_status()
    server.create(topic)


def test_the_columns_are_those_that_spark_expects(spark: SparkSession) -> None:
    """Spark compares the first batch with this to the letter, and refuses it otherwise."""
    schema = _parse_datatype_string(READ_SCHEMA)
    assert to_arrow_schema(schema, timezone="UTC") == ARROW_SCHEMA


@pytest.mark.slow
def test_a_topic_as_a_dataframe(spark: SparkSession, server: RunningServer, publish: Publish) -> None:
    """Found by its name alone; a record is a row with its topic, offset, time, id, headers and JSON text."""
    publish("shop.orders", {"sku": "A-17", "n": [1, "ü"]}, None, headers={"source": "shop"})
    records = (
        spark.read.format("himalia")
        .options(url=server.url, token=server.token, subscribePattern="shop.>")
        .load()
    )
    first, second = records.orderBy("offset").collect()
    with server.http(headers=server.headers) as http:
        stored = http.get("/topics/shop.orders/messages").json()["messages"][0]
    assert (first.topic, first.offset, first.id) == ("shop.orders", 0, stored["message"]["id"])
    assert first.timestamp.replace(tzinfo=UTC) == datetime.fromisoformat(stored["ts"])
    assert first.headers == {"source": "shop", "publisher": "token", "caller": "token"}
    assert first.value == '{"sku":"A-17","n":[1,"ü"]}'
    assert (second.offset, second.value) == (1, "null")


def test_places_are_words_offsets_and_positions(server: RunningServer, publish: Publish) -> None:
    """Each topic is read from its start up to, and not including, its end."""
    for topic in ("places.a", "places.b", "places.c"):
        publish(topic, *range(10))
    epoch = state_of(server, "places.b")["epoch"]
    found = offsets_of(
        reader_of(
            server,
            subscribe="places.a,places.b,places.c",
            startingOffsets=f'{{"places.a": 7, "places.b": {{"offset": 2, "epoch": "{epoch}"}}, "places.c": -1}}',
            endingOffsets='{"places.b": 5}',
        )
    )
    assert found == {"places.a": [7, 8, 9], "places.b": [2, 3, 4]}


def test_a_topic_has_several_partitions(server: RunningServer, publish: Publish) -> None:
    publish("wide", *range(100))
    reader = reader_of(server, subscribe="wide", minPartitions="3")
    assert len(reader.partitions()) == 3
    assert offsets_of(reader) == {"wide": list(range(100))}
    assert len(reader_of(server, subscribe="wide", recordsPerPartition="10").partitions()) == 10


def test_nothing_to_read_is_no_row(server: RunningServer) -> None:
    server.create("nothing")
    assert rows_of(reader_of(server, subscribe="nothing")) == []
    assert rows_of(reader_of(server, subscribePattern="no.such.>")) == []


def test_a_time_to_start_from(server: RunningServer, publish: Publish) -> None:
    """The first record is the first that is not older."""
    for number in range(3):
        publish("timed", number)
    times = [row["timestamp"] for row in rows_of(reader_of(server, subscribe="timed"))]
    assert times[0] < times[1] < times[2]
    found = offsets_of(reader_of(server, subscribe="timed", startingTimestamp=times[1].isoformat()))
    assert found == {"timed": [1, 2]}
    assert rows_of(reader_of(server, subscribe="timed", startingTimestamp="2100-01-01")) == []


def test_filters_narrow_what_is_planned(server: RunningServer, publish: Publish) -> None:
    """Topics, offsets and times that the query does not want are not even asked for; the filters stay Spark's."""
    for number in range(4):
        publish("narrow.a", number)
    publish("narrow.b", *range(4))
    given = {"url": server.url, "token": server.token or "", "subscribePattern": "narrow.*"}
    times = [row["timestamp"] for row in rows_of(reader_of(server, subscribe="narrow.a"))]
    cases = [
        ([EqualTo(("topic",), "narrow.b")], {"narrow.b": [0, 1, 2, 3]}),
        ([LessThan(("offset",), 2)], {"narrow.a": [0, 1], "narrow.b": [0, 1]}),
        (
            [EqualTo(("topic",), "narrow.a"), GreaterThanOrEqual(("timestamp",), times[2])],
            {"narrow.a": [2, 3]},
        ),
        ([EqualTo(("topic",), "narrow.a"), LessThan(("timestamp",), times[2])], {"narrow.a": [0, 1]}),
        ([EqualTo(("topic",), "nobody")], {}),
    ]
    for filters, expected in cases:
        reader = PushdownReader(given)
        assert list(reader.pushFilters(list(filters))) == filters
        assert offsets_of(reader) == expected


@pytest.mark.slow
def test_filters_are_handed_down_to_those_who_ask_for_it(
    spark: SparkSession, server: RunningServer, publish: Publish
) -> None:
    """Where the session allows it; and where it does not, the same query gives the same rows."""
    publish("handed.a", *range(10))
    publish("handed.b", *range(10))
    given = {
        "url": server.url,
        "token": server.token or "",
        "subscribePattern": "handed.*",
        "minPartitions": "4",
    }

    def last_offsets() -> DataFrame:
        records = spark.read.format("himalia").options(**given, pushFilters="true").load()
        return records.where((F.col("topic") == "handed.b") & (F.col("offset") > 7)).select("offset")

    assert last_offsets().rdd.getNumPartitions() == 2
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert last_offsets().rdd.getNumPartitions() == 4
        assert sorted(row.offset for row in last_offsets().collect()) == [8, 9]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.slow
def test_a_dataframe_can_be_used_twice(spark: SparkSession, server: RunningServer, publish: Publish) -> None:
    """Filters of one query do not leave out rows of another: with pushed filters, Spark 4.3 would do that."""
    publish("twice", *range(10))
    records = (
        spark.read.format("himalia").options(url=server.url, token=server.token, subscribe="twice").load()
    )
    early, late = records.where("offset < 3"), records.where("offset >= 8")
    assert early.unionAll(late).count() == 5
    assert records.count() == 10


def test_what_retention_took_is_named(
    server: RunningServer, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    """By default an error; with failOnDataLoss=false the rest is read, and a warning says what is not there."""
    first = shorten(server, "short", publish)
    gone = f"topic 'short': offsets 2 to {first - 1} are gone"
    with pytest.raises(DataLost, match=gone):
        reader_of(server, subscribe="short", startingOffsets='{"short": 2}').partitions()
    lenient = reader_of(server, subscribe="short", startingOffsets='{"short": 2}', failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert offsets_of(lenient) == {"short": list(range(first, 20))}
    assert gone in caplog.text


def test_what_retention_takes_after_planning_is_named_too(server: RunningServer, publish: Publish) -> None:
    """A task that comes too late finds out by itself, and never reads beyond its own range."""
    first = shorten(server, "late", publish)
    epoch = state_of(server, "late")["epoch"]
    wanted, told = OffsetRange("late", epoch, first - 2, first + 2), []
    with ServerConnection(ServerAddress(server.url, server.token)) as connection:
        batches = list(fetch(connection, wanted, 0, lambda *loss: told.append(loss)))
        assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [
            first,
            first + 1,
        ]
        assert told == [("late", first - 2, first)]
        told.clear()
        assert (
            list(fetch(connection, OffsetRange("late", epoch, 0, 2), 0, lambda *loss: told.append(loss)))
            == []
        )
        assert told == [("late", 0, 2)]


def test_a_topic_that_was_created_again_is_another(
    server: RunningServer, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    """A position in the old one is never read from the new one; a task that is too late reads nothing."""
    publish("again", 1, 2, 3)
    epoch = state_of(server, "again")["epoch"]
    place = f'{{"again": {{"offset": 1, "epoch": "{epoch}"}}}}'
    planned = reader_of(server, subscribe="again", startingOffsets=place)
    [partition] = planned.partitions()
    recreate(server, "again")
    publish("again", 4, 5, 6)
    with pytest.raises(DataLost, match=r"again.*created again.*from offset 1 on is gone"):
        planned.partitions()
    with pytest.raises(DataLost, match="topic 'again': offsets 1 to 2 are gone"):
        list(planned.read(partition))
    lenient = reader_of(server, subscribe="again", startingOffsets=place, failOnDataLoss="false")
    assert [row["value"] for row in rows_of(lenient)] == ["4", "5", "6"]
    assert list(lenient.read(partition)) == []
    assert "topic 'again': offsets 1 to 2 are gone" in caplog.text


def test_a_topic_that_is_gone(
    server: RunningServer, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error, unless losses are accepted: then the others are read."""
    publish("here", 1)
    with pytest.raises(TopicNotFound, match="topic 'gone' does not exist"):
        reader_of(server, subscribe="here,gone").partitions()
    lenient = reader_of(server, subscribe="here,gone", startingOffsets='{"gone": 3}', failOnDataLoss="false")
    assert offsets_of(lenient) == {"here": [0]}
    assert "topic 'gone' does not exist" in caplog.text


def test_a_connection_that_breaks_is_made_again(server: RunningServer, publish: Publish) -> None:
    """Reading resumes after the last record received: each is read once, in order, wherever the connection broke."""
    publish("broken", *("x" * 1000 + str(number) for number in range(3000)))
    with cutting(server.url, 100, 5_000, 1_500_000, 2_000_000) as proxy:
        address = ServerAddress(proxy.url, server.token)
        epoch = state_of(server, "broken")["epoch"]
        partition = RangesPartition(address, [OffsetRange("broken", epoch, 0, 3000)])
        batches = list(reader_of(server, subscribe="broken").read(partition))
        assert proxy.cuts == []
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(3000))


def test_the_time_that_a_reader_takes_is_not_the_servers(server: RunningServer, publish: Publish) -> None:
    """A connection that breaks after a batch was worked on for longer than patience lasts is made again too."""
    publish("slow", *("x" * 1000 + str(number) for number in range(7000)))
    wanted, patience_s = OffsetRange("slow", state_of(server, "slow")["epoch"], 0, 7000), 1.0
    # One piece of 4 MiB and a part of the second.
    with (
        cutting(server.url, 6_000_000) as proxy,
        ServerConnection(ServerAddress(proxy.url, server.token)) as connection,
    ):
        batches = fetch(connection, wanted, patience_s, lambda *loss: pytest.fail(str(loss)))
        rows = next(batches).num_rows
        # There is no event to wait for: that time goes by is the case.
        time.sleep(1.2 * patience_s)
        rows += sum(batch.num_rows for batch in batches)
        assert proxy.cuts == []
    assert rows == 7000


def test_a_server_that_stays_away_is_told(server: RunningServer) -> None:
    """When patience is at its end, and not before."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    partition = RangesPartition(ServerAddress(url), [OffsetRange("x", "e", 0, 1)])
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match=f"no server answers at {url}"):
        list(reader_of(server, subscribe="x", retrySeconds="0.5").read(partition))
    assert 0.2 < time.monotonic() - began < 5


def test_a_wrong_token_is_not_tried_twice(server: RunningServer, publish: Publish) -> None:
    publish("locked", 1)
    reader = BatchReader({"url": server.url, "token": "wrong", "subscribe": "locked"})
    began = time.monotonic()
    with pytest.raises(Unauthorized):
        reader.partitions()
    assert time.monotonic() - began < 5


def test_the_server_is_found_as_every_client_finds_it(
    server: RunningServer, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the driver, from the environment; executors get the address, and their logs never show the token."""
    publish("found", 1)
    monkeypatch.setenv("HIMALIA_URL", server.url)
    monkeypatch.setenv("HIMALIA_TOKEN", server.token or "")
    [partition] = BatchReader({"subscribe": "found"}).partitions()
    assert isinstance(partition, RangesPartition)
    assert partition.address == ServerAddress(server.url, server.token)
    assert (server.token or "?") not in repr(partition)


def test_one_connection_serves_a_whole_task(server: RunningServer, publish: Publish) -> None:
    """Hundreds of small topics in a partition are read over one connection, which is kept alive."""
    for number in range(30):
        publish(f"small.t{number}", number)
    [partition] = reader_of(server, subscribePattern="small.*").partitions()
    assert isinstance(partition, RangesPartition)
    with cutting(server.url) as proxy:
        moved = RangesPartition(ServerAddress(proxy.url, server.token), partition.ranges)
        batches = list(reader_of(server, subscribePattern="small.*").read(moved))
        assert proxy.accepted == 1
    assert sum(batch.num_rows for batch in batches) == 30
