"""The state of a kernel's widgets, drawn as text below the other output and updated in place."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from himalia.cli.terminal.screen import Mark, Screen, Stream

TARGET = "jupyter.widget"
VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
BYTES_MAX = 64 << 20
"""The limit of the state of all widgets; beyond it the oldest are dropped."""
MODEL_BYTES = 200
"""The size that a model counts for in addition to its state: an empty one is not free."""
PARTS_MAX = 200
"""The parts of one displayed widget that are visited: models may refer to each other in any way."""
BAR_WIDTH = 24

_REFERENCE = "IPY_MODEL_"
_PROGRESS = ("FloatProgressModel", "IntProgressModel")
_TEXTS = ("HTMLModel", "HTMLMathModel", "LabelModel")
_ROWS = ("HBoxModel", "BoxModel")
_COLUMNS = ("VBoxModel", "GridBoxModel")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_TAG = re.compile(r"<[^>]*>")
_encode = msgspec.json.encode


class Model:
    """A widget, or a part of one such as its layout. ``buffers`` has them by the path of the value they belong to."""

    __slots__ = ("_sizes", "buffers", "is_closed", "state")

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.buffers: dict[str, dict[str, Any]] = {}
        self.is_closed = False
        self._sizes: dict[str, int] = {}

    @property
    def name(self) -> str:
        return str(self.state.get("_model_name", ""))

    @property
    def size_bytes(self) -> int:
        return MODEL_BYTES + sum(self._sizes.values())

    def update(self, state: Mapping[str, Any]) -> None:
        self.state.update(state)
        self._sizes.update((key, len(key) + len(_encode(value))) for key, value in state.items())

    def add_buffer(self, path: Any, data: str) -> None:
        key = _encode(path).decode()
        self.buffers[key] = {"data": data, "encoding": "base64", "path": path}
        self._sizes[f"buffer {key}"] = len(data)


class Widgets:
    """The state of all widgets of a kernel. Never raises, whatever a kernel sends."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._models: dict[str, Model] = {}
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self.dropped = 0
        """The number of models that were dropped because of ``bytes_max``."""

    def __len__(self) -> int:
        return len(self._models)

    def apply(self, msg_type: str, content: Mapping[str, Any], buffers: Sequence[str] = ()) -> bool:
        """Apply a comm message; return whether it changed a widget."""
        comm_id = content.get("comm_id")
        if not isinstance(comm_id, str):
            return False
        if msg_type == "comm_open" and content.get("target_name") == TARGET:
            self._remove(comm_id)
            self._models[comm_id] = Model()
            self._size_bytes += MODEL_BYTES
        model = self._models.get(comm_id)
        if model is None:
            return False
        if msg_type == "comm_close":
            model.is_closed = True
            return True
        return self._update(model, content.get("data"), buffers)

    def _update(self, model: Model, data: Any, buffers: Sequence[str]) -> bool:
        state = data.get("state") if isinstance(data, dict) else None
        if not isinstance(state, dict):
            return False
        self._size_bytes -= model.size_bytes
        model.update(state)
        paths = data.get("buffer_paths")
        for path, buffer in zip(paths if isinstance(paths, list) else (), buffers, strict=False):
            model.add_buffer(path, buffer)
        self._size_bytes += model.size_bytes
        while self._size_bytes > self._bytes_max and self._models:
            self._remove(next(iter(self._models)))
            self.dropped += 1
        return True

    def _remove(self, comm_id: str) -> None:
        model = self._models.pop(comm_id, None)
        if model is not None:
            self._size_bytes -= model.size_bytes

    def as_metadata(self) -> dict[str, Any] | None:
        """Return their state as a notebook stores it and nbclient writes it; ``None`` if there are none."""
        state: dict[str, Any] = {}
        for comm_id, model in self._models.items():
            if model.name:
                state[comm_id] = {
                    "model_name": model.state.get("_model_name"),
                    "model_module": model.state.get("_model_module"),
                    "model_module_version": model.state.get("_model_module_version"),
                    "state": model.state,
                    **({"buffers": list(model.buffers.values())} if model.buffers else {}),
                }
        return {STATE: {"state": state, "version_major": 2, "version_minor": 0}} if state else None

    # As text

    def can_show(self, model_id: str) -> bool:
        model = self._models.get(model_id)
        return model is not None and model.name in (*_PROGRESS, *_TEXTS, *_ROWS, *_COLUMNS)

    def text(self, model_id: str) -> str:
        """Return a widget as text, of several lines for a column of widgets; empty if it is hidden."""
        model = self._models.get(model_id)
        if model is not None and model.name in _PROGRESS and not self._is_hidden(model):
            return f"{self._progress(model)} {_share(model) * 100:.0f}%"
        return self._text(model_id, [])

    def _text(self, model_id: str, seen: list[str]) -> str:
        """Return a part of a widget as text. ``seen`` are the parts visited before."""
        model = self._models.get(model_id)
        seen.append(model_id)
        if model is None or len(seen) > PARTS_MAX or self._is_hidden(model):
            return ""
        if model.name in _PROGRESS:
            return self._progress(model)
        if model.name in _TEXTS:
            return _join(_plain(model.state.get("description")), _plain(model.state.get("value")))
        if model.name in (*_ROWS, *_COLUMNS):
            children = model.state.get("children")
            shown = children[:PARTS_MAX] if isinstance(children, list) else []
            parts = [self._text(_referenced_id(child), seen) for child in shown]
            return ("\n" if model.name in _COLUMNS else " ").join(part for part in parts if part)
        return f"[{model.name.removesuffix('Model')}]"

    def _progress(self, model: Model) -> str:
        return _join(_plain(model.state.get("description")), _bar(_share(model)))

    def _is_hidden(self, model: Model) -> bool:
        layout = self._models.get(_referenced_id(model.state.get("layout")))
        look = layout.state if layout is not None else {}
        return model.is_closed or look.get("display") == "none" or look.get("visibility") == "hidden"


