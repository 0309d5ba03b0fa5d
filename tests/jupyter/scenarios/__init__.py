"""What is recorded: one function per scenario, played with each kernel and each of its variants."""

from __future__ import annotations

from tests.jupyter.scenarios import ends, foreign, forged, requests, servers
from tests.jupyter.scenarios.registry import Scenario

SCENARIOS: list[Scenario] = [
    scenario
    for module in (requests, ends, servers, foreign, forged)
    for scenario in module.recorded.scenarios
]
