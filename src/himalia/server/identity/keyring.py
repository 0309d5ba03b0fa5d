"""The keys that are valid now, found by their secrets: a token, or the keys of a file, which may change."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from himalia.server.identity.credential import Credential
from himalia.server.identity.keys import KeySpec
from himalia.server.identity.principal import Principal, everything
from himalia.server.identity.secret import digest_of
from himalia.token_proof import key_id


class Key:
    """The digest of a valid secret, and the caller who has it."""

    def __init__(self, digest: bytes, principal: Principal, spec: KeySpec | None = None) -> None:
        self.digest = digest
        self.principal = principal
        self.spec = spec

    @classmethod
    def of(cls, spec: KeySpec) -> Key:
        credential = Credential(spec.expires_us)
        principal = Principal(spec.caller, spec.rights, limits=spec.limits, credential=credential)
        return cls(spec.digest, principal, spec)

    @classmethod
    def of_token(cls, token: str) -> Key:
        return cls(digest_of(token), everything("token", Credential()))

    def matches(self, spec: KeySpec) -> bool:
        """Whether the specification describes the same caller; then at most the expiry differs.

        A key that has expired does not match another expiry: its credential has ended, so it needs a new one.
        """
        mine = self.spec
        if mine is None or (self.principal.credential.ended and mine.expires_us != spec.expires_us):
            return False
        return (mine.name, mine.rights, mine.limits) == (spec.name, spec.rights, spec.limits)


class Change(NamedTuple):
    """What happened to a key: ``key_created``, ``key_revoked``, ``key_rotated`` or ``key_changed``."""

    event: str
    caller: str


class Keyring:
    """Finds callers by their secrets, in a time that does not depend on the secret."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        # Keys are found by a keyed hash of the secret: without the hash's key, an attacker cannot choose secrets such
        # that the duration of the search reveals something.
        self._blinding = secrets.token_bytes(32)
        self._decoy = secrets.token_bytes(32)
        self._by_blinded: dict[bytes, Key] = {}
        self._by_id: dict[str, Key] = {}
        self._replace(keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._by_blinded.values()))

    def find(self, secret: str) -> Key | None:
        """Return the key with this secret, expired or not."""
        return self.by_digest(digest_of(secret))

    def by_digest(self, digest: bytes) -> Key | None:
        key = self._by_blinded.get(self._blinded(digest))
        is_right = hmac.compare_digest(self._decoy if key is None else key.digest, digest)
        return key if is_right else None

    def by_id(self, id: str) -> Key | None:
        """Return the key that a client names before it sends it; see ``himalia.token_proof``."""
        return self._by_id.get(id)

    def set_token(self, token: str) -> bool:
        """Replace all keys by this token, and end them. Returns False if there was no key, or the same."""
        if self.find(token) is not None:
            return False
        before = list(self)
        self._replace([Key.of_token(token)])
        for key in before:
            key.principal.credential.end("the token was replaced by a new one")
        return bool(before)

    def update(self, specs: Iterable[KeySpec]) -> list[Change]:
        """Replace all keys by those of a file. The credentials of removed and of changed keys end."""
        before = {key.digest: key for key in self}
        names_before = {key.spec.name for key in before.values() if key.spec is not None}
        keys: list[Key] = []
        changes: list[Change] = []
        unchanged: set[bytes] = set()
        for spec in specs:
            known = before.get(spec.digest)
            if known is not None and known.matches(spec):
                known.spec = spec
                known.principal.credential.expires_us = spec.expires_us
                unchanged.add(spec.digest)
                keys.append(known)
                continue
            keys.append(Key.of(spec))
            if known is not None:
                changes.append(Change("key_changed", spec.caller))
            elif not spec.is_old:
                is_new = spec.name not in names_before
                changes.append(Change("key_created" if is_new else "key_rotated", spec.caller))
        self._replace(keys)
        names = {key.spec.name for key in keys if key.spec is not None}
        for digest, key in before.items():
            if digest not in unchanged:
                self._end(key, names, changes, is_changed=digest in {key.digest for key in keys})
        return list(dict.fromkeys(changes))

    def _end(self, key: Key, names: set[str], changes: list[Change], *, is_changed: bool) -> None:
        credential = key.principal.credential
        if is_changed:
            credential.end("the rights of this key have changed; connect again")
        elif key.spec is not None and key.spec.name in names:
            credential.end("this key was replaced by a new one")
        else:
            credential.end("this key was removed")
            changes.append(Change("key_revoked", key.principal.name))

    def _replace(self, keys: Iterable[Key]) -> None:
        found = list(keys)
        self._by_blinded = {self._blinded(key.digest): key for key in found}
        self._by_id = {key_id(key.digest): key for key in found}

    def _blinded(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._blinding, digest_size=16).digest()
