"""Measure durable publishes: acknowledged only when on disk, 256 in flight, no subscribers."""

from benchmarks.bench import Bench
from benchmarks.generator import Load
from benchmarks.peers.himalia import HIMALIA
from benchmarks.peers.nats import NATS_JETSTREAM
from benchmarks.peers.peer import Peer
from benchmarks.peers.redis import REDIS_STREAM
from benchmarks.rounds import run_rounds
from benchmarks.section import Results, Section, Target, median_of, spread

PEERS = (HIMALIA, REDIS_STREAM, NATS_JETSTREAM)
WANTED = 2.0
IN_FLIGHT = 256
MESSAGE_BYTES = 200


def measure(bench: Bench) -> list[Section]:
    connections = bench.scale.publish_connections
    bench.expect(len(connections) * bench.scale.rounds * len(bench.select_peers(PEERS)), "publish")
    return [_measure(bench, count) for count in connections]


def _measure(bench: Bench, connections: int) -> Section:
    section = Section(
        key=f"publish over {connections}",
        title=f"Durable publishes, {IN_FLIGHT} in flight, connections: {connections}",
        columns=(
            "server",
            "acknowledged/s, median",
            "least – most",
            "Himalia is",
            "p50 ms",
            "p99 ms",
            "server CPU %",
            "generator CPU %",
        ),
    )

    def load_for(_: Peer) -> Load:
        return Load(
            mode="publish",
            publishers=connections,
            in_flight=IN_FLIGHT,
            message_bytes=MESSAGE_BYTES,
            seconds=bench.scale.seconds,
            warm_s=bench.scale.warm_s,
        )

    results = run_rounds(bench, section, bench.select_peers(PEERS), load_for)
    _fill(section, results)
    return section


def _fill(section: Section, results: Results) -> None:
    ours = median_of(results[HIMALIA.name], "rate") if HIMALIA.name in results else 0.0
    for name, runs in results.items():
        rate = median_of(runs, "rate")
        section.rows.append(
            [
                name,
                f"{rate:,.0f}",
                spread([run.rate for run in runs]),
                f"{ours / rate:.2f}x" if ours and name != HIMALIA.name else "",
                f"{median_of(runs, 'p50_ms'):.1f}",
                f"{median_of(runs, 'p99_ms'):.1f}",
                f"{median_of(runs, 'server_cpu_percent'):.0f}",
                f"{median_of(runs, 'generator_cpu_percent'):.0f}",
            ]
        )
        if ours and name != HIMALIA.name:
            section.targets.append(Target(f"durable publishes, against {name}", ours / rate, WANTED))
