"""Images that a kernel shows: saved as files, or told by their type and size."""

from __future__ import annotations

import base64
import binascii
import struct
from pathlib import Path
from typing import Any

from himalia.cli.quantities import show_size
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
        told = f"{mime}{_dimensions(content)}, {show_size(len(content))}"
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
