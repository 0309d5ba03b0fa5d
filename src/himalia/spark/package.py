"""Send this package to executors on which it is not installed: as a zip file, from the driver.

``python -m himalia.spark.package himalia.zip`` writes one for ``--py-files``. It holds what executors import, which is
pure Python: besides it they need pyspark and pyarrow, as for every Python data source.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PACKAGE_FILES = (
    "pyspark_himalia/*.py",
    "himalia/__init__.py",
    "himalia/connection_errors.py",
    "himalia/errors.py",
    "himalia/retry.py",
    "himalia/tls.py",
    "himalia/token_proof.py",
    "himalia/topics.py",
    "himalia/spark/**/*.py",
)

# Spark rejects two files of one name, and ``--py-files`` has often added a ``himalia.zip`` already.
FILE_NAME = "himalia-of-the-driver.zip"


def ship(session: SparkSession) -> None:
    """Send the package to the executors of a session, once, and register the data source.

    Without that Spark finds the data source only where it is installed as a Python package.
    """
    from himalia.spark.connector.source import HimaliaDataSource

    add_package(session.sparkContext)
    session.dataSource.register(HimaliaDataSource)


def add_package(context: SparkContext) -> None:
    """Send the package to the executors, once."""
    if any(url.endswith(f"/{FILE_NAME}") for url in context.listFiles):
        return
    # Executors fetch it when they start, so it is kept until this process exits.
    directory = tempfile.mkdtemp(prefix="himalia-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    context.addPyFile(str(write_package(Path(directory) / FILE_NAME)))


def write_package(path: Path) -> Path:
    """Write the zip file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for pattern in PACKAGE_FILES:
            root = _root(pattern.partition("/")[0])
            for source in sorted(root.glob(pattern)):
                package.write(source, source.relative_to(root))
    return path


def _root(package: str) -> Path:
    """Return the directory that contains a package."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m himalia.spark.package FILE.zip")
    print(write_package(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
