"""What a user sees when something is wrong: one sentence, from the driver where that is possible."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from himalia.errors import BadRequest, ConnectionFailed
from himalia.spark.connector.address import ServerAddress, resolve_address
from himalia.spark.connector.errors import HIDE_TRACEBACK, hide_traceback
from himalia.spark.connector.http import ServerConnection
from himalia.spark.connector.offset_ranges import OffsetRange, TopicExtent
from himalia.spark.connector.options import parse_write_options
from himalia.spark.connector.read import BatchReader, RangesPartition
from himalia.spark.connector.topics import fetch_offsets_at
from himalia.spark.connector.write import write_rows
from himalia.spark.package import write_package
from tests.servers import RunningServer
from tests.spark.connector.test_writing import batch_of
from tests.spark.test_cluster import bare_python


def told_by(work: Callable[[], object], kind: type[PySparkException]) -> str:
    """What an exception says, which is short and has no frames of anybody's in it."""
    with pytest.raises(kind) as caught:
        work()
    told = str(caught.value)
    assert "Traceback" not in told
    assert 'File "' not in told
    assert len(told) < 500
    return told


@pytest.mark.slow
def test_reading_fails_in_a_sentence(spark: SparkSession, server: RunningServer) -> None:
    """A slip in the options when the query is begun; the rest when it is planned."""
    server.create("orders")

    def read(**options: str) -> Callable[[], object]:
        given = {"url": server.url, "token": server.token or "", "subscribe": "orders", **options}
        return spark.read.format("himalia").options(**given).load().count

    told = told_by(lambda: read(failOnDataLos="true"), AnalysisException)
    assert "himalia.errors.BadRequest: 'failondatalos' is not an option for reading topics" in told
    assert "did you mean failOnDataLoss?" in told
    told = told_by(read(token="wrong"), AnalysisException)
    assert "himalia.errors.Unauthorized: invalid key" in told
    told = told_by(read(subscribe="payments"), AnalysisException)
    assert "himalia.errors.TopicNotFound: topic 'payments' does not exist" in told
    told = told_by(read(url="http://127.0.0.1:1"), AnalysisException)
    assert "himalia.errors.ConnectionFailed: no server answers at http://127.0.0.1:1; start one with" in told
    schema = spark.read.format("himalia").schema("value string").options(url=server.url, subscribe="orders")
    told = told_by(lambda: schema.load().count(), AnalysisException)
    assert "himalia.errors.BadRequest: the schema of a topic is topic string, offset bigint" in told
    told = told_by(read(url="http://127.0.0.1:80o0"), AnalysisException)
    assert "himalia.errors.BadRequest: 'http://127.0.0.1:80o0' is not the URL of a server" in told


@pytest.mark.slow
def test_writing_fails_in_a_sentence(spark: SparkSession, server: RunningServer) -> None:
    """Before it begins where that can be known then; otherwise in the task that finds out."""
    server.create("payments")

    def write(value: str, **options: str) -> Callable[[], object]:
        rows = spark.range(1).select(F.lit(value).alias("value"))
        given = {"url": server.url, "token": server.token or "", "topic": "payments", **options}
        return rows.write.format("himalia").mode("append").options(**given).save

    told = told_by(write("1", topic="nowhere"), AnalysisException)
    assert "himalia.errors.TopicNotFound: topic 'nowhere' does not exist" in told
    told = told_by(write("not json"), PythonException)
    assert "himalia.errors.BadRequest: a value is not JSON: 'not json'" in told


@pytest.mark.slow
def test_a_task_that_finds_records_gone_says_which(
    spark: SparkSession, server: RunningServer, publish: Callable[..., None]
) -> None:
    """A topic that is deleted after the query was planned: the task's own sentence comes to the user."""
    publish("vanishing", *range(10))
    given = {"url": server.url, "token": server.token or "", "subscribe": "vanishing"}
    records = spark.read.format("himalia").options(**given).load()
    assert records.rdd.getNumPartitions() == 1
    with server.http(headers=server.headers) as http:
        http.delete("/topics/vanishing").raise_for_status()
    told = told_by(records.collect, PythonException)
    assert "himalia.errors.DataLost: topic 'vanishing': offsets 0 to 9 are gone" in told


