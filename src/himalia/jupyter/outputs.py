"""The outputs of a cell: the messages of one request, folded into outputs of a notebook (nbformat 4).

The fold gives what a front end shows: streams are joined, displays are updated in place, ``clear_output`` clears. It
depends only on the messages and their order, never on how they were cut into chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from himalia.jupyter.wire import KernelMessage

Output = dict[str, Any]

BYTES_MAX = 64 << 20
OUTPUT_BYTES = 200
"""What an output counts for in addition to its content: empty ones must not be free."""
ERROR_BYTES_MAX = 64 << 10
"""What the first error may take beyond the limit: the error of a cell matters more than its output."""
RAW_BYTES_MIN = 16 << 10
"""A smaller value costs less to decode than to keep encoded."""
MARKER = "[output cut here: it is over {limit} bytes; the kernel's topic has all of it]"

_JSON_TYPE = re.compile(r"application/(.*\+)?json\Z")


class _Stream(msgspec.Struct, gc=False):
    name: str
    text: str


class _Transient(msgspec.Struct, gc=False):
    display_id: str | int | None = None


class _Display(msgspec.Struct):
    data: dict[str, msgspec.Raw]
    metadata: msgspec.Raw = msgspec.Raw(b"null")
    transient: _Transient | None = None
    execution_count: int | None = None

    @property
    def display_id(self) -> str | int | None:
        return self.transient.display_id if self.transient is not None else None


class _Error(msgspec.Struct):
    ename: str | None
    evalue: str | None = None
    traceback: list[str] | None = None


class _Clear(msgspec.Struct, gc=False):
    wait: bool = False


_decode_stream = msgspec.json.Decoder(_Stream).decode
_decode_display = msgspec.json.Decoder(_Display).decode
_decode_error = msgspec.json.Decoder(_Error).decode
_decode_clear = msgspec.json.Decoder(_Clear).decode
_decode_text = msgspec.json.Decoder(str | list[str]).decode
_decode_metadata = msgspec.json.Decoder(dict[str, Any] | None).decode


class _StreamOutput:
    """A stream's output. Its text stays in parts until it is read: joining at each message would be quadratic."""

    __slots__ = ("name", "parts")

    def __init__(self, name: str) -> None:
        self.name = name
        self.parts: list[str] = []

    def output(self) -> Output:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return {"output_type": "stream", "name": self.name, "text": self.parts[0]}


class _DisplayOutput:
    """An output that is not a stream, and what it counts for."""

    __slots__ = ("fields", "size_bytes")

    def __init__(self, fields: Output, size_bytes: int) -> None:
        self.fields = fields
        self.size_bytes = size_bytes

    def output(self) -> Output:
        # A copy: an output that was returned must not change with the next update.
        return dict(self.fields)


