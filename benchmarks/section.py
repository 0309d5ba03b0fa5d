"""The result of one measurement: a table, its targets, and its failures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.generator import Outcome

# Runs by the name of the server.
Results = dict[str, list[Outcome]]


@dataclass(frozen=True)
class Target:
    """A target ratio. Missing it is shown and is not a failure."""

    text: str
    measured: float
    wanted: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.measured <= self.wanted if self.at_most else self.measured >= self.wanted


@dataclass
class Section:
    key: str
    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    # The machine was too busy to say whether a target is met.
    undecided: bool = False

    def comparable(self, results: Results) -> Results:
        """Return the undisturbed runs if every server has some, else all runs, with a note in the section.

        One server's quiet runs are never compared with another's disturbed ones.
        """
        runs = [run for runs in results.values() for run in runs]
        disturbed = [run.others_cpu_percent for run in runs if run.disturbed]
        if not disturbed:
            return results
        quiet = {name: [run for run in runs if not run.disturbed] for name, runs in results.items()}
        busy = not all(quiet.values())
        self.undecided = self.undecided or busy
        self.notes.append(
            f"{len(disturbed)} of {len(runs)} runs shared the machine with other work "
            f"(up to {max(disturbed):.0f}% of a core). "
            + ("All are shown, as not every server had a quiet one." if busy else "They are left out.")
        )
        return results if busy else quiet


def median_of(outcomes: Sequence[Outcome], attribute: str) -> float:
    return float(median(getattr(run, attribute) for run in outcomes))


def spread(values: Sequence[float]) -> str:
    return f"{min(values):,.0f} – {max(values):,.0f}"
