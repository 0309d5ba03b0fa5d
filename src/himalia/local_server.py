"""How programs on this machine find a running server, by one small private file for each log, and its tables."""

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
    """What a server tells other programs of the same user."""

    url: str
    token: str | None
    pid: int
    log: str
    started_us: int


def runtime_directory() -> Path:
    """Where the files are: ``HIMALIA_RUNTIME_DIR``, else beside the user's data, as Jupyter has it."""
    named = os.environ.get("HIMALIA_RUNTIME_DIR")
    return Path(named) if named else platformdirs.user_data_path("himalia") / "runtime"


def make_private(directory: Path) -> None:
    """Make a directory, and those above it that are missing, for this user only, whatever the umask."""
    if not directory.exists():
        make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def default_warehouse_path() -> Path:
    """Where the pipeline's tables are unless somebody says otherwise: beside the default log."""
    return platformdirs.user_data_path("himalia") / "warehouse"


def validate_warehouse_path(path: Path) -> Path:
    """The same path. Raises ``ConfigurationError`` if somebody meant a URL, which would become a strange directory."""
    # A path has only one of the two slashes left.
    if found := re.match(r"([a-z][a-z0-9+.-]+):/", str(path), re.IGNORECASE):
        raise ConfigurationError(
            f"the warehouse is a directory, on this machine or mounted here: give its path, not an address with {found[1]}://"
        )
    return path


def page_url(url: str, token: str | None) -> str:
    """What to open in a browser: the page of a server, with the token that lets one in."""
    return f"{url}/?token={quote(token, safe='')}" if token else f"{url}/"


def write_runtime_file(server: RunningServer) -> Path:
    """Write the file of this server, readable by its user only. Returns its path, to be removed at the end.

    Raises ``ConfigurationError`` if it cannot be written.
    """
    directory = runtime_directory()
    log = hashlib.sha256(server.log.encode()).hexdigest()[:12]
    path = directory / f"server-{log}-{server.pid}.json"
    try:
        make_private(directory)
        # In one step: a program that reads it meanwhile finds the old file or the new one.
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


def running_servers() -> list[RunningServer]:
    """The servers of this user that are alive, the newest first. Files of dead ones are removed."""
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
