"""``himalia pipeline``: its tables read, erased and replayed. What runs Spark is in tests/spark."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from himalia.client import SyncClient
from himalia.spark.delta.lock import warehouse_lock
from himalia.tables import Tables
from himalia.tables.catalog import CATALOG
from tests.cli.command import RunningCommand, assert_sentence, himalia
from tests.cli.pty_command import TerminalCommand
from tests.servers import RunningServer
from tests.tables.sample import KERNEL, execution, message, write_sample, write_table

ENDLESS = "exists (select 1 from generate_series(1, 1000000000000) as t(value) where value < 0)"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "warehouse"
    write_sample(path)
    return path


@pytest.fixture(autouse=True)
def _in_the_sample(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIMALIA_WAREHOUSE", str(sample))


@pytest.fixture
def own(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A warehouse that the test may change."""
    path = tmp_path / "own"
    shutil.copytree(sample, path)
    monkeypatch.setenv("HIMALIA_WAREHOUSE", str(path))
    return path


def lines(text: str) -> list[list[str]]:
    """The cells of a printed table, its head first."""
    found = [line for line in text.splitlines() if line.strip() and "─" not in line]
    return [re.split(r" {2,}", line.strip()) for line in found]


# show


def test_the_tables() -> None:
    """Without a name, the tables with their sizes and what a row is."""
    done = himalia("pipeline", "show")
    assert (done.returncode, done.stderr) == (0, "")
    head, first, *_ = lines(done.stdout)
    assert head == ["table", "rows", "size", "what a row is"]
    assert first[:2] == ["messages", "30"]
    [messages, *others] = json.loads(himalia("pipeline", "show", "--json").stdout)
    assert (messages["name"], messages["rows"], len(others)) == ("messages", 30, 6)


def test_rows_for_people() -> None:
    """The newest first, the columns that one looks at, a line for each row."""
    done = himalia("pipeline", "show", "executions", env={"TZ": "UTC"})
    assert done.returncode == 0
    head, newest, failed, *_, oldest = lines(done.stdout)
    assert head == ["started", "kernel_id", "status", "run_ms", "code", "stdout", "ename"]
    assert newest == ["2026-11-16 02:04:14.123", KERNEL, "running", "-", "print(7)", "7", "-"]
    assert failed[2] == "error"
    assert oldest[4] == "print(1)"


def test_rows_for_programs() -> None:
    """One JSON array on stdout and nothing else there: all columns, times in UTC, maps and arrays as JSON."""
    done = himalia("pipeline", "show", "messages", "--json", env={"TZ": "Asia/Tokyo"})
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert len(rows) == 20
    assert rows[0]["ts"] == "2026-11-16T02:03:33.123456Z"
    assert rows[0]["headers"] == {"publisher": "shop", "n": "29"}
    assert len(rows[0]) == 10


def test_no_rows() -> None:
    """An empty array for programs, a word for people."""
    done = himalia("pipeline", "show", "messages", "--where", "false", "--json")
    assert (done.stdout, done.stderr) == ("[]\n", "")
    done = himalia("pipeline", "show", "messages", "--where", "false")
    assert (done.returncode, done.stdout) == (0, "")
    assert "messages has no rows that match" in done.stderr


def test_choosing() -> None:
    """A condition, an order, columns and a limit; and a word if there are more."""
    done = himalia(
        *("pipeline", "show", "executions", "--where", "run_ms > 20", "--order", "run_ms desc"),
        *("--columns", "code, run_ms", "--limit", "2"),
    )
    assert lines(done.stdout) == [["code", "run_ms"], ["print(6)", "75.0"], ["print(5)", "62.5"]]
    assert done.stderr == "there are more than these 2 rows; raise --limit to see them\n"
    done = himalia("pipeline", "show", "executions", "--columns", "*", "--limit", "1")
    assert len(lines(done.stdout)[0]) == 33


@pytest.mark.slow
def test_a_table_fits_its_terminal(own: Path) -> None:
    """On a terminal each row is one line of it: what is too long is cut, the longest first, and marked."""
    long = execution(8, code="import this\nprint('x' * 1000)", stdout="\x1b[31mred\x1b[0m\n" * 500)
    write_table(own, "executions", [long])
    with TerminalCommand("pipeline", "show", "executions", env={"TZ": "UTC"}) as terminal:
        assert terminal.end() == 0
        shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.screen).splitlines()
    assert all(len(line) <= 80 for line in shown)
    rows = [line for line in shown if line.strip().startswith("2026")]
    assert len(rows) == 8
    assert "…" in rows[0]
    assert "\x1b[31m" not in terminal.screen
    assert "running" in rows[1]


