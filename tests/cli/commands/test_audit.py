"""``himalia audit``, and renaming a topic that has the trail's name."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

from himalia.log import open_log
from himalia.log.api import Batch
from himalia.record import Draft
from himalia.topics import AUDIT_TOPIC
from tests.cli.command import RunningCommand, ServeCommand, assert_sentence, himalia
from tests.servers import RunningServer


def test_the_newest_are_printed(server: RunningServer) -> None:
    """One line for each: when, what, who, and what belongs to it."""
    server.create("one", "two", "three")
    lines = himalia("audit", "--last", "2").stdout.splitlines()
    assert [line.split()[2:] for line in lines] == [
        ["topic_created", "anonymous", "topic=two"],
        ["topic_created", "anonymous", "topic=three"],
    ]
    assert len(himalia("audit").stdout.splitlines()) == 3
    assert len(himalia("audit", "--since", "1h").stdout.splitlines()) == 3


def test_json_has_the_fields_of_the_record(server: RunningServer) -> None:
    """With --json a line is the record's payload, its offset and its time."""
    server.create("one")
    [line] = himalia("audit", "--json").stdout.splitlines()
    found = json.loads(line)
    assert (found["offset"], found["event"], found["caller"], found["topic"]) == (
        0,
        "topic_created",
        "anonymous",
        "one",
    )


def test_follow_prints_what_happens(server: RunningServer) -> None:
    """It begins with the newest and ends with Ctrl-C."""
    server.create("one")
    with RunningCommand("audit", "--follow", "--last", "1") as running:
        assert running.line().endswith("topic=one")
        server.create("two")
        assert running.line().endswith("topic=two")
        running.signal(signal.SIGINT)
        assert running.end() == 0


def test_last_and_since_exclude_each_other(server: RunningServer) -> None:
    """Two places to begin at are a mistake."""
    assert_sentence(himalia("audit", "--last", "1", "--since", "1h"), 2, "--last", "--since")


def fill(path: Path) -> None:
    """A log of an earlier version, in which a user had a topic of this name."""

    async def write() -> None:
        log = open_log(f"sqlite://{path}")
        await log.open()
        await log.create(AUDIT_TOPIC)
        await log.append(Batch(AUDIT_TOPIC, [Draft("a", b'"mine"', b'{"publisher":"shop"}')]))
        await log.close()

    asyncio.run(write())


def test_a_topic_of_that_name_is_renamed_and_keeps_its_records(tmp_path: Path) -> None:
    """The server says the command; after it, the server starts and the records are there under the new name."""
    url = f"sqlite://{tmp_path}/log.db"
    fill(tmp_path / "log.db")
    serve = ["serve", "--port", "0", "--log", url, "--no-auth", "--no-kernels"]
    assert_sentence(himalia(*serve), 1, "himalia topics rename audit.events NEW-NAME")
    done = himalia("topics", "rename", AUDIT_TOPIC, "mine", "--log", url)
    assert done.stdout == "renamed audit.events to mine\n", done.stderr
    with ServeCommand(*serve[1:]) as server:
        found = himalia("tail", "mine", "--from", "0", "--count", "1", "--json", "--url", server.url)
        assert json.loads(found.stdout)["payload"] == "mine"
        assert_sentence(himalia("topics", "rename", "mine", "other", "--log", url), 1, "in use")


def test_what_cannot_be_renamed_is_said(tmp_path: Path) -> None:
    """A topic that is not there, a name that is taken or reserved, a log that is not there."""
    url = f"sqlite://{tmp_path}/log.db"
    fill(tmp_path / "log.db")
    rename = ["topics", "rename", "--log", url]
    assert_sentence(himalia(*rename, "nothing", "other"), 1, "has no topic 'nothing'")
    assert_sentence(himalia(*rename, AUDIT_TOPIC, "kernels.k1"), 1, "'kernels.k1' is reserved")
    assert_sentence(himalia(*rename, AUDIT_TOPIC, AUDIT_TOPIC), 1, "is reserved")
    assert_sentence(himalia(*rename, AUDIT_TOPIC, "no name"), 1, "is not a topic name")
    himalia(*rename, AUDIT_TOPIC, "mine")
    fill(tmp_path / "log.db")
    assert_sentence(himalia(*rename, AUDIT_TOPIC, "mine"), 1, "'mine' exists already")
    missing = f"sqlite://{tmp_path}/nothing.db"
    assert_sentence(himalia("topics", "rename", "a", "b", "--log", missing), 1, "there is no log")
