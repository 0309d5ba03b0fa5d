"""Stores browser sessions in a file beside the log, by the digests of their secrets, over restarts of the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from himalia.server.identity.credential import Credential
from himalia.server.identity.principal import CallerLimits, Principal, Rights
from himalia.server.identity.private_file import read_own, write_private
from himalia.server.identity.secret import digest_of, new_secret
from himalia.settings import IdentitySettings

logger = logging.getLogger("himalia.identity")

SESSIONS_OF_CALLER_MAX = 100
AGENT_LENGTH_MAX = 200
ID_LENGTH = 12


class SessionBasis(msgspec.Struct, frozen=True, omit_defaults=True):
    """The credential that signed in; the session ends when that does.

    ``source`` is the digest of a key. For a JSON Web Token it identifies what the token was checked by, and the session
    has the token's own rights and limits, since they are stored nowhere else.
    """

    caller: str
    source: str
    rights: Rights | None = None
    limits: CallerLimits | None = None
    until_us: int | None = None
    signer: str = ""
    """The key that signed the JSON Web Token."""


class SessionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session as the file has it. ``digest`` is the digest of the secret in the cookie."""

    digest: str
    basis: SessionBasis
    created_us: int
    expires_us: int
    agent: str = ""

    @property
    def id(self) -> str:
        """A public name, by which the session can be revoked."""
        return self.digest[:ID_LENGTH]


class _File(msgspec.Struct):
    sessions: list[SessionRecord]
    version: int = 1


Recall = Callable[[SessionBasis], Principal | None]
"""Returns the caller of a basis with its current rights; None if the credential is no longer valid."""


class Session:
    """A valid session. ``principal`` is replaced when the caller's rights change."""

    def __init__(self, record: SessionRecord, caller: Principal) -> None:
        self.record = record
        self._caller = caller
        self.principal = self._make_principal(caller)

    def set_caller(self, caller: Principal) -> None:
        self._caller = caller
        self.principal = self._make_principal(caller)

    def has_caller(self, caller: Principal) -> bool:
        # The rights of a JSON Web Token never change; those of a key can.
        return self._caller is caller or self.record.basis.rights is not None

    def _make_principal(self, caller: Principal) -> Principal:
        return caller.with_credential(Credential(self.record.expires_us))


class SessionStore:
    """All sessions of a server, and their file. Belongs to the event loop; the file is written in a thread."""

    def __init__(
        self,
        path: Path | None,
        settings: IdentitySettings,
        recall: Recall,
        on_revoked: Callable[[Session], None],
        clock: Callable[[], int],
    ) -> None:
        """``on_revoked`` is called with each session that ends neither by its caller nor by its age."""
        self.path = path
        self._recall = recall
        self._age_us = int(settings.session_s * 1_000_000)
        self._sessions_max = settings.sessions_max
        self._clock = clock
        self._on_revoked = on_revoked
        self._by_digest: dict[str, Session] = {}
        self._save_lock = asyncio.Lock()
        self._is_unsaved = False
        self._is_failing = False

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_digest.values()))

    def __len__(self) -> int:
        return len(self._by_digest)

    def load(self) -> None:
        """Read the file, without sessions that have expired or whose key is no longer valid. Blocks.

        A file that another user could have written is ignored: it determines who is signed in, with which rights.
        """
        if self.path is None or not self.path.exists():
            return
        try:
            content = read_own(self.path)
            if content is None:
                logger.warning(
                    "the sessions in %s are ignored, because the file belongs to another user, or others may read or "
                    "change it; users must sign in again",
                    self.path,
                )
                return
            found = msgspec.json.decode(content, type=_File).sessions
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("cannot read the sessions in %s: %s; users must sign in again", self.path, error)
            return
        now = self._clock()
        for record in found:
            caller = self._recall(record.basis)
            if caller is not None and now < record.expires_us:
                self._by_digest[record.digest] = Session(record, caller)

    def create(self, basis: SessionBasis, caller: Principal, agent: str) -> tuple[str, Session]:
        """Add a session; returns the secret for its cookie, too. The caller's oldest ends if it has too many."""
        now = self._clock()
        secret = new_secret()
        expires = now + self._age_us
        if basis.until_us is not None:
            expires = min(expires, basis.until_us)
        printable = "".join(letter for letter in agent if letter.isprintable())[:AGENT_LENGTH_MAX]
        record = SessionRecord(digest_of(secret).hex(), basis, now, expires, printable)
        self._make_room(basis.caller)
        session = self._by_digest[record.digest] = Session(record, caller)
        self._is_unsaved = True
        return secret, session

    def _make_room(self, caller: str) -> None:
        """End the oldest sessions, which are the first ones, beyond the limits."""
        mine = [session for session in self if session.record.basis.caller == caller]
        reason = "this session ended, because the same caller has signed in too often since"
        for session in mine[: max(0, len(mine) - SESSIONS_OF_CALLER_MAX + 1)]:
            self._revoke(session, reason)
        for session in list(self)[: max(0, len(self) - self._sessions_max + 1)]:
            self._revoke(session, "this session ended, because there are too many sessions")

    def _revoke(self, session: Session, reason: str) -> None:
        """End a session that its caller has not ended, and report it."""
        self._end(session, reason)
        self._on_revoked(session)

    def find(self, secret: str) -> Session | None:
        # The secret is random and is looked up by its digest, so the duration of the search reveals nothing about it.
        session = self._by_digest.get(digest_of(secret).hex())
        if session is not None and self._clock() >= session.record.expires_us:
            return None
        return session

    def _end(self, session: Session, reason: str) -> None:
        self._by_digest.pop(session.record.digest, None)
        self._is_unsaved = True
        session.principal.credential.end(reason)

    async def remove(self, sessions: Iterable[Session]) -> None:
        """Remove sessions, from the file too. What they opened stays open until the caller ends their credentials."""
        for session in sessions:
            self._by_digest.pop(session.record.digest, None)
        self._is_unsaved = True
        await self.save()

    def review(self, reason: str) -> None:
        """Called when keys have changed: end the sessions of removed callers, and update the rights of the others."""
        for session in self:
            caller = self._recall(session.record.basis)
            if caller is None:
                self._revoke(session, reason)
            elif not session.has_caller(caller):
                before = session.principal.credential
                session.set_caller(caller)
                before.end("the rights of this key have changed; connect again")

    def expire(self) -> None:
        now = self._clock()
        for session in self:
            if now >= session.record.expires_us:
                self._end(session, "this session has expired; sign in again")

    @property
    def is_saved(self) -> bool:
        """Whether a restarted server would have the same sessions."""
        return not self._is_unsaved or self.path is None

    async def save(self) -> None:
        """Write the file if sessions have changed. A failure is logged, and the next call tries again."""
        async with self._save_lock:
            if not self._is_unsaved or self.path is None:
                return
            self._is_unsaved = False
            content = msgspec.json.encode(_File([session.record for session in self]))
            try:
                await asyncio.to_thread(write_private, self.path, content)
            except OSError as error:
                self._is_unsaved = True
                if not self._is_failing:
                    logger.warning("cannot store the sessions in %s: %s", self.path, error.strerror)
                self._is_failing = True
            else:
                self._is_failing = False
