"""Writing to topics: every row becomes a message, once, also when it is written again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, MapType, StringType, StructField, StructType, TimestampType

from himalia.errors import BadRequest, Forbidden, TopicNotFound
from himalia.spark.connector.address import ServerAddress
from himalia.spark.connector.options import parse_write_options
from himalia.spark.connector.write import BatchWriter, StreamWriter, check_columns, encode_rows, write_rows
from tests.servers import RunningServer
from tests.spark.conftest import QUICK
from tests.spark.connector.cutting_proxy import cutting

Publish = Callable[..., None]


def messages_in(server: RunningServer, topic: str) -> list[dict[str, Any]]:
    with server.http(headers=server.headers) as http:
        found = http.get(f"/topics/{topic}/messages", params={"limit": 100_000}).raise_for_status().json()
    return [stored["message"] for stored in found["messages"]]


def payloads_in(server: RunningServer, topic: str) -> list[Any]:
    return [message["payload"] for message in messages_in(server, topic)]


def batch_of(**columns: list[Any]) -> pa.RecordBatch:
    types = {"headers": pa.map_(pa.string(), pa.string())}
    arrays = [pa.array(values, types.get(name, pa.string())) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def line_of(value: str | None, **options: str) -> Any:
    [(topic, line)] = encode_rows(batch_of(value=[value]), parse_write_options({"topic": "t", **options}))
    assert topic == "t"
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line)["payload"]


def given_to(server: RunningServer, **options: str) -> dict[str, str]:
    return {"url": server.url, "token": server.token or "", **options}


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


TEXT, NUMBER, TIME = StringType(), LongType(), TimestampType()


@pytest.mark.parametrize("value", ['{"a": [1, 2.5, null]}', '"ü\\n"', "12", '{\n "a":\r\n 1}', " true "])
def test_a_value_is_json_text(value: str) -> None:
    """It is sent as it is, on one line."""
    assert line_of(value) == json.loads(value)


@pytest.mark.parametrize("value", ["", "{", "abc", "NaN", '1,"id":"x"', '"\n"', "[" * 100_000])
def test_a_value_that_is_not_json_is_refused(value: str) -> None:
    """Never sent, where it might become something else than it was."""
    with pytest.raises(BadRequest, match=r"a value is not JSON: .*valueFormat=string"):
        line_of(value)


def test_a_value_may_be_any_string_if_that_is_said() -> None:
    assert line_of('{"a"\n "ü', valueFormat="string") == '{"a"\n "ü'
    assert line_of(None, valueFormat="string") is None
    assert line_of(None) is None


def test_ids_and_headers_go_along_where_there_are_any() -> None:
    batch = batch_of(
        topic=["a", "b"],
        id=["0b8e9d3e-5d5c-4b7e-8a3a-000000000001", None],
        headers=[[("x", "y"), ("n", None)], None],
        value=["1", "2"],
    )
    first, second = encode_rows(batch, parse_write_options({}))
    assert first[0] == "a"
    assert json.loads(first[1]) == {
        "payload": 1,
        "id": "0b8e9d3e-5d5c-4b7e-8a3a-000000000001",
        "headers": {"x": "y"},
    }
    assert (second[0], json.loads(second[1])) == ("b", {"payload": 2})
    with pytest.raises(BadRequest, match="a row has no topic"):
        list(encode_rows(batch_of(topic=[None], value=["1"]), parse_write_options({})))
    # As in the Kafka sink, the option goes before the column.
    assert [topic for topic, _ in encode_rows(batch, parse_write_options({"topic": "c"}))] == ["c", "c"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (columns(id=TEXT), "the column 'value' is missing"),
        (columns(value=TEXT), "no topic to write to; set the option topic, or add a column 'topic'"),
        (columns(topic=TEXT, value=NUMBER), r"column 'value' must be a string, not bigint; use to_json"),
        (
            columns(topic=TEXT, value=TEXT, n=NUMBER),
            r"column 'n' cannot be written to a topic; .*to_json\(struct\(\*\)\)",
        ),
        (
            columns(topic=TEXT, value=TEXT, headers=MapType(TEXT, NUMBER)),
            "column 'headers' must be map<string,string>, not map<string,bigint>",
        ),
    ],
)
def test_columns_that_are_no_messages_are_refused(schema: StructType, told: str) -> None:
    """On the driver, before anything is written."""
    with pytest.raises(BadRequest, match=told):
        check_columns(schema, parse_write_options({}))


def test_what_was_read_can_be_written() -> None:
    """Offsets and times are the server's to give, and passed over."""
    read = columns(
        topic=TEXT, offset=NUMBER, timestamp=TIME, id=TEXT, headers=MapType(TEXT, TEXT), value=TEXT
    )
    check_columns(read, parse_write_options({}))


