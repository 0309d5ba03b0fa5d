"""The environment of a kernel: the server's own, without its secrets.

Code that prints ``os.environ`` stores all of it in the log, for every reader of the topic. This is no fence: code in a
kernel runs as the server's user and can read what that user can, ``/proc/<pid>/environ`` of the server included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

SECRET_PREFIXES = ("HIMALIA_", "AWS_", "GOOGLE_", "AZURE_", "NATS_")


def kernel_environment(
    own: Mapping[str, str], kept: Iterable[str] = (), asked: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables of a kernel: of the server's own those that are not secret or are ``kept``, then those asked for.

    ``kept`` are names, or patterns such as ``AWS_*``.
    """
    patterns = tuple(kept)

    def is_passed(name: str) -> bool:
        is_secret = name.upper().startswith(SECRET_PREFIXES)
        return not is_secret or any(fnmatchcase(name, pattern) for pattern in patterns)

    return {name: value for name, value in own.items() if is_passed(name)} | dict(asked or {})
