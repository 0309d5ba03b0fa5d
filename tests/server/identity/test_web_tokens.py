"""JSON Web Tokens: what makes one valid, what it may do, and when what it opened ends."""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from himalia.errors import ConfigurationError
from himalia.server.context import ServerContext
from himalia.server.identity import CallerLimits, jwks
from himalia.server.identity.jwks import Jwks
from himalia.settings import Settings
from tests.server.identity.credentials import Serve, error_of, write_keys
from tests.server.raw_clients import until
from tests.servers import DEADLINE_S, RunningServer

SECRET = "a-secret-of-thirty-two-bytes-or-more"
ISSUER = "https://platform.example"
AUDIENCE = "himalia"
SETTINGS = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def claims(**changed: Any) -> dict[str, Any]:
    """Valid ones; what is given as None is left out."""
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "bob",
        "exp": int(time.time()) + 600,
        "himalia": {"subscribe": ["orders.>"], "manage": ["orders.>"]},
    }
    return {name: value for name, value in {**usual, **changed}.items() if value is not None}


def token(key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **changed: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changed), key, algorithm=algorithm, headers=headers)


def signed_with(secret: str, kid: str | None) -> str:
    """Signed by HS256 with anything; the library itself refuses what looks like a public key."""
    parts = [{"alg": "HS256", **({} if kid is None else {"kid": kid})}, claims()]
    text = b".".join(jwt.utils.base64url_encode(json.dumps(part).encode()) for part in parts)
    signature = hmac.digest(secret.encode(), text, "sha256")
    return (text + b"." + jwt.utils.base64url_encode(signature)).decode()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def jwk(key: Any, kid: str | None, **fields: Any) -> dict[str, Any]:
    kinds = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    kind = next((kinds[one] for one in kinds if isinstance(key, one)), OKPAlgorithm)
    shown = json.loads(kind.to_jwk(key.public_key()))
    return {**shown, **({} if kid is None else {"kid": kid}), **fields}


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_keys(tmp_path_factory.mktemp("jwt") / "secret", SECRET + "\n")


@pytest.fixture(scope="module")
def server(serve_all: Serve, secret_file: Path) -> RunningServer:
    server = serve_all(jwt_secret_file=secret_file, refused_key_delay_s=0, **SETTINGS)
    server.create("orders.eu", "news")
    return server


# What is in a token


def test_a_token_has_the_rights_of_its_claim(server: RunningServer) -> None:
    """Its caller is known by issuer and subject, beside the token that the server made."""
    with server.http(headers=bearer(token())) as http:
        assert http.get("/session").json()["caller"] == f"jwt:{ISSUER}/bob"
        assert http.get("/topics/orders.eu/messages").status_code == 200
        assert error_of(http.get("/topics/news/messages")) == (403, "FORBIDDEN")
        answer = http.post("/topics/orders.eu/messages", json={"payload": 1})
        assert f"'jwt:{ISSUER}/bob' has no right to publish" in answer.text
        assert http.get("/topics", headers=server.headers).status_code == 200
    with server.http() as http:
        assert http.get("/topics", params={"token": token()}).status_code == 200
        assert http.get("/topics", headers={"X-API-Key": token()}).status_code == 200


def test_limits_of_a_token_are_those_of_its_caller(server: RunningServer) -> None:
    """Two tokens of one subject are one caller, with the limits that each says."""
    given = {"subscribe": [">"], "limits": {"connections": 3, "publishes_per_s": 10.5}}

    scope = {"type": "http", "headers": [], "query_string": b"", "client": None}
    assert server.loop is not None
    found = []
    for _ in range(2):
        headers = [(b"authorization", b"Bearer " + token(himalia=given).encode())]
        work = server.context.authenticate({**scope, "headers": headers})
        found.append(asyncio.run_coroutine_threadsafe(work, server.loop).result(DEADLINE_S))
    assert found[0].name == found[1].name
    assert found[0].limits == CallerLimits(connections=3, publishes_per_s=10.5)


