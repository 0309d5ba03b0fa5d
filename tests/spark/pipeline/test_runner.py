"""The pipeline as a whole: a real server's log becomes tables, once, whatever happens on the way."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from himalia.errors import ConnectionFailed, DataLost, InternalError, Unauthorized, WarehouseLocked
from himalia.retry import Backoff
from himalia.spark.connector.read import READ_SCHEMA
from himalia.spark.delta import maintenance
from himalia.spark.delta.staging import StagedFiles
from himalia.spark.delta.table import Table, no_rows
from himalia.spark.pipeline import batch as batch_module
from himalia.spark.pipeline.erase import erase_rows
from himalia.spark.pipeline.runner import Pipeline, PipelineOptions, Progress
from himalia.spark.pipeline.warehouse import TABLES, schema_of
from himalia.spark.transforms import errors, executions, kernel_health, orphans, topic_activity
from himalia.spark.transforms.iopub import iopub
from himalia.spark.transforms.messages import messages
from himalia.spark.transforms.requests import STATE_SCHEMA, fold_requests, next_state
from tests.servers import RunningServer, start_server
from tests.spark.pipeline_runs import (
    all_contents,
    busy_kernel,
    contents,
    dead_kernel,
    feed,
    offsets_of,
    run_once,
    stored,
    until,
)

Publish = Callable[..., None]


class Killed(BaseException):
    """Stands for kill -9: nothing that the pipeline could catch."""


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own; the server is shared."""
    return f"{request.node.name.partition('[')[0].removeprefix('test_')}"


# What comes out


def columns_of(frame: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema}


def test_the_tables_have_the_columns_that_are_written(spark: SparkSession) -> None:
    """The columns are declared, so that a warehouse opens quickly; this keeps them true."""
    stored = messages(no_rows(spark, schema_of(f"{READ_SCHEMA}, epoch string")))
    decoded = iopub(stored)
    state = no_rows(spark, schema_of(STATE_SCHEMA))
    requests = fold_requests(state, decoded)
    rows = executions.executions(requests)
    written = {
        "messages": stored,
        "iopub": decoded,
        "executions": rows,
        "orphans": orphans.orphans(requests),
        "topic_activity": topic_activity.new_rows(stored),
        "kernel_health": kernel_health.new_rows(rows),
        "errors": errors.new_rows(rows),
    }
    assert {name: columns_of(frame) for name, frame in written.items()} == {
        name: columns_of(no_rows(spark, schema_of(schema.ddl))) for name, schema in TABLES.items()
    }
    assert columns_of(next_state(requests)) == columns_of(state)


