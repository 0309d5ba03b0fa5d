"""A flood of prints: how long until a reader has all of it.

jupyter_client's blocking client reads the kernel's socket. Himalia's reader is a WebSocket subscriber, and everything
it gets was stored durably before. Both must end up with every line, in order.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from jupyter_client.manager import start_new_kernel
from websockets.sync.client import connect

from benchmarks.bench import Bench
from benchmarks.kernel_peer import kernel_server
from benchmarks.section import Section, Target
from benchmarks.server_process import PeerFailed

JUPYTER, HIMALIA = "jupyter_client, blocking client", "Himalia, durable log, WebSocket subscriber"
TIMEOUT_S = 120


def measure(bench: Bench) -> list[Section]:
    lines = bench.effort.flood_lines
    section = Section(
        key="flood",
        title=f"A kernel prints {lines:,} lines, each flushed: until a reader has them all",
        columns=("reader", "s, median", "least – most", "lines/s", "lost"),
    )
    ways = {JUPYTER: _read_jupyter, HIMALIA: _read_himalia}
    bench.expect(bench.effort.rounds * len(ways), "flood")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(bench.effort.rounds):
        for name, read in ways.items():
            bench.say(f"flood: {name}")
            try:
                seconds[name].append(_run(read, bench.directory, lines))
            except PeerFailed as failure:
                section.failures.append(f"{name}: {failure}")
            bench.advance()
    _fill(section, seconds, lines)
    return [section]


def _fill(section: Section, seconds: dict[str, list[float]], lines: int) -> None:
    for name, measured in seconds.items():
        if measured:
            typical, least, most = median(measured), min(measured), max(measured)
            section.rows.append(
                [name, f"{typical:.2f}", f"{least:.2f} – {most:.2f}", f"{lines / typical:,.0f}", "none"]
            )
    if all(seconds.values()):
        ratio = median(seconds[JUPYTER]) / median(seconds[HIMALIA])
        section.targets.append(Target(f"speed, against {JUPYTER}", ratio, 1.0))
    section.data.update(seconds)


Read = Callable[[Path, str], tuple[float, str]]


def _run(read: Read, scratch: Path, lines: int) -> float:
    code = f"for i in range({lines}):\n    print('line', i, flush=True)"
    with TemporaryDirectory(dir=scratch) as directory:
        seconds, text = read(Path(directory), code)
    if text != "".join(f"line {i}\n" for i in range(lines)):
        raise PeerFailed(f"{text.count(chr(10))} of {lines} lines came, or not in order")
    return seconds


def _read_jupyter(directory: Path, code: str) -> tuple[float, str]:
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=TIMEOUT_S)
    parts = []
    try:
        started = time.perf_counter()
        request = client.execute(code)
        while True:
            message = client.get_iopub_msg(timeout=TIMEOUT_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                parts.append(message["content"]["text"])
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return time.perf_counter() - started, "".join(parts)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _read_himalia(directory: Path, code: str) -> tuple[float, str]:
    with (
        kernel_server(directory) as server,
        connect(f"ws://127.0.0.1:{server.port}/ws", max_size=None, compression=None) as socket,
    ):
        subscribe = {"type": "subscribe", "topic": server.topic, "client_id": "reader", "policy": "lossless"}
        socket.send(json.dumps(subscribe))
        socket.recv(TIMEOUT_S)
        started = time.perf_counter()
        request = server.execute(code, wait=False)["request_id"]
        parts: list[bytes] = []
        idle = False
        while not idle:
            data = socket.recv(TIMEOUT_S, decode=False)
            parts.append(data)
            # Looked for as text, to be sure that the reader is not what is measured; checked below.
            idle = b'"execution_state":"idle"' in data.replace(b" ", b"") and request.encode() in data
        return time.perf_counter() - started, _text(parts, request)


def _text(events: list[bytes], request_id: str) -> str:
    parts = []
    for data in events:
        payload: dict[str, Any] = json.loads(data).get("message", {}).get("payload", {})
        if payload.get("header", {}).get("msg_type") == "stream":
            assert payload["parent_header"]["msg_id"] == request_id
            parts.append(payload["content"]["text"])
    return "".join(parts)
