"""Every message, field, code and call is in docs/protocol.md."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from himalia.errors import ErrorCode
from himalia.protocol import PROTOCOL_VERSION, ClientMessage, ErrorBody, Message, NoticeKind, ServerMessage
from himalia.retry import TRANSIENT_ERRORS
from himalia.server import create_app
from himalia.server.errors import STATUS
from himalia.server.websocket import transport
from himalia.settings import Settings
from tests.docs.markdown import ROOT, blocks, code_spans, rows, section, without_blocks

SERVER_SOURCE = ROOT / "src" / "himalia" / "server"


def field_names(message: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(message)}


def first_cells(text: str) -> set[str]:
    """The code spans of the first column of a section's tables."""
    return {span for cells in rows(text) for span in code_spans(cells[0])}


@pytest.mark.parametrize(
    ("heading", "message"),
    [("### Messages from the client", ClientMessage), ("### Messages from the server", ServerMessage)],
)
def test_every_field_of_a_message_has_a_row(
    protocol: str, heading: str, message: type[msgspec.Struct]
) -> None:
    """The tables of fields are complete, and have no field that does not exist."""
    assert first_cells(section(protocol, heading)) == field_names(message)


@pytest.mark.parametrize("message", [Message, ErrorBody])
def test_the_parts_of_messages_are_documented(protocol: str, message: type[msgspec.Struct]) -> None:
    """So are the objects inside them."""
    spans = set(code_spans(section(protocol, "## WebSocket")))
    assert field_names(message) <= spans


def test_every_type_of_message_is_in_an_example(protocol: str) -> None:
    """Each thing that can be said is shown once, executed or at least checked."""
    shown = "\n".join(block.text for block in blocks(protocol))
    for message in (ClientMessage, ServerMessage):
        [kinds] = [field.type for field in msgspec.structs.fields(message) if field.name == "type"]
        for kind in kinds.__args__:
            assert f'"type": "{kind}"' in shown


def error_rows(protocol: str) -> dict[str, list[str]]:
    table = rows(section(protocol, "## Errors"))
    return {code_spans(cells[0])[0]: cells for cells in table}


def test_every_error_code_has_a_row(protocol: str) -> None:
    """The table of errors is complete, and has none that does not exist."""
    assert error_rows(protocol).keys() == {str(code) for code in ErrorCode}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_an_error_is_documented_as_it_is(protocol: str, code: ErrorCode) -> None:
    """Its HTTP status is the one that is sent; retrying is advised where the client library retries."""
    _, status, retry, meaning = error_rows(protocol)[code]
    expected = STATUS.get(code, 500 if code is ErrorCode.INTERNAL else None)
    assert status == ("-" if expected is None else str(expected))
    assert retry == ("yes" if code in {error.code for error in TRANSIENT_ERRORS} else "no")
    assert meaning


def test_every_notice_has_a_row(protocol: str) -> None:
    """The server sends each kind of ``info`` message somewhere, and by no other name."""
    source = "\n".join(path.read_text() for path in SERVER_SOURCE.rglob("*.py"))
    sent = set(re.findall(r"\.(?:info|notify)\(\s*NoticeKind\.([A-Z_]+)", source))
    assert sent == NoticeKind.__members__.keys()
    assert {code_spans(cells[0])[0] for cells in rows(section(protocol, "### Notices"))} == set(NoticeKind)


def test_every_close_code_has_a_row(protocol: str) -> None:
    """Each code that the server closes with is explained."""
    documented = {int(cells[0]) for cells in rows(section(protocol, "### Close codes"))}
    source = "\n".join(path.read_text() for path in SERVER_SOURCE.rglob("*.py"))
    used = {
        code
        for name, code in vars(transport).items()
        if name.startswith("CLOSE_") and len(re.findall(rf"\b{name}\b", source)) > 1
    }
    assert used >= {1001, 1008, 1012}
    assert used | {1000, 1002, 1006, 1009} == documented


def calls() -> list[tuple[str, str, dict[str, Any]]]:
    paths = create_app(Settings(log="memory://")).openapi()["paths"]
    return [
        (method.upper(), path, call) for path, methods in paths.items() for method, call in methods.items()
    ]


def test_every_call_is_in_the_table(protocol: str) -> None:
    """What the OpenAPI document lists, the table of calls lists as well."""
    listed = first_cells(section(protocol, "## REST"))
    assert {f"{method} {path}" for method, path, _ in calls()} <= listed


def test_every_parameter_is_documented(protocol: str) -> None:
    """Each query parameter and header of a call is named in the prose."""
    spans = set(code_spans(without_blocks(protocol)))
    for _, _, call in calls():
        for parameter in call.get("parameters", []):
            if parameter["in"] != "path":
                name = parameter["name"].replace("last-event-id", "Last-Event-ID")
                assert name in spans


def test_the_protocol_version_is_documented(protocol: str) -> None:
    assert f"now **{PROTOCOL_VERSION}**" in section(protocol, "## Versions")
