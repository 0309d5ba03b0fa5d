"""What goes wrong with kernels and their traffic, by name: what the tables say of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from himalia.spark.transforms import bounded_text, requests
from himalia.spark.transforms.iopub import iopub
from tests.spark.traffic import Row, TopicBuilder, stored
from tests.spark.transforms.fold_checks import FoldResult, fold, fold_batch, interpreted

AN_HOUR_S = 3600.0


def late_output() -> TopicBuilder:
    """A thread prints after its cell has ended, 30 s later and within what is remembered."""
    builder = TopicBuilder("late")
    builder.whole("r", "in time\n")
    builder.stream("r", "late\n", at=30)
    return builder


def out_of_order() -> TopicBuilder:
    """The kernel's messages overtake the request, and the reply overtakes the output."""
    builder = TopicBuilder("order")
    builder.busy("r")
    builder.stream("r", "early ")
    builder.queued("r", at=1)
    builder.sent("r")
    builder.reply("r")
    builder.stream("r", "and after the reply")
    builder.idle("r")
    builder.closed("r")
    return builder


def malformed() -> TopicBuilder:
    """Payloads that are no Jupyter messages, in the middle of a request."""
    builder = TopicBuilder("malformed")
    builder.queued("r")
    builder.busy("r")
    headers = builder.stream("r", "good").headers
    for number, payload in enumerate(('{"header": {', '"a text"', '{"content": 5}')):
        builder.record(f"broken-{number}", headers, payload)
    builder.closed("r")
    return builder


def created_again() -> list[Row]:
    """A topic that is deleted while a request runs, and created again."""
    before, after = TopicBuilder("again", epoch="b"), TopicBuilder("again", epoch="a", at=10)
    before.queued("r")
    before.busy("r")
    after.whole("r", "anew")
    return before.rows + after.rows


def skewed() -> list[Row]:
    """One kernel's records are an hour ahead of another's, whose message still waits for its request."""
    ahead, behind = TopicBuilder("ahead", at=AN_HOUR_S), TopicBuilder("behind")
    ahead.whole("r")
    behind.stream("unknown", "?")
    behind.whole("r", at=59)
    return ahead.rows + behind.rows


def died() -> TopicBuilder:
    """A kernel dies in the middle of a cell, with another one queued."""
    builder = TopicBuilder("died")
    builder.queued("running")
    builder.sent("running")
    builder.busy("running", at=1)
    builder.queued("waiting")
    builder.event("died", at=3, reason="signal 9")
    return builder


def orphaned() -> TopicBuilder:
    """A message whose request does not appear within 60 s, and one that has no parent."""
    builder = TopicBuilder("orphaned")
    builder.stream("nobody", "who am I?")
    builder.message("status", "", {"execution_state": "starting"})
    builder.whole("r", at=60.001)
    return builder


def asked() -> TopicBuilder:
    """Requests of callers that are known by name: one never ran; one of an earlier version; one that a kernel says."""
    builder = TopicBuilder("asked")
    builder.event("request_queued", "ran", code="1", caller="key:ann")
    builder.event("request_queued", "aborted", code="1", caller="key:bob")
    builder.sent("ran")
    builder.closed("ran")
    builder.closed("aborted", "aborted")
    builder.queued("older")
    builder.sent("older")
    builder.closed("older")
    builder.busy("forged")
    builder.input("forged")
    builder.idle("forged")
    return builder


SCENARIOS = (late_output, out_of_order, malformed, created_again, skewed, died, orphaned, asked)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    built = (scenario() for scenario in SCENARIOS)
    return [row for one in built for row in (one.rows if isinstance(one, TopicBuilder) else one)]


@pytest.fixture(scope="module")
def folded(spark: SparkSession, rows: list[Row]) -> Iterator[FoldResult]:
    """All scenarios in one batch, each with its own kernels."""
    with interpreted(spark):
        yield fold(spark, [rows])


def executions(folded: FoldResult, kernel_id: str) -> list[dict[str, Any]]:
    found = [row for row in folded.closed + folded.running if row["kernel_id"] == kernel_id]
    return sorted(found, key=lambda row: row["request_id"])


def orphans(folded: FoldResult, kernel_id: str) -> list[str]:
    return [row["parent_id"] for row in folded.orphans if row["kernel_id"] == kernel_id]


def test_late_output_belongs_to_nobody(folded: FoldResult) -> None:
    """It is not in the row, which never changes, and it is no orphan either, since its request is known."""
    [row] = executions(folded, "late")
    assert (row["status"], row["stdout"], row["stream_messages"]) == ("ok", "in time\n", 1)
    assert not orphans(folded, "late")


def test_messages_out_of_order_are_all_counted(folded: FoldResult) -> None:
    [row] = executions(folded, "order")
    assert (row["status"], row["stdout"]) == ("ok", "early and after the reply")
    assert (row["status_messages"], row["stream_messages"], row["first_offset"]) == (2, 2, 0)


def test_malformed_payloads_are_kept_and_marked(spark: SparkSession, rows: list[Row]) -> None:
    with interpreted(spark):
        decoded = iopub(stored(spark, [row for row in rows if "malformed" in row.topic]))
        found = {row.id: row.malformed for row in decoded.select("id", "malformed").collect()}
    assert [id for id, is_malformed in found.items() if is_malformed] == ["broken-0", "broken-1", "broken-2"]
    assert len(found) == 7


