"""Measure the server's memory per idle subscriber."""

import resource
import time

from benchmarks.bench import Bench
from benchmarks.generator import Load
from benchmarks.peers.himalia import HIMALIA
from benchmarks.peers.nats import NATS
from benchmarks.peers.peer import Peer
from benchmarks.peers.redis import REDIS
from benchmarks.peers.seed import SEED
from benchmarks.section import Section, Target
from benchmarks.server_process import PeerFailed, memory_bytes

PEERS = (HIMALIA, NATS, REDIS, SEED)
WANTED_AT_MOST_KIB = 32.0
SETTLE_S = 1.0
DESCRIPTORS_SPARE = 500


def measure(bench: Bench) -> list[Section]:
    subscribers = min(bench.scale.idle_subscribers, _descriptors() - DESCRIPTORS_SPARE)
    section = Section(
        key="idle",
        title=f"Memory of {subscribers:,} idle subscribers",
        columns=("server", "KiB per subscriber", "MiB before", "MiB after"),
    )
    if subscribers < bench.scale.idle_subscribers:
        section.notes.append("Fewer subscribers than planned: the limit of open files (`ulimit -n`) is low.")
    peers = bench.select_peers(PEERS)
    bench.expect(len(peers), "idle")
    for peer in peers:
        bench.report(f"idle: {peer.name}")
        try:
            before, after = _hold(bench, peer, subscribers)
        except PeerFailed as failure:
            section.failures.append(f"{peer.name}: {failure}")
        else:
            _add(section, peer, subscribers, before, after)
        bench.advance()
    return [section]


def _descriptors() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _hold(bench: Bench, peer: Peer, subscribers: int) -> tuple[int, int]:
    load = Load(mode="idle", subscribers=subscribers, publishers=0, deadline_s=120)
    with bench.start_server(peer) as endpoint:
        before = memory_bytes(endpoint.pid)
        with bench.generator.session(load, endpoint) as session:
            session.phase("ready")
            time.sleep(SETTLE_S)
            after = memory_bytes(endpoint.pid)
            session.go_on()
            session.phase("done")
    return before, after


def _add(section: Section, peer: Peer, subscribers: int, before: int, after: int) -> None:
    each_kib = (after - before) / subscribers / 1024
    section.rows.append([peer.name, f"{each_kib:.1f}", f"{before / 2**20:.1f}", f"{after / 2**20:.1f}"])
    section.data[peer.name] = {"subscribers": subscribers, "before_bytes": before, "after_bytes": after}
    if peer is HIMALIA:
        section.targets.append(Target("KiB per idle subscriber", each_kib, WANTED_AT_MOST_KIB, at_most=True))
