"""Files that hold secrets: whose they are, and whose they stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from himalia.errors import ConfigurationError
from himalia.server.identity import CallerLimits, Right, read_keys
from himalia.server.identity.keys_file import KeysFile
from himalia.server.identity.private_file import write_private
from himalia.server.identity.token import TokenFile

ANOTHER = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A keys file of another user, as the service of a systemd unit has one."""
    path = tmp_path / "keys.toml"
    for name in ("shop", "stock"):
        KeysFile(path).add(name, {Right.PUBLISH: [">"]}, limits=CallerLimits())
    os.chown(path, ANOTHER, ANOTHER)
    return path


def owner_of(path: Path) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_uid, found.st_gid, found.st_mode & 0o777


def test_a_file_that_root_changes_stays_its_owners(keys: Path, tmp_path: Path) -> None:
    """The server, which is not root, can still read its keys and its token after a command of root."""
    KeysFile(keys).remove("shop")
    KeysFile(keys).rotate("stock")
    assert [key.name for key in KeysFile(keys).read()] == ["stock"]
    assert owner_of(keys) == (ANOTHER, ANOTHER, 0o600)
    token = TokenFile(tmp_path / "log.db.token")
    token.read_or_make()
    os.chown(token.path, ANOTHER, ANOTHER)
    assert token.rotate() == token.read()
    assert owner_of(token.path) == (ANOTHER, ANOTHER, 0o600)


def test_a_file_in_a_directory_of_everybody_is_taken_over(tmp_path: Path) -> None:
    """Where anybody can make files, whoever made this one does not get to read what is written."""
    tmp_path.chmod(0o1777)
    path = tmp_path / "log.db.token"
    path.touch(mode=0o600)
    os.chown(path, ANOTHER, ANOTHER)
    write_private(path, b"secret")
    assert owner_of(path) == (0, 0, 0o600)


def test_a_server_does_not_rely_on_a_file_of_another_user(keys: Path, tmp_path: Path) -> None:
    """Its owner could put in a key at any time; a token that another user chose is not used."""
    with pytest.raises(ConfigurationError, match=f"belongs to another user; run: chown root {keys}"):
        read_keys(keys)
    token = TokenFile(tmp_path / "log.db.token")
    token.path.write_text("a-token-that-mallory-chose-0123\n")
    token.path.chmod(0o600)
    os.chown(token.path, ANOTHER, ANOTHER)
    tmp_path.chmod(0o1777)
    assert token.read_or_make() != "a-token-that-mallory-chose-0123"
    assert owner_of(token.path)[0] == 0
