"""The TLS context of a client: whom it trusts, and which certificate it presents if the server asks for one.

Standard library only: Spark's executors use it too.
"""

from __future__ import annotations

import os
import ssl

from himalia.errors import ConfigurationError

CERTFILE = "HIMALIA_CLIENT_CERTFILE"
KEYFILE = "HIMALIA_CLIENT_KEYFILE"
PASSWORD = "HIMALIA_CLIENT_KEYFILE_PASSWORD"
_ENDED = (
    "certificate required",
    "disconnected",
    "closed connection",
    "reset",
    "eof",
    "broken pipe",
    "http response",
)
"""What libraries say of a connection that the server has ended, in lower case."""


def client_context() -> ssl.SSLContext:
    """Trusts the system's authorities, or those of ``SSL_CERT_FILE``; presents what ``HIMALIA_CLIENT_CERTFILE`` names.

    ``ConfigurationError`` if that cannot be used.
    """
    context = ssl.create_default_context()
    certificate, key = os.environ.get(CERTFILE), os.environ.get(KEYFILE) or None
    if not certificate:
        if key:
            raise ConfigurationError(f"{KEYFILE} names the key of a certificate, but {CERTFILE} names none")
        return context
    try:
        # With a function, even for no password: without one OpenSSL would ask at the terminal, and wait.
        context.load_cert_chain(certificate, key, password=lambda: os.environ.get(PASSWORD, ""))
    except (OSError, ValueError) as error:
        files = certificate if key is None else f"{certificate} and {key}"
        raise ConfigurationError(
            f"the client certificate {files} ({CERTFILE}, {KEYFILE}) cannot be used: {error}"
        ) from None
    return context


def hint_for(url: str, reason: str) -> str:
    """What to add to a sentence about a connection that failed for this reason, if certificates may be why."""
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "; if the certificate is your own, name its file in SSL_CERT_FILE"
    # Some servers end the connection without a word where a certificate is missing, ours among them.
    was_ended = any(sign in reason.lower() for sign in _ENDED)
    if url.startswith("https:") and was_ended and not os.environ.get(CERTFILE):
        return f"; if the server asks for a client certificate, name its file in {CERTFILE}"
    return ""
