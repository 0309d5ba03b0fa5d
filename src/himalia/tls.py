"""The TLS context of a client: which authorities it trusts, and which certificate it presents on request.

Standard library only: Spark's executors import this module.
"""

from __future__ import annotations

import os
import ssl

from himalia.errors import ConfigurationError

CERTFILE = "HIMALIA_CLIENT_CERTFILE"
KEYFILE = "HIMALIA_CLIENT_KEYFILE"
PASSWORD = "HIMALIA_CLIENT_KEYFILE_PASSWORD"
_CLOSED_SIGNS = (
    "certificate required",
    "disconnected",
    "closed connection",
    "reset",
    "eof",
    "broken pipe",
    "http response",
)
"""What libraries report about a connection that the server has closed, in lower case."""


def client_context() -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, or those in ``SSL_CERT_FILE``.

    It presents the certificate in ``HIMALIA_CLIENT_CERTFILE``. Raises ``ConfigurationError`` if that cannot be used.
    """
    context = ssl.create_default_context()
    certificate, key = os.environ.get(CERTFILE), os.environ.get(KEYFILE) or None
    if not certificate:
        if key:
            raise ConfigurationError(f"{KEYFILE} names the key of a certificate, but {CERTFILE} names none")
        return context
    try:
        # With a function, even for no password: without one OpenSSL would prompt on the terminal, and wait.
        context.load_cert_chain(certificate, key, password=lambda: os.environ.get(PASSWORD, ""))
    except (OSError, ValueError) as error:
        files = certificate if key is None else f"{certificate} and {key}"
        raise ConfigurationError(
            f"the client certificate {files} ({CERTFILE}, {KEYFILE}) cannot be used: {error}"
        ) from None
    return context


def hint_for(url: str, reason: str) -> str:
    """Return a hint to append to the error of a failed connection, if certificates may be the cause; else nothing."""
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "; if the certificate is your own, name its file in SSL_CERT_FILE"
    # Some servers, Himalia's among them, close the connection silently if a certificate is missing.
    was_ended = any(sign in reason.lower() for sign in _CLOSED_SIGNS)
    if url.startswith("https:") and was_ended and not os.environ.get(CERTFILE):
        return f"; if the server requires a client certificate, name its file in {CERTFILE}"
    return ""
