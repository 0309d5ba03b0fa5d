"""Measure whether the cost of a publish grows with the number of topics and records.

The compared servers run at the same time, with alternating publish runs.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass

from benchmarks import rest
from benchmarks.bench import Bench
from benchmarks.generator import Endpoint, Load, Outcome
from benchmarks.peers.himalia import HIMALIA, TOPIC
from benchmarks.section import Results, Section, median_of
from benchmarks.server_process import PeerFailed

ONE_BY_ONE = 1
GROUPED = 256
PAYLOAD_CHARS = 120
MESSAGE_BYTES = 200


@dataclass(frozen=True)
class Filling:
    """The content of a server before the measurement."""

    name: str
    topics: int = 1
    records: int = 0


def measure(bench: Bench) -> list[Section]:
    records = bench.scale.growth_records
    fillings = [Filling(f"topics: {topics:,}", topics=topics) for topics in bench.scale.growth_topics]
    fillings.append(Filling(f"records: {records:,}", records=records))
    section = Section(
        key="growth",
        title="Cost of an acknowledged publish as Himalia fills",
        columns=(
            "Himalia holds",
            f"µs each, {GROUPED} in flight",
            "against the first row",
            "µs, one at a time (p50)",
            "against the first row",
        ),
    )
    if not bench.select_peers([HIMALIA]):
        return []
    bench.expect(len(fillings) * (1 + bench.scale.rounds), "growth")
    try:
        with _filled(bench, fillings) as endpoints:
            grouped, one_by_one = _rounds(bench, endpoints)
    except PeerFailed as failure:
        section.failures.append(f"{HIMALIA.name}: {failure}")
    else:
        _fill(section, grouped, one_by_one)
    return [section]


@contextmanager
def _filled(bench: Bench, fillings: list[Filling]) -> Iterator[dict[str, Endpoint]]:
    with ExitStack() as servers:
        endpoints = {}
        for filling in fillings:
            bench.report(f"growth: filling {filling.name}")
            endpoint = servers.enter_context(bench.start_server(HIMALIA))
            rest.create_topics(endpoint.port, [f"other-{number}" for number in range(1, filling.topics)])
            rest.fill_topic(endpoint.port, TOPIC, filling.records, PAYLOAD_CHARS)
            endpoints[filling.name] = endpoint
            bench.advance()
        yield endpoints


def _rounds(bench: Bench, endpoints: dict[str, Endpoint]) -> tuple[Results, Results]:
    grouped: Results = {name: [] for name in endpoints}
    one_by_one: Results = {name: [] for name in endpoints}
    for round_number in range(1, bench.scale.rounds + 1):
        for name, endpoint in endpoints.items():
            bench.report(f"growth: {name}, round {round_number} of {bench.scale.rounds}")
            grouped[name].append(_publish(bench, endpoint, GROUPED))
            one_by_one[name].append(_publish(bench, endpoint, ONE_BY_ONE))
            bench.advance()
    return grouped, one_by_one


def _publish(bench: Bench, endpoint: Endpoint, in_flight: int) -> Outcome:
    load = Load(
        mode="publish",
        in_flight=in_flight,
        message_bytes=MESSAGE_BYTES,
        seconds=bench.scale.growth_seconds,
        warm_s=bench.scale.warm_s,
    )
    outcome = bench.quiet_machine.run_undisturbed(lambda: bench.generator.run(load, endpoint))
    if inexact := outcome.count_error():
        raise PeerFailed(inexact)
    return outcome


def _fill(section: Section, grouped: Results, one_by_one: Results) -> None:
    for name in grouped:
        section.data[name] = {
            "grouped": [asdict(run) for run in grouped[name]],
            "one_by_one": [asdict(run) for run in one_by_one[name]],
        }
    shown_grouped, shown_single = section.comparable(grouped), section.comparable(one_by_one)
    each_us = {name: 1e6 / median_of(runs, "rate") for name, runs in shown_grouped.items()}
    single_us = {name: 1e3 * median_of(runs, "p50_ms") for name, runs in shown_single.items()}
    first = next(iter(grouped))
    for name in grouped:
        section.rows.append(
            [
                name,
                f"{each_us[name]:.1f}",
                f"{each_us[name] / each_us[first]:.2f}x",
                f"{single_us[name]:.0f}",
                f"{single_us[name] / single_us[first]:.2f}x",
            ]
        )
