"""How a server proves to a client that it knows the client's token, before the client sends it.

A program that took the port of a server that is down does not know the token, and so gets none. The client names its
token by ``key_id`` and sends a random ``nonce``; the server answers ``proof_of``, which takes the hash that it stores.
Standard library only: Spark's executors use it too.
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
"""What a client reads of an answer. A server sends far less, and its length."""


def digest_of(secret: str) -> bytes:
    """What a server keeps of a secret.

    A fast hash is the right one here. Keys are random with 256 bits, so trying them all is out of reach however quick
    a try is; a slow hash (scrypt, argon2) protects passwords that people choose, and would cost every request.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def key_id(digest: bytes) -> str:
    """What names a secret without telling it."""
    return hashlib.sha256(b"himalia key id " + digest).hexdigest()[:ID_LENGTH]


def proof_of(digest: bytes, nonce: str) -> str:
    return hmac.new(digest, b"himalia server proof " + nonce.encode(), hashlib.sha256).hexdigest()


def is_web_token(token: str) -> bool:
    """Whether this is a JSON Web Token, which no server can know before it is shown."""
    return token.startswith("eyJ") and token.count(".") == 2


def is_same_machine(own: str, peer: str) -> bool:
    """Whether both ends of a connection, of which these are the addresses, are on one machine.

    A URL does not tell: ``0.0.0.0``, the machine's own name and its address in the network lead here too.
    """
    if own == peer:
        return True
    address = ip_address(peer.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def not_proven(url: str) -> str:
    """The message for a client whose token was not sent."""
    return (
        f"{url} does not prove that it knows this token, so it was not sent: another program may have taken the port, "
        "or an older server runs there"
    )


class Challenge:
    """One question to one server. ``path`` is what to ask for; ``is_met`` checks the answer."""

    def __init__(self, token: str) -> None:
        self._digest = digest_of(token)
        self._nonce = secrets.token_hex(NONCE_LENGTH // 2)
        self.path = f"{PATH}?key={key_id(self._digest)}&nonce={self._nonce}"

    def is_met(self, proof: object) -> bool:
        return isinstance(proof, str) and hmac.compare_digest(
            proof.encode("utf-8", "replace"), proof_of(self._digest, self._nonce).encode()
        )
