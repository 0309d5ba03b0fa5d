"""Build the wheels in ``tests/keeper/old_wheels`` from the history.

``python -m tests.keeper.build_old_wheel REVISION ...`` needs a full clone. Such a wheel has the code that hosts kernels
at that revision, and neither its server nor its page.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEELS = Path(__file__).with_name("old_wheels")
PACKAGES = ("kernels", "log", "pubsub", "protocol")
"""With the modules that lie directly in ``himalia``, all that a kernel host imports."""
EPOCH = (2020, 1, 1, 0, 0, 0)


def build_wheel(revision: str) -> Path:
    """Build the wheel of a revision, and strip it."""
    with tempfile.TemporaryDirectory() as scratch:
        tree, built = Path(scratch, "tree"), Path(scratch, "built")
        archive = Path(scratch, "tree.tar")
        subprocess.run(["git", "archive", "--output", archive, revision], cwd=ROOT, check=True)
        with tarfile.open(archive) as tar:
            tar.extractall(tree, filter="data")
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built], cwd=tree, check=True
        )
        (wheel,) = built.glob("*.whl")
        directory = WHEELS / revision
        directory.mkdir(parents=True, exist_ok=True)
        return strip(wheel, directory / wheel.name)


def strip(wheel: Path, target: Path) -> Path:
    """Copy the parts of a wheel that host kernels, with a new list of its files."""
    with zipfile.ZipFile(wheel) as source:
        files = {name: source.read(name) for name in source.namelist() if is_needed(name)}
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    rows = [f"{name},{digest(data)},{len(data)}" for name, data in sorted(files.items()) if name != record]
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as stripped:
        for name, data in sorted(files.items()):
            stripped.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
    return target


def is_needed(name: str) -> bool:
    top, _, rest = name.partition("/")
    if top != "himalia":
        return name.endswith((".dist-info/METADATA", ".dist-info/WHEEL", ".dist-info/RECORD"))
    return name.endswith(".py") and ("/" not in rest or rest.startswith(tuple(f"{one}/" for one in PACKAGES)))


def digest(data: bytes) -> str:
    hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={hashed}"


if __name__ == "__main__":
    for revision in sys.argv[1:]:
        print(build_wheel(revision))
