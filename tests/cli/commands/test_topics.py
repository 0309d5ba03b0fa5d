from __future__ import annotations

import json
import os
import pty

import pytest

from tests.cli.command import RunningCommand, assert_sentence, himalia
from tests.servers import RunningServer


def test_create_list_delete(server: RunningServer) -> None:
    """A topic that was made is in the list until it is deleted."""
    assert himalia("topics", "create", "orders").stdout == "created orders\n"
    listed = himalia("topics", "list").stdout
    assert "orders" in listed and "0..0" in listed
    assert himalia("topics", "delete", "orders", "--yes").stdout == "deleted orders\n"
    empty = himalia("topics", "list")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "no topics" in empty.stderr


def test_json_of_every_command(server: RunningServer) -> None:
    """With --json each command prints one JSON document."""
    created = himalia(
        "topics",
        "create",
        "orders",
        "--retention-age",
        "7d",
        "--retention-bytes",
        "1GB",
        "--retention-count",
        "5",
        "--json",
    )
    assert json.loads(created.stdout) == {"status": "created", "topic": "orders"}
    [topic] = json.loads(himalia("topics", "list", "--json").stdout)
    assert topic["name"] == "orders"
    assert topic["retention"] == {"age_s": 604800.0, "bytes": 1_000_000_000, "count": 5}
    deleted = himalia("topics", "delete", "orders", "--yes", "--json")
    assert json.loads(deleted.stdout) == {"status": "deleted", "topic": "orders"}
    assert json.loads(himalia("topics", "list", "--json").stdout) == []


def test_a_topic_that_exists(server: RunningServer) -> None:
    """Making it again is an error, unless --exist-ok says that it is not."""
    himalia("topics", "create", "orders")
    assert_sentence(himalia("topics", "create", "orders"), 1, "'orders' exists already")
    assert himalia("topics", "create", "orders", "--exist-ok").stdout == "exists orders\n"


def test_deleting_asks_and_does_not_guess(server: RunningServer) -> None:
    """Without --yes and without a terminal nothing is deleted; a missing topic is told with what to do."""
    himalia("topics", "create", "orders")
    assert_sentence(himalia("topics", "delete", "orders"), 2, "--yes")
    assert "orders" in himalia("topics", "list").stdout
    assert_sentence(himalia("topics", "delete", "nowhere", "--yes"), 1, "'nowhere' does not exist")


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, ["orders"]), ("y", 0, [])])
def test_deleting_asks_on_a_terminal(server: RunningServer, answer: str, code: int, left: list[str]) -> None:
    """On a terminal it asks, and only yes deletes."""
    server.create("orders")
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode() + b"\n")
    with RunningCommand("topics", "delete", "orders", stdin=theirs) as running:
        assert running.end() == code
        assert running.process.stderr is not None
        assert b"Delete topic 'orders'" in running.process.stderr.read()
    os.close(ours)
    os.close(theirs)
    assert [topic["name"] for topic in json.loads(himalia("topics", "list", "--json").stdout)] == left


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["bad name"], 1, "not a topic name"),
        (["orders", "--retention-age", "soon"], 2, "'soon' is not a duration"),
        (["orders", "--retention-bytes", "1XB"], 2, "'1XB' is not a size"),
        (["orders", "--retention-count", "-1"], 2, "--retention-count"),
        ([], 2, "'name'"),
    ],
)
def test_what_cannot_be_created(server: RunningServer, arguments: list[str], code: int, part: str) -> None:
    """A bad name or limit is one sentence."""
    assert_sentence(himalia("topics", "create", *arguments), code, part)
