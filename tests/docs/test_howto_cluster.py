"""docs/howto/cluster.md: a real master, a real worker and their executors, all on loopback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SPARK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
CHANGING = [r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d", r"Java \d+ .*?\)", r"[\d.,]+ s \([\d,]+/s\)"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_guide_does_what_it_shows(read_along: Callable[..., None], tmp_path: Path) -> None:
    """The pipeline and a job of one's own run on executors of a standalone cluster, with the guide's commands."""
    here = {"10.0.0.1": "127.0.0.1", "/mnt/shared": str(tmp_path / "shared")}
    (tmp_path / "shared").mkdir()
    read_along(
        "howto/cluster.md",
        ports=["7077"],
        here=here,
        environment=SPARK | {"SPARK_WORKER_DIR": str(tmp_path / "work")},
        also=CHANGING,
        command_max_s=180,
    )