WRONG: dict[str, tuple[Callable[[], str], str]] = {
    "another secret": (lambda: token("another-secret-of-thirty-two-bytes!!"), "signature"),
    "no signature": (lambda: token(None, "none"), "'none' are not accepted"),
    "another algorithm": (lambda: token(SECRET, "HS512"), "'HS512' are not accepted"),
    "a public key's algorithm": (lambda: token(RSA, "RS256"), "'RS256' are not accepted"),
    "expired": (lambda: token(exp=int(time.time()) - 1), "expired"),
    "no expiry": (lambda: token(exp=None), "exp"),
    "expiry of the wrong type": (lambda: token(exp="soon"), "not valid here"),
    "not valid yet": (lambda: token(nbf=int(time.time()) + 600), "not valid yet"),
    "another issuer": (lambda: token(iss="https://evil.example"), "ssuer"),
    "no issuer": (lambda: token(iss=None), "iss"),
    "another audience": (lambda: token(aud="somebody"), "udience"),
    "no audience": (lambda: token(aud=None), "aud"),
    "no subject": (lambda: token(sub=None), "sub"),
    "an empty subject": (lambda: token(sub=""), "'sub'"),
    "a subject with a line break": (lambda: token(sub="a\nb"), "'sub'"),
    "a subject that is too long": (lambda: token(sub="x" * 257), "'sub'"),
    "no rights": (lambda: token(himalia=None), "no claim 'himalia'"),
    "rights of the wrong type": (lambda: token(himalia=["orders"]), "no claim 'himalia'"),
    "an unknown right": (lambda: token(himalia={"write": [">"]}), "'write'"),
    "a bad pattern": (lambda: token(himalia={"publish": ["a.>.b"]}), "not a topic pattern"),
    "patterns of the wrong type": (lambda: token(himalia={"publish": ">"}), "not a list"),
    "an unknown limit": (lambda: token(himalia={"limits": {"speed": 1}}), "limits are"),
    "a limit that no number holds": (
        lambda: token(himalia={"limits": {"connections": 10**400}}),
        "connections is not a number from 0",
    ),
    "a limit below 0": (lambda: token(himalia={"limits": {"queries": -1}}), "queries is not a number from 0"),
    "a limit that is no number": (
        lambda: token(himalia={"limits": {"publishes_per_s": float("nan")}}),
        "publishes_per_s is not a number from 0",
    ),
    "too long": (lambda: token(pad="x" * 20_000), "16384"),
    "garbage": (lambda: "a.b.c", "not a JSON Web Token"),
    "a header nested deeply": (
        lambda: jwt.utils.base64url_encode(b"[" * 9000).decode() + ".e30.x",
        "not a JSON",
    ),
}


@pytest.mark.parametrize(("make", "said"), WRONG.values(), ids=WRONG.keys())
def test_a_token_that_is_not_valid_is_explained(
    server: RunningServer, make: Callable[[], str], said: str
) -> None:
    """The answer names what is wrong; the token neither authenticates nor signs in."""
    with server.http(headers=bearer(make())) as http:
        for answer in (http.get("/topics"), http.post("/session")):
            assert error_of(answer) == (401, "UNAUTHORIZED")
            assert said in answer.json()["error"]["message"]
            assert "set-cookie" not in answer.headers


def test_a_clock_that_is_ahead_at_the_issuer_does_no_harm(server: RunningServer) -> None:
    """``iat`` tells when a token was made, and ``nbf`` has a minute's allowance."""
    soon = int(time.time()) + 30
    with server.http(headers=bearer(token(iat=soon, nbf=soon))) as http:
        assert http.get("/topics").status_code == 200


