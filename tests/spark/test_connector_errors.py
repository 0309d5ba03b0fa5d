"""What a user sees when something is wrong: one sentence, from the driver where that is possible."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from himalia.errors import BadRequest
from himalia.spark.connector.failing import HIDE_TRACEBACK, in_one_sentence
from tests.serving import RunningServer


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
    assert "himalia.errors.Unauthorized: this key is not known here" in told
    told = told_by(read(subscribe="payments"), AnalysisException)
    assert "himalia.errors.TopicNotFound: topic 'payments' does not exist" in told
    told = told_by(read(url="http://127.0.0.1:1"), AnalysisException)
    assert "himalia.errors.ConnectionFailed: no server answers at http://127.0.0.1:1; start one with" in told
    schema = spark.read.format("himalia").schema("value string").options(url=server.url, subscribe="orders")
    told = told_by(lambda: schema.load().count(), AnalysisException)
    assert "himalia.errors.BadRequest: topics are read as topic string, offset bigint" in told


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


def test_only_a_worker_hides_its_frames() -> None:
    """In a program of its own, an error keeps its traceback and the environment is left alone."""
    with pytest.raises(BadRequest), in_one_sentence():
        raise BadRequest("no")
    assert HIDE_TRACEBACK not in os.environ