def test_what_people_ask_for_is_a_column(spark: SparkSession) -> None:
    """Of a message that has it; in others the column is null."""
    builder = TopicBuilder("fields")
    builder.error("r", "KeyError", "'k'")
    builder.display("r", {"text/html": "<b>", "image/png": "x"})
    builder.comm("r")
    builder.input("r", "code()", 7)
    builder.event("died", reason="signal 9")
    names = (
        "traceback, display_id, comm_id, mime_types, code, execution_count, event, reason, parent_username"
    )
    with interpreted(spark):
        found = iopub(stored(spark, builder.rows)).orderBy("offset").collect()
    said = [{name: row[name] for name in names.split(", ") if row[name] is not None} for row in found]
    assert said == [
        {"traceback": ["a", "b"], "parent_username": "cu"},
        {"display_id": "d1", "mime_types": ["image/png", "text/html"], "parent_username": "cu"},
        {"comm_id": "c1", "parent_username": "cu"},
        {"code": "code()", "execution_count": 7, "parent_username": "cu"},
        {"event": "died", "reason": "signal 9"},
    ]
    assert [row["payload_bytes"] for row in found] == [len(row.value.encode()) for row in builder.rows]


def test_malformed_payloads_do_not_harm_their_request(folded: FoldResult) -> None:
    [row] = executions(folded, "malformed")
    assert (row["status"], row["stdout"]) == ("ok", "good")
    assert row["stream_messages"] == 4, "their headers say what they are"


def test_a_topic_deleted_and_created_again_is_two(folded: FoldResult) -> None:
    """What ran in the old one is stale; the same request id in the new one is another request."""
    old, new = sorted(executions(folded, "again"), key=lambda row: row["epoch"], reverse=True)
    assert (old["status"], old["reason"], old["finished"]) == (
        "stale",
        "the topic was deleted",
        new["queued"],
    )
    assert (new["status"], new["stdout"]) == ("ok", "anew")


def test_clocks_that_differ_do_not_meet(folded: FoldResult) -> None:
    """Each topic has its own time: what happens elsewhere makes nothing older."""
    assert [row["status"] for row in executions(folded, "behind")] == ["ok"]
    assert not orphans(folded, "behind")
    assert "waiting" in folded.outcomes


def test_a_kernel_that_dies_ends_its_requests(folded: FoldResult) -> None:
    running, waiting = executions(folded, "died")
    assert (running["status"], running["reason"]) == ("died", "the kernel died: signal 9")
    assert (running["run_ms"], waiting["status"], waiting["run_ms"]) == (2000, "died", None)


def test_who_asked_is_known_by_name(folded: FoldResult) -> None:
    """``username`` is the caller's name, also of a request that was never sent to the kernel."""
    found = {row["request_id"]: row["username"] for row in executions(folded, "asked")}
    # The name in what was sent to the kernel is that of the tests' client.
    assert found == {"ran": "key:ann", "aborted": "key:bob", "older": "hu", "forged": "foreign:cu"}


def test_a_message_without_its_request_is_an_orphan_after_60_s(folded: FoldResult) -> None:
    assert orphans(folded, "orphaned") == ["nobody"]


CELL_MB = 100
PIECE = "0123456789abcde\n" * 4096  # 64 KiB
PIECES_PER_BATCH = 400


def test_a_kernel_that_is_gone_leaves_no_state(spark: SparkSession) -> None:
    """However many there were: what they had open is closed, what waited is an orphan, nothing is remembered."""
    rows: list[Row] = []
    for number, event in enumerate(("died", "stopped") * 5):
        builder = TopicBuilder(f"gone{number}")
        builder.busy("its own request for information")
        builder.whole("r1", "x")
        builder.queued("r2")
        builder.event(event)
        # The server tells what became of its requests after that of the kernel.
        builder.closed("r2", "died")
        rows += builder.rows
    with interpreted(spark):
        folded = fold(spark, [rows])
    assert folded.state.count() == 0
    assert len(folded.closed) == 20 and len(folded.orphans) == 10


def test_a_clock_that_is_set_back_ends_nothing_before_it_began(spark: SparkSession) -> None:
    """A topic that is created again at what seems an earlier time: the old one's request ends when last heard of."""
    before, after = TopicBuilder("back", epoch="b", at=AN_HOUR_S), TopicBuilder("back", epoch="a")
    before.queued("r")
    before.busy("r", at=AN_HOUR_S + 5)
    after.whole("q")
    with interpreted(spark):
        folded = fold(spark, [before.rows, after.rows])
    [stale] = [row for row in folded.closed if row["status"] == "stale"]
    assert (stale["finished"], stale["run_ms"]) == (before.rows[-1].us, 0)


@pytest.mark.slow
def test_100_mb_in_one_cell(spark: SparkSession) -> None:
    """The beginning and the end are kept, the size is exact, and between batches it is one small row."""
    builder = TopicBuilder("loud")
    builder.queued("r")
    builder.busy("r")
    builder.stream("r", "first ")
    count = CELL_MB * 1_000_000 // len(PIECE) + 1
    for _ in range(count):
        builder.stream("r", PIECE)
    builder.stream("r", "last")
    builder.closed("r")
    with interpreted(spark):
        folded = FoldResult(spark.createDataFrame([], requests.STATE_SCHEMA))
        for start in range(0, len(builder.rows), PIECES_PER_BATCH):
            batch = builder.rows[start : start + PIECES_PER_BATCH]
            fold_batch(folded, iopub(stored(spark, batch)).localCheckpoint())
            state = folded.state.toPandas()
            assert len(state) == 1 and len(repr(state.iloc[0].to_dict())) < 8 * bounded_text.WHOLE_BYTES
    [row] = folded.closed
    size = count * len(PIECE) + len("first last")
    assert row["stdout_bytes"] == size > CELL_MB * 1_000_000
    assert row["stdout"].startswith("first 0123456789") and row["stdout"].endswith("abcde\nlast")
    assert f"\n… {size - bounded_text.WHOLE_BYTES} bytes left out …\n" in row["stdout"]
    assert (row["stream_messages"], row["last_offset"]) == (count + 2, len(builder.rows) - 1)
