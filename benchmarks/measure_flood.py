"""Measure how long a reader takes to receive a flood of prints.

jupyter_client's blocking client reads the kernel's socket. Himalia's reader is a WebSocket subscriber, which
receives durably stored records. Both must receive every line, in order.

The speed of a machine drifts within a minute by more than the difference to be measured. So each reader has its own
kernel, and they alternate in slices of the flood; adjacent slices are compared.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from queue import Empty
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from jupyter_client.manager import start_new_kernel
from websockets.sync.client import ClientConnection, connect

from benchmarks.bench import Bench
from benchmarks.kernel_peer import KernelServer, kernel_server
from benchmarks.section import Section, Target
from benchmarks.server_process import PeerFailed

JUPYTER, HIMALIA = "jupyter_client, blocking client", "Himalia, durable log, WebSocket subscriber"
TIMEOUT_S = 120
SLICE_LINES = 2_000
WARM_UP_LINES = 200

Read = Callable[[str], tuple[float, str]]
"""Runs code; says how long it took until all of its output was there, and what was printed."""


def measure(bench: Bench) -> list[Section]:
    slices = max(bench.scale.flood_lines // SLICE_LINES, 1)
    section = Section(
        key="flood",
        title=f"A kernel prints {SLICE_LINES:,} lines, each flushed: until a reader has them all, in turns",
        columns=("reader", "s, median", "least – most", "lines/s", "lost"),
    )
    bench.expect(bench.scale.rounds * slices, "flood")
    seconds: dict[str, list[float]] = {JUPYTER: [], HIMALIA: []}
    for round_number in range(1, bench.scale.rounds + 1):
        bench.report(f"flood: round {round_number} of {bench.scale.rounds}")
        try:
            with TemporaryDirectory(dir=bench.directory) as directory, ExitStack() as stack:
                ways = {
                    JUPYTER: stack.enter_context(_jupyter()),
                    HIMALIA: stack.enter_context(_himalia(Path(directory))),
                }
                _take_turns(bench, ways, slices, seconds, section)
        except PeerFailed as failure:
            section.failures.append(str(failure))
    _fill(section, seconds)
    return [section]


def _take_turns(
    bench: Bench, ways: dict[str, Read], slices: int, seconds: dict[str, list[float]], section: Section
) -> None:
    for name in ways:
        _flood(name, ways[name], WARM_UP_LINES)
    for number in range(slices):
        # The order alternates from pair to pair.
        names = list(ways) if number % 2 == 0 else list(reversed(ways))
        try:
            pair = {name: _flood(name, ways[name], SLICE_LINES) for name in names}
        except PeerFailed as failure:
            section.failures.append(str(failure))
        else:
            for name, measured in pair.items():
                seconds[name].append(measured)
        bench.advance()


def _fill(section: Section, seconds: dict[str, list[float]]) -> None:
    section.data.update(seconds)
    if not all(seconds.values()):
        return
    for name, measured in seconds.items():
        typical, least, most = median(measured), min(measured), max(measured)
        section.rows.append(
            [name, f"{typical:.2f}", f"{least:.2f} – {most:.2f}", f"{SLICE_LINES / typical:,.0f}", "none"]
        )
    ratios = [theirs / ours for theirs, ours in zip(seconds[JUPYTER], seconds[HIMALIA], strict=True)]
    section.targets.append(Target(f"speed, against {JUPYTER}, median of the pairs", median(ratios), 1.0))
    section.notes.append(
        f"{len(ratios)} pairs, of which the ratios are {min(ratios):.2f} – {max(ratios):.2f}."
    )


def _flood(name: str, read: Read, lines: int) -> float:
    try:
        seconds, text = read(f"for i in range({lines}):\n    print('line', i, flush=True)")
    except (Empty, TimeoutError):
        raise PeerFailed(f"{name}: its end did not come within {TIMEOUT_S} s") from None
    if text != "".join(f"line {i}\n" for i in range(lines)):
        raise PeerFailed(f"{name}: {text.count(chr(10))} of {lines} lines came, or not in order")
    return seconds


@contextmanager
def _jupyter() -> Iterator[Read]:
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=TIMEOUT_S)

    def read(code: str) -> tuple[float, str]:
        parts = []
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

    try:
        yield read
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@contextmanager
def _himalia(directory: Path) -> Iterator[Read]:
    with (
        kernel_server(directory) as server,
        connect(f"ws://127.0.0.1:{server.port}/ws", max_size=None, compression=None) as socket,
    ):
        subscribe = {"type": "subscribe", "topic": server.topic, "client_id": "reader", "policy": "lossless"}
        socket.send(json.dumps(subscribe))
        socket.recv(TIMEOUT_S)
        yield lambda code: _read_himalia(server, socket, code)


def _read_himalia(server: KernelServer, socket: ClientConnection, code: str) -> tuple[float, str]:
    # During the other reader's slice the server may have closed the idle connection.
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)) as connection:
        connection.connect()
        started = time.perf_counter()
        request = _execute(connection, server.kernel_id, code)
    parts: list[bytes] = []
    # Searched as text, so that decoding is not part of the measurement; verified below.
    while not parts or not (b'"idle"' in parts[-1] and request in parts[-1]):
        parts.append(socket.recv(TIMEOUT_S, decode=False))
    seconds = time.perf_counter() - started
    # The close is not part of any slice.
    while not (b'"request_closed"' in parts[-1] and request in parts[-1]):
        parts.append(socket.recv(TIMEOUT_S, decode=False))
    return seconds, _text(parts, request.decode())


def _execute(connection: HTTPConnection, kernel_id: str, code: str) -> bytes:
    """Execute the code and return the request's id."""
    body = json.dumps({"code": code, "wait": False}).encode()
    path = f"/api/kernels/{kernel_id}/execute"
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status >= 300:
        raise PeerFailed(f"POST {path}: {response.status} {answer[:300].decode(errors='replace')}")
    return str(json.loads(answer)["request_id"]).encode()


def _text(events: list[bytes], request_id: str) -> str:
    parts = []
    for data in events:
        payload: dict[str, Any] = json.loads(data).get("message", {}).get("payload", {})
        if payload.get("header", {}).get("msg_type") == "stream":
            assert payload["parent_header"]["msg_id"] == request_id
            parts.append(payload["content"]["text"])
    return "".join(parts)
