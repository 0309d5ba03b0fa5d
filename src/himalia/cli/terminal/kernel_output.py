"""A kernel's messages as a console shows them; images as files, or by type and size."""

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


def as_text(value: Any) -> str:
    """A value of a MIME bundle, which may be a list of lines."""
    if isinstance(value, list):
        return "".join(str(line) for line in value)
    return value if isinstance(value, str) else str(value)


def image_in(data: dict[str, Any]) -> str | None:
    """The type of the image among several forms of one thing; the best that there is."""
    return next((mime for mime in SUFFIXES if mime in data), None)


class Images:
    """The images of one run. Saved in ``directory`` as ``<count>-<number>.png``, if there is one."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._saved: dict[str, Path] = {}
        self._numbers: dict[str, int] = {}

    def take(self, mime: str, value: Any, *, cell: str, display_id: str | None = None) -> str:
        """What to tell of an image. One that is shown anew under its ``display_id`` replaces its file."""
        content = _bytes_of(mime, value)
        told = f"{mime}{_dimensions(content)}, {format_size(len(content))}"
        if self._directory is None:
            return f"[{told}]"
        path = self._saved.get(display_id or "") or self._next_path(cell, SUFFIXES[mime])
        if display_id:
            self._saved[display_id] = path
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise HimaliaError(f"the image cannot be saved as {path}: {error.strerror}") from None
        return f"[{told}, saved as {path}]"

    def _next_path(self, cell: str, suffix: str) -> Path:
        assert self._directory is not None
        number = self._numbers[cell] = self._numbers.get(cell, 0) + 1
        return self._directory / f"{cell}-{number}{suffix}"


def _bytes_of(mime: str, value: Any) -> bytes:
    text = as_text(value)
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
"""Ends of a kernel's process, and of its widgets with it."""
QUIET_ENDS = ("ok", "error")
"""Ends of a request of which the output itself tells."""


class KernelRecord(msgspec.Struct, frozen=True):
    """What a record of a kernel's topic says."""

    msg_type: str
    parent_id: str
    content: dict[str, Any]
    buffers: tuple[str, ...] = ()
    """What came beside the JSON, in base64."""

    @classmethod
    def of(cls, event: Event) -> KernelRecord:
        """Never raises: a foreign kernel may say anything, and anybody with the right may publish to its topic."""
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
        """Of an event of the server's own, what happened."""
        return str(self.content.get("event", "")) if self.msg_type == "kernel_event" else ""


class Renderer:
    """Shows records one after the other. The output alone; ``ConsoleRenderer`` shows the whole session."""

    def __init__(self, screen: Screen, images: Images, widgets: Widgets | None = None) -> None:
        self._screen = screen
        self._images = images
        self._widgets = widgets if widgets is not None else Widgets()
        self._block = WidgetBlock(screen, self._widgets)
        self._request = ""
        self._count: int | None = None
        self._start = screen.mark()
        self._clear_first = False
        # The display that was shown last, and where: only this one can be shown anew in its place.
        self._last_display: tuple[str, Mark] | None = None

    def show(self, record: KernelRecord) -> None:
        if record.msg_type in COMM_TYPES:
            if self._widgets.take(record.msg_type, record.content, record.buffers):
                self._block.draw()
        elif record.msg_type == "status":
            self._status(record)
        else:
            self._block.lift()
            self._write(record)
            self._block.draw()

    def settle(self) -> None:
        """The code has ended: widgets stay as they are now."""
        self._block.settle()

    def hold(self, *, held: bool) -> None:
        """Somebody begins, or ends, to type on the terminal."""
        self._block.hold(held=held)

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
                self._asked(record)
            case "input_reply":
                self._answered(record)
            case "kernel_event":
                self._event(record)

    # Requests

    def _status(self, record: KernelRecord) -> None:
        """In a pipe, the widgets of a request come at its end."""
        is_idle = record.content.get("execution_state") == "idle"
        if is_idle and record.parent_id == self._request and not self._screen.is_terminal(Stream.OUT):
            self._block.settle()

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
        self._screen.write(as_text(record.content.get("text", "")), self._place(stream))

    def _display(self, record: KernelRecord) -> None:
        self._before_output(record)
        if self._is_widget(record):
            return
        display_id = _display_id(record)
        self._screen.begin_line()
        mark = self._screen.mark()
        self._write_block(self._form(record, display_id))
        self._last_display = (display_id, mark) if display_id else None

    def _update(self, record: KernelRecord) -> None:
        display_id = _display_id(record)
        if self._last_display is not None and self._last_display[0] == display_id:
            self._screen.erase_to(self._last_display[1])
        self._display(record)

    def _result(self, record: KernelRecord) -> None:
        self._before_output(record)
        if not self._is_widget(record):
            self._write_block(self._form(record, _display_id(record)))

    def _is_widget(self, record: KernelRecord) -> bool:
        """Whether a widget that we can show is displayed; then it is."""
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
        self._write_block("\n".join(str(line) for line in lines), self._place(Stream.ERR))

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
        self._block.forget()
        self._screen.erase_to(self._start)

    def _write_block(self, text: str, stream: Stream = Stream.OUT) -> None:
        """Text that has its lines for itself."""
        self._screen.begin_line(stream)
        self._screen.write(text.removesuffix("\n") + "\n", stream)

    def _form(self, record: KernelRecord, display_id: str) -> str:
        """The form of a MIME bundle that a console can show best."""
        data = _data(record)
        image = image_in(data)
        if image is not None:
            cell = f"{self._count:03}" if self._count is not None else "output"
            return self._images.take(image, data[image], cell=cell, display_id=display_id)
        plain = as_text(data.get("text/plain", ""))
        # What IPython says of an object that it shows in another form: nothing.
        if plain and not plain.startswith("<IPython.core.display."):
            return plain
        for mime in ("text/markdown", "text/latex"):
            if mime in data:
                return as_text(data[mime])
        others = {mime: value for mime, value in data.items() if mime != "text/plain"}
        if not others:
            return plain
        return ", ".join(f"[{mime}, {format_size(len(as_text(value)))}]" for mime, value in others.items())

    def _place(self, stream: Stream) -> Stream:
        return stream

    def _asked(self, record: KernelRecord) -> None:
        """Whoever runs the code asks."""

    def _answered(self, record: KernelRecord) -> None:
        pass

    def _event(self, record: KernelRecord) -> None:
        if record.event in ("gap", "message_too_large"):
            self._screen.write_own(f"warning: {event_sentence(record.content)}", stream=Stream.ERR)


