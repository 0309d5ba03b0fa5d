"""Browser sessions: made by signing in, kept beside the log as hashes, so that they survive a restart of the server.

Each sign-in costs a session, a write to disk and two records of the audit trail, so they are limited by caller.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from himalia.errors import RateLimited
from himalia.record import now_us
from himalia.server.identity.credential import Credential
from himalia.server.identity.principal import CallerLimits, Principal, Rights
from himalia.server.identity.private_file import read_own, write_private
from himalia.server.identity.secret import digest_of, new_secret

logger = logging.getLogger("himalia.identity")

SESSIONS_OF_CALLER_MAX = 100
AGENT_LENGTH_MAX = 200
ID_LENGTH = 12


class Basis(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a session stands on; it ends when that does.

    ``source`` is the digest of the key that signed in. For a JSON Web Token it tells what checked the token, and the
    session has the token's own rights and limits, since nothing else knows them.
    """

    caller: str
    source: str
    rights: Rights | None = None
    limits: CallerLimits | None = None
    until_us: int | None = None
    signer: str = ""
    """The key that signed the JSON Web Token."""


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session as the file has it. ``digest`` is that of the secret in the cookie."""

    digest: str
    basis: Basis
    created_us: int
    expires_us: int
    agent: str = ""

    @property
    def id(self) -> str:
        """A public name, by which the session can be revoked."""
        return self.digest[:ID_LENGTH]


class _File(msgspec.Struct):
    sessions: list[Kept]
    version: int = 1


Recall = Callable[[Basis], Principal | None]
"""The caller that a basis stands for now, with its current rights; None if there is none any more."""


class Session:
    """A session that is valid now. ``principal`` ends and is made again when the caller's rights change."""

    def __init__(self, kept: Kept, caller: Principal) -> None:
        self.kept = kept
        self.stand_on(caller)

    def stand_on(self, caller: Principal) -> None:
        self._caller = caller
        self.principal = caller.by(Credential(self.kept.expires_us))

    def stands_on(self, caller: Principal) -> bool:
        # What a JSON Web Token said stays said: only keys can change their rights.
        return self._caller is caller or self.kept.basis.rights is not None


