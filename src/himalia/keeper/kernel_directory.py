"""The directory of one kept kernel. Its keeper holds ``file_lock.lock_directory`` on it while it runs.

::

    keeper.json      ``KeeperInfo`` and, at the end, ``KernelExit``: all that a later server needs
    keeper.sock      where the keeper listens, unless its path would be too long
    connection.json  Jupyter's connection file
    kernel.log       what the kernel and the keeper wrote to stdout and stderr; kernel.log.1 is older
    spool/           what the kernel published
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

INFO_FILE = "keeper.json"
SOCKET_FILE = "keeper.sock"
CONNECTION_FILE = "connection.json"
LOG_FILE = "kernel.log"
OLD_LOG_FILE = "kernel.log.1"
SPOOL_DIRECTORY = "spool"

SOCKET_PATH_BYTES_MAX = 103
"""The longest path on every system: Linux has room for 107 bytes, others for 103."""
SHORT_PREFIX = "himalia-"


def choose_socket_path(directory: Path) -> Path:
    """Return where to listen: in the directory, or in a new private one where that path is too long for a socket."""
    path = directory / SOCKET_FILE
    if _fits(path):
        return path
    path = Path(tempfile.mkdtemp(prefix=SHORT_PREFIX)) / SOCKET_FILE
    if _fits(path):
        return path
    path.parent.rmdir()
    return Path(tempfile.mkdtemp(prefix=SHORT_PREFIX, dir="/tmp")) / SOCKET_FILE


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX


def remove_socket(path: Path) -> None:
    """Remove the socket, and its directory if that was made for it."""
    _remove_file(path)
    if path.parent.name.startswith(SHORT_PREFIX):
        _remove_directory(path.parent)


def write_info(directory: Path, info: dict[str, Any]) -> None:
    """Write ``keeper.json``, atomically, readable by its user only."""
    unfinished = directory / f"{INFO_FILE}.new"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(info, file, indent=1)
    os.replace(unfinished, directory / INFO_FILE)


def read_info(directory: Path) -> dict[str, Any] | None:
    """Read ``keeper.json``; None if there is none, or it is not an object."""
    try:
        info = json.loads((directory / INFO_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return info if isinstance(info, dict) else None


def remove(directory: Path, *, connection_file: Path | None = None, socket: Path | None = None) -> None:
    """Remove a keeper's files, and the directory if nothing else is in it. Never fails.

    Only files that are known to be the keeper's are removed: the directory is named by a setting, which can be wrong.
    """
    if socket is not None:
        remove_socket(socket)
    for path in (directory / SPOOL_DIRECTORY).glob("*.seg"):
        _remove_file(path)
    _remove_directory(directory / SPOOL_DIRECTORY)
    connection = connection_file or directory / CONNECTION_FILE
    for path in connection.parent.glob(f"{connection.stem}-ipc-*"):
        _remove_file(path)
    _remove_file(connection)
    for name in (SOCKET_FILE, LOG_FILE, OLD_LOG_FILE, f"{INFO_FILE}.new", INFO_FILE):
        _remove_file(directory / name)
    _remove_directory(directory)


def _remove_file(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass


def _remove_directory(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        pass
