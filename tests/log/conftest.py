from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .backends import KINDS, Backend, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=KINDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Backend]:
    backend = Backend(request.param, tmp_path, clock)
    yield backend
    await backend.close()


@pytest.fixture
async def log(backend: Backend) -> Any:
    return await backend.open()


@pytest.fixture
async def sqlite(tmp_path: Path, clock: Clock) -> AsyncIterator[Backend]:
    """The SQLite log alone, for what only it has to do."""
    backend = Backend("sqlite", tmp_path, clock)
    yield backend
    await backend.close()
