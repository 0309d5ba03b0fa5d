"""Measure fan-out: one publisher with 64 publishes in flight; every subscriber gets every message."""

from benchmarks.bench import Bench
from benchmarks.generator import Load
from benchmarks.peers.himalia import HIMALIA
from benchmarks.peers.nats import NATS, NATS_BARE
from benchmarks.peers.null import NULL
from benchmarks.peers.peer import Peer
from benchmarks.peers.redis import REDIS, REDIS_BARE
from benchmarks.peers.seed import SEED
from benchmarks.rounds import run_rounds
from benchmarks.section import Results, Section, Target, median_of, spread

PEERS = (HIMALIA, REDIS, NATS, SEED, NULL)
BARE = (REDIS_BARE, NATS_BARE)
WANTED = {
    1000: ((REDIS, 1.5), (NATS, 4.0), (SEED, 80.0)),
    100: ((REDIS, 0.8),),
}
IN_FLIGHT = 64


def measure(bench: Bench) -> list[Section]:
    peers = bench.select_peers(PEERS + BARE if bench.scale.fanout_bare else PEERS)
    bench.expect(len(WANTED) * bench.scale.rounds * len(peers), "fanout")
    return [_measure(bench, peers, subscribers) for subscribers in WANTED]


def _measure(bench: Bench, peers: list[Peer], subscribers: int) -> Section:
    section = Section(
        key=f"fanout {subscribers}",
        title=f"Fan-out to {subscribers:,} subscribers, {IN_FLIGHT} publishes in flight",
        columns=(
            "server",
            "deliveries/s, median",
            "least – most",
            "Himalia is",
            "bytes per event",
            "p99 under this load, ms",
            "server CPU %",
            "generator CPU %",
            "lost",
        ),
    )

    def load_for(peer: Peer) -> Load:
        return Load(
            mode="fanout",
            subscribers=subscribers,
            in_flight=IN_FLIGHT,
            message_bytes=peer.message_bytes,
            seconds=bench.scale.seconds,
            warm_s=bench.scale.warm_s,
        )

    results = run_rounds(bench, section, peers, load_for)
    _fill(section, results)
    _compare(section, results, subscribers)
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
                f"{median_of(runs, 'event_bytes'):.0f}",
                f"{median_of(runs, 'p99_ms'):.1f}",
                f"{median_of(runs, 'server_cpu_percent'):.0f}",
                f"{median_of(runs, 'generator_cpu_percent'):.0f}",
                f"{median_of(runs, 'lost_percent'):.1f}%" if any(run.lost for run in runs) else "none",
            ]
        )


def _compare(section: Section, results: Results, subscribers: int) -> None:
    if HIMALIA.name not in results:
        return
    ours = median_of(results[HIMALIA.name], "rate")
    for peer, wanted in WANTED[subscribers]:
        if peer.name in results:
            ratio = ours / median_of(results[peer.name], "rate")
            section.targets.append(Target(f"deliveries, against {peer.name}", ratio, wanted))
