from __future__ import annotations

import json
import signal
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from himalia.client import Event, SyncClient
from tests.cli.command import RunningCommand, assert_sentence, himalia
from tests.servers import RunningServer


@pytest.fixture
def client(server: RunningServer) -> Iterator[SyncClient]:
    server.create("orders")
    with SyncClient(server.url) as client:
        yield client


def stored(client: SyncClient) -> list[Any]:
    return [event.payload for event in client.read("orders")]


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ('{"sku": "A-17"}', {"sku": "A-17"}),
        ("42", 42),
        ('"42"', "42"),
        ("hello", "hello"),
        ("null", None),
        ("", ""),
        ("[1,\n2]", [1, 2]),
    ],
)
def test_a_message_is_json_or_else_a_string(client: SyncClient, text: str, payload: Any) -> None:
    """What is valid JSON is published as that, anything else as a string; topic and offset are printed."""
    done = himalia("publish", "orders", text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "orders 0\n", "")
    assert stored(client) == [payload]


@pytest.mark.parametrize("text", ['{"a": 1', "[1, 2", "  {broken", "[draft] call back"])
def test_what_begins_like_json_and_is_none_is_refused(client: SyncClient, text: str) -> None:
    """A typing mistake is not stored as a string; with --text it is meant."""
    assert_sentence(himalia("publish", "orders", text), 1, "--text")
    assert stored(client) == []
    assert himalia("publish", "orders", text, "--text").returncode == 0
    assert stored(client) == [text]


def test_lines_of_text(client: SyncClient) -> None:
    """With --text each line of a pipe is a string, also one that is JSON."""
    done = himalia("publish", "orders", "-", "--text", stdin="42\n{open\n")
    assert done.returncode == 0
    assert stored(client) == ["42", "{open"]


def test_numbers_are_sent_as_written(client: SyncClient) -> None:
    """JSON is not decoded and encoded again, which would change what is beyond a double."""
    himalia("publish", "orders", "[12345678901234567890123, 0.10]")
    [event] = client.read("orders")
    assert event.raw == b"[12345678901234567890123, 0.10]"


def test_headers_id_and_json(client: SyncClient) -> None:
    """--header and --id go with the message; the same id again gives the same offset; --json prints the receipt."""
    id = str(uuid.uuid4())
    arguments = ["publish", "orders", "1", "--header", "a=b=c", "--header", "d=", "--id", id, "--json"]
    first, second = json.loads(himalia(*arguments).stdout), json.loads(himalia(*arguments).stdout)
    assert first["offset"] == second["offset"] == 0
    assert (first["topic"], first["id"]) == ("orders", id)
    [event] = client.read("orders")
    assert (event.headers["a"], event.headers["d"], event.id) == ("b=c", "", id)


def test_a_missing_topic_and_create(client: SyncClient) -> None:
    """A topic that is missing is told with the command that makes it; --create makes it."""
    assert_sentence(himalia("publish", "new", "1"), 1, "himalia topics create new")
    assert himalia("publish", "new", "1", "--create").stdout == "new 0\n"
    assert himalia("publish", "new", "1", "--create").stdout == "new 1\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["orders", "1", "--id", "x"], "--id 'x' is not a UUID"),
        (["orders", "1", "--header", "x"], "--header 'x'"),
        (["orders", "1", "--envelope"], "--envelope"),
        (["orders", "-", "--id", str(uuid.uuid4())], "--id"),
        ([], "'topic'"),
    ],
)
def test_wrong_usage(arguments: list[str], part: str) -> None:
    """What cannot be meant is wrong usage; exit code 2."""
    assert_sentence(himalia("publish", *arguments), 2, part)


def test_refused_by_the_server(client: SyncClient) -> None:
    """What the server refuses is its sentence; exit code 1."""
    assert_sentence(himalia("publish", "kernels.k", "1"), 1, "reserved")
    assert_sentence(himalia("publish", "a..b", "1"), 1, "not a topic name")


# From a pipe


def test_a_pipe_of_lines(client: SyncClient) -> None:
    """Each line is a message, stored in order; empty lines and a missing last line break do not matter."""
    lines = "\n".join(str(number) for number in range(5000))
    done = himalia("publish", "orders", "-", stdin="\n" + lines + "\r\n\n5000")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "orders 0..5000 (5001 messages)\n"
    assert stored(client) == list(range(5001))


