"""The documents as text, and as something to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import DOCS
from tests.docs.sessions import Session, free_port


@pytest.fixture(scope="session")
def protocol() -> str:
    return (DOCS / "protocol.md").read_text()


@pytest.fixture(scope="session")
def operations() -> str:
    return (DOCS / "operations.md").read_text()


@pytest.fixture(scope="session")
def architecture() -> str:
    return (DOCS / "architecture.md").read_text()


@pytest.fixture
def read_along(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Do all that a guide shows, in a home of its own and with a server on a free port where it says 8000.

    ``ports`` are further ones that the guide names; each becomes a free one. The rest is as for ``Session``.
    """
    sessions: list[Session] = []

    def run(guide: str, *, ports: Iterable[str] = (), **options: Any) -> None:
        found = {port: str(free_port()) for port in ("8000", *ports)}
        options["here"] = found | options.get("here", {})
        options["environment"] = {"HIMALIA_PORT": found["8000"]} | options.get("environment", {})
        sessions.append(Session(tmp_path, **options))
        sessions[-1].run(DOCS / guide)

    yield run
    for session in sessions:
        session.close()
