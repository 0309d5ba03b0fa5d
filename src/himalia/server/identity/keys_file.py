"""Edits the keys file as text, so that comments and the order stay the same, and checks the result."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from himalia.errors import ConfigurationError
from himalia.file_lock import hold_directory
from himalia.record import now_us
from himalia.server.identity.keys import WHAT, KeySpec, parse_keys
from himalia.server.identity.principal import LIMITS, CallerLimits, Right, read_rights
from himalia.server.identity.private_file import others_may_read, read_private, write_private
from himalia.server.identity.secret import digest_of, format_hash, new_key

HEADER = "# Keys of a Himalia server; 'himalia keys --help' says how to change it. Only hashes of keys are kept here.\n"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_TABLE = re.compile(r"\s*\[\s*keys\s*\.\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*(?:\.[^\]]*)?\]\s*(?:#.*)?\Z")
_ANY_TABLE = re.compile(r"\s*\[")
_FIELD = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")


class KeysFile:
    """The commands of ``himalia keys``. Each reads the file, changes it and replaces it whole, under a lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[KeySpec]:
        """Return the keys in the file, without a check of its owner."""
        return parse_keys(read_private(self._path, WHAT), self._path)

    def add(
        self,
        name: str,
        rights: Mapping[Right, Sequence[str]],
        *,
        limits: CallerLimits,
        expires_us: int | None = None,
    ) -> str:
        """Add a key to the file, which is created if there is none. Returns the key, which is stored nowhere."""
        _check_name(name)
        read_rights({right: list(patterns) for right, patterns in rights.items()}, name)
        key, key_id = new_key()
        lines = [f"[keys.{name}]", f'id = "{key_id}"', f'hash = "{format_hash(digest_of(key))}"']
        if expires_us is not None:
            lines.append(f"expires = {_format_time(expires_us)}")
        lines += [f"{right} = {_format_list(patterns)}" for right, patterns in rights.items() if patterns]
        given = [
            (limit, value) for limit, value in msgspec.structs.asdict(limits).items() if value is not None
        ]
        if given:
            lines += [f"[keys.{name}.{LIMITS}]", *(f"{limit} = {value!r}" for limit, value in given)]
        with self._open_edit(may_be_new=True) as edit:
            if name in edit.names:
                raise ConfigurationError(
                    f"{self._path} has a key {name!r} already; 'himalia keys rotate {name}' gives it a new secret"
                )
            edit.append(lines)
        return key

    def remove(self, name: str) -> None:
        with self._open_edit() as edit:
            edit.require(name)
            edit.drop(name)

    def rotate(self, name: str, *, keep_until_us: int | None = None, expires_us: int | None = None) -> str:
        """Give a key a new secret, which is returned. The old one is valid until ``keep_until_us``, or ends now."""
        key, key_id = new_key()
        with self._open_edit() as edit:
            old = edit.require(name)
            if expires_us is None and old.expires_us is not None and old.expires_us <= now_us():
                raise ConfigurationError(
                    f"the key {name!r} has expired; give an expiry for the new one with --expires"
                )
            fields = {"id": f'"{key_id}"', "hash": f'"{format_hash(digest_of(key))}"'}
            dropping = ["key", "id", "hash", "old_hash", "old_expires"]
            if expires_us is not None:
                fields["expires"] = _format_time(expires_us)
                dropping.append("expires")
            if keep_until_us is not None:
                until_us = min(keep_until_us, old.expires_us or keep_until_us)
                fields |= {"old_hash": f'"{format_hash(old.digest)}"', "old_expires": _format_time(until_us)}
            edit.set(name, fields, dropping=dropping)
        return key

    def hash(self) -> list[str]:
        """Replace every plain key by its hash. Returns their names."""
        with self._open_edit() as edit:
            plain = [key for key in edit.keys if key.is_plain]
            for key in plain:
                edit.set(key.name, {"hash": f'"{format_hash(key.digest)}"'}, dropping=("key",))
        return [key.name for key in plain]

    @contextmanager
    def _open_edit(self, *, may_be_new: bool = False) -> Iterator[_Edit]:
        try:
            with hold_directory(self._path.resolve().parent):
                edit = self._read(may_be_new=may_be_new)
                yield edit
                if edit.has_changed:
                    write_private(self._path, edit.validate().encode())
        except OSError as error:
            raise ConfigurationError(f"cannot change {WHAT} {self._path}: {error.strerror}") from None

    def _read(self, *, may_be_new: bool) -> _Edit:
        if may_be_new and not self._path.exists():
            return _Edit(self._path, HEADER)
        # A file that others may read becomes private by this change; reading it would tell the user to do just that.
        if self._path.exists() and others_may_read(self._path):
            os.chmod(self._path, 0o600)
        content = read_private(self._path, WHAT)
        try:
            return _Edit(self._path, content.decode())
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{WHAT} {self._path} is not TOML: {error}") from None


