from __future__ import annotations

from pathlib import Path

import pytest

from himalia.tables import Tables
from tests.tables.sample import write_sample


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse that no test changes."""
    warehouse = tmp_path_factory.mktemp("sample") / "warehouse"
    write_sample(warehouse)
    return warehouse


@pytest.fixture
def tables(sample: Path) -> Tables:
    return Tables(sample)