class OutputBuilder:
    """Folds the messages of one request, in their order, into outputs. It never raises, whatever a message holds.

    Consecutive stream messages of one name become one output; carriage returns and escape sequences stay as they are.
    ``update_display_data`` changes every output of this request with that ``display_id``, and nothing else: other
    requests have their own displays. ``clear_output`` removes the outputs, at once or, with ``wait``, before the next
    output. Other types of messages are ignored.

    At most about ``bytes_max`` are kept. Text beyond that is cut between two characters, and a display that does not
    fit is replaced, each with a marker; once full, later output is left out until a ``clear_output``. The first error
    is always kept, shortened.

    With ``keeps_json`` large values of JSON types, and large metadata, stay ``msgspec.Raw``: a result that is only
    encoded again need not be decoded to objects, which would block the whole process.
    """

    def __init__(self, *, bytes_max: int = BYTES_MAX, keeps_json: bool = False) -> None:
        self._bytes_max = bytes_max
        self._keeps_json = keeps_json
        self._size_bytes = 0
        self._items: list[_StreamOutput | _DisplayOutput] = []
        self._displays: dict[str | int, list[_DisplayOutput]] = {}
        self._clear_first = False
        self._is_full = False
        self._has_error = False
        self._truncated = False
        self._malformed = 0

    @property
    def outputs(self) -> list[Output]:
        """The outputs so far, as nbformat 4 has them. The caller may change the list."""
        return [item.output() for item in self._items]

    @property
    def truncated(self) -> bool:
        """Whether the current outputs were cut at the limit."""
        return self._truncated

    @property
    def malformed(self) -> int:
        """Messages of an output's type that were skipped, because their content is not what the type says."""
        return self._malformed

    @property
    def size_bytes(self) -> int:
        """The approximate size of the outputs, as counted against the limit."""
        return self._size_bytes

    def add(self, message: KernelMessage) -> None:
        """Apply the next message of the request."""
        apply = self._APPLY.get(message.msg_type)
        if apply is None:
            return
        try:
            apply(self, message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._malformed += 1

    # One method for each type of message that is output

    def _add_stream(self, message: KernelMessage) -> None:
        stream = _decode_stream(message.content)
        text = stream.text
        if not text:
            return
        self._clear_if_due()
        if self._is_full:
            return
        last = self._items[-1] if self._items else None
        if not isinstance(last, _StreamOutput) or last.name != stream.name:
            last = _StreamOutput(stream.name)
            self._items.append(last)
            self._size_bytes += OUTPUT_BYTES
        self._extend(last, text)

    def _add_display(self, message: KernelMessage) -> None:
        self._show_display({"output_type": "display_data"}, message)

    def _add_result(self, message: KernelMessage) -> None:
        self._show_display({"output_type": "execute_result", "execution_count": None}, message)

    def _update_display(self, message: KernelMessage) -> None:
        display = _decode_display(message.content)
        if display.display_id is None:
            raise msgspec.ValidationError("an update names the display that it updates")
        for shown in self._displays.get(display.display_id, ()):
            self._size_bytes -= shown.size_bytes
            shown.size_bytes = self._fill(shown.fields, display, len(message.content))
            self._size_bytes += shown.size_bytes

    def _add_error(self, message: KernelMessage) -> None:
        error = _decode_error(message.content)
        self._clear_if_due()
        size_bytes = OUTPUT_BYTES + len(message.content)
        ename, evalue, traceback = error.ename or "", error.evalue or "", error.traceback or []
        if self._is_full or not self._has_room(size_bytes):
            self._truncated = True
            if self._has_error:
                return
            ename, evalue, traceback = ename[:1000], evalue[:1000], self._last_lines(traceback)
            size_bytes = min(size_bytes, ERROR_BYTES_MAX)
        self._has_error = True
        fields = {"output_type": "error", "ename": ename, "evalue": evalue, "traceback": traceback}
        self._append(_DisplayOutput(fields, size_bytes))

    def _clear_outputs(self, message: KernelMessage) -> None:
        if _decode_clear(message.content).wait:
            self._clear_first = True
        else:
            self._clear()

    # The limit

    def _extend(self, item: _StreamOutput, text: str) -> None:
        """Add text, or as much of it as there is room for and the marker."""
        size_bytes = len(text) if text.isascii() else len(text.encode())
        if self._has_room(size_bytes):
            item.parts.append(text)
            self._size_bytes += size_bytes
            return
        room = max(self._bytes_max - self._size_bytes, 0)
        kept = text.encode()[:room].decode("utf-8", "ignore")
        item.parts += (kept, "\n" + self._marker() + "\n")
        self._size_bytes += len(kept.encode())
        self._is_full = self._truncated = True

    def _fill(self, fields: Output, display: _Display, content_bytes: int) -> int:
        """Set the data of an output to a display, or to the marker; returns what it counts for."""
        if not self._has_room(OUTPUT_BYTES + content_bytes):
            self._truncated = True
            fields["data"], fields["metadata"] = {"text/plain": self._marker()}, {}
            return OUTPUT_BYTES
        fields["data"] = {kind: self._as_mime(kind, value) for kind, value in display.data.items()}
        fields["metadata"] = self._as_metadata(display.metadata)
        return OUTPUT_BYTES + content_bytes

    def _as_mime(self, kind: str, value: msgspec.Raw) -> Any:
        """Convert a value to what nbformat allows: anything for JSON types, text or lines of text for all others."""
        if _JSON_TYPE.match(kind):
            return value if self._stays_raw(value) else msgspec.json.decode(value)
        try:
            return _decode_text(value)
        except msgspec.ValidationError:
            compact = value if self._stays_raw(value) else msgspec.json.encode(msgspec.json.decode(value))
            return bytes(compact).decode()

    def _as_metadata(self, value: msgspec.Raw) -> Any:
        if self._stays_raw(value) and bytes(value[:1]) == b"{":
            return value
        return _decode_metadata(value) or {}

    def _stays_raw(self, value: msgspec.Raw) -> bool:
        return self._keeps_json and len(value) > RAW_BYTES_MIN

    def _show_display(self, fields: Output, message: KernelMessage) -> None:
        display = _decode_display(message.content)
        self._clear_if_due()
        if self._is_full:
            return
        if "execution_count" in fields:
            fields["execution_count"] = non_negative(display.execution_count)
        shown = _DisplayOutput(fields, self._fill(fields, display, len(message.content)))
        self._append(shown)
        # It has the marker then, which need not be repeated.
        self._is_full = self._size_bytes > self._bytes_max
        if display.display_id is not None:
            self._displays.setdefault(display.display_id, []).append(shown)

    def _last_lines(self, traceback: list[str]) -> list[str]:
        room = ERROR_BYTES_MAX - 4 * 2000
        kept: list[str] = []
        for line in reversed(traceback):
            room -= len(line.encode())
            if room < 0:
                break
            kept.append(line)
        return [self._marker(), *reversed(kept)]

    def _append(self, shown: _DisplayOutput) -> None:
        self._items.append(shown)
        self._size_bytes += shown.size_bytes

    def _has_room(self, size_bytes: int) -> bool:
        return self._size_bytes + size_bytes <= self._bytes_max

    def _marker(self) -> str:
        return MARKER.format(limit=self._bytes_max)

    def _clear_if_due(self) -> None:
        if self._clear_first:
            self._clear()

    def _clear(self) -> None:
        self._items.clear()
        self._displays.clear()
        self._size_bytes = 0
        self._clear_first = self._is_full = self._has_error = self._truncated = False

    _APPLY: ClassVar[dict[str, Callable[[OutputBuilder, KernelMessage], None]]] = {
        "stream": _add_stream,
        "display_data": _add_display,
        "execute_result": _add_result,
        "update_display_data": _update_display,
        "error": _add_error,
        "clear_output": _clear_outputs,
    }


def non_negative(count: int | None) -> int | None:
    """Return an execution count as nbformat allows it: None instead of a negative one."""
    return count if count is not None and count >= 0 else None