@pytest.mark.slow
def test_a_stream_to_a_wrong_url_ends_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """A server that never answered is not waited for, however patient the query would be later."""
    options = {"url": "http://127.0.0.1:1", "token": "t", "topic": "x", "retrySeconds": "100000"}
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = (
        rows.select(F.lit("1").alias("value"))
        .writeStream.format("himalia")
        .options(**options, checkpointLocation=str(tmp_path))
        .start()
    )
    try:
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(60)
    finally:
        query.stop()
    assert "himalia.errors.ConnectionFailed: no server answers at http://127.0.0.1:1" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:80o0",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://.example",
        "http://a b",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/ü",
        "http://",
        "ftp://127.0.0.1",
    ],
)
def test_a_url_that_is_none_is_told(url: str) -> None:
    """Also where a token is given, and nothing has to be looked for."""
    with pytest.raises(BadRequest, match="is not the URL of a server; use the form http://127"):
        resolve_address({"url": url, "token": "t"})


@pytest.mark.parametrize("token", ["secret\nsecret", "secret\x00", "sécret", "秘密secret"])
def test_a_token_that_is_none_is_told_and_not_shown(token: str) -> None:
    with pytest.raises(BadRequest, match="the token contains a line break or a character") as caught:
        resolve_address({"url": "http://127.0.0.1:1", "token": token})
    assert "cret" not in str(caught.value)


def test_what_was_read_from_a_file_may_end_in_a_line_break() -> None:
    found = resolve_address({"url": " http://127.0.0.1:1/\n", "token": "t\n"})
    assert (found.url, found.token) == ("http://127.0.0.1:1", "t")


def test_a_token_is_that_of_the_option_then_of_the_url_then_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HIMALIA_TOKEN", "environment")
    assert resolve_address({"url": "http://h:1/?token=url", "token": "option"}).token == "option"
    assert resolve_address({"url": "http://h:1/?token=url"}).token == "url"
    assert resolve_address({"url": "http://h:1"}).token == "environment"


def test_where_only_the_package_for_executors_is_the_server_has_to_be_named(tmp_path: Path) -> None:
    """With a zip file and nothing else no server can be found by itself: a sentence says what to give."""
    package = write_package(tmp_path / "himalia.zip")
    program = (
        f"import sys; sys.path.insert(0, {str(package)!r})\n"
        "from himalia.errors import BadRequest\n"
        "from himalia.spark.connector.address import resolve_address\n"
        "print(resolve_address({'url': 'http://h:1', 'token': 't'}).url)\n"
        "try: resolve_address({'url': 'http://h:1'})\n"
        "except BadRequest as error: print(error)\n"
    )
    ran = subprocess.run([bare_python(tmp_path), "-c", program], capture_output=True, text=True)
    assert ran.stdout.splitlines()[0] == "http://h:1", ran.stderr
    assert ran.stdout.splitlines()[1].startswith(
        "set the options url, such as http://10.0.0.1:8000, and token"
    )


@contextmanager
def foreign_server(body: bytes) -> Iterator[str]:
    """A server that is not Himalia: it responds to every request with the same body and status 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "body",
    [
        b"<html>hello</html>",
        b"\xff",
        b"[]",
        b"null",
        b'{"items": []}',
        b'{"topics": [1], "messages": [1]}',
        b'{"topics": [{"name": "x"}], "messages": [{"id": 1}]}',
        b'{"topics": [{"name": "x", "epoch": "e", "first": null, "end": 1}], "messages": 7}',
    ],
)
def test_an_answer_of_another_server_is_told(body: bytes) -> None:
    """Whatever it is that was asked: topics, a time, records, or to store something.

    Without a token: with one, a program that does not prove that it knows it is asked nothing else.
    """
    with foreign_server(body) as url:
        address = ServerAddress(url, None)
        reader = BatchReader({"url": url, "subscribe": "x", "retrySeconds": "0"})
        rows = iter([batch_of(value=["1"])])
        told = f"^unexpected response 200 from {url}: it is not a Himalia server; check the URL$"
        with pytest.raises(ConnectionFailed, match=told):
            reader.partitions()
        with pytest.raises(ConnectionFailed, match=told), ServerConnection(address) as connection:
            fetch_offsets_at(connection, [TopicExtent("x", "e", 0, 1)], datetime.now(UTC))
        with pytest.raises(ConnectionFailed, match=told):
            list(reader.read(RangesPartition(address, [OffsetRange("x", "e", 0, 1)])))
        with pytest.raises(ConnectionFailed, match=told):
            write_rows(rows, address, parse_write_options({"topic": "x", "retrySeconds": "0"}), "job", 0)


def test_only_a_worker_hides_its_frames() -> None:
    """In a user's program, an error keeps its traceback and the environment is left alone."""
    with pytest.raises(BadRequest), hide_traceback():
        raise BadRequest("no")
    assert HIDE_TRACEBACK not in os.environ
