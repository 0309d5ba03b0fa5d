"""The keys file: what is refused in it, and what happens when it changes while the server runs."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from himalia.errors import ConfigurationError
from himalia.server.identity import CallerLimits, Right, read_keys
from himalia.server.identity.keys_file import KeysFile
from himalia.server.identity.private_file import BYTES_MAX
from himalia.server.identity.secret import digest_of, format_hash
from tests.cli.command import assert_sentence, himalia
from tests.server.identity.credentials import Serve, write_keys
from tests.server.raw_clients import until
from tests.server.server_process import run_serve
from tests.servers import RunningServer


@pytest.mark.slow
def test_serve_says_why_it_does_not_start(tmp_path: Path) -> None:
    """Exit code 1 and one sentence that says what to do."""
    code, said = run_serve("--no-auth", "--host", "0.0.0.0", directory=tmp_path)
    assert code == 1 and "loopback" in said and "Traceback" not in said
    code, said = run_serve("--keys-file", str(tmp_path / "missing.toml"), directory=tmp_path)
    assert code == 1 and "missing.toml" in said and "Traceback" not in said


HASH, OTHER = (format_hash(digest_of(secret)) for secret in ("0123456789abcdef", "another-0123456789"))
BAD_KEYS = {
    "not TOML": ("[keys", "is not TOML"),
    "not UTF-8": (b"\xff\xfe", "is not TOML"),
    "nested too deeply": ("x = " + "[" * 100_000, "is not TOML"),
    "too large": (b"#" * (BYTES_MAX + 1), "is it the right file?"),
    "empty": ("", "has no keys"),
    "no keys": ("[other]\na = 1", "has no keys"),
    "keys is a value": ("keys = 1", "keys"),
    "keys is a list": ("keys = [1]", "keys"),
    "not a table": ("[keys]\nshop = 1", "is not a table"),
    "no key": ("[keys.shop]\npublish = []", "needs hash"),
    "key of the wrong type": ("[keys.shop]\nkey = 1234567890123456", "needs hash"),
    "short key": ('[keys.shop]\nkey = "short"', "at least 16"),
    "unknown right": ('[keys.shop]\nkey = "0123456789abcdef"\nwrite = [">"]', "'write'; rights are publish"),
    "patterns of the wrong type": ('[keys.shop]\nkey = "0123456789abcdef"\npublish = ">"', "not a list"),
    "pattern of the wrong type": ('[keys.shop]\nkey = "0123456789abcdef"\npublish = [1]', "not a list"),
    "bad pattern": ('[keys.shop]\nkey = "0123456789abcdef"\npublish = ["a.>.b"]', "not a topic pattern"),
    "a key of the manual": ('[keys.shop]\nkey = "change-me-shop-0123456789"', "example of the manual"),
    "both key and hash": (f'[keys.shop]\nkey = "0123456789abcdef"\nhash = "{HASH}"', "both key and hash"),
    "not a hash": ('[keys.shop]\nhash = "sha256:12"', "not sha256:"),
    "hash of the wrong type": ("[keys.shop]\nhash = 12", "not sha256:"),
    "a date that is none": (f'[keys.shop]\nhash = "{HASH}"\nexpires = "soon"', "not a date or time"),
    "an old key for ever": (f'[keys.shop]\nhash = "{HASH}"\nold_hash = "{OTHER}"', "without old_expires"),
    "an unknown limit": (
        f'[keys.shop]\nhash = "{HASH}"\nlimits = {{ speed = 1 }}',
        "limits are publishes_per_s",
    ),
    "a limit below 0": (f'[keys.shop]\nhash = "{HASH}"\nlimits = {{ kernels = -1 }}', "from 0 to"),
    "a limit beyond all numbers": (
        f'[keys.shop]\nhash = "{HASH}"\nlimits = {{ kernels = 1{"0" * 400} }}',
        "from 0 to",
    ),
    "limits of the wrong type": (f'[keys.shop]\nhash = "{HASH}"\nlimits = 3', "limits of"),
    "own in publish": (f'[keys.shop]\nhash = "{HASH}"\npublish = ["own"]', "in execute and subscribe only"),
    "a name with a slash": (f'[keys."a/b"]\nhash = "{HASH}"', "neither '/'"),
    "same key twice": (
        '[keys.a]\nkey = "0123456789abcdef"\n[keys.b]\nkey = "0123456789abcdef"',
        "are the same: a and b",
    ),
}


@pytest.mark.parametrize(("text", "said"), BAD_KEYS.values(), ids=BAD_KEYS.keys())
def test_a_keys_file_that_is_wrong_is_explained(tmp_path: Path, text: str | bytes, said: str) -> None:
    """The message names the file and what is wrong in it, and never shows a key."""
    path = write_keys(tmp_path / "keys.toml", text)
    with pytest.raises(ConfigurationError, match=re.escape(said)) as failed:
        read_keys(path)
    assert str(path) in failed.value.message
    assert "0123456789abcdef" not in failed.value.message


def test_a_keys_file_that_is_not_there_is_explained(tmp_path: Path) -> None:
    """A missing file, or a directory, is named with the reason."""
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigurationError, match=re.escape(str(path))):
            read_keys(path)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_keys_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    """The sentence says what to type (C8)."""
    path = write_keys(tmp_path / "keys.toml", f'[keys.shop]\nhash = "{HASH}"')
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=re.escape(f"chmod 600 {path}")):
        read_keys(path)


def test_a_key_is_read_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    """Rights, limits, expiry in UTC, and the kernels that it starts itself."""
    path = write_keys(
        tmp_path / "keys.toml",
        f"""
