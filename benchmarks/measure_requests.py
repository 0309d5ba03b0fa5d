"""Measure the memory of the IOPub broker: per active request, per orphan, and after very many requests."""

import gc
import tracemalloc
from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.section import Section, Target
from himalia.iopub.broker import BrokerConfig, IopubBroker
from himalia.iopub.result import ExecutionResult
from himalia.jupyter.wire import KernelMessage, Wire

REQUESTS, ORPHANS = 10_000, 1_000
SEED_REQUEST_BYTES, SEED_ORPHAN_BYTES = "about 200", "500 – 2,000"


def measure(bench: Bench) -> list[Section]:
    rounds = bench.scale.broker_requests
    section = Section(
        key="requests",
        title="Memory of the IOPub broker",
        columns=("what", "Himalia, bytes", "design estimate, bytes"),
    )
    bench.expect(3, "requests")
    per_request = _measure_growth(_registered) / REQUESTS
    bench.advance()
    per_orphan = _measure_growth(_orphaned) / ORPHANS
    bench.advance()
    broker = IopubBroker()
    _pass_through(broker, rounds // 10)
    growth = _measure_growth(lambda: _pass_through(broker, rounds))
    bench.advance()
    section.rows = [
        ["an active request with its five channels and collector", f"{per_request:,.0f}", SEED_REQUEST_BYTES],
        ["an orphan message (a line of output)", f"{per_orphan:,.0f}", SEED_ORPHAN_BYTES],
        [f"growth over {rounds:,} requests that came and went", f"{growth:,.0f}", "–"],
    ]
    section.targets.append(Target("growth per request, bytes", growth / rounds, 1.0, at_most=True))
    section.data = {"request": per_request, "orphan": per_orphan, "growth": growth}
    return [section]


def _measure_growth(work: Callable[[], object]) -> float:
    """Return the growth in bytes while the result of the work is alive."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = work()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return after - before


def _registered() -> object:
    broker = IopubBroker()
    collectors = []
    for number in range(REQUESTS):
        channels, collector = ExecutionResult.create_channels()
        broker.register_request(f"request-{number:06d}", channels)
        collectors.append(collector)
    return broker, collectors


def _orphaned() -> object:
    broker = IopubBroker(BrokerConfig(orphan_buffer_max=ORPHANS))
    broker.route_messages(_messages("nobody", ORPHANS))
    return broker


def _messages(parent_id: str, count: int) -> list[KernelMessage]:
    """Return messages decoded from the wire, so that they share memory like real ones."""
    wire = Wire(b"bench")
    parent, _ = wire.encode("execute_request", {}, msg_id=parent_id)
    found = []
    for number in range(count):
        _, frames = wire.encode("stream", {"name": "stdout", "text": f"line {number}\n"}, parent=parent)
        message = wire.decode(frames)
        assert isinstance(message, KernelMessage)
        found.append(message)
    return found


def _pass_through(broker: IopubBroker, count: int) -> None:
    messages = _messages("request", 4)
    for _ in range(count):
        channels, collector = ExecutionResult.create_channels()
        with broker.guard("request", channels):
            broker.route_messages(messages)
            collector.in_order()