def test_behind_a_pipe_nothing_is_cut(own: Path) -> None:
    """A row is one line all the same, and cannot steer a terminal."""
    write_table(own, "executions", [execution(8, code="a\n\tb\x1b[31m" + "x" * 500)])
    row = lines(himalia("pipeline", "show", "executions", "--limit", "1").stdout)[1]
    assert row[4] == "a⏎ b\\u001b[31m" + "x" * 500


def test_shares_are_percentages() -> None:
    head, row = lines(himalia("pipeline", "show", "kernel_health").stdout)
    found = dict(zip(head, row, strict=True))
    assert (found["error_rate"], found["busy_share"], found["run_ms_p95"]) == ("16.7%", "0.1%", "75.0")


def test_another_warehouse(tmp_path: Path) -> None:
    """--warehouse goes before the variable."""
    write_table(tmp_path / "other", "messages", [message(7)])
    done = himalia("pipeline", "show", "messages", "--json", "--warehouse", str(tmp_path / "other"))
    assert [row["offset"] for row in json.loads(done.stdout)] == [7]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "execution"], 1, "there is no table 'execution'; there are messages, iopub, executions"),
        (["show", "messages", "--where", "topic = "], 1, "the condition ends too early"),
        (["show", "messages", "--where", "true; drop table messages"], 1, "this is not SQL"),
        (["show", "messages", "--where", 'topic = "orders"'], 1, "there is no column 'orders'"),
        (["show", "messages", "--columns", "topc"], 1, "did you mean 'topic'?"),
        (["show", "messages", "--order", "ts sideways"], 1, "is not an order"),
        (["show", "messages", "--limit", "0"], 2, "--limit"),
        (["sql", "selec 1"], 1, "'selec 1' is not a query"),
        (["sql", "copy messages to 'x'"], 1, "tables are read-only: begin with SELECT, WITH"),
        (["sql", "select * from nope"], 1, "there is no table 'nope'; there are messages"),
        (["sql", "select (1 from messages", "--json"], 1, "this is not SQL"),
        (["run"], 2, "give --once, or --every"),
        (["run", "--once", "--every", "5s"], 2, "give --once, or --every"),
        (["run", "--every", "soon"], 2, "'soon' is not a duration"),
        (["run", "--once", "--topics", "a..b"], 1, "is not a topic pattern"),
        (["forget"], 2, "--where"),
        (["forget", "--where", "true"], 2, "give --yes"),
        (
            ["replay", "--where", "true", "--to", "x", "--speed", "fast"],
            2,
            "'fast' is not a speed such as 1x, 10x",
        ),
        (["replay", "--where", "true", "--to", "x", "--speed", "0x"], 2, "is not a speed"),
        (["replay", "--where", "true", "--to", "a b"], 1, "is not a topic name"),
        (["replay", "--where", "nope", "--to", "x"], 1, "there is no column 'nope'"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    server: RunningServer, arguments: list[str], code: int, says: str
) -> None:
    assert_sentence(himalia("pipeline", *arguments), code, says)


@pytest.mark.parametrize(
    "arguments",
    [
        ("pipeline", "run", "--once"),
        ("pipeline", "show"),
        ("serve", "--port", "0"),
        ("up", "--port", "0", "--log", "memory://"),
    ],
)
def test_a_warehouse_is_no_url(arguments: tuple[str, ...]) -> None:
    """It would become a directory of that name here; the variable is no other than the flag."""
    for flags, env in ((("--warehouse", "s3://bucket/x"), {}), ((), {"HIMALIA_WAREHOUSE": "s3://bucket/x"})):
        done = himalia(*arguments, *flags, env=env)
        assert_sentence(done, 1, "the warehouse is a directory", "not an address with s3://")
    assert not Path("s3:").exists()


def test_no_tables_yet(tmp_path: Path) -> None:
    """Each command that reads them says what to do first."""
    for arguments in (
        ["show"],
        ["show", "executions"],
        ["show", "executions", "--json"],
        ["sql", "select 1"],
        ["forget", "--where", "true", "--yes"],
        ["replay", "--where", "true", "--to", "x"],
    ):
        done = himalia("pipeline", *arguments, env={"HIMALIA_WAREHOUSE": str(tmp_path / "none")})
        assert_sentence(done, 1, "there are no tables in", "run `himalia pipeline run --once` first")