def test_an_expiry_beyond_all_time_is_one(server: RunningServer) -> None:
    """A token that is valid for longer than a clock can tell is valid, not a mistake of the server."""
    with server.http(headers=bearer(token(exp=10**400))) as http:
        assert http.get("/session").json()["expires"].startswith("5138-")


def test_a_token_cannot_take_the_name_of_a_key(serve: Serve, secret_file: Path, tmp_path: Path) -> None:
    """What is owned by, or limited for, ``key:shop`` is not reached by any subject."""
    keys = write_keys(tmp_path / "keys.toml", '[keys.shop]\nkey = "shop-key-0123456789"\n')
    server = serve(keys_file=keys, jwt_secret_file=secret_file, **SETTINGS)
    with server.http() as http:
        names = {
            http.get("/session", headers=headers).json()["caller"]
            for headers in (
                {"X-API-Key": "shop-key-0123456789"},
                bearer(token(sub="shop")),
                bearer(token(sub="key:shop")),
            )
        }
    assert names == {"key:shop", f"jwt:{ISSUER}/shop", f"jwt:{ISSUER}/key:shop"}


# When it ends


def test_expiry_ends_what_a_token_opened(server: RunningServer) -> None:
    """``exp`` is the end of an event stream that began before it."""
    soon = token(exp=int(time.time()) + 3)
    with server.http(headers=bearer(soon)) as http, http.stream("GET", "/topics/orders.eu/events") as stream:
        assert stream.status_code == 200
        assert "this token has expired" in "".join(stream.iter_text())


def test_a_session_made_by_a_token_ends_with_it(server: RunningServer) -> None:
    """It has the token's rights, and not a moment longer."""
    exp = int(time.time()) + 3
    with server.http() as http:
        made = http.post("/session", headers=bearer(token(exp=exp))).json()
        assert made["caller"] == f"jwt:{ISSUER}/bob"
        assert made["expires"].startswith(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(exp)))
        assert http.get("/topics/orders.eu/messages").status_code == 200
        assert error_of(http.get("/topics/news/messages")) == (403, "FORBIDDEN")
        cookies = dict(http.cookies)

        def status() -> int:
            with server.http(cookies=cookies) as again:
                return again.get("/topics").status_code

        until(lambda: status() == 401)


def test_another_secret_ends_the_tokens_of_the_first(serve: Serve, tmp_path: Path) -> None:
    """The file is read again when it changes; sessions by the old secret end too, those by keys do not."""
    path = write_keys(tmp_path / "secret", SECRET)
    server = serve(jwt_secret_file=path, **SETTINGS)
    other = "another-secret-of-thirty-two-bytes!!"
    with server.http() as http, server.http() as mine:
        http.post("/session", headers=bearer(token())).raise_for_status()
        mine.post("/session", headers=server.headers).raise_for_status()
        write_keys(path, other)
        until(lambda: httpx.get(f"{server.url}/topics", headers=bearer(token(other))).status_code == 200)
        assert error_of(http.get("/topics", headers=bearer(token()))) == (401, "UNAUTHORIZED")
        until(lambda: http.get("/topics").status_code == 401)
        assert mine.get("/topics").status_code == 200


# Public keys


