"""What the server writes about itself: lines for people or for programs, and no more than was asked for."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from himalia.log.api import Batch
from himalia.server.drafts import Drafter
from himalia.server.observe.log_config import HideCancelled, HideTokens, JsonLines, TextLines
from tests.server.raw_clients import RawWebSocket, frame
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer, ask, message

UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")


def conversation(server: Any) -> None:
    """Something of everything: topics, publishes, deliveries, errors, connections that come and go."""
    server.create("orders")
    with RawWebSocket(server) as viewer, RawWebSocket(server) as publisher, server.http() as http:
        viewer.ask(type="subscribe", topic="orders", client_id="viewer-1")
        for i in range(50):
            publisher.ask(type="publish", topic="orders", message=message(i))
            assert viewer.hear()["offset"] == i
        publisher.send(frame(b"nonsense"))
        publisher.hear()
        http.get("/nothing")
        http.get("/topics/orders/messages")
        http.delete("/topics/orders").raise_for_status()
        viewer.reset()


@pytest.mark.slow
def test_json_lines_tell_how_a_message_was_routed(tmp_path: Path) -> None:
    """Every line is one JSON object; at debug each commit says which offsets go to whom."""
    with ServerProcess(tmp_path, "--log-format", "json", "--log-level", "debug") as server:
        conversation(server)
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.stderr().splitlines()]
    for line in lines:
        assert {"ts", "level", "logger", "message"} <= set(line) and UTC.match(line["ts"])
        assert line["level"] in ("debug", "info")
    routed = [line for line in lines if "subscribers" in line]
    assert [offset for line in routed for offset in range(line["first"], line["last"] + 1)] == list(range(50))
    assert all(
        (line["topic"], line["subscribers"], line["level"]) == ("orders", ["viewer-1"], "debug")
        for line in routed
    )
    assert any("BAD_REQUEST" in line["message"] for line in lines)


@pytest.mark.slow
def test_at_info_nothing_is_said_of_single_messages_or_clients(tmp_path: Path) -> None:
    """A busy server does not write a line for each thing that happens."""
    with ServerProcess(tmp_path) as server:
        conversation(server)
        assert server.stop() == 0
        lines = server.stderr().splitlines()
    assert 0 < len(lines) <= 5
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO    himalia\.", line) for line in lines)


def test_an_error_of_a_client_is_no_error_of_the_server(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever clients do wrong, the log stays free of warnings."""
    conversation(server)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError


def not_stored(batch: Batch) -> asyncio.Future[Any]:
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(ZeroDivisionError())
    return failed


PUBLISH = {"type": "publish", "topic": "orders", "message": message(1)}
SUBSCRIBE = {"type": "subscribe", "topic": "orders", "client_id": "v"}


@pytest.mark.parametrize(
    ("part", "fails", "sent", "said"),
    [
        ("context.manager.publish", not_stored, PUBLISH, "publishing to orders by token failed"),
        ("context.manager.subscribe", broken, SUBSCRIBE, "handling a command of token failed"),
        (
            "context.manager.unsubscribe",
            broken,
            {**SUBSCRIBE, "type": "unsubscribe"},
            "handling a command of token failed",
        ),
        ("draft", broken, PUBLISH, "handling a message of token failed"),
        ("context.admit", broken, None, "the WebSocket endpoint failed for token"),
    ],
    ids=["publish", "subscribe", "unsubscribe", "message", "handshake"],
)
async def test_a_bug_on_a_websocket_is_logged_with_its_caller(
    serve: Callable[..., RunningServer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    fails: Callable[..., Any],
    sent: dict[str, Any] | None,
    said: str,
) -> None:
    """In the text and, for programs, as a field."""
    server = serve(kernels=False)
    server.create("orders")
    owner, _, name = part.rpartition(".")
    monkeypatch.setattr(attrgetter(owner)(server) if owner else Drafter, name, fails)
    if sent is None:
        with pytest.raises(InvalidStatus):
            await server.connect()
    else:
        async with server.connect() as ws:
            assert (await ask(ws, **sent))["error"]["code"] == "INTERNAL"
    [line] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert line.getMessage().startswith(said)
    assert vars(line)["caller"] == "token"


def record(text: str, *arguments: Any, **fields: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": text, "args": arguments, "levelname": "INFO", "name": "himalia"})
    made.__dict__.update(fields)
    return made


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("GET /?token=secret", (), "GET /?token=..."),
        (
            '%s - "WebSocket %s" [accepted]',
            ("1.2.3.4", "/ws?token=secret"),
            '1.2.3.4 - "WebSocket /ws?token=..." [accepted]',
        ),
        ("/ws?a=1&token=secret&b=2", (), "/ws?a=1&token=...&b=2"),
        ("?token=secret and ?token=other", (), "?token=... and ?token=..."),
        ("nothing %d", (1,), "nothing 1"),
    ],
)
def test_a_token_in_an_address_is_hidden(text: str, arguments: tuple[Any, ...], expected: str) -> None:
    """However a line came by it."""
    given = record(text, *arguments)
    assert HideTokens().filter(given)
    assert given.getMessage() == expected