class ConsoleRenderer(Renderer):
    """The whole session, all of it on stdout: prompts and code, outputs, results, errors, and what happened."""

    def _place(self, stream: Stream) -> Stream:
        return Stream.OUT

    def _input(self, record: KernelRecord) -> None:
        self._block.settle()
        count = record.content.get("execution_count")
        prompt = f"In [{count if isinstance(count, int) else ' '}]: "
        first, *more = as_text(record.content.get("code", "")).split("\n")
        self._screen.begin_line()
        self._screen.write(self._screen.styled(prompt, GREEN) + first + "\n")
        for line in more:
            self._screen.write(self._screen.styled("...: ".rjust(len(prompt)), GREEN) + line + "\n")
        super()._input(record)

    def _result(self, record: KernelRecord) -> None:
        self._before_output(record)
        if self._is_widget(record):
            return
        text = self._form(record, _display_id(record))
        prompt = self._screen.styled(f"Out[{record.content.get('execution_count')}]:", RED)
        self._write_block(f"{prompt}{chr(10) if chr(10) in text else ' '}{text}")

    def _asked(self, record: KernelRecord) -> None:
        self._before_output(record)
        self._screen.write(as_text(record.content.get("prompt", "")))

    def _answered(self, record: KernelRecord) -> None:
        self._screen.write(as_text(record.content.get("value", "")) + "\n")

    def _event(self, record: KernelRecord) -> None:
        if record.event in ENDS:
            self._block.settle()
        sentence = event_sentence(record.content)
        if sentence:
            self._last_display = None
            self._screen.write_own(f"-- {sentence}", DIM)


def _data(record: KernelRecord) -> dict[str, Any]:
    """The MIME bundle of a display."""
    data = record.content.get("data")
    return data if isinstance(data, dict) else {}


def _display_id(record: KernelRecord) -> str:
    transient = record.content.get("transient")
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return "" if found is None else str(found)


def event_sentence(content: dict[str, Any]) -> str:
    """What happened to a kernel or a request, in words; nothing for what the output shows by itself."""
    name, reason = content.get("name"), content.get("reason") or "no reason is known"
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
            return "the server came back and listens again"
        case "stopped":
            return f"the kernel was stopped: {reason}"
        case "gap":
            count = content.get("count")
            return f"{'messages' if count is None else f'{count} messages'} are missing here: {reason}"
        case "message_too_large":
            kind, size = content.get("msg_type"), content.get("size_bytes")
            told = format_size(size) if isinstance(size, int) else "of unknown size"
            return f"a message ({kind}, {told}) is too large and was not kept"
        case "request_closed" if content.get("status") not in QUIET_ENDS:
            return f"{content.get('status')}: {reason}"
    return ""
