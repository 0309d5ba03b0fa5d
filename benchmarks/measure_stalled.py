"""Measure the cost of a subscriber that never reads, while the others must still receive every message.

Each server is measured twice, with and without that subscriber; the difference is its cost. Servers keep
their default limits, because these are measured.
"""

import time
from dataclasses import asdict, dataclass

from benchmarks.bench import Bench
from benchmarks.generator import Load, Outcome
from benchmarks.peers.himalia import HIMALIA
from benchmarks.peers.nats import NATS_LIMITED
from benchmarks.peers.peer import Peer
from benchmarks.peers.redis import REDIS_LIMITED
from benchmarks.peers.seed import SEED
from benchmarks.section import Section
from benchmarks.server_process import PeerFailed, memory_bytes, memory_peak_bytes

PEERS = (HIMALIA, REDIS_LIMITED, NATS_LIMITED, SEED)
LISTENING = 3
MESSAGE_BYTES = 1024
IN_FLIGHT = 64
SETTLE_S = 0.5


@dataclass(frozen=True)
class Growth:
    at_end_bytes: int
    at_peak_bytes: int
    run: Outcome
    aftermath: Outcome


def measure(bench: Bench) -> list[Section]:
    messages = bench.scale.stalled_messages
    section = Section(
        key="stalled",
        title=f"One subscriber that never reads, {messages:,} messages of 1 KiB",
        columns=(
            "server",
            "MiB for it, at the end",
            "MiB for it, at the peak",
            "growth without it, MiB",
            "it then reads",
            "skipped",
            "of these reported",
            "the others",
        ),
    )
    peers = bench.select_peers(PEERS)
    bench.expect(2 * len(peers), "stalled")
    for peer in peers:
        try:
            without = _run(bench, peer, messages, deaf=0)
            stalled = _run(bench, peer, messages, deaf=1)
        except PeerFailed as failure:
            section.failures.append(f"{peer.name}: {failure}")
        else:
            _add(section, peer, without, stalled)
    return [section]


def _run(bench: Bench, peer: Peer, messages: int, deaf: int) -> Growth:
    bench.report(f"stalled: {peer.name}, {'with' if deaf else 'without'} one that never reads")
    load = Load(
        mode="stalled",
        subscribers=LISTENING + deaf,
        deaf=deaf,
        count=messages,
        in_flight=IN_FLIGHT,
        message_bytes=MESSAGE_BYTES,
        deadline_s=90,
    )
    with bench.start_server(peer) as endpoint, bench.generator.session(load, endpoint) as session:
        session.phase("ready")
        before = memory_bytes(endpoint.pid)
        session.go_on()
        run = session.phase("published")
        time.sleep(SETTLE_S)
        after, peak = memory_bytes(endpoint.pid), memory_peak_bytes(endpoint.pid)
        session.go_on()
        aftermath = session.phase("done")
    bench.advance()
    return Growth(after - before, peak - before, run, aftermath)


def _add(section: Section, peer: Peer, without: Growth, stalled: Growth) -> None:
    inexact = stalled.run.count_error() or without.run.count_error()
    if inexact:
        section.failures.append(f"{peer.name}: {inexact}")
    after = stalled.aftermath
    missing = stalled.run.published - after.stalled_events
    if peer is HIMALIA and missing != after.stalled_noticed_lost:
        section.failures.append(f"{peer.name}: {missing} skipped, but {after.stalled_noticed_lost} told")
    section.rows.append(
        [
            peer.name,
            f"{(stalled.at_end_bytes - without.at_end_bytes) / 2**20:.1f}",
            f"{(stalled.at_peak_bytes - without.at_peak_bytes) / 2**20:.1f}",
            f"{without.at_end_bytes / 2**20:.1f}",
            f"{after.stalled_events:,} messages" + (", then is cut off" if after.stalled_closed else ""),
            f"{missing:,}",
            f"{after.stalled_noticed_lost:,}",
            "got everything" if inexact is None else "**lost some**",
        ]
    )
    section.data[peer.name] = {"without": asdict(without), "stalled": asdict(stalled)}