[keys.ann]
hash = "{HASH}"
expires = 2027-01-01
execute = ["own"]
subscribe = ["own", "orders.*"]
[keys.ann.limits]
publishes_per_s = 100
kernels = 2
""",
    )
    [ann] = read_keys(path)
    assert ann.caller == "key:ann" and not ann.is_plain
    assert ann.expires_us == 1_798_761_600_000_000
    assert ann.rights[Right.EXECUTE] == ("own",) and ann.rights[Right.PUBLISH] == ()
    assert ann.limits == CallerLimits(publishes_per_s=100, kernels=2)


# Changing the file

BY_HAND = """# Our keys.

[other]
a = 1

# The shop, see ticket 17.
[keys.shop]   # publishes
key = "shop-key-0123456789" # rotate in spring
publish = [
    "orders.>",
]
[keys.shop.limits]
publishes_per_s = 10

# The admin.
[keys.admin]
key = "admin-key-0123456789"
manage = [">"]
"""


def test_hashing_keeps_the_keys_and_the_comments(tmp_path: Path) -> None:
    """The same keys work as before, no key is in the file, and everything else in it stays as it was."""
    path = write_keys(tmp_path / "keys.toml", BY_HAND)
    before = {key.name: key.digest for key in read_keys(path)}
    assert KeysFile(path).hash() == ["shop", "admin"]
    text = path.read_text()
    assert "-key-0123456789" not in text
    assert {key.name: key.digest for key in read_keys(path)} == before
    assert (
        "# The shop, see ticket 17.\n[keys.shop]   # publishes\n" in text and "publishes_per_s = 10" in text
    )
    assert KeysFile(path).hash() == []
    assert path.read_text() == text


def test_removing_a_key_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    """Its tables and the comment above them go, and nothing else."""
    path = write_keys(tmp_path / "keys.toml", BY_HAND)
    KeysFile(path).remove("shop")
    text = path.read_text()
    assert "shop" not in text
    assert "# Our keys.\n\n[other]\na = 1\n\n# The admin.\n[keys.admin]" in text


def test_a_rotated_key_is_another_secret_of_the_same_caller(tmp_path: Path) -> None:
    """Rights and limits stay; the old secret is gone, or valid for as long as was said."""
    path = write_keys(tmp_path / "keys.toml", BY_HAND)
    shop = read_keys(path)[0]
    new = KeysFile(path).rotate("shop")
    [rotated, _] = read_keys(path)
    assert rotated.digest == digest_of(new) != shop.digest
    assert (rotated.caller, rotated.rights, rotated.limits) == (shop.caller, shop.rights, shop.limits)
    newer = KeysFile(path).rotate("shop", keep_until_us=2_000_000_000_000_000)
    current, old, _ = read_keys(path)
    assert (current.digest, old.digest) == (digest_of(newer), digest_of(new))
    assert old.is_old and old.expires_us == 2_000_000_000_000_000


def test_a_key_that_has_expired_is_not_rotated_into_another_that_has(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys.toml", f'[keys.shop]\nhash = "{HASH}"\nexpires = 2020-01-01')
    with pytest.raises(ConfigurationError, match="--expires"):
        KeysFile(path).rotate("shop")
    KeysFile(path).rotate("shop", expires_us=2_000_000_000_000_000)
    assert [key.expires_us for key in read_keys(path)] == [2_000_000_000_000_000]


@pytest.mark.parametrize(
    "text",
    [
        f'keys = {{ shop = {{ hash = "{HASH}" }} }}\n',
        f'[keys]\nshop.hash = "{HASH}"\n',
        f'[keys]\nshop = {{ hash = "{HASH}" }}\n',
    ],
)
def test_what_cannot_be_edited_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    """TOML can say the same in many ways; one that the commands do not understand is refused, not damaged."""
    path = write_keys(tmp_path / "keys.toml", text)
    for change in (KeysFile(path).rotate, KeysFile(path).remove):
        with pytest.raises(ConfigurationError, match="edit it by hand"):
            change("shop")
    assert path.read_text() == text


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    """A key is printed once; the file is for its owner only, and has its hash; every mistake is one sentence."""
    path = tmp_path / "keys.toml"
    env = {"HIMALIA_KEYS_FILE": str(path)}
    added = himalia("keys", "add", "shop", "--publish", "orders.*", "--expires", "90d", env=env)
    key = added.stdout.strip()
    assert re.fullmatch(r"hk-[a-z2-9]{6}-[\w-]{43}", key)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert key not in path.read_text() and digest_of(key).hex() in path.read_text()
    [listed] = json.loads(himalia("keys", "list", "--json", env=env).stdout)
    assert (listed["key"], listed["publish"], listed["id"]) == ("shop", ["orders.*"], key.split("-")[1])
    assert "orders.*" in himalia("keys", "list", env=env).stdout
    limited = json.loads(
        himalia("keys", "add", "ann", "--execute", "own", "--limit", "kernels=2", "--json", env=env).stdout
    )
    assert read_keys(path)[1].digest == digest_of(limited["key"])
    assert read_keys(path)[1].limits == CallerLimits(kernels=2)
    rotated = himalia("keys", "rotate", "shop", env=env).stdout.strip()
    assert read_keys(path)[0].digest == digest_of(rotated)
    assert himalia("keys", "remove", "ann", env=env).stdout == "removed ann\n"
    assert_sentence(himalia("keys", "add", "shop", env=env), 1, "rotate")
    assert_sentence(himalia("keys", "add", "a b", env=env), 1, "not a name")
    assert_sentence(himalia("keys", "add", "x", "--publish", "a.>.b", env=env), 1, "not a topic pattern")
    assert_sentence(himalia("keys", "add", "x", "--limit", "kernels", env=env), 2, "not a limit")
    assert_sentence(himalia("keys", "remove", "ann", env=env), 1, "has no key 'ann'")
    assert_sentence(himalia("keys", "list"), 2, "--keys-file")


# While the server runs


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return write_keys(tmp_path / "keys.toml", BY_HAND)


@pytest.fixture
def server(serve: Serve, keys: Path) -> RunningServer:
    return serve(keys_file=keys)


def status_of(server: RunningServer, key: str) -> Callable[[], int]:
    def ask() -> int:
        with server.http() as http:
            return http.get("/topics", headers={"X-API-Key": key}).status_code

    return ask


def test_a_key_that_is_added_works_without_a_restart(server: RunningServer, keys: Path) -> None:
    """So does one that is rotated; the old secret then does not, and its caller has the same name."""
    key = KeysFile(keys).add("new", {Right.PUBLISH: [">"]}, limits=CallerLimits(connections=3))
    until(lambda: status_of(server, key)() == 200)
    rotated = KeysFile(keys).rotate("new")
    until(lambda: status_of(server, rotated)() == 200)
    assert status_of(server, key)() == 401
    with server.http() as http:
        assert http.get("/session", headers={"X-API-Key": rotated}).json()["caller"] == "key:new"


def test_a_file_that_is_broken_keeps_the_keys_of_before(
    server: RunningServer, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake while editing locks nobody out and lets nobody in; a warning says what is wrong."""
    for broken in ("[keys", "", '[keys.shop]\nkey = "short"'):
        caplog.clear()
        write_keys(keys, broken)
        until(lambda: "remain valid" in caplog.text)
        assert status_of(server, "admin-key-0123456789")() == 200
    caplog.clear()
    keys.chmod(0o644)
    until(lambda: "chmod 600" in caplog.text)
    keys.unlink()
    until(lambda: "No such file" in caplog.text)
    assert status_of(server, "admin-key-0123456789")() == 200
    write_keys(keys, BY_HAND.replace("admin-key", "other-key"))
    until(lambda: status_of(server, "other-key-0123456789")() == 200)
    assert status_of(server, "admin-key-0123456789")() == 401


