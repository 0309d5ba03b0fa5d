"""What the server tunes in the interpreter and the C library, each with its gain.

The figures are from docs/benchmarks.md and docs/operations.md. Each tuning can be switched off with the setting
``tuning_off``, to measure it again. The fast path of WebSockets is in ``websocket.uvicorn_protocol``; Spark's workers
are tuned in ``himalia.spark.worker_daemon``.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from importlib import import_module

import uvloop

from himalia.malloc import release_freed_memory, tune_malloc
from himalia.settings import ServerSettings

SWITCH_INTERVAL_S = 0.0005


def tune_process(settings: ServerSettings) -> None:
    """Tune this process. Called once, before the event loop runs.

    ``switch_interval``: the log's writer thread waits at most 0.5 ms for a busy event loop. Python's 5 ms are longer
    than a commit, and cost a sixth of the deliveries to 1,000 subscribers.

    ``malloc``: up to 64 MiB of freed memory are kept for reuse, which saves 7% of the server's CPU while Spark copies
    records; more than that is returned to the system (277 MB became 86 MB after six unfinished bodies of 30 MB).
    """
    if "switch_interval" not in settings.tuning_off:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
    if "malloc" not in settings.tuning_off:
        tune_malloc()
        release_freed_memory()


def make_event_loop(settings: ServerSettings) -> asyncio.AbstractEventLoop:
    """Return the event loop of the server.

    ``uvloop``: its writes to sockets cost less than asyncio's own. The gain has not been measured separately.
    """
    return asyncio.new_event_loop() if "uvloop" in settings.tuning_off else uvloop.new_event_loop()


def freeze_imports(settings: ServerSettings) -> None:
    """Exclude everything that was imported from garbage collections. Called when the server is listening.

    ``gc``: a full collection that walks through all modules stops the server for 60 ms, about every five seconds under
    load; without the modules the longest takes 4 ms.
    """
    if "gc" not in settings.tuning_off:
        gc.collect()
        gc.freeze()


def import_without_collections(module: str) -> None:
    """Import a large module in a thread, with the garbage collector off.

    Collections during the import would scan all new objects repeatedly, and stop every thread meanwhile.
    """
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.freeze()
        gc.enable()
