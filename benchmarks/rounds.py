"""Interleave the runs of all peers, so that a slow minute of the machine affects all of them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.bench import Bench
from benchmarks.generator import Load
from benchmarks.peers.peer import Peer
from benchmarks.section import Results, Section
from benchmarks.server_process import PeerFailed


def run_rounds(
    bench: Bench, section: Section, peers: Sequence[Peer], load_for: Callable[[Peer], Load]
) -> Results:
    """Return outcomes by peer name. A run that fails or counts inexactly is a failure of the section, not a figure."""
    results: Results = {peer.name: [] for peer in peers}
    for round_number in range(1, bench.scale.rounds + 1):
        for peer in peers:
            bench.report(f"{section.key}: {peer.name}, round {round_number} of {bench.scale.rounds}")
            try:
                outcome = bench.run(peer, load_for(peer))
            except PeerFailed as failure:
                section.failures.append(f"{peer.name}: {failure}")
            else:
                inexact = outcome.count_error()
                if inexact and not peer.may_drop:
                    section.failures.append(f"{peer.name}: {inexact}")
                else:
                    results[peer.name].append(outcome)
            bench.advance()
    section.data = as_data(results)
    return section.comparable({name: runs for name, runs in results.items() if runs})


def as_data(results: Results) -> dict[str, Any]:
    return {name: [asdict(run) for run in runs] for name, runs in results.items()}
