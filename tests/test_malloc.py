"""When memory that was freed is given back."""

from __future__ import annotations

import ctypes
import threading

import pytest

from himalia.malloc import KEPT_BYTES, FreedMemory, release_freed_memory

BASE = 50_000_000


class Heap:
    """A process with so much memory beyond what is in use, of which a trim gives back all but ``stuck_bytes``."""

    def __init__(self) -> None:
        self.beyond_bytes = self.stuck_bytes = BASE
        self.trims = 0
        self.freed = FreedMemory(lambda: self.beyond_bytes, self.trim)

    def trim(self) -> None:
        self.trims += 1
        self.beyond_bytes = self.stuck_bytes

    def look(self, beyond_bytes: int, times: int = 1) -> int:
        """Have so much, and look; returns how often memory was given back so far."""
        self.beyond_bytes = beyond_bytes
        for _ in range(times):
            self.freed.check()
        return self.trims


def test_some_is_kept() -> None:
    """64 MiB stay for what comes next, however long."""
    assert Heap().look(BASE + KEPT_BYTES, times=10) == 0


def test_more_is_given_back_once() -> None:
    """What is beyond that at two looks in a row is given back, and then there is nothing more to give."""
    heap = Heap()
    assert heap.look(BASE + KEPT_BYTES + 1) == 0
    assert heap.look(BASE + KEPT_BYTES + 1) == 1
    assert heap.look(BASE, times=10) == 1


def test_what_is_used_again_at_once_is_kept() -> None:
    """Memory that was free at one look and is in use at the next was worth keeping."""
    heap = Heap()
    for _ in range(5):
        heap.look(BASE + 2 * KEPT_BYTES)
        heap.look(BASE)
    assert heap.trims == 0


def test_what_cannot_be_given_back_is_not_tried_again() -> None:
    """A trim that gives nothing back, as the memory is not the C library's, is not repeated until there is more."""
    heap = Heap()
    heap.stuck_bytes = BASE + 2 * KEPT_BYTES
    assert heap.look(heap.stuck_bytes, times=10) == 1
    assert heap.look(heap.stuck_bytes + KEPT_BYTES + 1, times=2) == 2
    # It has gone by itself: what is free from now on counts in full.
    heap.look(BASE)
    heap.stuck_bytes = BASE
    assert heap.look(BASE + KEPT_BYTES + 1, times=2) == 3


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no such function, as on macOS and with musl, nothing is done and nothing is said."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    before = threading.active_count()
    release_freed_memory()
    assert threading.active_count() == before