@pytest.mark.parametrize("query", ["token=secret", "api_key=secret", "%74oken=secret", "a=1&KEY=secret"])
def test_lines_of_uvicorn_have_no_query(query: str) -> None:
    """A key under a name that nothing looks for is a key all the same."""
    given = record('%s - "WebSocket %s" %d', "1.2.3.4", f"/ws?{query}", 401, name="uvicorn.error")
    assert HideTokens().filter(given)
    assert given.getMessage() == '1.2.3.4 - "WebSocket /ws?..." 401'


def test_times_for_programs_are_in_utc_wherever_the_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line says when in a way that needs no knowledge of the machine."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        line = json.loads(JsonLines().format(record("x", created=0.0, msecs=7.0)))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert line["ts"] == "1970-01-01T00:00:00.007Z"


def test_an_exception_is_one_line_of_json() -> None:
    """A traceback does not break the form that programs read."""
    try:
        raise ValueError("some\nlines")
    except ValueError:
        given = record("failed", exc_info=sys.exc_info(), topic="orders", odd=object())
    text = JsonLines().format(given)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["message"], line["topic"]) == ("failed", "orders")
    assert "ValueError: some" in line["exception"]


FORGED = "viewer\n2026-01-01 00:00:00,000 INFO    himalia.server: all is well"


@pytest.mark.parametrize("mark", ["\n", "\r", "\x1b[2J", "\x85", "\u2028", "\u202e", "\x00", "\ud800"])
def test_a_line_for_people_is_one_line(mark: str) -> None:
    """Nothing that a client has put into a name begins a line, or reaches the terminal of whoever reads the log."""
    text = TextLines("%(levelname)s %(message)s").format(record("of %s", f"a{mark}b"))
    assert text == "INFO of a" + mark.encode("unicode_escape").decode() + "b"
    assert text.isprintable()


def test_a_traceback_is_indented() -> None:
    """What an exception says cannot look like a line of the log either."""
    try:
        raise ValueError(FORGED)
    except ValueError:
        given = record("failed", exc_info=sys.exc_info())
    first, *others = TextLines("%(message)s").format(given).splitlines()
    assert first == "failed" and all(line.startswith("    ") for line in others)


@pytest.mark.slow
def test_a_client_cannot_forge_a_line(tmp_path: Path) -> None:
    """At debug, where client ids are logged, every line begins with the server's own time and level."""
    with ServerProcess(tmp_path, "--log-level", "debug") as server:
        server.create("orders")
        with RawWebSocket(server) as viewer:
            viewer.ask(type="subscribe", topic="orders", client_id=FORGED)
            viewer.ask(type="publish", topic="orders", client_id=FORGED, message=message(1))
            viewer.send(frame(json.dumps({"type": FORGED}).encode()))
            viewer.hear()
        assert server.stop() == 0
        lines = server.stderr().splitlines()
    assert any("all is well" in line for line in lines)
    start = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO)    ?himalia|\d{4}.* uvicorn")
    assert [line for line in lines if not start.match(line)] == []
    assert [line for line in lines if line.startswith("2026-01-01 00:00:00,000")] == []


def test_what_was_cancelled_at_the_end_is_not_told_with_a_traceback() -> None:
    """Ending in time is no failure; any other exception is."""
    for error, expected in ((asyncio.CancelledError(), False), (ValueError(), True)):
        assert HideCancelled().filter(record("x", exc_info=(type(error), error, None))) is expected
    assert HideCancelled().filter(record("x"))