def test_a_pipe_needs_no_dash(client: SyncClient) -> None:
    """Without a message, what is piped in is read."""
    assert himalia("publish", "orders", stdin="1\n").stdout == "orders 0..0 (1 message)\n"


def test_a_summary_for_programs(client: SyncClient) -> None:
    """With --json the summary is one object."""
    done = himalia("publish", "orders", "-", "--json", stdin="1\n2\n")
    assert json.loads(done.stdout) == {"topic": "orders", "count": 2, "first": 0, "last": 1}
    done = himalia("publish", "orders", "-", "--json", stdin="")
    assert json.loads(done.stdout) == {"topic": "orders", "count": 0, "first": None, "last": None}


def test_a_bad_line_stops_there(client: SyncClient) -> None:
    """A line that is not JSON is named; what stood before it is stored, nothing after it is sent."""
    done = himalia("publish", "orders", "-", stdin='1\n\n{"a": 2}\noops\n5\n')
    assert_sentence(done, 1, "line 4 is not JSON")
    assert stored(client) == [1, {"a": 2}]


def test_a_line_that_is_not_text(client: SyncClient) -> None:
    """Bytes that are not UTF-8 are a bad line like any other."""
    assert_sentence(himalia("publish", "orders", "-", stdin=b'1\n"\xff"\n'), 1, "line 2")
    assert stored(client) == [1]


def test_a_line_that_the_server_refuses(client: SyncClient) -> None:
    """A message that is too large is named by its line, and what stood before it is stored."""
    lines = ["1", "2", json.dumps("x" * 2_000_000), "4"]
    done = himalia("publish", "orders", "-", stdin="\n".join(lines))
    assert_sentence(done, 1, "line 3", "stored before it: 2")
    assert stored(client)[:2] == [1, 2]


def test_envelopes_copy_a_topic(client: SyncClient) -> None:
    """What ``tail --json`` prints, ``publish --envelope`` takes: id, headers and payload stay."""
    client.create_topic("copy")
    client.publish_many("orders", [{"n": n} for n in range(3)])
    tailed = himalia("tail", "orders", "--from", "0", "--count", "3", "--json").stdout
    done = himalia("publish", "copy", "-", "--envelope", "--header", "copied=yes", stdin=tailed)
    assert done.stdout == "copy 0..2 (3 messages)\n"
    originals, copies = list(client.read("orders")), list(client.read("copy"))
    assert [(one.id, one.payload) for one in copies] == [(one.id, one.payload) for one in originals]
    assert copies[0].headers["copied"] == "yes"


def test_a_bad_envelope_is_named(client: SyncClient) -> None:
    """A line without a payload is not an envelope."""
    done = himalia("publish", "orders", "-", "--envelope", stdin='{"payload": 1}\n{"id": null}\n')
    assert_sentence(done, 1, "line 2", "envelope", "payload")
    assert stored(client) == [1]


def test_lines_are_published_as_they_come(client: SyncClient) -> None:
    """A pipe that pauses does not hold back what it gave: each line is stored while the pipe stays open."""
    with (
        client.subscribe("orders") as events,
        RunningCommand("publish", "orders", "-", stdin=subprocess.PIPE) as running,
    ):
        assert running.process.stdin is not None
        for number in range(3):
            running.process.stdin.write(b"%d\n" % number)
            running.process.stdin.flush()
            event: Event = events.next(timeout_s=20)
            assert event.payload == number
        running.process.stdin.close()
        assert running.line() == "orders 0..2 (3 messages)"
        assert running.end() == 0


def test_ctrl_c_while_a_pipe_is_open(client: SyncClient) -> None:
    """Ctrl-C ends a publish that waits for its pipe, with exit code 130 and without a traceback."""
    with (
        client.subscribe("orders") as events,
        RunningCommand("publish", "orders", "-", stdin=subprocess.PIPE) as running,
    ):
        assert running.process.stdin is not None
        running.process.stdin.write(b"1\n")
        running.process.stdin.flush()
        events.next(timeout_s=20)
        running.signal(signal.SIGINT)
        assert running.end() == 130
        assert running.process.stderr is not None
        assert b"Traceback" not in running.process.stderr.read()
