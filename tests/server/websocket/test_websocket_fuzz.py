"""A part of the differential fuzzing; ``make fuzz`` runs all of it."""

from __future__ import annotations

import pytest

from himalia.server.websocket.frame_parser import FrameParser
from tests.server.websocket.websocket_fuzz import Different, Fuzzer


@pytest.mark.slow
def test_random_frames_are_handled_as_websockets_does() -> None:
    """The same bytes, cut in the same places, give the same messages, pongs and closes as websockets gives."""
    assert Fuzzer().run(60_000, seed="test") >= 60_000


BREAKS = {
    "a limit that is one too large": ("__init__", lambda self, size: INIT(self, size + 1)),
    "reserved bits that are ignored": (
        "_is_foreign",
        lambda self, first, second, length: IS_FOREIGN(self, first & 0x8F, second, length),
    ),
    "masks that are not asked for": (
        "_is_foreign",
        lambda self, first, second, length: IS_FOREIGN(self, first, second | 0x80, length),
    ),
    "pongs without their data": (
        "_handle",
        lambda self, sink, first, data: HANDLE(self, sink, first, data[:1]),
    ),
}
INIT, IS_FOREIGN, HANDLE = FrameParser.__init__, FrameParser._is_foreign, FrameParser._handle


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS.keys())
def test_a_parser_that_is_broken_is_found(
    broken: tuple[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fuzzer notices each of these mistakes soon."""
    monkeypatch.setattr(FrameParser, *broken)
    with pytest.raises(Different):
        Fuzzer().run(40_000, seed="test")
