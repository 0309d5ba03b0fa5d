"""The keys file: a TOML table for each key, with its hash, its rights, its limits and when it expires."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import msgspec

from himalia.errors import ConfigurationError
from himalia.server.identity.principal import LIMITS, CallerLimits, Right, Rights, read_limits, read_rights
from himalia.server.identity.private_file import read_trusted
from himalia.server.identity.secret import check_strength, digest_of, parse_hash

WHAT = "the keys file"
FIELDS = ("key", "hash", "id", "expires", "old_hash", "old_expires", LIMITS)
NAME_LENGTH_MAX = 100


class KeySpec(msgspec.Struct, frozen=True):
    """One secret of one key in the file. A key that was just rotated has two, the old one for a while."""

    name: str
    digest: bytes
    rights: Rights
    limits: CallerLimits
    expires_us: int | None = None
    id: str | None = None
    """The beginning of the key, if Himalia made it."""
    is_plain: bool = False
    """Whether the file has the key itself instead of its hash."""
    is_old: bool = False

    @property
    def caller(self) -> str:
        return f"key:{self.name}"


def read_keys(path: Path, *, may_be_empty: bool = False) -> list[KeySpec]:
    """Return the keys of a file; ``ConfigurationError``, which never shows a key, if it is invalid. Blocks."""
    return parse_keys(read_trusted(path, WHAT), path, may_be_empty=may_be_empty)


def parse_keys(content: bytes, path: Path, *, may_be_empty: bool = False) -> list[KeySpec]:
    """Return the keys in the content of a file; ``path`` is for error messages."""
    try:
        tables = tomllib.loads(content.decode()).get("keys")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{WHAT} {path} is not TOML: {error}") from None
    if not isinstance(tables, dict) or not (tables or may_be_empty):
        raise ConfigurationError(
            f"{WHAT} {path} has no keys; add one with 'himalia keys add NAME --keys-file {path}'"
        )
    found: dict[bytes, KeySpec] = {}
    for name, table in tables.items():
        for key in _read_key(path, name, table):
            if key.digest in found:
                raise ConfigurationError(
                    f"two keys in {path} are the same: {found[key.digest].name} and {name}"
                )
            found[key.digest] = key
    return list(found.values())


def _read_key(path: Path, name: str, table: object) -> list[KeySpec]:
    where = f"[keys.{name}] in {path}"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where} is not a table")
    if not name.isprintable() or "/" in name or not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ConfigurationError(
            f"{where}: a name has at most {NAME_LENGTH_MAX} characters, and neither '/' nor control characters"
        )
    if unknown := sorted(set(table) - {*FIELDS, *Right}):
        raise ConfigurationError(
            f"{where} has {unknown[0]!r}; rights are {', '.join(Right)}, other fields {', '.join(FIELDS)}"
        )
    current = KeySpec(
        name,
        _digest(table, where),
        read_rights(table, where),
        read_limits(table.get(LIMITS), where),
        _time_us(table, "expires", where),
        _text(table, "id", where),
        is_plain="key" in table,
    )
    if "old_hash" not in table:
        return [current]
    old = msgspec.structs.replace(
        current,
        digest=_read_hash(table, "old_hash", where),
        expires_us=_time_us(table, "old_expires", where),
        id=None,
        is_plain=False,
        is_old=True,
    )
    if old.expires_us is None:
        raise ConfigurationError(f"{where} has old_hash without old_expires, so the old key would never end")
    return [current, old]


def _digest(table: Mapping[str, Any], where: str) -> bytes:
    if "hash" in table:
        if "key" in table:
            raise ConfigurationError(f"{where} has both key and hash; remove the key")
        return _read_hash(table, "hash", where)
    key = table.get("key")
    if not isinstance(key, str):
        raise ConfigurationError(f"{where} needs hash = \"sha256:...\", as 'himalia keys add' writes it")
    check_strength(key, f"the key of {where}")
    return digest_of(key)


def _read_hash(table: Mapping[str, Any], field: str, where: str) -> bytes:
    try:
        return parse_hash(table[field])
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(f"{field} of {where} is not sha256: and 64 hexadecimal digits") from None


def _text(table: Mapping[str, Any], field: str, where: str) -> str | None:
    value = table.get(field)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"{field} of {where} is not a text")
    return value


def _time_us(table: Mapping[str, Any], field: str, where: str) -> int | None:
    """Return a date or time of TOML as microseconds since 1970; UTC if it has no zone."""
    value = table.get(field)
    if value is None:
        return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise ConfigurationError(f"{field} of {where} is not a date or time such as 2027-02-14T12:00:00Z")
    return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1_000_000)
