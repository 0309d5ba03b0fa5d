"""The generated token: one per log, in a file beside it, the same over restarts until it is rotated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from himalia.errors import ConfigurationError
from himalia.file_lock import hold_directory
from himalia.log import sqlite_path
from himalia.server.identity.private_file import is_others, others_may_read, write_private
from himalia.server.identity.secret import LENGTH_MIN, new_secret


def beside_log(log_url: str, suffix: str) -> Path | None:
    """Return the path of a file beside the log, such as ``log.db.token``; None for a log in memory."""
    if not log_url.lower().startswith("sqlite:"):
        return None
    log = sqlite_path(log_url).resolve()
    return log.with_name(f"{log.name}.{suffix}")


class TokenFile:
    """A file with the token as text, readable by its owner only: the commands of the same user read it.

    Raises ``ConfigurationError`` where the directory of the log cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_log(cls, log_url: str) -> TokenFile | None:
        path = beside_log(log_url, "token")
        return None if path is None else cls(path)

    def read(self) -> str | None:
        """Return the token; None if there is none, or if other users could have read it and it must not be used."""
        try:
            if others_may_read(self.path):
                return None
            token = self.path.read_text("ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the token in {self.path}: {error}") from None
        return token if len(token) >= LENGTH_MIN else None

    def read_trusted(self) -> str | None:
        """As ``read``, for a server: also None if the file belongs to another user, who could have chosen the token."""
        token = self.read()
        return None if token is None or is_others(self.path) else token

    def read_or_make(self) -> str:
        with self._lock():
            return self.read_trusted() or self._write()

    def rotate(self) -> str:
        """Replace the token. A server that runs on this log uses the new one within seconds."""
        with self._lock():
            return self._write()

    def _write(self) -> str:
        token = new_secret()
        write_private(self.path, token.encode() + b"\n")
        return token

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            with hold_directory(self.path.parent):
                yield
        except OSError as error:
            raise ConfigurationError(f"cannot store the token in {self.path}: {error.strerror}") from None
