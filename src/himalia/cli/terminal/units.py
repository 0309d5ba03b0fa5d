"""Durations, sizes and times: parsing what a user types, and formatting."""

from __future__ import annotations

import re
import time

import typer

from himalia.record import parse_ts

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES[_letter] = _BYTES[_letter + "b"] = 1000**_power
    _BYTES[_letter + "ib"] = 1024**_power
SECONDS_MAX = 1e10
"""Three hundred years, so that no sum of times is beyond what a date can be."""
BYTES_MAX = 2.0**62
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\Z")


def parse_duration(text: str) -> float:
    """Return seconds from ``90``, ``15m``, ``12h``, ``7d``, ``2w``."""
    return _parse(text, _SECONDS, "a duration such as 3600, 15m, 12h or 7d")


def parse_size(text: str) -> int:
    """Return bytes from ``1000000``, ``500MB``, ``2GiB``."""
    return int(_parse(text, _BYTES, "a size such as 1000000, 500MB or 2GiB", BYTES_MAX))


def parse_since(text: str) -> str:
    """Return a time as the server reads it, from ISO 8601, seconds since 1970, or an age (``10m``)."""
    try:
        parse_ts(text)
        return text
    except (ValueError, OverflowError):
        pass
    ago_s = _parse(text, _SECONDS, "a time: 2026-11-15T20:00, seconds since 1970, or an age such as 10m")
    return f"{time.time() - ago_s:.6f}"


def _parse(text: str, units: dict[str, int], wanted: str, limit: float = SECONDS_MAX) -> float:
    match = _QUANTITY.match(text.strip().lower())
    if match is None or match[2] not in units:
        raise typer.BadParameter(f"{text!r} is not {wanted}")
    quantity = float(match[1]) * units[match[2]]
    if quantity > limit:
        raise typer.BadParameter(f"{text[:40]!r} is too much for {wanted}")
    return quantity


def format_size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
