"""Tunes the C library's malloc: keep some freed memory for the next allocations, return the rest to the system."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from resource import getpagesize

KEPT_BYTES = 64 << 20
BLOCK_BYTES_MAX = 32 << 20
"""The largest value that glibc accepts."""
CHECK_EVERY_S = 5.0

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_STATM = Path("/proc/self/statm")


def tune_malloc() -> None:
    """Keep up to 64 MiB of freed memory for the next allocations, if the C library is glibc.

    For processes that allocate many buffers of megabytes. By default glibc returns each of them to the system and
    requests the next one, which the system must clear and map page by page: a third of the time of a worker that
    fetches records.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES_MAX)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def release_freed_memory() -> None:
    """Start a thread that returns freed memory to the system whenever more than 64 MiB of it is idle.

    glibc by itself returns only what is free at the end of its heap, and one block in use there keeps everything
    before it. Does nothing unless the C library is glibc 2.33 or newer.
    """
    try:
        heap = _Heap()
    except (OSError, AttributeError):
        return
    freed = FreedMemory(heap.beyond_use_bytes, heap.trim)
    never = threading.Event()

    def run() -> None:
        while not never.wait(CHECK_EVERY_S):
            freed.check()

    threading.Thread(target=run, name="himalia-memory", daemon=True).start()


class FreedMemory:
    """Decides when to trim: when too much memory was free at two checks in a row.

    ``beyond_use_bytes`` returns how much memory the process has beyond what the C library has allocated. Some of that
    is not the C library's, such as code, stacks and Python's own small objects: what is left after a trim is taken as
    its size.
    """

    def __init__(self, beyond_use_bytes: Callable[[], int], trim: Callable[[], None]) -> None:
        self._beyond_use_bytes = beyond_use_bytes
        self._trim = trim
        self._left_bytes = beyond_use_bytes()
        self._was_large = False

    def check(self) -> None:
        beyond_bytes = self._beyond_use_bytes()
        self._left_bytes = min(self._left_bytes, beyond_bytes)
        is_large = beyond_bytes - self._left_bytes > KEPT_BYTES
        if is_large and self._was_large:
            self._trim()
            self._left_bytes = self._beyond_use_bytes()
            is_large = False
        self._was_large = is_large


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


class _Heap:
    """The heap of glibc. Its calls take milliseconds and release the GIL meanwhile."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = library.mallinfo2
        self._info.restype = _MallocInfo
        self._malloc_trim = library.malloc_trim
        self._malloc_trim.argtypes = (ctypes.c_size_t,)
        self.beyond_use_bytes()

    def beyond_use_bytes(self) -> int:
        info = self._info()
        resident_bytes = int(_STATM.read_bytes().split()[1]) * getpagesize()
        return resident_bytes - int(info.uordblks) - int(info.hblkhd)

    def trim(self) -> None:
        self._malloc_trim(0)
