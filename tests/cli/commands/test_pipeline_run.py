"""``himalia pipeline run``, as a process, with a real server, real kernels and real Spark."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys

import msgspec
import psutil
import pytest

from himalia.cli.terminal.pipeline_progress import format_summary, open_display
from himalia.client import SyncClient
from himalia.spark.pipeline.progress import Progress, Summary
from tests.cli.command import DEADLINE_S, RunningCommand, assert_sentence, himalia
from tests.cli.pty_command import TerminalCommand
from tests.cli.up_process import assert_all_gone, command_of
from tests.server.raw_clients import until
from tests.servers import RunningServer

SPARK_WITHIN_S = 250.0
"""A Spark that starts on a machine that does other things too."""
MASTER = ("--master", "local[2]")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_log_becomes_tables(server: RunningServer) -> None:
    """What was published and what ran is in the tables; a program that reads along learns of each batch."""
    himalia("publish", "orders", "-", "--create", stdin="\n".join(f'{{"n": {n}}}' for n in range(100)))
    ran = himalia("run", "print('hello'); 6 * 7")
    failed = himalia("run", "1 / 0")
    assert (ran.returncode, failed.returncode) == (0, 1), (ran.stderr, failed.stderr)

    done = himalia("pipeline", "run", "--once", "--json", *MASTER, deadline_s=SPARK_WITHIN_S)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Java \d+ from .+; Spark on local\[2\]; tables in ", done.stderr, re.MULTILINE)
    *batches, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert [batch["stage"] for batch in batches] == ["done"] * summary["batches"]
    assert sum(batch["rows"] for batch in batches) == summary["rows"] > 100
    assert batches[-1]["lag"] == 0
    assert summary["tables"]["executions"] == 2

    shown = json.loads(himalia("pipeline", "show", "executions", "--order", "started", "--json").stdout)
    assert [(row["code"], row["status"], row["stdout"], row["ename"]) for row in shown] == [
        ("print('hello'); 6 * 7", "ok", "hello\n", None),
        ("1 / 0", "error", "", "ZeroDivisionError"),
    ]
    counted = himalia(
        "pipeline", "sql", "select count(*) as n from messages where topic = 'orders'", "--json"
    )
    assert json.loads(counted.stdout) == [{"n": 100}]
    with server.http() as http:
        assert http.get("/tables/errors").json()["rows"][0]["ename"] == "ZeroDivisionError"


def spark_of(pid: int) -> list[psutil.Process]:
    """The processes of Spark that a command started: at least its Java."""
    found = [child for child in psutil.Process(pid).children(recursive=True) if child.name() == "java"]
    assert found
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_stays(server: RunningServer) -> None:
    """On a terminal it shows how it gets on, takes in what comes, has its warehouse for itself, and ends by Ctrl-C.

    It gives way to the server: Spark in its own process runs at a lower priority.
    """
    himalia("publish", "orders", "1", "--create")
    with TerminalCommand(
        "pipeline", "run", "--every", "0.5s", *MASTER, deadline_s=SPARK_WITHIN_S
    ) as terminal:
        terminal.until("starting Spark")
        terminal.until("messages 1")
        assert {process.nice() for process in spark_of(terminal.process.pid)} == {os.nice(0) + 10}
        waited = himalia("pipeline", "run", "--once")
        assert (waited.returncode, waited.stdout[:23]) == (0, "a pipeline runs already")
        assert_sentence(himalia("pipeline", "run", "--every", "5s"), 1, "is in use by process")
        assert_sentence(himalia("pipeline", "forget", "--where", "true", "--yes"), 1, "is in use by process")
        with SyncClient(server.url) as client:
            client.publish("orders", 2)
        terminal.until("messages 2")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.screen
        assert re.search(r"read 2 records in 2 batches", terminal.screen)
    rows = json.loads(
        himalia("pipeline", "show", "topic_activity", "--where", "topic = 'orders'", "--json").stdout
    )
    assert sum(row["messages"] for row in rows) == 2


def java_of(pid: int) -> list[psutil.Process]:
    """The Java in which Spark runs, or is starting; none before."""
    family = psutil.Process(pid).children(recursive=True)
    return [process for process in family if "deploy.SparkSubmit" in command_of(process)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_stopped_while_spark_starts(server: RunningServer, number: int, code: int) -> None:
    """There is no moment at which a signal leaves a Java behind, and nothing is told that looks like a failure."""
    with RunningCommand("pipeline", "run", "--every", "1s", *MASTER, deadline_s=SPARK_WITHIN_S) as run:
        family = until(lambda: java_of(run.process.pid))
        run.signal(number)
        assert run.process.wait(SPARK_WITHIN_S) == code
        assert_all_gone(family, within_s=DEADLINE_S)
        assert run.process.stderr is not None
        told = run.process.stderr.read()
        for word in (b"Traceback", b"Exception", b"error"):
            assert word not in told


def test_lines_behind_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal there is a line for each batch that is done, on stderr, and one for each warning."""
    progress = Progress(
        batch=3,
        stage="messages",
        rows=12_000,
        total_rows=512_000,
        seconds=2.0,
        rows_per_s=6_000.0,
        lag=88_000,
        tables={"messages": 12_000, "executions": 31, "orphans": 0},
        state_rows=2,
        lost=0,
    )
    with open_display(json=False) as shown:
        shown.show(progress)
        shown.show(msgspec.structs.replace(progress, stage="done"))
        logging.getLogger("himalia.spark").warning("offsets %d to %d of orders are gone", 3, 5)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "batch 3: 12,000 records in 2.0 s (6,000/s), 88,000 behind; messages 12,000, executions 31",
        "warning: offsets 3 to 5 of orders are gone",
    ]


