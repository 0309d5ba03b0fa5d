"""Where keys come from: the keys file, the token in the settings, or the generated token beside the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from himalia.errors import ConfigurationError
from himalia.server.identity.keyring import Key, Keyring
from himalia.server.identity.keys import read_keys
from himalia.server.identity.private_file import FileWatch
from himalia.server.identity.secret import check_strength, new_secret
from himalia.server.identity.token import TokenFile
from himalia.settings import IdentitySettings

logger = logging.getLogger("himalia.identity")

KEY_EXPIRED = "this key has expired"


@dataclass(frozen=True, slots=True)
class KeyUpdate:
    """A change of the keys: why sessions of removed keys end, what the audit trail records, and a new token."""

    reason: str
    events: Sequence[tuple[str, Mapping[str, object]]]
    token: str | None = None


class KeySource:
    """Fills a keyring, and updates it when the file of its keys changes. Belongs to the event loop.

    Errors in the settings and in the keys file are raised by the constructor; ``open`` reads the generated token, which
    is beside the log. ``token`` is the token that permits everything; None with a keys file, and before ``open`` where
    the token is generated.
    """

    def __init__(self, settings: IdentitySettings, log_url: str) -> None:
        self.keyring = Keyring()
        self.token: str | None = None
        self._keys_watch: FileWatch | None = None
        self._token_file: TokenFile | None = None
        self._token_watch: FileWatch | None = None
        if not settings.auth:
            # Clients that send the token nevertheless require a proof first that the server knows it.
            if settings.token:
                self.keyring = Keyring([Key.of_token(settings.token)])
        elif settings.keys_file is not None:
            self._keys_watch = FileWatch(settings.keys_file)
            self.keyring = Keyring(Key.of(spec) for spec in read_keys(settings.keys_file))
            self._warn_of_plain_keys()
        elif settings.token:
            check_strength(settings.token, "the token (--token, HIMALIA_TOKEN)")
            self._set_token(settings.token)
        else:
            self._token_file = TokenFile.of_log(log_url)
            if self._token_file is None:
                self._set_token(new_secret())

    async def open(self) -> None:
        """Read the generated token, or generate it; its directory exists when the log is open."""
        if self._token_file is not None:
            # Before the token is read, so that a rotation meanwhile is noticed as a change.
            self._token_watch = FileWatch(self._token_file.path)
            self._set_token(await asyncio.to_thread(self._token_file.read_or_make))

    async def reload(self) -> KeyUpdate | None:
        """Apply a change of the token's or the keys' file; None if there is none. A wrong file changes nothing."""
        return await self._reload_token() or await self._reload_keys()

    def end_expired(self, now_us: int) -> list[Key]:
        """End the credentials of keys that have expired, and return those keys."""
        ended = []
        for key in self.keyring:
            credential = key.principal.credential
            if credential.ended is None and credential.has_expired(now_us):
                credential.end(KEY_EXPIRED)
                ended.append(key)
        return ended

    def _set_token(self, token: str) -> bool:
        self.token = token
        return self.keyring.set_token(token)

    async def _reload_token(self) -> KeyUpdate | None:
        watch, file = self._token_watch, self._token_file
        if watch is None or file is None or not await asyncio.to_thread(watch.has_changed):
            return None
        try:
            token = await asyncio.to_thread(file.read_trusted)
        except ConfigurationError as error:
            logger.warning("%s; the previous one remains valid", error.message)
            return None
        if token is None:
            logger.warning(
                "the token in %s is missing, or others may read or change it; the previous one remains valid",
                file.path,
            )
            return None
        if not self.keyring.set_token(token):
            return None
        self.token = token
        logger.info("the token was rotated")
        return KeyUpdate("the token was replaced by a new one; sign in again", [("token_rotated", {})], token)

    async def _reload_keys(self) -> KeyUpdate | None:
        watch = self._keys_watch
        if watch is None or not await asyncio.to_thread(watch.has_changed):
            return None
        try:
            # Parsed in the thread too: a file with thousands of keys takes a while.
            specs = await asyncio.to_thread(read_keys, watch.path, may_be_empty=True)
        except ConfigurationError as error:
            logger.warning("%s; the previous keys remain valid", error.message)
            return None
        changes = self.keyring.update(specs)
        self._warn_of_plain_keys()
        logger.info(
            "the keys file %s was reloaded: %s",
            watch.path,
            ", ".join(f"{change.event} {change.caller}" for change in changes) or "no key changed",
        )
        events = [(change.event, {"name": change.caller}) for change in changes]
        return KeyUpdate("the key that signed in was removed or replaced; sign in again", events)

    def _warn_of_plain_keys(self) -> None:
        plain = [key.spec.name for key in self.keyring if key.spec is not None and key.spec.is_plain]
        if plain and self._keys_watch is not None:
            path = self._keys_watch.path
            logger.warning(
                "keys are in the clear in %s: %s; 'himalia keys hash --keys-file %s' replaces them by hashes",
                path,
                ", ".join(plain[:10]) + (", ..." if len(plain) > 10 else ""),
                path,
            )
