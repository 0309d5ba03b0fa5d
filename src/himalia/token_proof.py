"""How a server proves to a client that it knows the client's token, before the client sends it.

A program that has taken the port of a stopped server does not know the token, and so never receives it. The client
identifies its token by ``key_id`` and sends a random ``nonce``; the server replies with ``proof_of``, computed from the
hash that it stores. Standard library only: Spark's executors import this module.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from ipaddress import ip_address

PATH = "/proof"
NONCE_LENGTH = 32
ID_LENGTH = 16
ANSWER_BYTES_MAX = 64 * 1024
"""What a client reads of a response at most. A server sends far less, with a Content-Length."""


def digest_of(secret: str) -> bytes:
    """Return the hash of a secret that a server stores.

    A fast hash is right here. Keys have 256 random bits, so brute force is out of reach however fast the hash is; a
    slow hash (scrypt, argon2) protects passwords that people choose, and would slow down every request.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def key_id(digest: bytes) -> str:
    """Return an identifier of a secret that does not reveal it."""
    return hashlib.sha256(b"himalia key id " + digest).hexdigest()[:ID_LENGTH]


def proof_of(digest: bytes, nonce: str) -> str:
    return hmac.new(digest, b"himalia server proof " + nonce.encode(), hashlib.sha256).hexdigest()


def is_web_token(token: str) -> bool:
    """Whether this is a JSON Web Token, which a server cannot know before it is presented."""
    return token.startswith("eyJ") and token.count(".") == 2


def is_same_machine(own: str, peer: str) -> bool:
    """Whether both ends of a connection, given their addresses, are on one machine.

    The URL does not show it: ``0.0.0.0``, the machine's own name and its network address lead here too.
    """
    if own == peer:
        return True
    address = ip_address(peer.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def not_proven(url: str) -> str:
    """Return the error message for a client that did not send its token."""
    return (
        f"{url} does not prove that it knows this token, so it was not sent: another program may have taken the port, "
        "or an older server runs there"
    )


class Challenge:
    """One challenge to one server. ``path`` is what to request; ``is_met`` checks the response."""

    def __init__(self, token: str) -> None:
        self._digest = digest_of(token)
        self._nonce = secrets.token_hex(NONCE_LENGTH // 2)
        self.path = f"{PATH}?key={key_id(self._digest)}&nonce={self._nonce}"

    def is_met(self, proof: object) -> bool:
        return isinstance(proof, str) and hmac.compare_digest(
            proof.encode("utf-8", "replace"), proof_of(self._digest, self._nonce).encode()
        )
