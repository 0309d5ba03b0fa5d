"""The scale of the measurements: full, or quick."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    rounds: int
    seconds: float
    warm_s: float
    fanout_bare: bool  # Redis and NATS also with a message that has no envelope
    publish_connections: tuple[int, ...]
    idle_subscribers: int
    stalled_messages: int
    growth_topics: tuple[int, ...]
    growth_records: int
    growth_seconds: float
    iopub_messages: int
    flood_lines: int
    roundtrips: int
    broker_requests: int
    connector_records: int
    correlation_messages: tuple[int, ...]
    pipeline_messages: tuple[int, ...]
    visible_warm_ups: int
    visible_samples: int
    neighbour_seconds: float
    abuse: float  # how much of each abuse: 1 is all of it
    abuse_seconds: float
    abuse_rounds: int
    churn_minutes: float


FULL = Scale(
    rounds=3,
    seconds=3.0,
    warm_s=0.5,
    fanout_bare=True,
    publish_connections=(1, 16),
    idle_subscribers=10_000,
    stalled_messages=50_000,
    growth_topics=(1, 1_000, 10_000),
    growth_records=1_000_000,
    growth_seconds=1.5,
    iopub_messages=50_000,
    flood_lines=20_000,
    roundtrips=200,
    broker_requests=100_000,
    connector_records=500_000,
    correlation_messages=(100_000, 1_000_000),
    pipeline_messages=(10_000, 100_000, 1_000_000),
    visible_warm_ups=10,
    visible_samples=40,
    neighbour_seconds=8.0,
    abuse=1.0,
    abuse_seconds=3.0,
    abuse_rounds=1,
    churn_minutes=10.0,
)

QUICK = Scale(
    rounds=1,
    seconds=1.0,
    warm_s=0.2,
    fanout_bare=False,
    publish_connections=(1,),
    idle_subscribers=2_000,
    stalled_messages=10_000,
    growth_topics=(1, 1_000),
    growth_records=100_000,
    growth_seconds=0.7,
    iopub_messages=10_000,
    flood_lines=2_000,
    roundtrips=30,
    broker_requests=10_000,
    connector_records=50_000,
    correlation_messages=(5_000, 20_000),
    pipeline_messages=(2_000, 20_000),
    visible_warm_ups=2,
    visible_samples=5,
    neighbour_seconds=1.0,
    abuse=0.2,
    abuse_seconds=1.0,
    abuse_rounds=1,
    churn_minutes=0.5,
)