class Issuer:
    """Publishes a JWKS over HTTP on loopback."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.status = 200
        self.asked = 0
        self.answering = threading.Event()
        self.answering.set()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.answering.wait(10)
                body = json.dumps({"keys": issuer.keys}).encode()
                self.send_response(issuer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.answering.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    yield found
    found.close()


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256"), (ED, "EdDSA")], ids=["RS256", "ES256", "EdDSA"]
)
def test_tokens_signed_by_a_private_key(serve: Serve, tmp_path: Path, key: Any, algorithm: str) -> None:
    """Checked by the public key with the id that the token names, or by the only one that fits."""
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(RSA, "r"), jwk(EC, "e"), jwk(ED, "d"), {"kty": "new"}]}))
    server = serve(jwt_jwks=str(path), refused_key_delay_s=0, **SETTINGS)
    kid = {"RS256": "r", "ES256": "e", "EdDSA": "d"}[algorithm]
    with server.http() as http:
        for valid in (token(key, algorithm, kid), token(key, algorithm)):
            assert http.get("/topics", headers=bearer(valid)).status_code == 200
        other = next(one for one in ("r", "e", "d") if one != kid)
        for wrong in (token(key, algorithm, other), token(key, algorithm, "x"), token(SECRET, "HS256", kid)):
            assert error_of(http.get("/topics", headers=bearer(wrong))) == (401, "UNAUTHORIZED")


def test_a_file_of_keys_that_cannot_be_trusted_is_refused(tmp_path: Path) -> None:
    """At start, with a sentence: others may change it, or it has no keys."""
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(RSA, "r")]}))
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match=f"other users may change .*; run: chmod go-w {path}"):
        Jwks(str(path))
    path.chmod(0o644)
    Jwks(str(path))
    for broken in ("", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'):
        path.write_text(broken)
        with pytest.raises(ConfigurationError, match="neither an https URL nor a file with keys"):
            Jwks(str(path))


def test_a_file_of_keys_is_read_again_when_it_changes(serve: Serve, tmp_path: Path) -> None:
    """A key that was replaced ends what it signed, within seconds; a broken file changes nothing."""
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(RSA, "r")]}))
    server = serve(jwt_jwks=str(path), refused_key_delay_s=0, **SETTINGS)
    old, new = (bearer(token(key, "RS256", "r")) for key in (RSA, OTHER_RSA))
    with server.http() as http:
        assert [http.get("/topics", headers=shown).status_code for shown in (old, new)] == [200, 401]
        path.write_text('{"keys": [')
        time.sleep(2.5)  # two looks
        assert http.get("/topics", headers=old).status_code == 200
        path.write_text(json.dumps({"keys": [jwk(OTHER_RSA, "r")]}))
        until(lambda: http.get("/topics", headers=new).status_code == 200)
        assert http.get("/topics", headers=old).status_code == 401


@pytest.mark.parametrize(
    ("caller", "is_by_secret"),
    [("key:admin", False), (f"jwt:{ISSUER}/bob", True), (f"jwt:{ISSUER}/bob", False)],
)
def test_a_session_stands_for_a_caller_of_the_issuer_only(
    serve: Serve, tmp_path: Path, caller: str, is_by_secret: bool
) -> None:
    """What the file says is believed of callers that a token could name, by a key that could have signed one."""
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(RSA, "r")]}))
    first = serve(jwt_jwks=str(path), **SETTINGS)
    with first.http() as http:
        http.post("/session", headers=bearer(token(RSA, "RS256", "r"))).raise_for_status()
        cookies = dict(http.cookies)
    first.stop()
    file = tmp_path / "log.db.sessions"
    kept = json.loads(file.read_bytes())
    basis = kept["sessions"][0]["basis"]
    basis["caller"] = caller
    if is_by_secret:
        basis["signer"] = "jwt_secret_file"
    write_keys(file, json.dumps(kept))
    second = serve(jwt_jwks=str(path), port=first.port, refused_key_delay_s=0, **SETTINGS)
    is_plausible = caller.startswith("jwt:") and not is_by_secret
    with second.http(cookies=cookies) as http:
        assert http.get("/topics").status_code == (200 if is_plausible else 401)


def test_keys_on_this_machine_are_fetched_without_a_proxy(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would answer without TLS in the issuer's place, with keys of its own."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    issuer.keys = [jwk(RSA, "one")]
    with serve(jwt_jwks=issuer.url, **SETTINGS).http(trust_env=False) as http:
        assert http.get("/topics", headers=bearer(token(RSA, "RS256", "one"))).status_code == 200


def test_a_public_key_is_not_a_secret(serve: Serve, tmp_path: Path) -> None:
    """What everybody can read does not sign: neither as the secret of HS256, nor as a symmetric key in the set."""
    public = json.dumps({"keys": [jwk(RSA, "r"), {"kty": "oct", "k": "c2VjcmV0" * 8, "kid": "s"}]})
    path = tmp_path / "jwks.json"
    path.write_text(public)
    server = serve(jwt_jwks=str(path), refused_key_delay_s=0, **SETTINGS)
    with server.http() as http:
        for secret in (json.dumps(jwk(RSA, "r")), "secret" * 8, public):
            for kid in ("r", "s", None):
                answer = http.get("/topics", headers=bearer(signed_with(secret, kid)))
                assert "'HS256' are not accepted" in answer.text


def test_a_key_that_the_issuer_adds_is_found(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set is fetched again when a token names another key, and not for every token that does."""
    issuer.keys = [jwk(RSA, "one")]
    server = serve(jwt_jwks=issuer.url, refused_key_delay_s=0, **SETTINGS)
    with server.http() as http:
        assert http.get("/topics", headers=bearer(token(RSA, "RS256", "one"))).status_code == 200
        assert issuer.asked == 1
        issuer.keys = [jwk(RSA, "one"), jwk(EC, "two")]
        for _ in range(5):
            assert http.get("/topics", headers=bearer(token(EC, "ES256", "two"))).status_code == 401
        assert issuer.asked == 1, "at most once in half a minute"
        monkeypatch.setattr(jwks, "ATTEMPT_INTERVAL_S", 0.0)
        assert http.get("/topics", headers=bearer(token(EC, "ES256", "two"))).status_code == 200
        assert issuer.asked == 2