def test_the_last_key_can_be_removed(server: RunningServer, keys: Path) -> None:
    """A table without keys says that there are none; a file without that table could be cut off."""
    for name in ("shop", "admin"):
        KeysFile(keys).remove(name)
    until(lambda: status_of(server, "admin-key-0123456789")() == 401)


def test_keys_in_the_clear_work_with_a_warning(
    serve: Serve, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file of an earlier version goes on working; converting it ends nothing that is open."""
    server = serve(keys_file=keys)
    assert "himalia keys hash" in caplog.text and "shop-key-0123456789" not in caplog.text
    with server.http(headers={"X-API-Key": "shop-key-0123456789"}) as http:
        http.get("/topics").raise_for_status()
        found = server.context.identity._source.keyring.find("shop-key-0123456789")
        KeysFile(keys).hash()
        until(lambda: found is not None and found.spec is not None and not found.spec.is_plain)
        assert http.get("/topics").status_code == 200
        assert found is not None and found.principal.credential.ended is None


def test_what_happens_to_keys_is_recorded(serve: Serve, keys: Path) -> None:
    """The audit trail has who was added, rotated and removed, and who signed in and out."""
    auditor = KeysFile(keys).add("auditor", {Right.MANAGE: ["audit.events"]}, limits=CallerLimits())
    server = serve(keys_file=keys)
    key = KeysFile(keys).add("new", {Right.SUBSCRIBE: [">"]}, limits=CallerLimits())
    until(lambda: status_of(server, key)() == 200)
    with server.http() as http:
        http.post("/session", headers={"X-API-Key": key}).raise_for_status()
        http.delete("/session").raise_for_status()
    KeysFile(keys).rotate("new")
    until(lambda: status_of(server, key)() == 401)
    KeysFile(keys).remove("new")

    def events() -> list[tuple[str, str]]:
        with server.http(headers={"X-API-Key": auditor}) as http:
            found = http.get("/topics/audit.events/messages").json()["messages"]
        payloads = [one["message"]["payload"] for one in found]
        return [(one["event"], one.get("name") or one["caller"]) for one in payloads if one["caller"]]

    wanted = [
        ("key_created", "key:new"),
        ("session_created", "key:new"),
        ("signed_in", "key:new"),
        ("signed_out", "key:new"),
        ("key_rotated", "key:new"),
        ("key_revoked", "key:new"),
    ]
    until(lambda: events() == wanted)
