"""A kernel's messages as a console shows them; images as files, or as their type and size."""

from __future__ import annotations

import base64
import binascii
import struct
from pathlib import Path
from typing import Any

import msgspec

from himalia.cli.terminal.screen import Mark, Screen, Stream
from himalia.cli.terminal.units import format_size
from himalia.cli.terminal.widgets import WidgetBlock, Widgets, model_in
from himalia.client.events import Event
from himalia.errors import HimaliaError

SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/bmp": ".bmp",
    "image/svg+xml": ".svg",
    "application/pdf": ".pdf",
}
_PNG = b"\x89PNG\r\n\x1a\n"


def to_text(value: Any) -> str:
    """Return a value of a MIME bundle as text; it may be a list of lines."""
    if isinstance(value, list):
        return "".join(str(line) for line in value)
    return value if isinstance(value, str) else str(value)


def image_mime(data: dict[str, Any]) -> str | None:
    """Return the best MIME type of an image in a MIME bundle, if it has one."""
    return next((mime for mime in SUFFIXES if mime in data), None)


class Images:
    """The images of one run. Saved in ``directory`` as ``<count>-<number>.png``, if there is one."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._saved: dict[str, Path] = {}
        self._numbers: dict[str, int] = {}

    def save(self, mime: str, value: Any, *, cell: str, display_id: str | None = None) -> str:
        """Save an image, if there is a directory, and describe it. An update of a display replaces its file."""
        content = _bytes_of(mime, value)
        description = f"{mime}{_dimensions(content)}, {format_size(len(content))}"
        if self._directory is None:
            return f"[{description}]"
        path = self._saved.get(display_id or "") or self._next_path(cell, SUFFIXES[mime])
        if display_id:
            self._saved[display_id] = path
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise HimaliaError(f"the image cannot be saved as {path}: {error.strerror}") from None
        return f"[{description}, saved as {path}]"

    def _next_path(self, cell: str, suffix: str) -> Path:
        assert self._directory is not None
        number = self._numbers[cell] = self._numbers.get(cell, 0) + 1
        return self._directory / f"{cell}-{number}{suffix}"


def _bytes_of(mime: str, value: Any) -> bytes:
    text = to_text(value)
    if mime == "image/svg+xml":
        return text.encode("utf-8", "replace")
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return text.encode("utf-8", "replace")


def _dimensions(content: bytes) -> str:
    if content[:8] != _PNG or len(content) < 24:
        return ""
    width, height = struct.unpack(">II", content[16:24])
    return f" {width}x{height}"


DIM, RED, GREEN = "2", "31", "32"
COMM_TYPES = ("comm_open", "comm_msg", "comm_close")
ENDS = ("died", "stopped", "restarted")
"""Events that end a kernel's process, and with it its widgets."""
QUIET_ENDS = ("ok", "error")
"""Ends of a request that its output shows."""


class KernelRecord(msgspec.Struct, frozen=True):
    """The content of a record of a kernel's topic."""

    msg_type: str
    parent_id: str
    content: dict[str, Any]
    buffers: tuple[str, ...] = ()
    """The binary buffers of the message, in base64."""

    @classmethod
    def of(cls, event: Event) -> KernelRecord:
        """Parse a record. Never raises: a kernel, or a client that may publish to its topic, may send anything."""
        payload = event.payload
        payload = payload if isinstance(payload, dict) else {}
        content, buffers = payload.get("content"), payload.get("buffers")
        return cls(
            event.headers.get("msg_type", ""),
            event.headers.get("parent_id", ""),
            content if isinstance(content, dict) else {},
            tuple(map(str, buffers)) if isinstance(buffers, list) else (),
        )

    @property
    def event(self) -> str:
        """The type of the event, if the record is an event of the server; else empty."""
        return str(self.content.get("event", "")) if self.msg_type == "kernel_event" else ""


