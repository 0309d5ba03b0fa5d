"""Measure latency: 500 publishes a second, open loop, to 100 subscribers; from due time to each receipt."""

from benchmarks.bench import Bench
from benchmarks.generator import Load
from benchmarks.peers.himalia import HIMALIA
from benchmarks.peers.nats import NATS
from benchmarks.peers.peer import Peer
from benchmarks.peers.redis import REDIS
from benchmarks.peers.seed import SEED
from benchmarks.rounds import run_rounds
from benchmarks.section import Results, Section, Target, median_of

PEERS = (HIMALIA, REDIS, NATS, SEED)
WANTED_AT_MOST = 2.0
SUBSCRIBERS = 100
RATE = 500

# Open loop: this limit only bounds the generator's memory.
IN_FLIGHT_MAX = 4096


def measure(bench: Bench) -> list[Section]:
    section = Section(
        key="latency",
        title=f"Latency at {RATE} publishes/s, open loop, to {SUBSCRIBERS} subscribers",
        columns=("server", "p50 ms", "p99 ms", "max ms", "server CPU %", "generator CPU %", "lost"),
    )
    peers = bench.select_peers(PEERS)
    bench.expect(bench.scale.rounds * len(peers), "latency")

    def load_for(peer: Peer) -> Load:
        return Load(
            mode="latency",
            subscribers=SUBSCRIBERS,
            rate=RATE,
            in_flight=IN_FLIGHT_MAX,
            message_bytes=peer.message_bytes,
            seconds=bench.scale.seconds,
            warm_s=bench.scale.warm_s,
        )

    results = run_rounds(bench, section, peers, load_for)
    _fill(section, results)
    _compare(section, results)
    return [section]


def _fill(section: Section, results: Results) -> None:
    for name, runs in results.items():
        section.rows.append(
            [
                name,
                f"{median_of(runs, 'p50_ms'):.2f}",
                f"{median_of(runs, 'p99_ms'):.2f}",
                f"{max(run.max_ms for run in runs):.2f}",
                f"{median_of(runs, 'server_cpu_percent'):.0f}",
                f"{median_of(runs, 'generator_cpu_percent'):.0f}",
                f"{median_of(runs, 'lost_percent'):.1f}%" if any(run.lost for run in runs) else "none",
            ]
        )


def _compare(section: Section, results: Results) -> None:
    if HIMALIA.name in results and NATS.name in results:
        ratio = median_of(results[HIMALIA.name], "p99_ms") / median_of(results[NATS.name], "p99_ms")
        section.targets.append(Target(f"p99, against {NATS.name}", ratio, WANTED_AT_MOST, at_most=True))
