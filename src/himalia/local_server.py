"""How programs on this machine find a running server, by a small private file per server, and its warehouse."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from urllib.parse import quote

import msgspec
import platformdirs

from himalia.errors import ConfigurationError


class RunningServer(msgspec.Struct, frozen=True):
    """What a server publishes to other programs of the same user."""

    url: str
    token: str | None
    pid: int
    log: str
    started_us: int


def runtime_directory() -> Path:
    """Return the directory of these files: ``HIMALIA_RUNTIME_DIR``, else next to the user's data, as in Jupyter."""
    named = os.environ.get("HIMALIA_RUNTIME_DIR")
    return Path(named) if named else platformdirs.user_data_path("himalia") / "runtime"


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents, for this user only, whatever the umask."""
    if not directory.exists():
        make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def default_warehouse_path() -> Path:
    """Return the default directory of the pipeline's tables: next to the default log."""
    return platformdirs.user_data_path("himalia") / "warehouse"


def validate_warehouse_path(path: Path) -> Path:
    """Return the path; raise ``ConfigurationError`` for a URL, which would become a strange directory."""
    # A URL that was made a path has only one of its two slashes left.
    if found := re.match(r"([a-z][a-z0-9+.-]+):/", str(path), re.IGNORECASE):
        raise ConfigurationError(
            f"the warehouse is a directory, on this machine or mounted here: give its path, not an address with {found[1]}://"
        )
    return path


def page_url(url: str, token: str | None) -> str:
    """Return the address of a server's page, with the token that signs the browser in."""
    return f"{url}/?token={quote(token, safe='')}" if token else f"{url}/"


def write_runtime_file(server: RunningServer) -> Path:
    """Write the file of this server, readable by its user only; return its path, for the caller to remove at the end.

    Raises ``ConfigurationError`` if it cannot be written.
    """
    directory = runtime_directory()
    log = hashlib.sha256(server.log.encode()).hexdigest()[:12]
    path = directory / f"server-{log}-{server.pid}.json"
    try:
        make_private(directory)
        # Atomically: a program that reads it meanwhile finds the old file or the new one.
        temporary = path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(server))
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigurationError(
            f"{directory}, where other programs look for this server, cannot be written: {error.strerror}; "
            "name another directory in HIMALIA_RUNTIME_DIR"
        ) from None
    return path


def find_running_servers() -> list[RunningServer]:
    """Return the running servers of this user, the newest first; remove the files of dead ones."""
    found = []
    for path in runtime_directory().glob("server-*.json"):
        try:
            server = msgspec.json.decode(path.read_bytes(), type=RunningServer)
        except (OSError, msgspec.MsgspecError, json.JSONDecodeError):
            continue
        if _is_alive(server.pid):
            found.append(server)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda server: -server.started_us)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