@pytest.mark.parametrize("package", ["deltalake", "pyspark"])
def test_a_package_that_is_missing_is_one_sentence(server: RunningServer, package: str) -> None:
    """Who has installed the light core learns what else to install."""
    extra, arguments = {
        "deltalake": ("tables", ["show", "messages"]),
        "pyspark": ("spark", ["run", "--once"]),
    }[package]
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from himalia.cli import main\n"
        f"main({['pipeline', *arguments]!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert_sentence(done, 1, f"pip install 'himalia[{extra}]'")


# sql


def test_a_query_for_people_and_for_programs() -> None:
    query = "select status, count(*) as n, avg(run_ms) as ms from executions group by status order by n desc, status"
    done = himalia("pipeline", "sql", query)
    assert lines(done.stdout) == [
        ["status", "n", "ms"],
        ["ok", "5", "37.5"],
        ["error", "1", "75.0"],
        ["running", "1", "-"],
    ]
    done = himalia("pipeline", "sql", "-", "--json", stdin=query + ";\n")
    assert json.loads(done.stdout)[0] == {"status": "ok", "n": 5, "ms": 37.5}
    assert done.stderr == ""


def test_many_rows() -> None:
    """People are shown a thousand and told so; a program gets all of them."""
    query = "select a.offset as x from messages a, messages b, messages c"
    done = himalia("pipeline", "sql", query)
    assert len(lines(done.stdout)) == 1001
    assert "there are more than these 1000 rows" in done.stderr
    assert len(json.loads(himalia("pipeline", "sql", query, "--json").stdout)) == 27_000


def test_a_reader_that_leaves() -> None:
    """``| head`` is no error."""
    query = "select a.offset as x, b.payload from messages a, messages b, messages c"
    command = f"{sys.executable} -m himalia.cli pipeline sql '{query}' --json | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == '[{"x":0,"p'


def test_ctrl_c_ends_a_query() -> None:
    """At once, although the engine does not listen."""
    with RunningCommand("pipeline", "sql", f"select 1 from messages where {ENDLESS}") as running:
        time.sleep(2)  # no sign of the engine's being at work can be seen from outside
        running.signal(signal.SIGINT)
        assert running.end() in (130, -signal.SIGINT)
        assert running.process.stderr is not None
        assert b"Traceback" not in running.process.stderr.read()


def test_nothing_heavy_is_loaded() -> None:
    """``show`` loads neither Spark nor a client, pandas or numpy: it answers at once."""
    heavy = (
        "pyspark",
        "py4j",
        "pandas",
        "numpy",
        "pyarrow",
        "httpx",
        "websockets",
        "fastapi",
        "himalia.client",
    )
    code = (
        "import sys\n"
        "from himalia.cli import main\n"
        "try: main(['pipeline', 'show', 'executions'])\n"
        "except SystemExit as end:\n"
        f"    print(end.code, [name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stderr == "0 []\n"


# forget


def test_forgetting(own: Path) -> None:
    """Rows are gone from every table that has the columns, and from the disk; others stay."""
    where = f"topic = 'kernels.{KERNEL}'"
    done = himalia("pipeline", "forget", "--where", where, "--yes", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["rows"]
    assert (rows["iopub"], rows["executions"], rows["messages"]) == (1, 7, 0)
    assert "kernel_health" not in rows
    tables = Tables(own)
    assert (tables.count("executions"), tables.count("messages"), tables.count("errors")) == (0, 30, 1)
    assert not any(b"print(3)" in path.read_bytes() for path in own.rglob("*.parquet"))
    assert (
        himalia("pipeline", "forget", "--where", where, "--yes").stdout == "erased nothing: no row matches\n"
    )


def test_the_help_names_the_tables_that_a_kernels_condition_leaves_alone() -> None:
    """Who erases by kernel_id learns where that kernel's rows still are."""
    told = himalia("pipeline", "forget", "--help").stdout
    for name, spec in CATALOG.items():
        assert (f"'{name}'" in told) == ("kernel_id" not in spec.meanings), name


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "left", "code"), [("y\r", 25, 0), ("n\r", 30, 1)])
def test_forgetting_asks_first(own: Path, typed: str, left: int, code: int) -> None:
    """On a terminal it says what would go, and waits for a word."""
    with TerminalCommand("pipeline", "forget", "--where", "offset < 5 and publisher = 'shop'") as terminal:
        terminal.until("Erase rows: 5 of messages permanently? [y/N]")
        terminal.type(typed)
        assert terminal.end() == code
    assert Tables(own).count("messages") == left