def test_a_task_that_is_run_again_repeats_nothing(server: RunningServer) -> None:
    """However often and however late; a batch with a later number is another."""
    server.create("once")
    address, options = ServerAddress(server.url, server.token), parse_write_options({"topic": "once"})
    batches = [batch_of(value=["1", "2"]), batch_of(value=["3"])]
    for _ in range(3):
        assert write_rows(iter(batches), address, options, "job-0", 7).rows == 3
    write_rows(iter(batches), address, options, "job-0", 8)
    write_rows(iter(batches), address, options, "job-0", 7)
    assert payloads_in(server, "once") == [1, 2, 3] * 2
    write_rows(iter(batches), address, options, "job-1", 7)
    assert payloads_in(server, "once") == [1, 2, 3] * 3


def test_rows_that_are_taken_for_a_repeat_of_others_are_told(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a checkpoint was deleted and batches are counted from 0 again. A true repeat is not worth a word."""
    server.create("counted")
    address, options = (
        ServerAddress(server.url, server.token),
        parse_write_options({"topic": "counted", "bytesPerPost": "40"}),
    )
    rows = batch_of(value=[str(number) for number in range(10)])
    for batch in (0, 1, 1):
        write_rows(iter([rows]), address, options, "job-0", batch)
    assert caplog.text == ""
    write_rows(iter([rows]), address, options, "job-0", 0)
    assert payloads_in(server, "counted") == [*range(10), *range(10)]
    assert caplog.text.count("topic 'counted' holds other or later rows of producer 'job-0'") == 1


def test_a_topic_of_a_row_has_to_be_a_name(server: RunningServer) -> None:
    """It is never a part of a path that leads elsewhere."""
    address = ServerAddress(server.url, server.token)
    for topic, told in (
        ("", "column 'topic': a topic name has 1 to 255 characters, this one has 0"),
        ("a/b", "column 'topic': 'a/b' is not a topic name"),
    ):
        with pytest.raises(BadRequest, match=told):
            write_rows(
                iter([batch_of(topic=[topic], value=["1"])]), address, parse_write_options({}), "job", 0
            )


def test_a_long_task_is_cut_into_bodies(server: RunningServer) -> None:
    """One that failed in the middle resumes there when it is run again; topics are counted separately."""
    for topic in ("long.a", "long.b"):
        server.create(topic)
    numbers = [str(number) for number in range(200)]
    topics = ["long.a" if number % 3 else "long.b" for number in range(200)]
    options = parse_write_options({"bytesPerPost": "100"})
    address = ServerAddress(server.url, server.token)

    def fail_later() -> Any:
        yield batch_of(topic=topics[:120], value=numbers[:120])
        raise RuntimeError("the machine went away")

    with pytest.raises(RuntimeError):
        write_rows(fail_later(), address, options, "job", 0)
    stored = len(payloads_in(server, "long.a"))
    assert 0 < stored < 80
    write_rows(iter([batch_of(topic=topics, value=numbers)]), address, options, "job", 0)
    found = payloads_in(server, "long.a"), payloads_in(server, "long.b")
    assert found == (
        [number for number in range(200) if number % 3],
        [number for number in range(200) if number % 3 == 0],
    )


def test_an_answer_that_is_lost_repeats_nothing(server: RunningServer) -> None:
    """The body is sent again, and the server knows it."""
    server.create("answer")
    with cutting(server.url, 0, 10) as proxy:
        address = ServerAddress(proxy.url, server.token)
        write_rows(
            iter([batch_of(value=["1", "2"])]), address, parse_write_options({"topic": "answer"}), "job", 0
        )
        assert proxy.cuts == []
    assert payloads_in(server, "answer") == [1, 2]


def test_what_the_server_refuses_is_told(server: RunningServer) -> None:
    address = ServerAddress(server.url, server.token)
    for topic, error in (("kernels.mine", Forbidden), ("missing", TopicNotFound)):
        with pytest.raises(error):
            write_rows(
                iter([batch_of(value=["1"])]), address, parse_write_options({"topic": topic}), "job", 0
            )
    server.create("ids")
    with pytest.raises(BadRequest, match=r"line 1: .*UUID"):
        write_rows(
            iter([batch_of(id=["x"], value=["1"])]), address, parse_write_options({"topic": "ids"}), "job", 0
        )


def test_a_write_is_checked_before_it_begins(server: RunningServer) -> None:
    """Options, columns, mode, server and topic: one error, on the driver."""
    schema = columns(value=TEXT)
    cases = [
        ({"topic": "missing"}, "topic 'missing' does not exist"),
        ({"topic": "missing", "producer": "p"}, "producer and sequence go together"),
        ({"topic": "missing", "sequence": "1"}, "producer and sequence go together"),
        ({"topics": "missing"}, "did you mean topic"),
        ({"topic": "missing", "token": "wrong"}, "invalid key"),
        ({"topic": "missing", "url": "http://127.0.0.1:1"}, "no server answers"),
    ]
    for options, told in cases:
        with pytest.raises(Exception, match=told):
            BatchWriter({**given_to(server), **options}, schema, overwrite=False)
    with pytest.raises(BadRequest, match=r"cannot be overwritten; use mode\('append'\)"):
        BatchWriter(given_to(server, topic="missing"), schema, overwrite=True)
    with pytest.raises(BadRequest, match="a stream numbers its batches itself"):
        StreamWriter(given_to(server, topic="missing", producer="p", sequence="1"), schema)
    with pytest.raises(TopicNotFound, match="topic 'missing' does not exist"):
        StreamWriter(given_to(server, topic="missing"), schema)


@pytest.mark.slow
def test_a_dataframe_is_written(spark: SparkSession, server: RunningServer) -> None:
    """From all its partitions; written again under the same name and number it is not repeated."""
    server.create("written")
    rows = (
        spark.range(100)
        .repartition(3)
        .select(
            F.to_json(F.struct("id")).alias("value"),
            F.create_map(F.lit("source"), F.lit("test")).alias("headers"),
        )
    )
    for sequence in ("1", "1", "2"):
        rows.write.format("himalia").mode("append").options(
            **given_to(server, topic="written", producer="job", sequence=sequence)
        ).save()
    found = messages_in(server, "written")
    assert sorted(message["payload"]["id"] for message in found) == sorted([*range(100), *range(100)])
    assert {message["headers"]["source"] for message in found} == {"test"}


KILLED = """
import json, os, signal, sys, time
from urllib.request import Request, urlopen

import pyarrow as pa
from pyspark import TaskContext
from himalia.spark.session import start_session

url, token, conf = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

def stored():
    with urlopen(Request(f"{url}/topics/killed", headers={"Authorization": f"Bearer {token}"})) as answer:
        return json.load(answer)["end"]

def rows(batches):
    for number, batch in enumerate(batches):
        yield pa.record_batch([batch.column(0).cast(pa.string())], names=["value"])
        if number == 5 and TaskContext.get().attemptNumber() == 0:
            while not stored():
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)

