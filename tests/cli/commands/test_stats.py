from __future__ import annotations

import json
import signal

from tests.cli.command import RunningCommand, himalia
from tests.servers import RunningServer


def test_tables_for_people(server: RunningServer) -> None:
    """Topics with their counts, and totals, are shown."""
    server.create("orders")
    himalia("publish", "orders", "1")
    done = himalia("stats")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("published", "delivered", "dropped", "orders", "0..1"):
        assert word in done.stdout


def test_json_for_programs(server: RunningServer) -> None:
    """With --json it is the server's own statistics, on one line."""
    server.create("orders")
    himalia("publish", "orders", "1")
    done = himalia("stats", "--json")
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["topics"]["orders"]["messages"] == 1


def test_watching_until_ctrl_c(server: RunningServer) -> None:
    """With --watch it goes on until Ctrl-C, which is exit code 130."""
    with RunningCommand("stats", "--watch", "--json") as running:
        for _ in range(2):
            assert json.loads(running.line())["published"] == 0
        running.signal(signal.SIGINT)
        assert running.end() == 130
        assert running.process.stderr is not None
        assert running.process.stderr.read() == b""