def test_a_run_in_one_line() -> None:
    """What a run did, or that there was nothing to do, and what it could not read."""
    summary = Summary(
        batches=2,
        rows=1_500,
        seconds=3.0,
        rows_per_s=500.0,
        tables={"messages": 1_500, "errors": 0},
        lost=0,
        lag=0,
    )
    assert format_summary(summary) == "read 1,500 records in 2 batches and 3 s (500/s): messages 1,500"
    nothing = msgspec.structs.replace(summary, batches=0, rows=0, lost=7)
    assert (
        format_summary(nothing)
        == "there was nothing new to read; 7 records were deleted before they could be read"
    )


STOPPED = """
import queue, sys, threading
from himalia.cli.process.signals import GracefulStop

# A handler of signals may interrupt get, and a SimpleQueue allows put then; a semaphore would block for ever.
asked = queue.SimpleQueue()
with GracefulStop() as stop, stop.call_on_signal(lambda: asked.put(True)):
    if sys.argv[1] == "at work":
        with stop.defer_exit():
            print("ready", flush=True)
            for _ in sys.argv[2:]:
                asked.get(timeout=20)
                print("asked", flush=True)
    else:
        try:
            print("ready", flush=True)
            threading.Event().wait(20)
        except BaseException:
            print("asked", not asked.empty(), flush=True)
            if sys.argv[1] == "starting":
                raise
print("ended in order", stop.is_requested, flush=True)
stop.finish()
"""


@pytest.mark.parametrize(
    ("where", "numbers", "code", "says"),
    [
        ("at work", [signal.SIGTERM], 0, ["asked", "ended in order True"]),
        ("at work", [signal.SIGINT], 130, ["asked", "ended in order True"]),
        ("at work", [signal.SIGINT, signal.SIGINT], 130, ["asked", "asked", "ended in order True"]),
        ("starting", [signal.SIGTERM], 0, ["asked True"]),
        ("starting", [signal.SIGINT], 130, ["asked True"]),
        ("in code that swallows it", [signal.SIGTERM], 0, ["asked True", "ended in order True"]),
        ("in code that swallows it", [signal.SIGINT], 130, ["asked True", "ended in order True"]),
    ],
)
def test_stopping_in_order(where: str, numbers: list[int], code: int, says: list[str]) -> None:
    """A stop that was asked for lets the work end by itself, and is no error; before there is any, it ends at once."""
    command = [sys.executable, "-c", STOPPED, where, *map(str, numbers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        heard = []
        for number in numbers:
            heard.append(process.stdout.readline().strip())
            process.send_signal(number)
        heard += process.stdout.read().splitlines()
        assert (process.wait(DEADLINE_S), heard) == (code, ["ready", *says])
