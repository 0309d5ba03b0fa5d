"""What a console makes of a kernel's messages, down to the escape sequences."""

from __future__ import annotations

import io
from typing import Any

import pytest

from himalia.cli.terminal.kernel_output import ConsoleRenderer, Images, KernelRecord, Renderer, describe_event
from himalia.cli.terminal.screen import Escapes, Screen, Stream


class Output(io.StringIO):
    """A terminal of 24 rows and 80 columns, or a pipe."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__(newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def say(msg_type: str, parent_id: str = "r", **content: Any) -> KernelRecord:
    return KernelRecord(msg_type, parent_id, content)


def stream(text: str, name: str = "stdout") -> KernelRecord:
    return say("stream", name=name, text=text)


def shown(*records: KernelRecord, terminal: bool, console: bool = False) -> tuple[str, str]:
    """What comes out on stdout and stderr."""
    out, err = Output(terminal=terminal), Output(terminal=terminal)
    renderer = (ConsoleRenderer if console else Renderer)(Screen(out, err), Images())
    for record in records:
        renderer.show(record)
    return out.getvalue(), err.getvalue()


START = say("execute_input", code="x", execution_count=1)
TWO_LINES = stream("one\ntwo\n")


def test_clear_output_takes_back_what_the_cell_wrote() -> None:
    """On a terminal the cursor goes back to where the cell began, and what is below is erased."""
    out, _ = shown(START, TWO_LINES, say("clear_output", wait=False), stream("three\n"), terminal=True)
    assert out == "one\ntwo\n\x1b[2A\r\x1b[Jthree\n"


def test_clear_output_may_wait_for_the_next_output() -> None:
    """With ``wait`` it stays until there is something to show in its place; alone it does nothing."""
    clear = say("clear_output", wait=True)
    assert shown(START, TWO_LINES, clear, terminal=True)[0] == "one\ntwo\n"
    assert shown(START, TWO_LINES, clear, stream("3"), terminal=True)[0] == "one\ntwo\n\x1b[2A\r\x1b[J3"


def test_a_pipe_keeps_what_was_cleared() -> None:
    """Where nothing can be taken back, everything stays, without escape sequences."""
    out, _ = shown(START, TWO_LINES, say("clear_output"), stream("three\n"), terminal=False)
    assert out == "one\ntwo\nthree\n"


def test_lines_wider_than_the_terminal_are_counted_as_they_wrap() -> None:
    """200 columns are three rows of 80, so the cursor is two rows down; wide characters take two columns."""
    out, _ = shown(START, stream("x" * 200), say("clear_output"), terminal=True)
    assert out.endswith("\x1b[2A\r\x1b[J")
    out, _ = shown(START, stream("雪" * 41), say("clear_output"), terminal=True)
    assert out.endswith("\x1b[1A\r\x1b[J")


def test_a_display_is_updated_in_its_place_while_it_is_the_last() -> None:
    """On a terminal an update replaces the display it names, if nothing was written since; else it comes anew."""

    def display(kind: str, text: str) -> KernelRecord:
        return say(kind, data={"text/plain": text}, transient={"display_id": "d"})

    first, second = display("display_data", "1%"), display("update_display_data", "2%")
    third = display("update_display_data", "3%")
    out, _ = shown(START, first, second, third, terminal=True)
    assert out == "1%\n\x1b[1A\r\x1b[J2%\n\x1b[1A\r\x1b[J3%\n"
    assert shown(START, first, stream("x\n"), second, terminal=True)[0] == "1%\nx\n2%\n"
    assert shown(START, first, second, terminal=False)[0] == "1%\n2%\n"


def test_a_result_has_a_line_of_its_own() -> None:
    """A result does not go on in a line that the code left unfinished."""
    result = say("execute_result", data={"text/plain": "2"}, execution_count=1)
    assert shown(stream("no newline"), result, terminal=False)[0] == "no newline\n2\n"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"text/plain": "a", "text/html": "<b>a</b>"}, "a\n"),
        ({"text/plain": "<IPython.core.display.Markdown object>", "text/markdown": "# a"}, "# a\n"),
        ({"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>a</b>"}, "[text/html, 8 B]\n"),
        ({"text/plain": ["a\n", "b"]}, "a\nb\n"),
        ({"image/svg+xml": "<svg/>", "text/plain": "<Figure>"}, "[image/svg+xml, 6 B]\n"),
        ({"image/png": "not base64!"}, "[image/png, 11 B]\n"),
        ({}, "\n"),
    ],
)
def test_the_form_that_a_console_can_show(data: dict[str, Any], text: str) -> None:
    """Of several forms of one thing the best for a console is taken; what none can show is told by type and size."""
    assert shown(say("display_data", data=data), terminal=False)[0] == text


def test_the_whole_session() -> None:
    """The console has prompts, everything on stdout, and events dimmed on a terminal."""
    records = [
        say("execute_input", code="1 +\\\n 1", execution_count=3),
        stream("e", "stderr"),
        say("execute_result", data={"text/plain": "a\nb"}, execution_count=3),
        say("error", ename="E", evalue="v", traceback=[]),
        say("input_request", prompt="? "),
        say("input_reply", value="yes"),
        say("kernel_event", event="died", reason="it was killed"),
        say("kernel_event", event="request_closed", status="ok"),
    ]
    plain, nothing = shown(*records, terminal=False, console=True)
    assert (
        plain
        == "In [3]: 1 +\\\n   ...:  1\ne\nOut[3]:\na\nb\nE: v\n? yes\n-- the kernel died: it was killed\n"
    )
    assert nothing == ""
    coloured, _ = shown(*records, terminal=True, console=True)
    assert "\x1b[32mIn [3]: \x1b[0m" in coloured
    assert "\x1b[2m-- the kernel died: it was killed\x1b[0m\n" in coloured


@pytest.mark.parametrize(
    "record",
    [
        say("stream"),
        say("stream", text=7, name=7),
        say("display_data", data=7, transient=7),
        say("execute_result", data={"text/plain": None}),
        say("error", traceback="x"),
        say("execute_input", code=None, execution_count="x"),
        say("kernel_event", event="message_too_large", size_bytes="x"),
        say("kernel_event"),
        say("no such type"),
    ],
)
def test_what_a_kernel_should_not_say_is_shown_somehow(record: KernelRecord) -> None:
    """A message that is not what its type says ends nothing."""
    for terminal in (True, False):
        shown(record, stream("after\n"), terminal=terminal)
        assert "after" in shown(record, stream("after\n"), terminal=terminal, console=True)[0]


def test_what_is_missing_is_said() -> None:
    """A gap is a warning on stderr, also where the output alone is shown."""
    gap = say("kernel_event", "", event="gap", count=3, reason="the spool was full")
    assert shown(gap, terminal=False) == ("", "warning: 3 messages are missing here: the spool was full\n")


@pytest.mark.parametrize(
    "event", ["started", "restarting", "restarted", "interrupted", "attached", "reattached"]
)
def test_events_are_sentences(event: str) -> None:
    """Each of them has words, also with nothing known beside its name."""
    assert describe_event({"event": event})


def test_the_status_line_gives_way() -> None:
    """It is taken away before output and drawn again below it, never in the middle of a line."""
    out = Output(terminal=True)
    screen = Screen(out, out)
    screen.show_status("1/3")
    screen.write("a\n")
    screen.write("b")
    screen.write("\n")
    screen.show_status("")
    assert out.getvalue() == "\x1b[K1/3\r\x1b[Ka\n\x1b[K1/3\r\x1b[Kb\n\x1b[K1/3\r\x1b[K\r"


def test_streams_that_are_not_both_terminals() -> None:
    """A terminal beside a pipe: each gets its own, and nothing of the terminal's is in the pipe."""
    out, err = Output(terminal=False), Output(terminal=True)
    screen = Screen(out, err)
    screen.show_status("1/3")
    screen.write("\x1b[31mred\x1b[0m", Stream.OUT)
    screen.write("\x1b[31mred\x1b[0m\n", Stream.ERR)
    assert out.getvalue() == "red"
    assert "\x1b[31mred\x1b[0m\n" in err.getvalue()


