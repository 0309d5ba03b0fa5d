from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from himalia.client import SyncClient
from himalia.record import Retention
from tests.cli.command import COMMAND, DEADLINE_S, RunningCommand, ServeCommand, assert_sentence, himalia
from tests.server.raw_clients import until
from tests.servers import RunningServer


@pytest.fixture
def client(server: RunningServer) -> Iterator[SyncClient]:
    server.create("orders")
    with SyncClient(server.url) as client:
        client.publish_many("orders", [{"n": n} for n in range(5)])
        yield client


def test_a_line_for_people(client: SyncClient) -> None:
    """Each record is one line: time, topic, offset, payload."""
    done = himalia("tail", "orders", "--last", "2", "--count", "2")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} orders 3 {"n":3}', first)
    assert second.endswith('orders 4 {"n":4}')


def test_a_line_for_programs(client: SyncClient) -> None:
    """With --json each record is one object: topic, offset, ts, id, headers, payload."""
    done = himalia("tail", "orders", "--from", "1", "--count", "2", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["topic"], line["offset"], line["payload"]) for line in lines] == [
        ("orders", 1, {"n": 1}),
        ("orders", 2, {"n": 2}),
    ]
    assert set(lines[0]) == {"topic", "offset", "ts", "id", "headers", "payload"}


def test_patterns_filters_and_times(client: SyncClient) -> None:
    """A pattern, a filter, a time and an age select what is shown."""
    by_filter = himalia(
        "tail", ">", "--from", "0", "--filter", "message.payload.n > 2", "--count", "2", "--json"
    )
    assert [json.loads(line)["offset"] for line in by_filter.stdout.splitlines()] == [3, 4]
    for since in ("1h", "2020-01-01", "0"):
        assert himalia("tail", "orders", "--since", since, "--count", "5").returncode == 0


def test_control_characters_do_not_reach_a_terminal(client: SyncClient) -> None:
    """A payload cannot steer the reader's terminal: C1 controls and DEL are shown as escapes."""
    client.publish("orders", "a\x9b31mb\x7fc")
    done = himalia("tail", "orders", "--last", "1", "--count", "1")
    assert done.stdout.endswith('"a\\u009b31mb\\u007fc"\n')


def test_live_records_are_flushed(client: SyncClient) -> None:
    """What is published while it runs is on stdout at once; Ctrl-C ends it with exit code 0, silently."""
    with RunningCommand("tail", "orders", "--last", "1", "--json") as running:
        assert json.loads(running.line())["offset"] == 4
        for offset in range(5, 8):
            client.publish("orders", offset)
            assert json.loads(running.line())["offset"] == offset
        running.signal(signal.SIGINT)
        assert running.end() == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == b""


def test_a_closed_pipe_ends_it(client: SyncClient) -> None:
    """``himalia tail | head -1`` ends as soon as head has its line, even if nothing more is published."""
    script = f"{' '.join(COMMAND)} tail orders --last 3; echo code $? >&2"
    tail = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    head = subprocess.run(
        ["head", "-1"], stdin=tail.stdout, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert tail.stdout is not None
    tail.stdout.close()
    _, said = tail.communicate(timeout=DEADLINE_S)
    assert head.stdout.endswith('orders 2 {"n":2}\n')
    assert said == "code 0\n"


def test_a_closed_pipe_in_the_middle_of_much(client: SyncClient) -> None:
    """A reader that leaves while lines are being written ends it just as well."""
    client.publish_many("orders", ["x" * 1000] * 5000)
    with RunningCommand("tail", "orders", "--from", "0") as running:
        assert running.line().endswith('orders 0 {"n":0}')
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert running.end() == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == b""


def test_a_missing_topic(client: SyncClient) -> None:
    """A topic that does not exist is told with the command that makes it."""
    assert_sentence(himalia("tail", "nowhere"), 1, "himalia topics create nowhere")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["orders", "--last", "1", "--from", "2"], "--last, --from and --since"),
        (["orders", "--since", "yesterdayish"], "'yesterdayish' is not a time"),
        (["orders", "--policy", "hope"], "--policy 'hope'"),
        (["orders", "--count", "0"], "--count"),
        (["orders", "--last", "x"], "--last"),
    ],
)
def test_wrong_usage(arguments: list[str], part: str) -> None:
    """What cannot be meant is wrong usage; exit code 2."""
    assert_sentence(himalia("tail", *arguments), 2, part)


