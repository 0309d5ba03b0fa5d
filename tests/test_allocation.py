"""Memory that was freed is used again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from himalia.allocation import keep_freed_memory

def taken() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def pass_through() -> None:
    pieces = [b"x" * (4 << 20) for _ in range(8)]

keep = {keep}
if keep:
    keep_freed_memory()
pass_through()
before = taken()
for _ in range(10):
    pass_through()
print(taken() - before)
"""


def pages_taken(*, keep: bool) -> int:
    """How many pages the system had to give to a program through which pieces of 4 MiB pass."""
    command = [sys.executable, "-c", PROGRAM.format(keep=keep)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have ways of their own")
def test_pieces_that_pass_through_take_no_memory_from_the_system() -> None:
    assert pages_taken(keep=True) < pages_taken(keep=False) / 100
