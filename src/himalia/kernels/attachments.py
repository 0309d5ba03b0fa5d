"""Attached kernels, which other programs started: their ids, and files by which the next server finds them again."""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import msgspec

from himalia.errors import BadRequest
from himalia.jupyter.connection_file import find_connection_file
from himalia.local_server import make_private

CONNECTION_FILE_BYTES_MAX = 64 * 1024
_FILE_ID = re.compile(r"kernel-([A-Za-z0-9_-]{1,100})\.json\Z")


class Attachment(msgspec.Struct, frozen=True):
    """An attached kernel."""

    kernel_id: str
    connection_file: str


class Attachments:
    """The attachments of one log, each in a file of its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "attached"
        # Connection files of the kernels that are attached now, by kernel.
        self._connected: dict[str, str] = {}

    def load(self) -> list[Attachment]:
        """Return those of an earlier server; files that cannot be decoded are removed."""
        found = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Attachment))
            except (OSError, msgspec.MsgspecError):
                path.unlink(missing_ok=True)
        return found

    def save(self, attachment: Attachment) -> None:
        """Write the file for the next server."""
        make_private(self._directory)
        self._file(attachment.kernel_id).write_bytes(msgspec.json.encode(attachment))

    def remove(self, kernel_id: str) -> None:
        """Remove the file, if there is one."""
        self._file(kernel_id).unlink(missing_ok=True)

    def add_connected(self, attachment: Attachment) -> None:
        """Note that the kernel is attached now."""
        self._connected[attachment.kernel_id] = attachment.connection_file

    def discard_connected(self, kernel_id: str) -> None:
        """Note that the kernel is not attached any more."""
        self._connected.pop(kernel_id, None)

    def identify(self, path: Path, known: Container[str]) -> Attachment:
        """Return the attachment of a connection file: whenever that is attached, its kernel has the same id.

        The file names the id, unless a kernel of ours or another file has that id among the ``known``.
        """
        named = _FILE_ID.match(path.name)
        if named and (named[1] not in known or self._connected.get(named[1]) == str(path)):
            return Attachment(named[1], str(path))
        return Attachment(str(uuid5(NAMESPACE_URL, path.as_uri())), str(path))

    def _file(self, kernel_id: str) -> Path:
        return self._directory / f"{kernel_id}.json"


def locate_connection_file(name: str) -> Path:
    """Return the path of a connection file; ``BadRequest`` for anything but a small ordinary file.

    Reads the file system, so call it in a thread. It opens nothing: opening a pipe would block without a limit.
    """
    try:
        path = find_connection_file(name)
        is_small_file = path.is_file() and path.stat().st_size <= CONNECTION_FILE_BYTES_MAX
    except (OSError, RuntimeError, ValueError):
        raise BadRequest("this is not the path of a connection file", path=name) from None
    if not is_small_file:
        raise BadRequest(f"{path} is not a kernel's connection file", path=str(path))
    return path