# Two attempts for each task.
spark = start_session("local[1,2]", conf={**conf, "spark.sql.execution.arrow.maxRecordsPerBatch": "100"})
numbers = spark.range(0, 1000, 1, 1).mapInArrow(rows, "value string")
options = {"url": url, "token": token, "topic": "killed", "bytesPerPost": "1000"}
numbers.write.format("himalia").options(**options).mode("append").save()
spark.stop()
"""


@pytest.mark.slow
def test_a_task_that_is_killed_is_tried_again_and_repeats_nothing(server: RunningServer) -> None:
    """A real one, with kill -9, when a part of its rows was stored: Spark's second attempt stores the rest."""
    server.create("killed")
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, server.url, server.token or "", json.dumps(QUICK)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "Exception in task 0.0 in stage" in ran.stderr
    assert payloads_in(server, "killed") == list(range(1000))


@pytest.mark.slow
def test_a_batch_of_a_stream_that_is_run_again_repeats_nothing(
    spark: SparkSession, server: RunningServer, publish: Publish, tmp_path: Path
) -> None:
    """As after a crash between writing and committing: Spark runs the batch again, the topic stays as it is."""
    publish("stream.in", *range(30))
    server.create("stream.out")

    def run() -> None:
        records = (
            spark.readStream.format("himalia")
            .options(**given_to(server, subscribe="stream.in", startingOffsets="earliest", minPartitions="2"))
            .load()
        )
        query = (
            records.select("value")
            .writeStream.format("himalia")
            .options(**given_to(server, topic="stream.out", checkpointLocation=str(tmp_path)))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    run()
    assert sorted(payloads_in(server, "stream.out")) == list(range(30))
    for commit in (tmp_path / "commits").iterdir():
        commit.unlink()
    run()
    assert sorted(payloads_in(server, "stream.out")) == list(range(30))
    publish("stream.in", 30)
    run()
    assert sorted(payloads_in(server, "stream.out")) == list(range(31))
