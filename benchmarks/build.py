"""Compile the load generator and the null broker if their sources have changed."""

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "loadgen"
BUILD = HERE / ".build"
FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra"]


class BuildError(Exception):
    """The load generator cannot be compiled here."""


@dataclass(frozen=True)
class Binaries:
    loadgen: Path
    null_broker: Path


def compile_binaries() -> Binaries:
    """Return the binaries of the current sources, compiled if necessary."""
    directory = BUILD / _digest()
    binaries = Binaries(directory / "loadgen", directory / "null_broker")
    if not (binaries.loadgen.exists() and binaries.null_broker.exists()):
        directory.mkdir(parents=True, exist_ok=True)
        null_broker = SOURCES / "null_broker.c"
        _compile([path for path in sorted(SOURCES.glob("*.c")) if path != null_broker], binaries.loadgen)
        _compile([null_broker], binaries.null_broker)
    return binaries


def _digest() -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _compile(sources: list[Path], target: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BuildError("The benchmarks need a C compiler (gcc or cc), and there is none on the PATH.")
    # Under a temporary name first, so that an interrupted compilation is not mistaken for a complete one.
    unfinished = target.with_suffix(".unfinished")
    command = [compiler, *FLAGS, "-o", str(unfinished), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise BuildError(f"The load generator does not compile:\n{done.stderr}")
    unfinished.rename(target)