def test_a_key_that_the_issuer_withdraws_ends_its_tokens(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one of them has open ends when the set is next fetched."""
    issuer.keys = [jwk(RSA, "one"), jwk(EC, "two")]
    server = serve(jwt_jwks=issuer.url, **SETTINGS)
    server.create("orders.eu")
    with (
        server.http(headers=bearer(token(RSA, "RS256", "one"))) as http,
        http.stream("GET", "/topics/orders.eu/events") as stream,
    ):
        assert stream.status_code == 200
        issuer.keys = [jwk(EC, "two")]
        monkeypatch.setattr(jwks, "CACHE_S", 0.0)
        monkeypatch.setattr(jwks, "ATTEMPT_INTERVAL_S", 0.0)
        assert "no longer valid" in "".join(stream.iter_text())


@pytest.mark.parametrize(
    "left", [[], [jwk(OTHER_RSA, "one")]], ids=["withdrawn", "replaced under the same id"]
)
def test_a_key_that_the_issuer_withdraws_ends_the_sessions_of_its_tokens(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, left: list[dict[str, Any]]
) -> None:
    """A session stands on the key that signed its token, also after a restart; those of other keys go on."""
    issuer.keys = [jwk(RSA, "one"), jwk(EC, "two")]
    first = serve(jwt_jwks=issuer.url, **SETTINGS)
    cookies = []
    for signed in (token(RSA, "RS256", "one"), token(EC, "ES256", "two")):
        with first.http(headers=bearer(signed)) as http:
            cookies.append(http.post("/session").headers["set-cookie"].partition(";")[0].partition("=")[2])
    first.stop()
    server = serve(jwt_jwks=issuer.url, **SETTINGS)

    def statuses() -> list[int]:
        name = f"himalia_session_{server.port}"
        with server.http() as http:
            return [
                http.get("/topics", headers={"Cookie": f"{name}={cookie}"}).status_code for cookie in cookies
            ]

    until(lambda: issuer.asked == 2)
    assert statuses() == [200, 200]
    issuer.keys = [*left, jwk(EC, "two")]
    monkeypatch.setattr(jwks, "CACHE_S", 0.0)
    monkeypatch.setattr(jwks, "ATTEMPT_INTERVAL_S", 0.0)
    until(lambda: statuses() == [401, 200])


@pytest.mark.parametrize("kind", ["head", "body", "redirect", "large", "closes"])
async def test_an_issuer_that_misbehaves_is_given_up(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sends byte by byte, for ever or too much, or leads elsewhere: within the deadline there is an answer."""
    monkeypatch.setattr(jwks, "FETCH_TIMEOUT_S", 0.5)
    answers = {
        "head": b"HTTP/1.1 200 OK\r\nX-Slow: ",
        "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        "redirect": b"HTTP/1.1 302 Found\r\nLocation: /keys\r\nContent-Length: 0\r\n\r\n",
        "large": b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (jwks.BYTES_MAX + 1),
        "closes": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",
    }
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers[kind])
        try:
            while kind in ("head", "body"):
                await writer.drain()
                await asyncio.sleep(0.1)
                writer.write(b"x")
        except ConnectionError:
            pass
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        found = Jwks(f"http://127.0.0.1:{port}/jwks")
        await asyncio.wait_for(found._begin(), DEADLINE_S / 2)
        with pytest.raises(jwks.IssuerUnavailable):
            await found.key("one", "RS256")
        assert asked == 1
        await found.close()


