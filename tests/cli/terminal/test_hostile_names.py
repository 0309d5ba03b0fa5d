"""What others named cannot steer the terminal of the reader."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from himalia.cli.terminal.output import escape_controls, make_table, print_json, print_warning, write_line
from himalia.client import SyncClient
from tests.cli.command import himalia
from tests.servers import RunningServer

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
CLEARED = "\x1b[2J\x1b[H"
C1 = "\x9b2J\x9d52;c;cm0=\x9c"
HOSTILE = f"viewer{CLIPBOARD}{CLEARED}{C1}\r\x08\x7f"


def controls(text: str) -> set[str]:
    return {char for char in text if char != "\n" and not char.isprintable()}


def test_printable_text_has_no_control_character() -> None:
    """Every control character is escaped, and what is left is what was there."""
    everything = "".join(map(chr, range(0xA0)))
    assert not controls(escape_controls(everything).replace("\xa0", ""))
    assert json.loads(f'"{escape_controls(HOSTILE)}"') == HOSTILE


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_stats_escape_client_ids(server: RunningServer, options: list[str]) -> None:
    """A client id is shown, and neither fills the clipboard nor clears the screen."""
    server.create("orders")
    with SyncClient(server.url, token=server.token) as client, client.subscribe("orders", client_id=HOSTILE):
        done = himalia("stats", *options)
    assert done.returncode == 0
    assert "viewer" in done.stdout and "52;c;" in done.stdout
    assert not controls(done.stdout + done.stderr)


class Hostile(BaseHTTPRequestHandler):
    """A server that answers every request with an error, or names, meant for the terminal."""

    def do_GET(self) -> None:
        if self.path.startswith("/topics"):
            info = {
                "name": HOSTILE,
                "epoch": "e",
                "messages": 1,
                "first": 0,
                "end": 1,
                "bytes": 1,
                "subscribers": 0,
            }
            self._answer(
                200, {"topics": [{**info, "retention": {}, "created": "2026-01-01T00:00:00Z", "lag": 0}]}
            )
        else:
            self._answer(422, {"error": {"code": "BAD_REQUEST", "message": HOSTILE}})

    do_POST = do_DELETE = do_GET

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "command", [["topics", "list"], ["kernel", "list"], ["stats"]], ids=lambda words: " ".join(words)
)
def test_names_and_errors_of_a_server_are_escaped(hostile: str, command: list[str]) -> None:
    """Whatever a server answers, no control character of it is printed."""
    done = himalia(*command, "--url", hostile)
    assert "viewer" in done.stdout + done.stderr
    assert not controls(done.stdout + done.stderr)


def test_every_way_to_print_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines, JSON, warnings and tables go through one function."""
    from rich.console import Console

    write_line(HOSTILE)
    print_json({"name": HOSTILE})
    print_warning(HOSTILE)
    Console(width=500).print(make_table(["name"], [[HOSTILE]]))
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("viewer") == 4
    assert not controls(printed.out + printed.err)
