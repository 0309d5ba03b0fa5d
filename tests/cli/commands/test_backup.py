from __future__ import annotations

import json
from pathlib import Path

import pytest

from himalia.client import SyncClient
from tests.cli.command import ServeCommand, assert_sentence, himalia
from tests.small_file_system import small_file_system


@pytest.fixture
def log(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/log.db"


def test_a_backup_of_a_running_server_is_restored(log: str, tmp_path: Path) -> None:
    """A copy taken while the server runs, put in the place of the log, has the records of that moment."""
    target = str(tmp_path / "copy.db")
    with ServeCommand("--port", "0", "--log", log) as server, SyncClient(server.url, server.token) as client:
        client.create_topic("orders")
        client.publish_many("orders", range(100))
        [before] = client.topics()
        done = himalia("backup", target, "--log", log)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"backed up {target}: 1 topic, 100 records, ")
        client.publish("orders", "later")
        assert_sentence(himalia("restore", target, "--log", log, "--force"), 1, "log.db")
    assert_sentence(himalia("restore", target, "--log", log), 1, "--force")
    restored = himalia("restore", target, "--log", log, "--force", "--json")
    assert json.loads(restored.stdout)["records"] == 100
    with ServeCommand("--port", "0", "--log", log) as server, SyncClient(server.url, server.token) as client:
        [after] = client.topics()
        assert [event.payload for event in client.read("orders")] == list(range(100))
        assert after.epoch != before.epoch


def test_json_and_the_environment(log: str, tmp_path: Path) -> None:
    """HIMALIA_LOG names the log as it does for serve; --json prints one object."""
    with ServeCommand("--port", "0", "--log", log):
        done = himalia("backup", str(tmp_path / "copy.db"), "--json", env={"HIMALIA_LOG": log})
    found = json.loads(done.stdout)
    assert (found["status"], found["path"]) == ("backed up", str(tmp_path / "copy.db"))
    assert (found["topics"], found["records"]) == (0, 0)


def test_a_backup_into_a_directory_that_does_not_exist(log: str, tmp_path: Path) -> None:
    """The sentence names the directory that is missing, not the log, which is well."""
    with ServeCommand("--port", "0", "--log", log):
        done = himalia("backup", str(tmp_path / "missing" / "x.db"), "--log", log)
    assert_sentence(done, 1, f"there is no directory {tmp_path / 'missing'}")


def test_a_backup_that_cannot_be_written_names_its_place(log: str, tmp_path: Path) -> None:
    """A full disk, a name that cannot be, a file system that takes no files: of the backup, not of the log."""
    with ServeCommand("--port", "0", "--log", log) as server, SyncClient(server.url, server.token) as client:
        client.create_topic("orders")
        client.publish_many("orders", ["x" * 1000] * 4000)
        with small_file_system(tmp_path / "disk") as disk:
            done = himalia("backup", str(disk / "x.db"), "--log", log)
            assert_sentence(done, 1, f"cannot write the backup to {disk}/x.db: no space is left there")
            assert list(disk.iterdir()) == []
        for target in ("/proc/x.db", str(tmp_path / ("x" * 300))):
            assert_sentence(
                himalia("backup", target, "--log", log), 1, f"cannot write the backup to {target}: "
            )
        assert client.health().status == "ok"


def test_what_cannot_be_backed_up_or_restored(log: str, tmp_path: Path) -> None:
    """No log, no backup, a log that is not in a file, a file that is no backup: one sentence each."""
    assert_sentence(himalia("backup", str(tmp_path / "x.db"), "--log", log), 1, "no log")
    assert_sentence(himalia("restore", str(tmp_path / "x.db"), "--log", log), 1, "no backup")
    assert_sentence(himalia("backup", str(tmp_path / "x.db"), "--log", "memory://"), 1, "memory://")
    (tmp_path / "junk.db").write_bytes(b"junk" * 1000)
    junk = himalia("restore", str(tmp_path / "junk.db"), "--log", log)
    assert_sentence(junk, 1, "junk.db")
    assert not (tmp_path / "log.db").exists()
