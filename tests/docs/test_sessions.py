"""What runs the guides notices when one of them is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.sessions import Session, consumed


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path, here={"NAME": "World"}, command_max_s=5)
    yield session
    session.close()


def run(session: Session, text: str) -> None:
    guide = session.directory / "guide.md"
    guide.write_text(text)
    session.run(guide)


def test_a_guide_that_is_right(session: Session) -> None:
    """Variables last, files are written, what goes on is interrupted, and lines are left out by dots."""
    run(
        session,
        "```text hello.txt\nHello NAME\n```\n"
        "```console\n$ X=5\n$ cat hello.txt; seq $X\nHello NAME\n...\n5\n```\n"
        "```console other\n$ echo begun; sleep 60\nbegun\n```\n"
        "```console\n$ echo $X\n5\n```\n"
        "```console other\n^C\n$ echo free\nfree\n```\n",
    )


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("console\n$ echo one\ntwo", "guide.md:2: 'echo one' prints\none"),
        ("console\n$ seq 2\n1", "prints more than is shown"),
        ("console\n$ seq 1\n1\n2", "prints\n1"),
        ("console\n$ false", "ends with 1"),
        ("sh\nrm -rf /", "nobody runs a block 'sh'"),
    ],
)
def test_a_guide_that_is_wrong(session: Session, block: str, complaint: str) -> None:
    """It says which line, and what came instead."""
    with pytest.raises(AssertionError) as failed:
        run(session, f"```{block}\n```\n")
    assert complaint in str(failed.value)


def test_a_command_that_does_not_end(tmp_path: Path) -> None:
    """Nothing that a guide leaves running outlives it."""
    session = Session(tmp_path, command_max_s=0.5)
    with pytest.raises(AssertionError, match="does not end"):
        run(session, "```console\n$ sleep 600\n```\n")
    session.close()


@pytest.mark.parametrize(
    ("shown", "given", "count"),
    [
        ([], ["a"], 0),
        (["a"], ["a", "b"], 1),
        (["b"], ["a", "b"], None),
        (["...", "b"], ["a", "b", "c"], 2),
        (["...", "b"], ["b"], 1),
        (["a", "..."], ["a", "b", "c"], 3),
        (["a", "...", "c"], ["a", "b"], None),
    ],
)
def test_lines_that_are_left_out(shown: list[str], given: list[str], count: int | None) -> None:
    """Dots stand for any lines, as few as will do, and at the end for all of them."""
    assert consumed(shown, given) == count