class Sessions:
    """All sessions of a server. Belongs to the event loop; the file is written in a thread."""

    def __init__(
        self,
        path: Path | None,
        recall: Recall,
        *,
        age_s: float,
        sessions_max: int,
        clock: Callable[[], int] = now_us,
        on_revoked: Callable[[Session], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._recall = recall
        self._age_us = int(age_s * 1_000_000)
        self._sessions_max = sessions_max
        self._clock = clock
        self._on_revoked = on_revoked
        self._by_digest: dict[str, Session] = {}
        self._saving = asyncio.Lock()
        self._is_unsaved = False
        self._is_failing = False

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_digest.values()))

    def __len__(self) -> int:
        return len(self._by_digest)

    def load(self) -> None:
        """Read the file. Sessions that have expired, or whose key is gone, are left out.

        A file that another user could have written gives nobody a session: it says who is in, and with which rights.
        """
        if self._path is None or not self._path.exists():
            return
        try:
            content = read_own(self._path)
            if content is None:
                logger.warning(
                    "the sessions in %s are not used, because the file belongs to another user, or others may read or "
                    "change it; everybody signs in again",
                    self._path,
                )
                return
            found = msgspec.json.decode(content, type=_File).sessions
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning(
                "the sessions in %s cannot be read (%s); everybody signs in again", self._path, error
            )
            return
        now = self._clock()
        for kept in found:
            caller = self._recall(kept.basis)
            if caller is not None and now < kept.expires_us:
                self._by_digest[kept.digest] = Session(kept, caller)

    # Using

    def create(self, basis: Basis, caller: Principal, agent: str) -> tuple[str, Session]:
        """A new session, and the secret for its cookie. The oldest of this caller ends if it has too many."""
        now = self._clock()
        secret = new_secret()
        expires = now + self._age_us
        if basis.until_us is not None:
            expires = min(expires, basis.until_us)
        shown = "".join(letter for letter in agent if letter.isprintable())[:AGENT_LENGTH_MAX]
        kept = Kept(digest_of(secret).hex(), basis, now, expires, shown)
        self._make_room(basis.caller)
        session = self._by_digest[kept.digest] = Session(kept, caller)
        self._is_unsaved = True
        return secret, session

    def _make_room(self, caller: str) -> None:
        """Sessions are in the order in which they were made, so the first is the oldest."""
        mine = [session for session in self if session.kept.basis.caller == caller]
        why = "this session ended, because the same caller has signed in too often since"
        for session in mine[: max(0, len(mine) - SESSIONS_OF_CALLER_MAX + 1)]:
            self._revoke(session, why)
        for session in list(self)[: max(0, len(self) - self._sessions_max + 1)]:
            self._revoke(session, "this session ended, because there are too many sessions")

    def _revoke(self, session: Session, why: str) -> None:
        """End it without its caller's doing, which the audit trail records."""
        self.end(session, why)
        self._on_revoked(session)

    def find(self, secret: str) -> Session | None:
        # The secret is random, and looked up by its digest, so the time that this takes tells nothing of it.
        session = self._by_digest.get(digest_of(secret).hex())
        if session is not None and self._clock() >= session.kept.expires_us:
            return None
        return session

    def by_id(self, session_id: str) -> Session | None:
        return next((session for session in self if session.kept.id == session_id), None)

    # Ending

    def end(self, session: Session, why: str) -> None:
        self._by_digest.pop(session.kept.digest, None)
        self._is_unsaved = True
        session.principal.credential.end(why)

    async def remove(self, sessions: Iterable[Session]) -> None:
        """Forget sessions, in the file too. What they have opened goes on until the caller ends their credentials."""
        for session in sessions:
            self._by_digest.pop(session.kept.digest, None)
        self._is_unsaved = True
        await self.save()

    def review(self, why: str) -> list[Session]:
        """Keys have changed: end the sessions whose caller is gone, and give the others its rights of now."""
        ended = []
        for session in self:
            caller = self._recall(session.kept.basis)
            if caller is None:
                self._revoke(session, why)
                ended.append(session)
            elif not session.stands_on(caller):
                before = session.principal.credential
                session.stand_on(caller)
                before.end("the rights of this key have changed; connect again")
        return ended

    def expire(self) -> None:
        now = self._clock()
        for session in self:
            if now >= session.kept.expires_us:
                self.end(session, "this session has expired; sign in again")

    # Keeping

    @property
    def is_saved(self) -> bool:
        """Whether a restarted server would know the same sessions."""
        return not self._is_unsaved or self._path is None

    async def save(self) -> None:
        """Bring the file up to date, if it is not. A failure is logged, and the next call tries again."""
        async with self._saving:
            if not self._is_unsaved or self._path is None:
                return
            self._is_unsaved = False
            content = msgspec.json.encode(_File([session.kept for session in self]))
            try:
                await asyncio.to_thread(write_private, self._path, content)
            except OSError as error:
                self._is_unsaved = True
                if not self._is_failing:
                    logger.warning("the sessions cannot be kept in %s: %s", self._path, error.strerror)
                self._is_failing = True
            else:
                self._is_failing = False


PERIOD_S = 60.0
SIGN_INS_MAX = 100
"""Sign-ins of one caller within the period. Without a limit any key, even one without rights, could fill the audit
trail within hours, and so push out what it has recorded before."""


class SignIns:
    """The sign-ins of the last minute, by caller. Lives on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def __len__(self) -> int:
        return len(self._times)

    def count(self, caller: str) -> None:
        """One more sign-in of this caller; ``RateLimited`` if it has to wait first."""
        now = self._clock()
        times = self._times.setdefault(caller, deque())
        while times and now - times[0] >= PERIOD_S:
            times.popleft()
        if len(times) >= SIGN_INS_MAX:
            wait_s = PERIOD_S - (now - times[0])
            raise RateLimited(
                f"{caller!r} has signed in {len(times)} times within a minute; sign in again in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        times.append(now)

    def sweep(self) -> None:
        """Forget callers that have not signed in for a while."""
        now = self._clock()
        for caller in [caller for caller, times in self._times.items() if now - times[-1] >= PERIOD_S]:
            del self._times[caller]
