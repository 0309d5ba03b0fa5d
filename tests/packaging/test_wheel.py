"""What users install: the wheel, outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of its own with the wheel in it; its dependencies are borrowed from ours."""
    directory = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(directory),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = directory.glob("himalia-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(directory / "venv")], check=True)
    python = directory / "venv" / "bin" / "python"
    [site] = (directory / "venv").glob("lib/python*/site-packages")
    # A directory named in a .pth file is searched, but its own .pth files, our editable install, are not read.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
    return directory


@pytest.mark.slow
def test_the_wheel_runs_outside_the_checkout(installed: Path) -> None:
    """Installed from its wheel, the command starts a server that is well and stops with exit code 0."""
    python = installed / "venv" / "bin" / "python"
    environment = {**os.environ, "HIMALIA_RUNTIME_DIR": str(installed / "runtime")}
    where = subprocess.run(
        [python, "-c", "import himalia; print(himalia.__file__)"],
        cwd=installed,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(installed))
    server = subprocess.Popen(
        [
            installed / "venv" / "bin" / "himalia",
            "serve",
            "--port",
            "0",
            "--log",
            f"sqlite://{installed}/log.db",
        ],
        cwd=installed,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        assert "token=" in url
        assert httpx.get(httpx.URL(url).join("/health")).json() == {"status": "ok"}
    finally:
        server.terminate()
        assert server.wait(20) == 0


@pytest.mark.slow
def test_the_wheel_carries_its_types_and_licence(installed: Path) -> None:
    """Type checkers find py.typed, and the licence is in the wheel."""
    [site] = (installed / "venv").glob("lib/python*/site-packages")
    assert (site / "himalia" / "py.typed").exists()
    assert list(site.glob("himalia-*.dist-info/licenses/LICENSE"))


@pytest.mark.slow
def test_the_wheel_carries_the_page(installed: Path) -> None:
    """Every file of the page is in the wheel."""
    [site] = (installed / "venv").glob("lib/python*/site-packages")
    there = {path.name for path in (site / "himalia" / "page").iterdir()}
    assert there == {path.name for path in (ROOT / "src" / "himalia" / "page").iterdir()}


def test_the_core_is_light() -> None:
    """Arrow and tracing are extras: nothing heavy is needed to run a server."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = " ".join(project["dependencies"])
    for heavy in ("pyarrow", "opentelemetry", "pyspark", "plotly"):
        assert heavy not in core


@pytest.mark.parametrize("module", ["himalia", "himalia.client", "himalia.cli"])
def test_a_client_loads_no_server(module: str) -> None:
    """Importing the client or the command line does not import the server's libraries."""
    code = f"import {module}, sys; print([name for name in ('fastapi', 'uvicorn', 'pyarrow') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_constraints_pin_everything_and_name_no_index() -> None:
    """Every line is name==version; addresses do not belong there."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    for line in lines:
        name, _, version = line.partition("==")
        assert name and version and "/" not in line and ":" not in line, line