class _Edit:
    """The text of the file while it is edited, and the tables that it must have afterwards."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()
        has_keys = bool(_parse(text, path).get("keys"))
        self.keys: list[KeySpec] = parse_keys(text.encode(), path) if has_keys else []
        self._wanted = self._meant = _parse(text, path)

    @property
    def names(self) -> set[str]:
        return {key.name for key in self.keys}

    @property
    def has_changed(self) -> bool:
        """Whether the tables must differ, even if no line could be changed for that."""
        return self._wanted != self._meant

    def require(self, name: str) -> KeySpec:
        found = next((key for key in self.keys if key.name == name and not key.is_old), None)
        if found is None:
            raise ConfigurationError(
                f"{self._path} has no key {name!r}; 'himalia keys list' shows those it has"
            )
        return found

    def append(self, lines: list[str]) -> None:
        if self._lines and self._lines[-1].strip():
            self._lines.append("")
        self._lines += lines
        added = tomllib.loads("\n".join(lines))["keys"]
        self._wanted = {**self._wanted, "keys": {**self._wanted.get("keys", {}), **added}}

    def drop(self, name: str) -> None:
        is_of_key = self._mark_lines(name)
        self._lines = [line for line, of_key in zip(self._lines, is_of_key, strict=True) if not of_key]
        left = {other: table for other, table in self._wanted["keys"].items() if other != name}
        self._wanted = {**self._wanted, "keys": left}
        if not left and "keys" not in _parse("\n".join(self._lines), self._path):
            # An empty table means that all keys were removed; a file without one could be truncated.
            self._lines.append("[keys]")

    def set(self, name: str, fields: Mapping[str, str], *, dropping: Sequence[str]) -> None:
        """Set these fields of a key, directly below its header, and drop others."""
        is_of_key = self._mark_lines(name)
        changed: list[str] = []
        in_head = False
        is_set = False
        for line, of_key in zip(self._lines, is_of_key, strict=True):
            if _ANY_TABLE.match(line):
                in_head = of_key and _is_head(line)
                changed.append(line)
                if in_head and not is_set:
                    changed += [f"{field} = {value}" for field, value in fields.items()]
                    is_set = True
                continue
            field = _FIELD.match(line)
            if not (in_head and field and field[1] in dropping):
                changed.append(line)
        self._lines = changed
        table = {key: value for key, value in self._wanted["keys"][name].items() if key not in dropping}
        table |= tomllib.loads("\n".join(f"{field} = {value}" for field, value in fields.items()))
        self._wanted = {**self._wanted, "keys": {**self._wanted["keys"], name: table}}

    def _mark_lines(self, name: str) -> list[bool]:
        """Return for each line whether it belongs to the tables of this key, or is a comment directly above one."""
        marks: list[bool] = []
        inside = False
        for number, line in enumerate(self._lines):
            if _ANY_TABLE.match(line):
                found = _TABLE.match(line)
                inside = found is not None and found[1].strip("\"'") == name
                above = number
                while above and self._lines[above - 1].lstrip().startswith("#"):
                    above -= 1
                marks[above:] = [inside] * (number - above)
            marks.append(inside)
        return marks

    def validate(self) -> str:
        """Return the new text; ``ConfigurationError`` if it does not have the wanted tables."""
        text = "\n".join(self._lines) + "\n"
        try:
            is_right = tomllib.loads(text) == self._wanted
        except tomllib.TOMLDecodeError:
            is_right = False
        if not is_right:
            raise ConfigurationError(
                f"{WHAT} {self._path} is written in a way that this command cannot change (it expects a table "
                "[keys.NAME] for each key); edit it by hand"
            )
        parse_keys(text.encode(), self._path, may_be_empty=True)
        return text


def _is_head(line: str) -> bool:
    """Whether a header is that of the key itself, not of a table below it such as its limits."""
    found = _TABLE.match(line)
    return found is not None and "." not in line[found.end(1) :].partition("]")[0]


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{WHAT} {path} is not TOML: {error}") from None


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise ConfigurationError(
            f"{name!r} is not a name for a key: use up to 64 letters, digits, '_' and '-'"
        )


def _format_list(patterns: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{pattern}"' for pattern in patterns) + "]"


def _format_time(us: int) -> str:
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
