"""Describe the machine of a measurement."""

import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

SYNCS = 50


@dataclass(frozen=True)
class Machine:
    cores: int
    processor: str
    kernel: str
    python: str
    versions: dict[str, str]
    sync_ms: float


def describe(directory: Path) -> Machine:
    return Machine(
        cores=os.cpu_count() or 0,
        processor=_processor(),
        kernel=platform.release(),
        python=platform.python_version(),
        versions={
            "himalia": _package("himalia"),
            "uvicorn": _package("uvicorn"),
            "redis": _program(shutil.which("redis-server") or "redis-server"),
            "nats": _program(str(Path(sys.executable).with_name("nats-server"))),
        },
        sync_ms=sync_ms(directory),
    )


def sync_ms(directory: Path) -> float:
    """Measure a durable write of 4 KiB on this disk: the lower bound of every durable figure."""
    path = directory / "sync-probe"
    took = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for _ in range(SYNCS):
            began = time.perf_counter()
            os.write(descriptor, bytes(4096))
            os.fdatasync(descriptor)
            took.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return median(took) * 1000


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _program(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return "not installed"
    words = done.stdout.replace("v=", "").split()
    return next((word.lstrip("v") for word in words if word.lstrip("v")[:1].isdigit()), "unknown")