@pytest.mark.parametrize(
    ("parts", "on_terminal", "in_pipe"),
    [
        (["a\x1b[3", "1mb\x1b[0m"], "a\x1b[31mb\x1b[0m", "ab"),
        (["10%\r20%"], "10%\r20%", "10%\r20%"),
        (["\x1b[2A\x1b[K"], "\x1b[2A\x1b[K", ""),
        (["\x1b]0;title\x07x", "\x1b]52;c;", "aGk=\x07y"], "xy", "xy"),
        (["\x1b[2J\x1b[H\x1b[6nx"], "x", "x"),
        (["\x1bP", "q\x1b", "\\x"], "x", "x"),
        (["\x1bc\x1b(Bx"], "x", "x"),
        (["\x9b31mx\x07\x7f"], "31mx", "\x9b31mx\x07\x7f"),
        (["\x1b[", "?" * 300, "x"], "[" + "?" * 300 + "x", None),
    ],
)
def test_escape_sequences(parts: list[str], on_terminal: str, in_pipe: str | None) -> None:
    """Colours and small movements stay on a terminal, everything else goes, wherever the text is cut."""
    terminal, pipe = Escapes(terminal=True, colours=True), Escapes(terminal=False, colours=False)
    assert "".join(terminal.feed(part) for part in parts) == on_terminal
    if in_pipe is not None:
        assert "".join(pipe.feed(part) for part in parts) == in_pipe


def test_no_color() -> None:
    """NO_COLOR takes out colours and leaves the rest."""
    escapes = Escapes(terminal=True, colours=False)
    assert escapes.feed("\x1b[31ma\x1b[0m\x1b[Ab") == "a\x1b[Ab"
