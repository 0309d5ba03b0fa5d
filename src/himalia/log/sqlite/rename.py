"""Renames a topic in a log file that no server uses."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from himalia.errors import BadRequest, ConfigurationError, TopicExists, TopicNotFound
from himalia.log.sqlite.database import check, connect
from himalia.log.sqlite.errors import translate_errors
from himalia.log.sqlite.files import real_path
from himalia.log.sqlite.lock import LogLock, check_last_name
from himalia.log.sqlite.recovery import check_recovered
from himalia.topics import AUDIT_TOPIC, check_name, is_reserved


def rename_topic(log_path: Path, old: str, new: str) -> int:
    """Rename a topic; return how many records it has. Offsets stay, the epoch is a new one.

    Raises ``LogLocked`` while a server uses the log, and ``BadRequest`` for a reserved new name.
    """
    check_name(new)
    if is_reserved(new) or new == AUDIT_TOPIC:
        raise BadRequest(f"{new!r} is reserved for the server; choose another name", topic=new)
    if not log_path.is_file():
        raise ConfigurationError(f"there is no log at {log_path}", path=str(log_path))
    with translate_errors(log_path):
        lock = LogLock(log_path)
        lock.acquire()
    try:
        with translate_errors(log_path):
            lock.acquire_file()
            check_recovered(real_path(log_path))
            check_last_name(real_path(log_path))
        with translate_errors(log_path), closing(connect(log_path)) as db:
            check(db, log_path, may_be_new=False)
            db.execute("BEGIN IMMEDIATE")
            found = db.execute(
                "SELECT id, end - first FROM topics JOIN topic_state ON topic = id WHERE name = ?", (old,)
            ).fetchone()
            if found is None:
                raise TopicNotFound(old)
            if db.execute("SELECT 1 FROM topics WHERE name = ?", (new,)).fetchone():
                raise TopicExists(new)
            # With the new epoch, a reader that resumes under either name notices that the topic is another one.
            db.execute(
                "UPDATE topics SET name = ?, epoch = lower(hex(randomblob(8))) WHERE id = ?", (new, found[0])
            )
            db.execute("COMMIT")
            return int(found[1])
    finally:
        lock.release()
