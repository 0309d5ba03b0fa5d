"""Widgets below the other output of a console, drawn again in their place while their state changes."""

from __future__ import annotations

from himalia.cli.screen import Mark, Screen, Stream
from himalia.cli.widgets import Widgets

SHOWN_MAX = 10
"""Widgets that are drawn again at a change; what was displayed before stays as it is."""


class WidgetBlock:
    """On a terminal they stay below what the code prints. In a pipe each is written once, as it is at the end."""

    def __init__(self, screen: Screen, widgets: Widgets) -> None:
        self._screen = screen
        self._widgets = widgets
        self._models: list[str] = []
        self._place: Mark | None = None
        self._drawn = ""
        self._is_held = False

    def add(self, model_id: str) -> None:
        """Display a widget below those that are there."""
        self.lift()
        if model_id in self._models:
            self._models.remove(model_id)
        if len(self._models) >= SHOWN_MAX:
            self._write(self._widgets.text(self._models.pop(0)))
        self._models.append(model_id)
        self.draw()

    def lift(self) -> None:
        """Take them off the terminal, so that something can be written there."""
        if self._place is not None:
            self._screen.erase_to(self._place)
        self._place, self._drawn = None, ""

    def draw(self) -> None:
        """Draw them, if they are not drawn as they are now."""
        if self._is_held or not self._screen.is_terminal(Stream.OUT):
            return
        text = self._text()
        if text == self._drawn:
            return
        self.lift()
        if text:
            self._place, self._drawn = self._screen.mark(), text
            self._write(text)

    def settle(self) -> None:
        """Leave them as they are now: they belong to code that has ended."""
        if self._models and not self._screen.is_terminal(Stream.OUT):
            self._write(self._text())
        self.draw()
        self._models, self._place, self._drawn = [], None, ""

    def forget(self) -> None:
        """The output that they belong to is cleared."""
        self.lift()
        self._models = []

    def hold(self, *, held: bool) -> None:
        """While somebody types below the output, nothing is drawn."""
        if held:
            self.lift()
        self._is_held = held

    def _text(self) -> str:
        return "\n".join(text for text in map(self._widgets.text, self._models) if text)

    def _write(self, text: str) -> None:
        if text:
            self._screen.begin_line()
            self._screen.write(text + "\n")