@pytest.mark.slow
def test_however_the_log_is_cut_the_tables_are_the_same(
    spark: SparkSession, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One large batch that executors write, and several small ones that go through the driver."""
    feed(server, [*busy_kernel("cut1", 3), *busy_kernel("cut2", 2)])
    options: dict[str, Any] = {"topics": ["kernels.cut1", "kernels.cut2"], "feedback": False}
    several = run_once(server, tmp_path / "several", batch_records=25, **options)
    assert several.batches >= 3
    monkeypatch.setattr(batch_module, "SMALL_RECORDS", 0)
    whole = run_once(server, tmp_path / "whole", **options)
    assert whole.batches == 1
    assert all_contents(tmp_path / "several") == all_contents(tmp_path / "whole")
    assert len(contents(tmp_path / "whole", "executions")) == 3 + 2 + 2 * 2
    assert contents(tmp_path / "whole", "errors")


def test_a_run_takes_up_where_the_last_one_ended(
    spark: SparkSession, server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """Each record once; where nothing is new, nothing is written."""
    publish(topic, *range(3))
    assert run_once(server, warehouse, topics=[topic]).rows == 3
    publish(topic, *range(4))
    assert run_once(server, warehouse, topics=[topic]).rows == 4
    before = sorted(warehouse.rglob("*"))
    assert run_once(server, warehouse, topics=[topic]).batches == 0
    assert sorted(warehouse.rglob("*")) == before
    assert offsets_of(warehouse, topic) == list(range(7))


def test_progress_is_told(
    spark: SparkSession, server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """Stage by stage; when a batch is done, what it wrote and how much is left."""
    publish(topic, *range(5))
    told: list[Progress] = []
    run_once(server, warehouse, topics=[topic], batch_records=3, on_progress=told.append)
    first, second = [progress for progress in told if progress.stage == "done"]
    assert (first.batch, first.rows, first.total_rows, first.lag) == (1, 3, 3, 2)
    assert (second.batch, second.rows, second.total_rows, second.lag) == (2, 2, 5, 0)
    assert first.tables == {"messages": 3, "topic_activity": 1}
    assert first.rows_per_s > 0
    assert [progress.stage for progress in told if progress.batch == 1] == [
        "planned",
        "messages",
        "tables",
        "feedback",
        "positions",
        "done",
    ]


# What happens to topics


def test_topics_that_appear_and_vanish(
    spark: SparkSession, server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """Each batch reads what is there then. What was read of a topic stays when the topic goes."""
    patterns = [f"{topic}.>"]
    publish(f"{topic}.a", 1, 2)
    with Pipeline(server.url, server.token, warehouse, PipelineOptions(topics=patterns)) as pipeline:
        pipeline.run_once()
        publish(f"{topic}.b", 1)
        delete(server, f"{topic}.a")
        assert pipeline.run_once().rows == 3
        publish(f"{topic}.b", 2)
        pipeline.run_once()
    assert offsets_of(warehouse, f"{topic}.a") == [0, 1]
    assert offsets_of(warehouse, f"{topic}.b") == [0, 1]


def test_a_topic_that_was_deleted_and_created_again(
    spark: SparkSession, server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """Its new records are read from the first one on, beside the old ones, under another epoch."""
    publish(topic, "old", "old", "old")
    run_once(server, warehouse, topics=[topic])
    delete(server, topic)
    publish(topic, "new", "new")
    run_once(server, warehouse, topics=[topic])
    assert offsets_of(warehouse, topic) == [0, 0, 1, 1, 2]
    epochs = {row.partition('"epoch": ')[2][:20] for row in contents(warehouse, "messages")}
    assert len(epochs) == 2


def test_a_topic_that_goes_between_planning_and_reading(
    spark: SparkSession, server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """Records that were deleted before they were read count as lost, and the pipeline continues."""
    publish(f"{topic}.a", 1, 2)
    publish(f"{topic}.b", 1)

    def on_progress(progress: Progress) -> None:
        if progress.stage == "messages":
            delete(server, f"{topic}.a")

    summary = run_once(server, warehouse, topics=[f"{topic}.>"], on_progress=on_progress)
    assert (summary.batches, summary.lost) == (1, 2)
    assert offsets_of(warehouse, f"{topic}.b") == [0]


def test_what_retention_took_is_told(
    spark: SparkSession,
    server: RunningServer,
    publish: Publish,
    warehouse: Path,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is counted, and fatal only if that was asked for; the first time a topic is read nothing is missed."""
    server.create(topic, count=3)
    publish(topic, *range(2))
    options: dict[str, Any] = {"topics": [topic], "feedback": False}
    run_once(server, warehouse, **options)
    # Retention waits for the pipeline, which is behind now; here it is to have given up.
    delete(server, "pipeline.positions")
    publish(topic, *range(30))
    until(lambda: first_of(server, topic) > 2)
    first = first_of(server, topic)
    with pytest.raises(DataLost, match=f"offsets 2 to {first - 1} are gone"):
        run_once(server, warehouse, fail_on_data_loss=True, **options)
    with caplog.at_level(logging.WARNING, "himalia.spark"):
        summary = run_once(server, warehouse, **options)
    assert summary.lost == first - 2
    assert f"offsets 2 to {first - 1} are gone" in caplog.text
    assert offsets_of(warehouse, topic) == [0, 1, *range(first, 32)]


def delete(server: RunningServer, topic: str) -> None:
    with server.http(headers=server.headers) as http:
        http.delete(f"/topics/{topic}")


def first_of(server: RunningServer, name: str) -> int:
    with server.http(headers=server.headers) as http:
        topics = http.get("/topics").json()["topics"]
    return next(int(topic["first"]) for topic in topics if topic["name"] == name)


# Being killed


class Mortal:
    """Kills the pipeline right after so many of its commits: from then on nothing more is written or published."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
        self.is_dead = False
        self._left = commits
        self._lock = threading.Lock()
        commit, publish = Table.commit, batch_module.Feedback.publish
        mortal = self

        def mortal_commit(table: Table, batch: int, staged: StagedFiles, **options: Any) -> None:
            with mortal._lock:
                mortal.check()
                commit(table, batch, staged, **options)
                mortal._left -= 1
                mortal.is_dead = not mortal._left
                mortal.check()

        def mortal_publish(feedback: Any, topic: str, batch: int, rows: pa.Table) -> int:
            mortal.check()
            return publish(feedback, topic, batch, rows)

        monkeypatch.setattr(Table, "commit", mortal_commit)
        monkeypatch.setattr(batch_module.Feedback, "publish", mortal_publish)

    def check(self) -> None:
        if self.is_dead:
            raise Killed


def killed_after(commits: int, server: RunningServer, warehouse: Path, pattern: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Mortal(patch, commits)
        with pytest.raises(Killed):
            run_once(server, warehouse, topics=[pattern])


def activity(warehouse: Path) -> dict[str, int]:
    """Messages by topic, as ``topic_activity`` has them."""
    rows = map(json.loads, contents(warehouse, "topic_activity"))
    return {row["topic"]: row["messages"] for row in rows}


def published(server: RunningServer) -> dict[str, int]:
    """Count the rows published so far, by table."""
    return {name: len(stored(server, f"pipeline.{name}")) for name in ("topic_activity", "kernel_health")}


@pytest.mark.slow
def test_killed_between_any_two_commits(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    """A batch that is killed after its first commit, then after the next, and so on, is the batch it would have been.

    Nothing is lost, nothing is there twice, and what was published was published once.
    """
    options: dict[str, Any] = {"topics": ["kernels.killed"]}
    expected, warehouse = tmp_path / "expected", tmp_path / "warehouse"
    records = dead_kernel("killed", 2)
    # The second batch continues from a state: a request is open, and a message waits.
    feed(server, records[:12])
    run_once(server, expected, **options)
    run_once(server, warehouse, **options)
    before = published(server)
    feed(server, records[12:])
    run_once(server, expected, **options)
    told = published(server)
    # How many that is depends on the hour: a window may end between the two halves.
    assert all(told[name] > before[name] for name in told)
    deaths = 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            mortal = Mortal(patch, commits=1)
            try:
                run_once(server, warehouse, **options)
            except Killed:
                deaths += 1
                assert mortal.is_dead
            else:
                break
    # Every table, the state, the positions.
    assert deaths == len(TABLES) + 2
    assert all_contents(warehouse) == all_contents(expected)
    assert published(server) == {name: 2 * told[name] - before[name] for name in told}


def test_killed_before_the_positions_are_known(
    spark: SparkSession, server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """A batch whose records are in ``messages`` is not read from the log again: its topic may be gone."""
    publish(topic, *range(5))
    killed_after(1, server, warehouse, topic)
    delete(server, topic)
    summary = run_once(server, warehouse, topics=[topic])
    assert (summary.batches, summary.rows, summary.lost) == (1, 5, 0)
    assert offsets_of(warehouse, topic) == list(range(5))
    assert activity(warehouse) == {topic: 5}


def test_a_batch_that_was_begun_has_lost_nothing(
    spark: SparkSession, server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """What retention took of it is in ``messages``: it is neither a loss nor behind."""
    server.create(topic, count=20)
    publish(topic, *range(5))
    options: dict[str, Any] = {"topics": [topic], "fail_on_data_loss": True}
    run_once(server, warehouse, **options)
    publish(topic, *range(10))
    killed_after(1, server, warehouse, topic)
    delete(server, "pipeline.positions")
    publish(topic, *range(18))
    until(lambda: first_of(server, topic) > 5)
    told: list[Progress] = []
    summary = run_once(server, warehouse, on_progress=told.append, **options)
    assert (summary.batches, summary.rows, summary.lost) == (2, 28, 0)
    assert [progress.lag for progress in told if progress.stage == "done"] == [18, 0]
    assert offsets_of(warehouse, topic) == list(range(33))


def test_forgetting_in_the_middle_of_a_batch(
    spark: SparkSession, server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """What was erased after a run was killed does not come back when the next one takes up the batch."""
    publish(f"{topic}.a", *range(3))
    publish(f"{topic}.b", *range(3))
    killed_after(1, server, warehouse, f"{topic}.>")
    assert erase_rows(warehouse, f"topic = '{topic}.a' and \"offset\" > 0")["messages"] == 2
    run_once(server, warehouse, topics=[f"{topic}.>"])
    assert offsets_of(warehouse, f"{topic}.a") == [0]
    assert activity(warehouse) == {f"{topic}.a": 1, f"{topic}.b": 3}


def test_a_batch_that_fails_is_tried_again(
    spark: SparkSession,
    server: RunningServer,
    publish: Publish,
    warehouse: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unexpected error ends a run only when it recurs; no file of the failed attempt stays."""
    publish(topic, *range(5))
    commit = Table.commit
    failures = [OSError("the disk went away"), OSError("and again")]

    def failing_commit(table: Table, batch: int, staged: StagedFiles, **options: Any) -> None:
        if table.path.name == "topic_activity" and failures:
            raise failures.pop()
        commit(table, batch, staged, **options)

    monkeypatch.setattr(Table, "commit", failing_commit)
    assert run_once(server, warehouse, topics=[topic], feedback=False).batches == 1
    assert len(list((warehouse / "topic_activity").glob("hour=*/*.parquet"))) == 1
    publish(topic, *range(5))
    failures += [OSError("for good")] * 3
    with pytest.raises(InternalError, match="failed 3 times, the last time with: for good"):
        run_once(server, warehouse, topics=[topic], feedback=False)


@pytest.mark.slow
def test_every_commit_fails(
    spark: SparkSession, server: RunningServer, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error behind a commit that was made; and instead of it, in tables that are written beside others.

    The run continues, and each row is there once.
    """
    feed(server, dead_kernel("fails", 2))
    options: dict[str, Any] = {"topics": ["kernels.fails"], "feedback": False}
    run_once(server, warehouse.with_name("expected"), **options)
    commit, left = Table.commit, {name: ["behind"] for name in (*TABLES, "requests", "positions")}
    for name in ("topic_activity", "kernel_health", "errors", "orphans"):
        left[name].append("instead")

    def failing_commit(table: Table, batch: int, staged: StagedFiles, **options: Any) -> None:
        fails = left[table.path.name].pop() if left[table.path.name] else ""
        if fails != "instead":
            commit(table, batch, staged, **options)
        if fails:
            raise ConnectionFailed("the disk was slow to answer")

    monkeypatch.setattr(Table, "commit", failing_commit)
    monkeypatch.setattr(Backoff, "next_s", lambda backoff: 0.0)
    run_once(server, warehouse, **options)
    assert not any(left.values())
    assert all_contents(warehouse) == all_contents(warehouse.with_name("expected"))
    assert contents(warehouse, "orphans")


# Running on


@pytest.fixture
def running(
    spark: SparkSession, server: RunningServer, warehouse: Path, topic: str
) -> Iterator[Callable[..., Pipeline]]:
    """Start a pipeline that looks for more all the time; it is stopped at the end."""
    started: list[tuple[Pipeline, threading.Thread]] = []
    failures: list[BaseException] = []

    def start(**options: Any) -> Pipeline:
        entered = threading.Event()
        options = {"topics": [topic], "feedback": False} | options
        url, token = options.pop("url", server.url), options.pop("token", server.token)
        pipeline = Pipeline(url, token, warehouse, PipelineOptions(**options))

        def run() -> None:
            try:
                with pipeline as loop:
                    entered.set()
                    loop.run(0.05)
            except BaseException as error:
                failures.append(error)
            finally:
                entered.set()

        thread = threading.Thread(target=run)
        thread.start()
        started.append((pipeline, thread))
        assert entered.wait(60) and not failures, failures
        return pipeline

    yield start
    for pipeline, thread in started:
        pipeline.stop()
        thread.join(60)
        assert not thread.is_alive()
    assert not failures


def has(warehouse: Path, topic: str, count: int) -> bool:
    return offsets_of(warehouse, topic) == list(range(count))


def test_a_run_goes_on_with_what_comes(
    running: Callable[..., Pipeline], publish: Publish, warehouse: Path, topic: str
) -> None:
    publish(topic, 1)
    running()
    for count in range(2, 5):
        publish(topic, count)
        until(lambda count=count: has(warehouse, topic, count))  # type: ignore[misc]


def test_a_second_run_is_refused(
    running: Callable[..., Pipeline], server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """Its error names the process that has the warehouse, whose run is not disturbed."""
    publish(topic, 1)
    running()
    with pytest.raises(WarehouseLocked, match="in use by process"):
        run_once(server, warehouse, topics=[topic])
    publish(topic, 2)
    until(lambda: has(warehouse, topic, 2))


def test_a_server_that_restarts(
    running: Callable[..., Pipeline], tmp_path: Path, warehouse: Path, topic: str
) -> None:
    """The run waits for it, and continues where it was."""
    settings: dict[str, Any] = {"log": f"sqlite://{tmp_path}/own.db", "kernels": False, "auth": False}
    server = start_server(**settings)
    port = server.port
    server.create(topic)
    try:
        publish_to(server, topic, 1)
        running(url=server.url, token=None)
        until(lambda: has(warehouse, topic, 1))
        server.stop()
        server = start_server_on(port, **settings)
        publish_to(server, topic, 2)
        until(lambda: has(warehouse, topic, 2))
    finally:
        server.stop()


def publish_to(server: RunningServer, topic: str, payload: Any) -> None:
    with server.http() as http:
        http.post(f"/topics/{topic}/messages", json={"payload": payload}).raise_for_status()


def start_server_on(port: int, **settings: Any) -> RunningServer:
    from himalia.settings import Settings

    return RunningServer(Settings(port=port, log_level="warning", **settings))


def test_stopping_ends_a_batch_that_takes_long(
    running: Callable[..., Pipeline],
    server: RunningServer,
    publish: Publish,
    warehouse: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is cancelled, and the next run completes it."""
    publish(topic, *range(5))
    began, rows_of = threading.Event(), Table.rows

    def slow_rows(table: Table, spark: SparkSession, files: Any = None) -> DataFrame:
        began.set()
        frame = rows_of(table, spark, files)
        return frame.where(
            "java_method('java.lang.Thread', 'sleep', bigint(1000 * (1 + offset % 50))) = 'null'"
        )

    with monkeypatch.context() as patch:
        patch.setattr(Table, "rows", slow_rows)
        pipeline = running()
        assert began.wait(60)
        pipeline.stop()
        pipeline.stop()
        until(lambda: not (warehouse / "lock").read_text(), within_s=20)
    assert offsets_of(warehouse, topic) == list(range(5))
    assert not contents(warehouse, "topic_activity")
    assert run_once(server, warehouse, topics=[topic]).batches == 1
    assert len(contents(warehouse, "topic_activity")) == 1


def test_upkeep_changes_nothing(
    spark: SparkSession,
    server: RunningServer,
    publish: Publish,
    warehouse: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With files joined and cleared away after every batch, rows and positions are as without."""
    monkeypatch.setattr(maintenance, "LEVELS", (maintenance.CompactionLevel(1, 8 * maintenance.MIB),))
    monkeypatch.setattr(maintenance, "VACUUM_EVERY", 1)
    monkeypatch.setattr(maintenance, "KEEP_HOURS", 0)
    for _ in range(3):
        publish(topic, *range(4))
        run_once(server, warehouse, topics=[topic], feedback=False)
    assert offsets_of(warehouse, topic) == list(range(12))
    for name in ("messages", "topic_activity", "state/positions"):
        files = [file for file in (warehouse / name).rglob("*.parquet") if "_delta_log" not in file.parts]
        assert len(files) == 1, name


# What a user can get wrong


def test_a_server_that_is_not_there_is_told(spark: SparkSession, warehouse: Path) -> None:
    with (
        pytest.raises(ConnectionFailed, match="no server answers at"),
        Pipeline("http://127.0.0.1:1", "token", warehouse),
    ):
        pass


def test_another_programs_answer_is_told(spark: SparkSession, warehouse: Path) -> None:
    """A URL at which something else answers is one sentence."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SomethingElse) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        with pytest.raises(ConnectionFailed, match="unexpected response 200 from"):
            Pipeline(url, None, warehouse).__enter__()
        other.shutdown()


class SomethingElse(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"topics": [17]}')

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


def test_a_wrong_token_is_told(spark: SparkSession, server: RunningServer, warehouse: Path) -> None:
    with pytest.raises(Unauthorized), Pipeline(server.url, "wrong", warehouse):
        pass


def test_what_is_published_is_what_the_tables_say(
    spark: SparkSession, server: RunningServer, warehouse: Path
) -> None:
    """Row for row, as it is after the last batch that changed it."""
    feed(server, busy_kernel("told", 2))
    run_once(server, warehouse, topics=["kernels.told"])
    keys = {"topic_activity": "topic", "kernel_health": "kernel_id", "errors": "last_kernel_id"}
    for table, key in keys.items():
        [row] = DeltaTable(warehouse / table).to_pyarrow_table().to_pylist()
        [told] = [found for found in stored(server, f"pipeline.{table}") if found[key] == row[key]]
        assert told == msgspec.to_builtins({name: row[name] for name in told})
        assert row.keys() - told.keys() <= {"histogram", "hour"}


def test_positions_are_told_to_the_server(
    spark: SparkSession, server: RunningServer, publish: Publish, warehouse: Path, topic: str
) -> None:
    """The newest record says where the pipeline is, so that retention can wait for it."""
    publish(topic, 1, 2, 3)
    run_once(server, warehouse, topics=[topic], feedback=False)
    [position] = stored(server, "pipeline.positions")[-1]["positions"].values()
    assert position["offset"] == 3
