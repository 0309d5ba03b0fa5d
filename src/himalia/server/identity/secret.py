"""Secrets of callers: how they are made, how they are stored, and which are too weak to be accepted."""

from __future__ import annotations

import hashlib
import secrets

from himalia.errors import ConfigurationError
from himalia.token_proof import digest_of

__all__ = ["check_strength", "digest_of", "format_hash", "new_key", "new_secret", "parse_hash"]

LENGTH_MIN = 16
EXAMPLE_PREFIX = "change-me"
"""How the keys in the manual's examples begin, which are public."""
HASH_PREFIX = "sha256:"
_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_ID_LENGTH = 6


def new_secret() -> str:
    """Return a secret of 256 random bits, in characters that are safe in headers, URLs and shells."""
    return secrets.token_urlsafe(32)


def new_key() -> tuple[str, str]:
    """Return a new key and its public id, which the key begins with: a leaked key can be identified by it."""
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
    return f"hk-{key_id}-{new_secret()}", key_id


def format_hash(digest: bytes) -> str:
    """Return a digest in the form of the keys file."""
    return HASH_PREFIX + digest.hex()


def parse_hash(text: str) -> bytes:
    """Return the digest of a hash in the keys file; ``ValueError`` for anything else."""
    if not text.startswith(HASH_PREFIX):
        raise ValueError(f"a hash begins with {HASH_PREFIX}")
    digest = bytes.fromhex(text.removeprefix(HASH_PREFIX))
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError("a hash has 64 hexadecimal digits")
    return digest


def check_strength(secret: str, what: str) -> None:
    """Raise ``ConfigurationError`` for a secret that others could guess or read in the manual, without showing it."""
    if secret.lower().startswith(EXAMPLE_PREFIX):
        raise ConfigurationError(
            f"{what} is an example of the manual and therefore public; 'himalia keys add' makes a real one"
        )
    if len(secret) < LENGTH_MIN:
        raise ConfigurationError(f"{what} needs at least {LENGTH_MIN} characters, this one has {len(secret)}")