def model_in(data: Mapping[str, Any]) -> str:
    """Return the id of the widget that a MIME bundle displays; empty if it displays none."""
    view = data.get(VIEW)
    found = view.get("model_id") if isinstance(view, dict) else None
    return found if isinstance(found, str) else ""


def _referenced_id(value: Any) -> str:
    return value.removeprefix(_REFERENCE) if isinstance(value, str) else ""


def _share(model: Model) -> float:
    """Return the progress of a bar, from 0 to 1."""
    least, most, value = (_number(model.state.get(key)) for key in ("min", "max", "value"))
    share = (value - least) / (most - least) if most > least else 0.0
    return min(max(share, 0.0), 1.0)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def _bar(share: float) -> str:
    full, rest = divmod(round(share * BAR_WIDTH * 8), 8)
    part = _EIGHTHS[rest] if rest else ""
    return "|" + ("█" * full + part).ljust(BAR_WIDTH) + "|"


def _plain(value: Any) -> str:
    """Return the text of HTML on one line."""
    text = html.unescape(_TAG.sub("", value)) if isinstance(value, str) else ""
    return " ".join(text.split())


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


SHOWN_MAX = 10
"""The number of widgets that are redrawn when they change; those displayed before them stay as they are."""


class WidgetBlock:
    """The displayed widgets. On a terminal they stay below the output; in a pipe each is written once, at the end."""

    def __init__(self, screen: Screen, widgets: Widgets) -> None:
        self._screen = screen
        self._widgets = widgets
        self._models: list[str] = []
        self._place: Mark | None = None
        self._drawn = ""
        self._is_paused = False

    def add(self, model_id: str) -> None:
        """Display a widget below the others."""
        self.erase()
        if model_id in self._models:
            self._models.remove(model_id)
        if len(self._models) >= SHOWN_MAX:
            self._write(self._widgets.text(self._models.pop(0)))
        self._models.append(model_id)
        self.draw()

    def erase(self) -> None:
        """Erase the widgets from the terminal, so that output can be written in their place."""
        if self._place is not None:
            self._screen.erase_to(self._place)
        self._place, self._drawn = None, ""

    def draw(self) -> None:
        """Draw the widgets, unless they are drawn in their present state."""
        if self._is_paused or not self._screen.is_terminal(Stream.OUT):
            return
        text = self._text()
        if text == self._drawn:
            return
        self.erase()
        if text:
            self._place, self._drawn = self._screen.mark(), text
            self._write(text)

    def freeze(self) -> None:
        """Draw the widgets for the last time: the code that made them has ended."""
        if self._models and not self._screen.is_terminal(Stream.OUT):
            self._write(self._text())
        self.draw()
        self._models, self._place, self._drawn = [], None, ""

    def clear(self) -> None:
        """Erase and drop the widgets, with the output that they belong to."""
        self.erase()
        self._models = []

    def set_paused(self, *, paused: bool) -> None:
        """Draw nothing while the user types below the output."""
        if paused:
            self.erase()
        self._is_paused = paused

    def _text(self) -> str:
        return "\n".join(text for text in map(self._widgets.text, self._models) if text)

    def _write(self, text: str) -> None:
        if text:
            self._screen.begin_line()
            self._screen.write(text + "\n")
