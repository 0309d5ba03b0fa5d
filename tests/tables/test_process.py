"""Queries in a process of their own: bounded, and ended when they take too long."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from himalia.errors import BadQuery, BadRequest, QueryTooLarge, TableNotFound
from himalia.tables import worker
from himalia.tables.worker import QueryRequest
from himalia.tables.worker_client import QueryProcess
from tests.tables.sample import message, write_table

ENDLESS = "exists (select 1 from generate_series(1, 1000000000000) as t(value) where value < 0)"


@pytest.fixture
def process() -> Iterator[QueryProcess]:
    process = QueryProcess()
    yield process
    process.close()


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "himalia.tables.worker" in child.cmdline()]


@pytest.mark.slow
def test_answers_and_refusals(process: QueryProcess, sample: Path) -> None:
    """One process answers request after request, rightly or with what is wrong."""
    found = json.loads(
        process.run(QueryRequest(str(sample), "messages", "offset < 5", "offset", ["offset"], limit=2))
    )
    assert found == {
        "table": "messages",
        "columns": ["offset"],
        "rows": [{"offset": 0}, {"offset": 1}],
        "truncated": True,
    }
    for request, kind in (
        (QueryRequest(str(sample), "messages", "nope = 1"), BadQuery),
        (QueryRequest(str(sample), "messages", columns=["nope"]), BadRequest),
        (QueryRequest(str(sample), "nope"), TableNotFound),
        (QueryRequest(str(sample / "nope"), "messages"), TableNotFound),
    ):
        with pytest.raises(kind) as caught:
            process.run(request)
        assert type(caught.value) is kind
    found = json.loads(process.run(QueryRequest(str(sample), "messages", limit=30)))
    assert (len(found["rows"]), found["truncated"]) == (30, False)
    assert len(json.loads(process.run(QueryRequest(str(sample))))["tables"]) == 7
    assert len(children()) == 1
    assert children()[0].nice() > psutil.Process().nice()


@pytest.mark.slow
def test_a_query_without_end_is_ended(process: QueryProcess, sample: Path) -> None:
    """Its process goes, and the next request has another."""
    with pytest.raises(QueryTooLarge, match=r"took longer than 1\.5 s"):
        process.run(QueryRequest(str(sample), "messages", ENDLESS, time_s=1.5))
    assert not children()
    assert process.run(QueryRequest(str(sample), "messages", limit=1))


@pytest.mark.slow
def test_an_answer_is_bounded_in_bytes(process: QueryProcess, tmp_path: Path) -> None:
    """Large rows come up to the bound; the first always does."""
    write_table(tmp_path, "messages", [message(number, payload="x" * 1000) for number in range(100)])
    body = process.run(QueryRequest(str(tmp_path), "messages", limit=100, bytes_max=10_000))
    assert len(body) < 11_000
    found = json.loads(body)
    assert found["truncated"] and 5 < len(found["rows"]) < 10
    found = json.loads(process.run(QueryRequest(str(tmp_path), "messages", limit=100, bytes_max=1)))
    assert (found["truncated"], len(found["rows"])) == (True, 1)


@pytest.mark.slow
def test_a_process_that_is_killed(process: QueryProcess, sample: Path) -> None:
    """When the system kills it, the caller gets an error, and the next request succeeds."""
    process.run(QueryRequest(str(sample), "messages", limit=1))
    [child] = children()
    timer = threading.Timer(0.5, os.kill, (child.pid, signal.SIGKILL))
    timer.start()
    with pytest.raises(QueryTooLarge, match="more memory than it may have"):
        process.run(QueryRequest(str(sample), "messages", ENDLESS, time_s=20))
    assert process.run(QueryRequest(str(sample), "messages", limit=1))


REPEATED = "length(repeat('x', {})) > 1"
GATHERED = "(select length(string_agg(repeat('x', 1000), ',')) from generate_series(1, 2000000) t(v)) > 1"


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux counts what a process has, not what it reserved"
)
@pytest.mark.parametrize(
    "where", [REPEATED.format(1_000_000_000), GATHERED], ids=["one value", "many values"]
)
def test_the_system_bounds_the_memory_of_a_query(process: QueryProcess, sample: Path, where: str) -> None:
    """What the engine does not account for is refused by the operating system, before it is taken."""
    process.run(QueryRequest(str(sample), "messages", limit=1))
    [child] = children()
    at_rest, most = child.memory_info().rss, 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            with suppress(psutil.NoSuchProcess):
                most = max(most, child.memory_info().rss)

    watching = threading.Thread(target=watch)
    watching.start()
    with pytest.raises(QueryTooLarge, match="more memory than it may have"):
        process.run(QueryRequest(str(sample), "messages", where, time_s=20))
    done.set()
    watching.join()
    assert most - at_rest < worker.MEMORY_BYTES_MAX
    assert process.run(QueryRequest(str(sample), "messages", limit=1))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process how large it is")
def test_a_process_that_has_grown_does_not_wait(process: QueryProcess, sample: Path) -> None:
    """A query within the limit is answered; a process that keeps much of its memory ends, and another answers."""
    process.run(QueryRequest(str(sample), "messages", limit=1))
    [first] = children()
    # The engine copies the value about six times, and keeps four copies: 300 MB at most, 200 MB afterwards.
    request = QueryRequest(str(sample), "messages", REPEATED.format(50_000_000), limit=1)
    assert json.loads(process.run(request))["rows"]
    assert not children()
    process.run(QueryRequest(str(sample), "messages", limit=1))
    [second] = children()
    process.run(QueryRequest(str(sample), "messages", limit=1))
    assert children() == [second] != [first]


@pytest.mark.slow
def test_a_process_ends_with_whoever_asked(process: QueryProcess, sample: Path) -> None:
    """When the server is gone, however it went, so is the process; Ctrl-C alone is for the server to decide."""
    process.run(QueryRequest(str(sample), "messages", limit=1))
    [child] = children()
    child.send_signal(signal.SIGINT)
    assert process.run(QueryRequest(str(sample), "messages", limit=1))
    assert process._process is not None and process._process.stdin is not None
    process._process.stdin.close()
    assert child.wait(20) == 0