class Renderer:
    """Shows the output in the records of a kernel's topic; ``ConsoleRenderer`` shows the whole session."""

    def __init__(self, screen: Screen, images: Images, widgets: Widgets | None = None) -> None:
        self._screen = screen
        self._images = images
        self._widgets = widgets if widgets is not None else Widgets()
        self._block = WidgetBlock(screen, self._widgets)
        self._request = ""
        self._count: int | None = None
        self._start = screen.mark()
        self._clear_first = False
        # The last display and where it is: only this one can be updated in place.
        self._last_display: tuple[str, Mark] | None = None

    def show(self, record: KernelRecord) -> None:
        if record.msg_type in COMM_TYPES:
            if self._widgets.apply(record.msg_type, record.content, record.buffers):
                self._block.draw()
        elif record.msg_type == "status":
            self._status(record)
        else:
            self._block.erase()
            self._write(record)
            self._block.draw()

    def freeze_widgets(self) -> None:
        """Leave the widgets as they are now: the code has ended."""
        self._block.freeze()

    def set_paused(self, *, paused: bool) -> None:
        """Draw no widgets while the user types on the terminal."""
        self._block.set_paused(paused=paused)

    def _write(self, record: KernelRecord) -> None:
        match record.msg_type:
            case "execute_input":
                self._input(record)
            case "stream":
                self._stream(record)
            case "display_data":
                self._display(record)
            case "update_display_data":
                self._update(record)
            case "execute_result":
                self._result(record)
            case "error":
                self._error(record)
            case "clear_output":
                self._clear(record)
            case "input_request":
                self._input_request(record)
            case "input_reply":
                self._input_reply(record)
            case "kernel_event":
                self._event(record)

    # Requests

    def _status(self, record: KernelRecord) -> None:
        """In a pipe, write the widgets of a request when it is idle."""
        is_idle = record.content.get("execution_state") == "idle"
        if is_idle and record.parent_id == self._request and not self._screen.is_terminal(Stream.OUT):
            self._block.freeze()

    def _input(self, record: KernelRecord) -> None:
        self._request = record.parent_id
        count = record.content.get("execution_count")
        self._count = count if isinstance(count, int) else None
        self._clear_first = False
        self._last_display = None
        self._start = self._screen.mark()

    # Outputs

    def _stream(self, record: KernelRecord) -> None:
        self._before_output(record)
        stream = Stream.ERR if record.content.get("name") == "stderr" else Stream.OUT
        self._screen.write(to_text(record.content.get("text", "")), self._stream_for(stream))

    def _display(self, record: KernelRecord) -> None:
        self._before_output(record)
        if self._show_widget(record):
            return
        display_id = _display_id(record)
        self._screen.begin_line()
        mark = self._screen.mark()
        self._write_block(self._best_text(record, display_id))
        self._last_display = (display_id, mark) if display_id else None

    def _update(self, record: KernelRecord) -> None:
        display_id = _display_id(record)
        if self._last_display is not None and self._last_display[0] == display_id:
            self._screen.erase_to(self._last_display[1])
        self._display(record)

    def _result(self, record: KernelRecord) -> None:
        self._before_output(record)
        if not self._show_widget(record):
            self._write_block(self._best_text(record, _display_id(record)))

    def _show_widget(self, record: KernelRecord) -> bool:
        """Show the widget that the record displays, if it is of a known kind; return whether it is."""
        model_id = model_in(_data(record))
        if not self._widgets.can_show(model_id):
            return False
        self._block.add(model_id)
        return True

    def _error(self, record: KernelRecord) -> None:
        self._before_output(record)
        lines = record.content.get("traceback")
        if not isinstance(lines, list) or not lines:
            lines = [f"{record.content.get('ename', 'Error')}: {record.content.get('evalue', '')}"]
        self._write_block("\n".join(str(line) for line in lines), self._stream_for(Stream.ERR))

    def _clear(self, record: KernelRecord) -> None:
        if record.parent_id != self._request:
            return
        self._clear_first = bool(record.content.get("wait"))
        if not self._clear_first:
            self._erase()

    def _before_output(self, record: KernelRecord) -> None:
        self._last_display = None
        if self._clear_first and record.parent_id == self._request:
            self._erase()

    def _erase(self) -> None:
        self._clear_first = False
        self._last_display = None
        self._block.clear()
        self._screen.erase_to(self._start)

    def _write_block(self, text: str, stream: Stream = Stream.OUT) -> None:
        """Write text on lines of its own."""
        self._screen.begin_line(stream)
        self._screen.write(text.removesuffix("\n") + "\n", stream)

    def _best_text(self, record: KernelRecord, display_id: str) -> str:
        """Return the form of a MIME bundle that a console shows best."""
        data = _data(record)
        image = image_mime(data)
        if image is not None:
            cell = f"{self._count:03}" if self._count is not None else "output"
            return self._images.save(image, data[image], cell=cell, display_id=display_id)
        plain = to_text(data.get("text/plain", ""))
        # IPython's text for an object that has another form says nothing.
        if plain and not plain.startswith("<IPython.core.display."):
            return plain
        for mime in ("text/markdown", "text/latex"):
            if mime in data:
                return to_text(data[mime])
        others = {mime: value for mime, value in data.items() if mime != "text/plain"}
        if not others:
            return plain
        return ", ".join(f"[{mime}, {format_size(len(to_text(value)))}]" for mime, value in others.items())

    def _stream_for(self, stream: Stream) -> Stream:
        return stream

    def _input_request(self, record: KernelRecord) -> None:
        """Do nothing: the client that runs the code shows the prompt."""

    def _input_reply(self, record: KernelRecord) -> None:
        pass

    def _event(self, record: KernelRecord) -> None:
        if record.event in ("gap", "message_too_large"):
            self._screen.write_own(f"warning: {describe_event(record.content)}", stream=Stream.ERR)


