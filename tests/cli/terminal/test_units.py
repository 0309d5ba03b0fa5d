from __future__ import annotations

import time

import pytest
import typer

from himalia.cli.terminal.units import format_duration, format_size, parse_duration, parse_since, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3600", 3600), ("1.5h", 5400), ("15m", 900), ("7d", 604800), ("2 w", 1209600), ("0", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    """A number of seconds, or a number with a unit."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("10", 10), ("1kB", 1000), ("1KiB", 1024), ("1GB", 10**9), ("1.5m", 1_500_000), ("2TiB", 2**41)],
)
def test_sizes(text: str, size: int) -> None:
    """A number of bytes, or a number with a decimal or binary unit."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1 fortnight", "1e3", "1.2.3", "9" * 400, "9" * 20 + "w"])
def test_what_is_no_quantity(text: str) -> None:
    """Anything else is wrong usage."""
    with pytest.raises(typer.BadParameter):
        parse_duration(text)
    with pytest.raises(typer.BadParameter):
        parse_size(text)


def test_since() -> None:
    """Times pass as they are; an age is counted back from now."""
    assert parse_since("2026-11-15T20:00:00Z") == "2026-11-15T20:00:00Z"
    assert parse_since("1700000000") == "1700000000"
    assert abs(float(parse_since("10m")) - (time.time() - 600)) < 5


def test_shown_as_people_read_them() -> None:
    """Three digits and a unit."""
    assert [format_size(size) for size in (0, 999, 1500, 2_000_000, 3e9, 4e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.0 MB",
        "3.0 GB",
        "4.0 TB",
    ]
    assert [format_duration(seconds) for seconds in (5, 90, 7200, 172800)] == [
        "5 s",
        "1.5 m",
        "2.0 h",
        "2.0 d",
    ]
