"""Memory that was freed, in this process's C library: some is kept for what comes next, the rest is given back."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from resource import getpagesize

KEPT_BYTES = 64 << 20
BLOCK_BYTES_MAX = 32 << 20
"""glibc takes no more for this."""
LOOK_EVERY_S = 5.0

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_STATM = Path("/proc/self/statm")


def tune_malloc() -> None:
    """Keep up to 64 MiB of freed memory for what comes next, where the C library is glibc.

    For processes through which much data passes in pieces of megabytes. glibc hands each piece back to the system and
    asks for the next one, which the system then has to clear and to map page by page: a third of the time of a worker
    that fetches records.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES_MAX)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def release_freed_memory() -> None:
    """Have a thread give freed memory back to the system whenever more than 64 MiB of it lies idle.

    By itself glibc gives back only what is free at the end of its heap, and one block that is in use there keeps
    everything before it. Does nothing where the C library is not glibc 2.33 or newer.
    """
    try:
        heap = _Heap()
    except (OSError, AttributeError):
        return
    freed = FreedMemory(heap.beyond_use_bytes, heap.trim)
    never = threading.Event()

    def run() -> None:
        while not never.wait(LOOK_EVERY_S):
            freed.look()

    threading.Thread(target=run, name="himalia-memory", daemon=True).start()


class FreedMemory:
    """Decides when memory is given back: when too much of it was free at two looks in a row.

    ``beyond_use_bytes`` tells how much memory the process has beyond what the C library has given out. Some of that is
    not the C library's, such as code, stacks and Python's own small objects: what is left after a trim is taken for it.
    """

    def __init__(self, beyond_use_bytes: Callable[[], int], trim: Callable[[], None]) -> None:
        self._beyond_use_bytes = beyond_use_bytes
        self._trim = trim
        self._left_bytes = beyond_use_bytes()
        self._was_large = False

    def look(self) -> None:
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
    """The heap of glibc. Its calls take milliseconds and let other threads run Python meanwhile."""

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