class ConsoleRenderer(Renderer):
    """Shows the whole session on stdout: prompts and code, outputs, results, errors, and events of the kernel."""

    def _stream_for(self, stream: Stream) -> Stream:
        return Stream.OUT

    def _input(self, record: KernelRecord) -> None:
        self._block.freeze()
        count = record.content.get("execution_count")
        prompt = f"In [{count if isinstance(count, int) else ' '}]: "
        first, *more = to_text(record.content.get("code", "")).split("\n")
        self._screen.begin_line()
        self._screen.write(self._screen.style(prompt, GREEN) + first + "\n")
        for line in more:
            self._screen.write(self._screen.style("...: ".rjust(len(prompt)), GREEN) + line + "\n")
        super()._input(record)

    def _result(self, record: KernelRecord) -> None:
        self._before_output(record)
        if self._show_widget(record):
            return
        text = self._best_text(record, _display_id(record))
        prompt = self._screen.style(f"Out[{record.content.get('execution_count')}]:", RED)
        self._write_block(f"{prompt}{chr(10) if chr(10) in text else ' '}{text}")

    def _input_request(self, record: KernelRecord) -> None:
        self._before_output(record)
        self._screen.write(to_text(record.content.get("prompt", "")))

    def _input_reply(self, record: KernelRecord) -> None:
        self._screen.write(to_text(record.content.get("value", "")) + "\n")

    def _event(self, record: KernelRecord) -> None:
        if record.event in ENDS:
            self._block.freeze()
        description = describe_event(record.content)
        if description:
            self._last_display = None
            self._screen.write_own(f"-- {description}", DIM)


def _data(record: KernelRecord) -> dict[str, Any]:
    """Return the MIME bundle of a display."""
    data = record.content.get("data")
    return data if isinstance(data, dict) else {}


def _display_id(record: KernelRecord) -> str:
    transient = record.content.get("transient")
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return "" if found is None else str(found)


def describe_event(content: dict[str, Any]) -> str:
    """Describe an event of a kernel or a request; empty for one that the output shows."""
    name, reason = content.get("name"), content.get("reason") or "unknown reason"
    match content.get("event"):
        case "started":
            return f"{name} started (process {content.get('pid')})"
        case "died":
            return f"the kernel died: {reason}"
        case "restarting":
            return f"the kernel is being restarted: {reason}"
        case "restarted":
            return f"the kernel was restarted (process {content.get('pid')})"
        case "moved":
            return f"the kernel was started on other ports (process {content.get('pid')}): {reason}"
        case "interrupted":
            return "the kernel was interrupted"
        case "attached":
            return f"listening to {name} from here on"
        case "reattached":
            return "the server has restarted and listens again"
        case "stopped":
            return f"the kernel was stopped: {reason}"
        case "gap":
            count = content.get("count")
            return f"{'messages' if count is None else f'{count} messages'} are missing here: {reason}"
        case "message_too_large":
            kind, size = content.get("msg_type"), content.get("size_bytes")
            size_text = format_size(size) if isinstance(size, int) else "of unknown size"
            return f"a message ({kind}, {size_text}) is too large and was not stored"
        case "request_closed" if content.get("status") not in QUIET_ENDS:
            return f"{content.get('status')}: {reason}"
    return ""
