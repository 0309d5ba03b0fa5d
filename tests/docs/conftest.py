"""The documents as text."""

from __future__ import annotations

import pytest

from tests.docs.markdown import DOCS


@pytest.fixture(scope="session")
def protocol() -> str:
    return (DOCS / "protocol.md").read_text()


@pytest.fixture(scope="session")
def operations() -> str:
    return (DOCS / "operations.md").read_text()


@pytest.fixture(scope="session")
def architecture() -> str:
    return (DOCS / "architecture.md").read_text()
