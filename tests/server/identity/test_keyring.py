"""Finding a key by what is shown."""

from __future__ import annotations

import hmac

import pytest

from himalia.server.identity import NO_LIMITS, KeySpec, Right
from himalia.server.identity.keyring import Change, Key, Keyring
from himalia.server.identity.secret import digest_of

RIGHTS = dict.fromkeys(Right, ())


def spec(name: str, secret: str, **fields: object) -> KeySpec:
    return KeySpec(name, digest_of(secret), fields.pop("rights", RIGHTS), NO_LIMITS, **fields)  # type: ignore[arg-type]


def ring(*specs: KeySpec) -> Keyring:
    return Keyring(Key.of(one) for one in specs)


def test_a_search_does_the_same_work_for_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comparison in constant time, of a whole digest, for a right key, a wrong one and one that is nearly right."""
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    keyring = ring(*(spec(f"name-{i}", f"secret-{i}") for i in range(5)))
    monkeypatch.setattr(hmac, "compare_digest", counting)
    for shown in ("secret-0", "secret-4", "secret-9", "secret-", "", "ключ"):
        compared.clear()
        found = keyring.find(shown)
        assert (found is not None) == (shown in ("secret-0", "secret-4"))
        assert compared == [(32, 32)]


def test_keys_are_not_found_in_an_order_that_a_stranger_can_choose() -> None:
    """Two servers with the same keys keep them under different names, so that the time of a search tells nothing."""
    one, two = ring(spec("a", "secret")), ring(spec("a", "secret"))
    assert one._by_blinded.keys() != two._by_blinded.keys()


@pytest.mark.parametrize(
    ("after", "changes", "ended"),
    [
        ([spec("a", "one")], [], None),
        ([spec("a", "one", id="abc", is_plain=True)], [], None),
        ([], [Change("key_revoked", "key:a")], "this key was removed"),
        ([spec("a", "two")], [Change("key_rotated", "key:a")], "this key was replaced by a new one"),
        (
            [spec("a", "two"), spec("a", "one", expires_us=5, is_old=True)],
            [Change("key_rotated", "key:a")],
            None,
        ),
        (
            [spec("a", "one", rights={Right.PUBLISH: (">",)})],
            [Change("key_changed", "key:a")],
            "the rights of this key have changed; connect again",
        ),
        (
            [spec("b", "one")],
            [Change("key_changed", "key:b")],
            "the rights of this key have changed; connect again",
        ),
        ([spec("a", "one"), spec("b", "two")], [Change("key_created", "key:b")], None),
    ],
)
def test_a_key_ends_when_it_is_not_as_it_was(
    after: list[KeySpec], changes: list[Change], ended: str | None
) -> None:
    """What a key let in stays while secret, name, rights and limits do, and ends with a reason otherwise."""
    keyring = ring(spec("a", "one"))
    before = keyring.find("one")
    assert before is not None
    assert keyring.update(after) == changes
    credential = before.principal.credential
    assert (credential.ended and credential.ended.message) == ended
    if ended is None:
        assert keyring.find("one") is before


def test_a_key_that_will_expire_keeps_its_connections_until_then() -> None:
    """Rotating a key with an overlap gives the old secret an expiry, and closes nothing yet."""
    keyring = ring(spec("a", "one"))
    found = keyring.find("one")
    assert found is not None
    keyring.update([spec("a", "two"), spec("a", "one", expires_us=1_000, is_old=True)])
    assert not found.principal.credential.has_expired(999)
    assert found.principal.credential.has_expired(1_000)


def test_an_expired_key_whose_expiry_is_moved_works_again() -> None:
    """It gets a new credential, since the old one has ended; with the old expiry it stays as it is."""
    keyring = ring(spec("a", "one", expires_us=1_000))
    expired = keyring.find("one")
    assert expired is not None
    expired.principal.credential.end("this key has expired")
    assert keyring.update([spec("a", "one", expires_us=1_000)]) == []
    assert keyring.find("one") is expired
    assert keyring.update([spec("a", "one", expires_us=2_000)]) == [Change("key_changed", "key:a")]
    renewed = keyring.find("one")
    assert renewed is not None
    assert renewed.principal.credential.ended is None
    assert not renewed.principal.credential.has_expired(1_999)
