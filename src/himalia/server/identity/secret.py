"""Secrets that callers show: how they are made, how they are kept, and which are too weak to be accepted."""

from __future__ import annotations

import hashlib
import secrets

from himalia.errors import ConfigurationError
from himalia.token_proof import digest_of

__all__ = ["check_strength", "digest_of", "new_key", "new_secret", "parse_hash", "shown_hash"]

LENGTH_MIN = 16
EXAMPLE_PREFIX = "change-me"
"""How the keys in the manual's examples begin: everybody can read those."""
HASH_PREFIX = "sha256:"
_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_ID_LENGTH = 6


def new_secret() -> str:
    """A secret of 256 random bits, in characters that fit into headers, addresses and shells."""
    return secrets.token_urlsafe(32)


def new_key() -> tuple[str, str]:
    """A new key, and its public id, which the key begins with: a key that turns up somewhere can be looked up by it."""
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
    return f"hk-{key_id}-{new_secret()}", key_id


def shown_hash(digest: bytes) -> str:
    """A digest as the keys file has it."""
    return HASH_PREFIX + digest.hex()


def parse_hash(text: str) -> bytes:
    """The digest that the keys file has. ``ValueError`` for anything else."""
    if not text.startswith(HASH_PREFIX):
        raise ValueError(f"a hash begins with {HASH_PREFIX}")
    digest = bytes.fromhex(text.removeprefix(HASH_PREFIX))
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError("a hash has 64 hexadecimal digits")
    return digest


def check_strength(secret: str, what: str) -> None:
    """``ConfigurationError`` for a secret that others could guess or read in the manual. It is never shown."""
    if secret.lower().startswith(EXAMPLE_PREFIX):
        raise ConfigurationError(
            f"{what} is an example of the manual, which everybody can read; 'himalia keys add' makes a real one"
        )
    if len(secret) < LENGTH_MIN:
        raise ConfigurationError(f"{what} needs at least {LENGTH_MIN} characters, this one has {len(secret)}")