def test_a_bad_pattern_and_a_bad_filter(client: SyncClient) -> None:
    """They are the library's own sentences; exit code 1."""
    assert_sentence(himalia("tail", "a..b"), 1, "not a topic pattern")
    assert_sentence(himalia("tail", "orders", "--filter", "message.payload >"), 1, "filter")


def test_a_deleted_topic_ends_it(client: SyncClient) -> None:
    """When the topic is deleted, that is said on stderr, and the command ends."""
    with RunningCommand("tail", "orders", "--last", "1") as running:
        running.line()
        client.delete_topic("orders")
        assert running.error_line() == "warning: topic orders was deleted"
        assert running.end() == 0


def test_an_offset_beyond_the_end_is_waited_for(client: SyncClient) -> None:
    """--from an offset that is not there yet prints no earlier record, and begins when the log reaches it."""
    with RunningCommand("tail", "orders", "--from", "7", "--count", "1", "--json") as running:
        until(lambda: client.stats().topics["orders"].subscribers == 1)
        client.publish_many("orders", range(5))
        assert json.loads(running.line())["offset"] == 7
        assert running.end() == 0


def test_a_gap_is_said_in_words(client: SyncClient) -> None:
    """An offset that retention has removed is reported on stderr, and delivery begins at the oldest record kept."""
    client.create_topic("short", Retention(count=2))
    for number in range(10):
        client.publish("short", {"n": number})
    until(lambda: next(one.first for one in client.topics() if one.name == "short") == 8)
    done = himalia("tail", "short", "--from", "1", "--count", "1")
    assert done.stdout.endswith('short 8 {"n":8}\n')
    assert done.stderr.startswith("warning: there is a gap in short: offset 1 is not there")


def test_what_was_dropped_is_said_in_words(client: SyncClient) -> None:
    """A reader that is too slow for its policy is told on stderr which offsets it missed."""
    with RunningCommand("tail", "orders", "--limit", "5", "--last", "1", "--json") as running:
        assert json.loads(running.line())["offset"] == 4
        count = 5
        while client.stats().topics["orders"].lag < 100:
            count += client.publish_many("orders", ["x" * 100_000] * 100)
        offsets: list[int] = []
        while not offsets or offsets[-1] < count - 1:
            offsets.append(json.loads(running.line())["offset"])
        said = running.error_line()
    found = re.fullmatch(
        r"warning: (\d+) records were dropped from orders \((\d+) to (\d+)\): this command reads too slowly; "
        r"'himalia tail orders --from \d+ --count \d+' prints them",
        said,
    )
    assert found, said
    missing = set(range(5, count)) - set(offsets)
    assert set(range(int(found[2]), int(found[3]) + 1)) <= missing


def test_it_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    """kill -9 of the server and a new start: tail says so and shows every record once."""
    arguments = ("--log", f"sqlite://{tmp_path}/log.db", "--token", "a-fixed-token-0123456789")
    with ServeCommand("--port", "0", *arguments) as first:
        with SyncClient(first.url, first.token) as client:
            client.create_topic("orders")
            client.publish_many("orders", range(10))
        with RunningCommand(
            "tail", "orders", "--from", "0", "--json", "--url", first.url, "--token", first.token
        ) as tail:
            got = [json.loads(tail.line())["offset"] for _ in range(10)]
            first.signal(signal.SIGKILL)
            first.end()
            assert "reconnecting" in tail.error_line()
            with ServeCommand("--port", first.port, *arguments) as again:
                assert "reconnected" in tail.error_line()
                with SyncClient(again.url, again.token) as client:
                    client.publish_many("orders", range(10, 20))
                got += [json.loads(tail.line())["offset"] for _ in range(10)]
                tail.signal(signal.SIGINT)
                assert tail.end() == 0
    assert got == list(range(20))
