"""What is published of a batch's results, on a real server. Spark is not needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from himalia.record import Position
from himalia.spark.pipeline import feedback as module
from himalia.spark.pipeline.feedback import Feedback, select_by_keys
from himalia.spark.pipeline.server_client import ServerClient
from tests.server.identity.credentials import write_keys
from tests.servers import RunningServer

READER = """
[keys.reader]
key = "only-reads-only-reads-only-reads"
subscribe = [">"]
"""


def minute(number: int) -> datetime:
    return datetime(2026, 11, 16, 2, number, tzinfo=UTC)


def activity(*rows: tuple[str, int, int]) -> pa.Table:
    return pa.table(
        {
            "topic": [topic for topic, _, _ in rows],
            "minute": pa.array([minute(at) for _, at, _ in rows], pa.timestamp("us", "UTC")),
            "messages": [count for _, _, count in rows],
            "histogram": pa.array([[(1, 2)] for _ in rows], pa.map_(pa.int32(), pa.int64())),
        }
    )


@pytest.fixture
def connected(server: RunningServer) -> Iterator[ServerClient]:
    found = ServerClient(server.url, server.token)
    yield found
    found.close()


def stored(server: RunningServer, topic: str) -> list[Any]:
    with server.http(headers=server.headers) as http:
        answer = http.get(f"/topics/{topic}/messages?from=0&limit=100000").raise_for_status().json()
    return [found["message"]["payload"] for found in answer["messages"]]


def test_rows_are_chosen_by_their_keys() -> None:
    rows = activity(("a", 0, 1), ("a", 1, 2), ("b", 0, 3))
    touched = activity(("a", 1, 0), ("b", 0, 0)).select(["topic", "minute"])
    assert select_by_keys(rows, touched)["messages"].to_pylist() == [2, 3]


def test_a_row_is_published_as_json(connected: ServerClient, server: RunningServer) -> None:
    """Times are ISO 8601; what only merging needs is left out."""
    feedback = Feedback(connected, "w1")
    assert feedback.publish("pipeline.activity", 1, activity(("a", 7, 3))) == 1
    expected = {"topic": "a", "minute": "2026-11-16T02:07:00Z", "messages": 3}
    assert stored(server, "pipeline.activity") == [expected]


def test_a_batch_is_published_once(
    connected: ServerClient, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was published in part, by a run that is gone; the next batch is another matter."""
    monkeypatch.setattr(module, "BODY_ROWS", 2)
    rows = activity(*(("a", number, number) for number in range(7)))
    Feedback(connected, "w1").publish("pipeline.once", 5, rows.slice(0, 4))
    for _ in range(2):
        Feedback(connected, "w1").publish("pipeline.once", 5, rows)
    assert [row["messages"] for row in stored(server, "pipeline.once")] == list(range(7))
    Feedback(connected, "w1").publish("pipeline.once", 6, rows.slice(0, 1))
    assert len(stored(server, "pipeline.once")) == 8


def test_a_row_too_long_for_a_message_is_told_without_its_lists(
    connected: ServerClient, server: RunningServer
) -> None:
    kernels = pa.array([["k" * 40] * 20_000])
    rows = pa.table({"ename": ["ValueError"], "kernels": kernels})
    assert Feedback(connected, "w1").publish("pipeline.long", 1, rows) == 1
    assert stored(server, "pipeline.long") == [{"ename": "ValueError", "truncated": True}]


def test_a_text_too_long_for_a_message_is_cut(connected: ServerClient, server: RunningServer) -> None:
    """One error with a megabyte to say does not keep the others from being told."""
    rows = pa.table({"ename": ["ValueError", "KeyError"], "last_evalue": ["E" * 1_200_000, "k"]})
    assert Feedback(connected, "w1").publish("pipeline.text", 1, rows) == 2
    cut, whole = stored(server, "pipeline.text")
    assert cut == {"ename": "ValueError", "last_evalue": "E" * 4_000, "truncated": True}
    assert whole == {"ename": "KeyError", "last_evalue": "k"}


def test_many_long_rows_are_told_in_several_bodies(
    connected: ServerClient, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server takes only so much at a time."""
    monkeypatch.setattr(module, "BODY_BYTES_MAX", 10_000)
    rows = pa.table({"ename": [str(number) for number in range(9)], "last_evalue": ["e" * 4_000] * 9})
    assert Feedback(connected, "w1").publish("pipeline.bodies", 1, rows) == 9
    assert [row["ename"] for row in stored(server, "pipeline.bodies")] == [str(number) for number in range(9)]


def test_a_topic_that_was_deleted_meanwhile_is_made_again(
    connected: ServerClient, server: RunningServer
) -> None:
    """A topic that a user deletes does not end the pipeline."""
    feedback = Feedback(connected, "w1")
    for batch in (1, 2):
        assert feedback.publish("pipeline.again", batch, activity(("a", batch, batch))) == 1
        if batch == 1:
            with server.http(headers=server.headers) as http:
                http.delete("/topics/pipeline.again").raise_for_status()
    assert [row["messages"] for row in stored(server, "pipeline.again")] == [2]


def test_a_server_that_takes_no_more_topics_ends_nothing(
    serve: Callable[..., RunningServer], caplog: pytest.LogCaptureFixture
) -> None:
    """It is said with the server's own reason, and told again as soon as it can be."""
    server = serve(kernels=False, topics_max=1)
    server.create("only")
    feedback = Feedback(ServerClient(server.url, server.token), "w1")
    with caplog.at_level(logging.WARNING, "himalia.spark"):
        assert feedback.publish("pipeline.activity", 1, activity(("a", 7, 3))) == 0
    assert (
        "cannot publish the changed rows to pipeline.activity" in caplog.text and "rights" not in caplog.text
    )
    with server.http(headers=server.headers) as http:
        http.delete("/topics/only").raise_for_status()
    assert feedback.publish("pipeline.activity", 2, activity(("a", 7, 3))) == 1


def test_positions_are_told_in_one_message(connected: ServerClient, server: RunningServer) -> None:
    """The newest holds them all; if there are more than a message can hold, as many as it can."""
    feedback = Feedback(connected, "w1")
    feedback.publish_positions({"orders": Position(17, "e1")})
    feedback.publish_positions({f"kernels.{n}": Position(n, "e" * 16) for n in range(30_000)})
    first, second = stored(server, "pipeline.positions")
    assert first == {"positions": {"orders": {"offset": 17, "epoch": "e1"}}}
    assert len(second["positions"]) > 10_000


def test_a_server_that_ended_an_idle_connection_is_asked_again(connected: ServerClient) -> None:
    """Uvicorn closes them after some seconds; the pipeline reconnects."""
    connected.topics()
    connection = connected._connection
    assert connection is not None and connection._http is not None
    # As it is when the other side has closed.
    connection._http.sock.close()
    assert isinstance(connected.topics(), list)


def test_without_the_right_it_is_said_once(
    serve: Callable[..., RunningServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(keys_file=write_keys(tmp_path / "keys.toml", READER), kernels=False)
    feedback = Feedback(ServerClient(server.url, "only-reads-only-reads-only-reads"), "w1")
    with caplog.at_level(logging.WARNING, "himalia.spark"):
        for batch in range(1, 4):
            assert feedback.publish("pipeline.activity", batch, activity(("a", 7, 3))) == 0
            feedback.publish_positions({})
    [record] = [one for one in caplog.records if one.name.startswith("himalia.spark")]
    assert "manage on 'pipeline.>'" in record.getMessage()