def test_an_issuer_that_does_not_answer_stops_nobody_else(serve: Serve, issuer: Issuer) -> None:
    """Tokens wait and are then 503; meanwhile keys are answered, as the event loop does not wait."""
    issuer.answering.clear()
    server = serve(jwt_jwks=issuer.url, **SETTINGS)
    found: list[httpx.Response] = []

    def ask() -> None:
        with server.http() as http:
            found.append(http.get("/topics", headers=bearer(token(RSA, "RS256", "one"))))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: issuer.asked)
    with server.http(headers=server.headers) as http:
        began = time.monotonic()
        assert http.get("/topics").status_code == 200
        assert time.monotonic() - began < 3
    issuer.status = 500
    issuer.answering.set()
    asking.join(20)
    assert error_of(found[0]) == (503, "UNAVAILABLE")


async def test_old_keys_count_for_a_day_while_the_issuer_is_away(issuer: Issuer) -> None:
    """A short outage locks no caller out; a long one does, since keys may have been withdrawn meanwhile."""
    now = 0.0
    issuer.keys = [jwk(RSA, "one")]
    found = Jwks(issuer.url, clock=lambda: now)
    assert await found.key("one", "RS256") is not None
    issuer.status = 500
    now = jwks.CACHE_S + 1
    assert await found.key("one", "RS256") is not None
    now = jwks.STALE_MAX_S + 1
    with pytest.raises(jwks.IssuerUnavailable):
        await found.key("one", "RS256")
    await found.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jwt_jwks": "http://issuer.example/jwks"}, "https"),
        ({"jwt_jwks": "/none"}, "neither an https URL nor a file with keys: No such file"),
        ({}, "jwt_secret_file or jwt_jwks"),
        ({"jwt_jwks": "https://issuer.example/jwks", "jwt_issuer": None}, "jwt_issuer and jwt_audience"),
        ({"jwt_jwks": "https://issuer.example/jwks", "jwt_audience": ""}, "jwt_issuer and jwt_audience"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], said: str) -> None:
    """At start, with a sentence."""
    with pytest.raises(ConfigurationError, match=said):
        ServerContext(Settings(log="memory://", **{**SETTINGS, **given}))


@pytest.mark.parametrize(("content", "mode"), [("x" * 31, 0o600), (SECRET, 0o644)])
def test_a_secret_that_others_could_know_is_refused(tmp_path: Path, content: str, mode: int) -> None:
    """One that is too short for HS256, or that others may read."""
    path = write_keys(tmp_path / "secret", content)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=r"at least 32|chmod 600"):
        ServerContext(Settings(log="memory://", jwt_secret_file=path, **SETTINGS))