def test_forgetting_while_the_pipeline_runs(own: Path) -> None:
    """It is refused, and says who runs."""
    with warehouse_lock(own):
        done = himalia("pipeline", "forget", "--where", "true", "--yes")
    assert_sentence(done, 1, "is in use by process")
    assert Tables(own).count("messages") == 30


@pytest.mark.parametrize("where", ["nope = 1", "topic = ", "true) limit 1 --", "topic = 'orders'; true"])
def test_a_condition_that_is_wrong_erases_nothing(own: Path, where: str) -> None:
    assert_sentence(himalia("pipeline", "forget", "--where", where, "--yes"), 1)
    assert Tables(own).count("messages") == 30


# replay


@pytest.fixture
def client(server: RunningServer) -> SyncClient:
    return SyncClient(server.url)


def replayed(client: SyncClient, topic: str = "again") -> list[Any]:
    with client:
        return list(client.read(topic))


def test_replaying(client: SyncClient) -> None:
    """Payload and headers are as they were, in order; the id is new, and a header says where it is from."""
    done = himalia(
        *(
            "pipeline",
            "replay",
            "--where",
            "offset between 3 and 5",
            "--to",
            "again",
            "--speed",
            "max",
            "--create",
        )
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "again 0..2 (3 messages)\n", "")
    events = replayed(client)
    assert [event.payload for event in events] == [{"n": 3}, {"n": 4}, {"n": 5}]
    assert events[0].headers["n"] == "3"
    assert events[0].headers["replayed_from"] == "orders@3"
    assert events[0].headers["publisher"] == "anonymous"
    assert events[0].id != "00000000-0000-4000-8000-000000000003"


def test_a_replay_for_programs(client: SyncClient) -> None:
    arguments = ("pipeline", "replay", "--to", "again", "--speed", "max", "--create", "--json", "--where")
    assert json.loads(himalia(*arguments, "offset < 10").stdout) == {
        "topic": "again",
        "count": 10,
        "first": 0,
        "last": 9,
    }
    done = himalia(*arguments, "false")
    assert json.loads(done.stdout) == {"topic": "again", "count": 0, "first": None, "last": None}


@pytest.mark.slow
@pytest.mark.parametrize(("speed", "expected_s"), [("5x", 0.8), ("1x", 4.0)])
def test_a_replay_keeps_the_pace(client: SyncClient, speed: str, expected_s: float) -> None:
    """Messages that came over four seconds come over four again, or a fifth of it."""
    with client:
        client.create_topic("again")
        done = himalia("pipeline", "replay", "--where", "offset < 5", "--to", "again", "--speed", speed)
        assert done.returncode == 0, done.stderr
        times = [event.time.timestamp() for event in client.read("again")]
    steps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[-1] - times[0] == pytest.approx(expected_s, rel=0.5)
    assert all(step > expected_s / 4 * 0.3 for step in steps)


def test_a_replay_that_is_refused(client: SyncClient, own: Path) -> None:
    """The message is named, and what came before it is there."""
    write_table(own, "messages", [message(5, topic="large", payload=json.dumps("x" * 2_000_000))])
    with client:
        client.create_topic("again")
        where = "topic = 'large' or offset < 3"
        done = himalia("pipeline", "replay", "--where", where, "--to", "again", "--speed", "max")
        assert_sentence(done, 1, "large@5", "replayed before it: 3")
        assert len(list(client.read("again"))) == 3
    assert_sentence(
        himalia("pipeline", "replay", "--where", "true", "--to", "kernels.k", "--speed", "max"), 1, "reserved"
    )
    assert_sentence(
        himalia("pipeline", "replay", "--where", "true", "--to", "missing", "--speed", "max"),
        1,
        "himalia topics create missing",
    )


def test_ctrl_c_while_replaying(client: SyncClient) -> None:
    """It ends at once, and says how far it came."""
    slowly = ("pipeline", "replay", "--where", "true", "--to", "again", "--create", "--speed", "0.5x")
    with client, client.subscribe(">") as events, RunningCommand(*slowly) as running:
        assert events.next(timeout_s=20).payload == {"n": 0}
        running.signal(signal.SIGINT)
        assert running.end() == 130
        assert running.process.stderr is not None
        assert re.fullmatch(rb"stopped after \d of 30 messages\n", running.process.stderr.read())


def test_serving_tables(serve: Callable[..., RunningServer], sample: Path) -> None:
    """A server that is told nothing else shows the tables of the same warehouse as the commands do."""
    assert serve(auth=False).settings.warehouse == sample
