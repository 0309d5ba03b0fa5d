"""``himalia pipeline run``, as a process, with a real server, real kernels and real Spark."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys

import msgspec
import psutil
import pytest

from himalia.cli.run_display import display, sentence
from himalia.client import SyncClient
from himalia.spark.progress import Progress, Summary
from tests.cli.running import assert_sentence, himalia
from tests.cli.terminal import OnTerminal
from tests.serving import RunningServer

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
    with OnTerminal("pipeline", "run", "--every", "0.5s", *MASTER, deadline_s=SPARK_WITHIN_S) as terminal:
        terminal.until("starting Spark")
        terminal.until("messages 1")
        assert {process.nice() for process in spark_of(terminal.process.pid)} == {10}
        assert_sentence(himalia("pipeline", "run", "--once"), 1, "is in use by process")
        assert_sentence(himalia("pipeline", "forget", "--where", "true", "--yes"), 1, "is in use by process")
        with SyncClient(server.url) as client:
            client.publish("orders", 2)
        terminal.until("messages 2")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.screen
        assert re.search(r"took in 2 records in 2 batches", terminal.screen)
    rows = json.loads(
        himalia("pipeline", "show", "topic_activity", "--where", "topic = 'orders'", "--json").stdout
    )
    assert sum(row["messages"] for row in rows) == 2


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
    with display(json=False) as shown:
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
    assert sentence(summary) == "took in 1,500 records in 2 batches and 3 s (500/s): messages 1,500"
    nothing = msgspec.structs.replace(summary, batches=0, rows=0, lost=7)
    assert sentence(nothing) == "nothing new was taken in; 7 records were gone before they could be read"


STOPPED = """
import sys, threading
from himalia.cli.stopping import Stopping

ended = threading.Event()
with Stopping() as stopping:
    if sys.argv[1] == "within":
        with stopping.by(ended.set):
            print("ready", flush=True)
            ended.wait(20)
        print("ended in order", stopping.is_asked, flush=True)
    else:
        print("ready", flush=True)
        threading.Event().wait(20)
try:
    stopping.finish()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("where", "number", "code", "says"),
    [
        ("within", signal.SIGTERM, 0, "ended in order True\n"),
        ("within", signal.SIGINT, 130, "ended in order True\n"),
        ("before", signal.SIGTERM, 0, ""),
        ("before", signal.SIGINT, -signal.SIGINT, ""),
    ],
)
def test_stopping_in_order(where: str, number: int, code: int, says: str) -> None:
    """A stop that was asked for lets the work end by itself, and is no error; before there is any, it ends at once."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, says)
