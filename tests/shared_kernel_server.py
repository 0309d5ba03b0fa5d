"""A server with kernels that several tests share: starting either takes a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers import RunningServer, start_server


@contextmanager
def kernel_server(directory: Path, **settings: Any) -> Iterator[RunningServer]:
    """Start a server; by default without authentication.

    Its kernels, and Jupyter's runtime directory, are in ``directory``; all of them end with it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HIMALIA_RUNTIME_DIR", str(directory / "runtime"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(directory / "jupyter"))
        (directory / "jupyter").mkdir()
        server = start_server(**{"auth": False, "log": f"sqlite://{directory}/log.db", **settings})
        try:
            yield server
        finally:
            server.stop()
