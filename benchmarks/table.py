"""Format sections as Markdown."""

from collections.abc import Iterator, Sequence

from benchmarks.machine import Machine
from benchmarks.section import Section, Target


def heading(machine: Machine) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    return (
        f"Measured on {machine.cores} cores ({machine.processor}), Linux {machine.kernel}, "
        f"Python {machine.python}; {versions}. "
        f"One durable write of 4 KiB takes {machine.sync_ms:.2f} ms here."
    )


def markdown(section: Section) -> str:
    return "\n".join(_lines(section))


def _lines(section: Section) -> Iterator[str]:
    yield f"### {section.title}"
    yield ""
    if section.rows:
        yield _row(section.columns)
        yield _row(["---"] + ["---:"] * (len(section.columns) - 1))
        yield from map(_row, section.rows)
        yield ""
    for target in section.targets:
        yield f"- {_verdict(target, section.undecided)}"
    for note in section.notes:
        yield f"- {note}"
    for failure in section.failures:
        yield f"- **Failed**: {failure}"
    if section.targets or section.notes or section.failures:
        yield ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _verdict(target: Target, undecided: bool) -> str:
    bound = "at most" if target.at_most else "at least"
    met = "Undecided on a busy machine" if undecided else "Met" if target.met else "Not met"
    return f"{met}: {target.text}: {target.measured:.2f}, wanted {bound} {target.wanted:g}."
