"""Opens a log after a crash, so that a loss is reported even if the first start after the crash does not finish.

SQLite recovers at the first connection, and that destroys the evidence of a loss. So the file ``log.db.recovering`` is
written before that, and removed when nothing is left to report: no loss was found, or all topics have new epochs and
the file was checked. A start that finds this file, but no evidence any more, must assume a loss.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from himalia.log.sqlite.errors import corrupt
from himalia.log.sqlite.files import remove_durably, replace_private
from himalia.log.sqlite.wal import Loss, examine, find_loss

RECOVERING = ".recovering"


class _Note(msgspec.Struct, frozen=True):
    """The content of the file."""

    generation: str = ""
    """The generation of the write-ahead log; empty if its beginning could not be read."""
    frames: int | None = None
    """How many frames were committed, by the index."""
    loss: Loss | None = None
    """Set once it is known."""


class Recovery:
    """One start, possibly after a crash. ``path`` has no symbolic links, and no connection is open."""

    def __init__(self, path: Path) -> None:
        """Examine the write-ahead log, and store the evidence before anything can change it."""
        self._file = recovery_file(path)
        self._evidence = examine(path)
        self._earlier = _read(self._file)
        self.loss: Loss | None = None
        if self._earlier is None and self._evidence.has_commits:
            self._write()

    def find_loss(self, db: sqlite3.Connection) -> None:
        """Set ``loss``. ``db`` is the first connection, and has written nothing yet."""
        db.execute("PRAGMA user_version").fetchone()  # makes SQLite recover
        self.loss = self._find_loss(db)
        if self.loss is None:
            self.finish()
        else:
            self._write()

    def finish(self) -> None:
        """Remove the file: nothing is left to report."""
        remove_durably(self._file)

    def _find_loss(self, db: sqlite3.Connection) -> Loss | None:
        earlier, evidence = self._earlier, self._evidence
        if earlier is None:
            return evidence.find_loss_in(db)
        if earlier.loss is not None:
            return earlier.loss
        if not earlier.generation or evidence.generation != earlier.generation:
            return Loss()
        # The write-ahead log is unchanged, but its index may have been rebuilt from what is left of it.
        return evidence.with_frames(earlier.frames).find_loss_in(db)

    def _write(self) -> None:
        evidence = self._evidence
        note = self._earlier or _Note(evidence.generation, evidence.frames)
        replace_private(self._file, msgspec.json.encode(msgspec.structs.replace(note, loss=self.loss)))


def check_recovered(path: Path) -> None:
    """Refuse a log whose last start after a crash found a loss, or would find one. ``path`` has no symbolic links."""
    if find_loss(path) is not None:
        raise corrupt(path, "its write-ahead log is, and records that were acknowledged are missing")
    if recovery_file(path).exists():
        raise corrupt(
            path, "records may be missing: a start after a crash did not finish; start the server to find out"
        )


def recovery_file(path: Path) -> Path:
    """Return the path of the file that exists until a start after a crash has finished."""
    return Path(f"{path}{RECOVERING}")


def _read(file: Path) -> _Note | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Note)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        return _Note()  # damaged, or of a later version: there is something to report, but what is unknown
