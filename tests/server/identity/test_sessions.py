"""Browser sessions: signing in and out, the cookie, and what another site or another port cannot do."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Scope

from himalia.errors import RateLimited
from himalia.server.identity import sessions as sessions_module
from himalia.server.identity import sign_in_limit
from himalia.server.identity.cookie import session_secrets
from tests.cli.command import assert_sentence, himalia
from tests.server.identity.credentials import TOKEN, Serve, error_of, write_keys
from tests.server.raw_clients import Wire, handshake, until
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer
from tests.small_file_system import fill_up, small_file_system

KEYS = """
[keys.admin]
key = "admin-key-0123456789"
publish = [">"]
subscribe = [">"]
manage = [">"]

[keys.viewer]
key = "viewer-key-0123456789"
subscribe = [">"]
"""
ADMIN, VIEWER = ({"X-API-Key": f"{name}-key-0123456789"} for name in ("admin", "viewer"))


def cookie_name(server: RunningServer) -> str:
    return f"himalia_session_{server.port}"


@pytest.fixture
def browser(locked: RunningServer) -> Iterator[httpx.Client]:
    """Keeps cookies, as a browser does."""
    with locked.http() as http:
        yield http


def sign_in(http: httpx.Client, key: str = TOKEN) -> httpx.Response:
    answer = http.post("/session", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    return answer


# Signing in


def test_signing_in_makes_a_session(browser: httpx.Client, locked: RunningServer) -> None:
    """The cookie is random, named by the port, for no script and no other site; the key is nowhere in it (A4)."""
    answer = sign_in(browser)
    assert answer.json()["caller"] == "token" and answer.json()["expires"] > "2026"
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    attributes = {part.strip() for part in answer.headers["set-cookie"].split(";")[1:]}
    assert name == cookie_name(locked)
    assert len(value) >= 43 and TOKEN not in value
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= attributes
    assert any(part.startswith("Max-Age=") for part in attributes) and "Secure" not in attributes
    assert answer.headers["cache-control"] == "no-store"
    assert browser.get("/topics").status_code == 200
    assert browser.get("/session").json() == answer.json()
    with Wire(locked.port) as wire:
        wire.send(handshake(locked.port, Cookie=f"{name}={value}"))
        assert wire.response()[0] == 101


def test_opening_the_page_with_a_token_makes_a_session_and_redirects(
    browser: httpx.Client, locked: RunningServer
) -> None:
    """The token leaves the address at once, and is not in the cookie either."""
    answer = browser.get("/", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert answer.headers["set-cookie"].startswith(f"{cookie_name(locked)}=")
    assert TOKEN not in answer.headers["set-cookie"]
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    page = browser.get("/")
    assert page.status_code == 200 and TOKEN not in page.text
    assert browser.get("/topics").status_code == 200


@pytest.mark.parametrize("way", [{"params": {"token": TOKEN}}, {}])
def test_signing_in_takes_a_key_in_a_header(browser: httpx.Client, way: dict[str, Any]) -> None:
    """Another site can make a browser ask for an address, but not set a header; a session makes no other session."""
    sign_in(browser)
    answer = browser.post("/session", **way)
    assert error_of(answer) == (422, "BAD_REQUEST")
    assert "set-cookie" not in answer.headers


def test_a_wrong_token_sets_nothing(locked: RunningServer) -> None:
    """A guess is an error, not a cookie."""
    with locked.http() as http:
        for answer in (
            http.get("/", params={"token": "wrong"}),
            http.post("/session", headers={"X-API-Key": "wrong"}),
        ):
            assert error_of(answer) == (401, "UNAUTHORIZED")
            assert "set-cookie" not in answer.headers


def test_the_key_that_was_checked_is_the_one_that_signs_in(serve: Serve, tmp_path: Path) -> None:
    """A valid key in a header does not let a wrong one in the address in, nor choose whose session it is (C2)."""
    server = serve(keys_file=write_keys(tmp_path / "keys.toml", KEYS))
    with server.http() as http:
        answer = http.get("/", params={"token": "wrong"}, headers=ADMIN)
        assert error_of(answer) == (401, "UNAUTHORIZED") and "set-cookie" not in answer.headers
        assert http.get("/", params={"token": VIEWER["X-API-Key"]}, headers=ADMIN).status_code == 303
        assert http.get("/session").json()["caller"] == "key:viewer"


@pytest.mark.parametrize(
    "token", ['a token; with=all "sorts" of, signs\\', "x" * 200, "100%25 of sixteen", "ключ" * 4]
)
def test_a_token_of_any_signs_signs_in(serve: Serve, token: str) -> None:
    """Whatever an operator chose as the token works in the address that is printed."""
    with serve(token=token).http() as http:
        http.get("/", params={"token": token})
        assert http.get("/topics").status_code == 200


def test_without_authentication_there_is_nothing_to_sign_in_to(shared: RunningServer) -> None:
    """A page that asks who it is gets an answer, and no cookie."""
    with shared.http() as http:
        assert http.get("/session").json() == {"caller": "anonymous", "expires": None}
        answer = http.post("/session")
        assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)


# Other sites


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "none"}, 303),
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({}, 303),
        ({"Referer": "https://evil.example/page"}, 403),
        ({"Referer": "http://127.0.0.1:1/"}, 403),
        ({"Referer": "{url}/"}, 303),
    ],
    ids=repr,
)
def test_a_link_of_another_site_signs_nobody_in(
    locked: RunningServer, headers: dict[str, str], status: int
) -> None:
    """It could sign a victim in as the attacker, who would then see what the victim does (C2)."""
    given = {name: value.format(url=locked.url) for name, value in headers.items()}
    with locked.http() as http:
        answer = http.get("/", params={"token": TOKEN}, headers=given)
        assert answer.status_code == status
        assert ("set-cookie" in answer.headers) == (status == 303)
        if status == 403:
            assert "paste it into the browser" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("site", "status"), [("same-origin", 200), ("none", 200), ("same-site", 401), ("cross-site", 401)]
)
def test_the_cookie_counts_only_for_our_own_page(browser: httpx.Client, site: str, status: int) -> None:
    """A page of another port of this host is same-site: the browser sends our cookie along, and it is ignored (A4)."""
    sign_in(browser)
    assert browser.get("/topics", headers={"Sec-Fetch-Site": site}).status_code == status


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_cookie_does_not_pass_a_foreign_origin(browser: httpx.Client, method: str) -> None:
    """What changes something is refused to the page of another origin, with a valid cookie too."""
    sign_in(browser)
    path = "/topics" if method == "POST" else "/topics/orders"
    answer = browser.request(method, path, headers={"Origin": "http://127.0.0.1:1"})
    assert error_of(answer) == (403, "FORBIDDEN")


def test_two_servers_on_one_host_do_not_take_each_others_cookies(serve: Serve, tmp_path: Path) -> None:
    """The cookie of one is neither the key of the other nor in the way of its own (A4)."""
    one, two = serve(), serve(log=f"sqlite://{tmp_path}/two.db")
    with one.http() as http:
        sign_in(http, one.token or "")
        sign_in_to_two = http.post(f"{two.url}/session", headers=two.headers)
        assert sign_in_to_two.status_code == 200
        assert set(http.cookies) == {cookie_name(one), cookie_name(two)}
        assert http.get("/topics").status_code == 200
        assert http.get(f"{two.url}/topics").status_code == 200
    with two.http(cookies={cookie_name(two): http.cookies[cookie_name(one)]}) as http:
        assert error_of(http.get("/topics")) == (401, "UNAUTHORIZED")


# Cookies


@pytest.mark.parametrize(
    "cookie",
    [
        "=",
        "himalia_session_{port}",
        ";;;",
        "himalia_session_{port}=\x80",
        'himalia_session_{port}="',
        "a" * 5000,
    ],
)
def test_a_cookie_that_cannot_be_read_is_no_key(locked: RunningServer, cookie: str) -> None:
    """Foreign cookies, however odd, are no reason to fail."""
    with Wire(locked.port) as wire:
        shown = cookie.format(port=locked.port)
        wire.send(f"GET /topics HTTP/1.1\r\nHost: localhost\r\nCookie: {shown}\r\n\r\n".encode("latin-1"))
        assert wire.response()[0] == 401


def test_a_hostile_cookie_header_costs_no_time(locked: RunningServer) -> None:
    """64 KiB that make the standard library's parser take the square of their length are read in one go."""
    scope: Scope = {"scheme": "http", "server": ("127.0.0.1", 8000)}
    for hostile in (
        'a="' + "\\" * 60_000,
        ";" * 60_000,
        "himalia_session_8000=x;" * 3_000,
        "a" * 60_000 + "=",
    ):
        began = time.perf_counter()
        assert len(session_secrets(scope, hostile)) <= 4
        assert time.perf_counter() - began < 0.05
    with Wire(locked.port) as wire:
        cookie = 'a="' + "\\" * 60_000
        wire.send(f"GET /topics HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
        assert wire.response()[0] == 401


def test_a_cookie_planted_by_another_program_is_not_in_the_way(
    browser: httpx.Client, locked: RunningServer
) -> None:
    """Every port of a host can set cookies for it: ours is found behind a foreign one of the same name."""
    answer = sign_in(browser)
    ours = answer.headers["set-cookie"].partition(";")[0]
    with Wire(locked.port) as wire:
        cookies = f"{cookie_name(locked)}=planted; other=1; {ours}"
        wire.send(f"GET /topics HTTP/1.1\r\nHost: localhost\r\nCookie: {cookies}\r\n\r\n".encode())
        assert wire.response()[0] == 200


def cookies_of(server: RunningServer) -> tuple[str, str]:
    """Sessions of the viewer and of the administrator, as the header ``Cookie`` has them."""
    found = []
    for key in (VIEWER, ADMIN):
        with server.http(headers=key) as http:
            found.append(http.post("/session").headers["set-cookie"].partition(";")[0])
    return found[0], found[1]


@pytest.mark.parametrize("way", ["REST", "WebSocket"])
def test_a_second_cookie_header_says_nothing_of_the_caller(keyed: RunningServer, way: str) -> None:
    """A browser sends one. What follows it, perhaps added by a proxy or a smuggler, neither signs in nor is chosen."""
    viewer, admin = cookies_of(keyed)

    def status(*cookies: str) -> int:
        # The administrator alone may list all sessions, so the answer tells who was taken for the caller.
        lines = "".join(f"Cookie: {cookie}\r\n" for cookie in cookies)
        request = f"DELETE /sessions?caller=key:none HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()
        if way == "WebSocket":
            request = handshake(keyed.port).replace(b"\r\n\r\n", f"\r\n{lines}\r\n".encode())
        with Wire(keyed.port) as wire:
            wire.send(request)
            return wire.response()[0]

    foreign = "theme=dark"
    if way == "REST":
        assert (status(admin), status(viewer)) == (200, 403)
        assert status(viewer, admin) == 403
    else:
        assert status(admin) == 101
    assert status(foreign, admin) == 401


def test_a_cookie_behind_the_body_says_nothing_of_the_caller(keyed: RunningServer) -> None:
    """A trailer neither signs in nor makes a viewer the administrator."""
    viewer, admin = cookies_of(keyed)
    for cookie, expected in (("theme=dark", 401), (viewer, 403)):
        with Wire(keyed.port) as wire:
            head = f"POST /topics HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nTransfer-Encoding: chunked\r\n"
            body = '12\r\n{"name":"smuggle"}\r\n0\r\n'
            wire.send(f"{head}Content-Type: application/json\r\n\r\n{body}Cookie: {admin}\r\n\r\n".encode())
            assert wire.response()[0] == expected


def test_over_tls_only_the_host_cookie_counts() -> None:
    """A cookie without ``__Host-`` may have been set by whoever answers the same name without TLS."""
    both = "himalia_session_8000=plain; __Host-himalia_session_8000=secure"
    assert session_secrets({"scheme": "https", "server": ("h", 8000)}, both) == ("secure",)
    assert session_secrets({"scheme": "wss", "server": ("h", 8000)}, both) == ("secure",)
    assert session_secrets({"scheme": "http", "server": ("h", 8000)}, both) == ("plain", "secure")


# Keeping


def test_sessions_survive_a_restart_as_hashes(serve: Serve, tmp_path: Path) -> None:
    """Nobody is signed out by a restart (W3), and the file, for its owner only, holds nothing that signs in."""
    first = serve()
    port = first.port
    with first.http() as http:
        sign_in(http, first.token or "")
        cookies = dict(http.cookies)
    first.stop()
    path = tmp_path / "log.db.sessions"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    kept = path.read_text()
    assert cookies[cookie_name(first)] not in kept and (first.token or "") not in kept
    second = serve(port=port)
    with second.http(cookies=cookies) as http:
        assert http.get("/topics").status_code == 200
        assert http.get("/session").json()["caller"] == "token"


@pytest.mark.parametrize(("mode", "owner"), [(0o644, None), (0o622, None), (0o600, 65534)])
def test_a_file_that_others_could_have_written_signs_nobody_in(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, owner: int | None
) -> None:
    """Where others may make files, anybody could claim any caller with any rights in it."""
    if owner is not None and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    first = serve()
    with first.http() as http:
        sign_in(http, first.token or "")
        cookies = dict(http.cookies)
    first.stop()
    path = tmp_path / "log.db.sessions"
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    second = serve(port=first.port)
    with second.http(cookies=cookies) as http:
        assert error_of(http.get("/topics")) == (401, "UNAUTHORIZED")
    assert f"the sessions in {path} are ignored" in caplog.text


@pytest.mark.parametrize("how", ["signed out", "revoked"])
def test_a_session_that_was_ended_stays_ended_after_a_restart(serve: Serve, how: str) -> None:
    """The file says so before the caller is answered, so that a crash does not bring it back."""
    first = serve()
    port = first.port
    with first.http() as http:
        sign_in(http, first.token or "")
        cookies = dict(http.cookies)
        if how == "signed out":
            http.delete("/session").raise_for_status()
        else:
            http.delete("/sessions").raise_for_status()
    assert cookies and '"sessions":[]' in first.context.identity.sessions.store.path.read_text()  # type: ignore[union-attr]
    first.stop()
    with serve(port=port).http(cookies=cookies) as http:
        assert http.get("/topics").status_code == 401


def test_a_sign_out_that_cannot_be_stored_says_so(tmp_path: Path) -> None:
    """On a full disk the session ends at once and the answer is 503, because a crash would bring it back."""
    with (
        small_file_system(tmp_path / "disk") as disk,
        ServerProcess(tmp_path, "--no-kernels", log=f"sqlite://{disk}/log.db") as server,
        httpx.Client(base_url=server.url) as http,
    ):
        sign_in(http, server.token or "")
        ballast = fill_up(disk)
        answer = http.delete("/session")
        assert error_of(answer) == (503, "UNAVAILABLE") and "a crash would bring" in answer.text
        assert error_of(http.get("/topics")) == (401, "UNAUTHORIZED")
        ballast.unlink()
        until(lambda: '"sessions":[]' in (disk / "log.db.sessions").read_text())


def test_a_damaged_file_signs_everybody_out_and_stops_nothing(serve: Serve, tmp_path: Path) -> None:
    """What cannot be read is not believed."""
    write_keys(tmp_path / "log.db.sessions", '{"sessions": [{')
    server = serve()
    with server.http() as http:
        sign_in(http, server.token or "")
        assert http.get("/topics").status_code == 200


def test_a_session_expires(serve: Serve) -> None:
    """After session_s the cookie is worth nothing, and what it has open ends."""
    server = serve(session_s=5)
    server.create("orders")
    with server.http() as http:
        sign_in(http, server.token or "")
        assert http.get("/topics").status_code == 200
        with http.stream("GET", "/topics/orders/events") as stream:
            text = "".join(stream.iter_text())
        assert "UNAUTHORIZED" in text and "expired" in text
        # A browser forgets the cookie by then; who keeps it gains nothing.
        answer = http.get("/topics", headers={"Cookie": f"{cookie_name(server)}={'x' * 43}"})
        assert error_of(answer) == (401, "UNAUTHORIZED")


def test_sessions_are_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many of one caller, or of all, the oldest ends."""
    monkeypatch.setattr(sessions_module, "SESSIONS_OF_CALLER_MAX", 3)
    server = serve()
    cookies = []
    for _ in range(5):
        with server.http() as http:
            sign_in(http, server.token or "")
            cookies.append(dict(http.cookies))
    statuses = []
    for jar in cookies:
        with server.http(cookies=jar) as http:
            statuses.append(http.get("/topics").status_code)
    assert statuses == [401, 401, 200, 200, 200]
    assert [one["of"] for one in revoked_sessions(server)] == ["token", "token"]


def revoked_sessions(server: RunningServer) -> list[dict[str, Any]]:
    """What the audit trail has of sessions that the server itself ended."""
    return [one for one in server.audit_trail("session_revoked") if one["caller"] == "server"]


def test_a_caller_that_signs_in_too_often_has_to_wait(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each time is two records of the audit trail, which any key could fill otherwise; signing out does not help."""
    monkeypatch.setattr(sign_in_limit, "SIGN_INS_MAX", 3)
    server = serve(keys_file=write_keys(tmp_path / "keys.toml", KEYS))
    with server.http() as http:
        for _ in range(3):
            sign_in(http, VIEWER["X-API-Key"])
            http.delete("/session").raise_for_status()
        refused = http.post("/session", headers=VIEWER)
        assert error_of(refused) == (429, "RATE_LIMITED")
        assert 0 < int(refused.headers["retry-after"]) <= 60 and "set-cookie" not in refused.headers
        assert http.get("/", params={"token": VIEWER["X-API-Key"]}).status_code == 429
        sign_in(http, ADMIN["X-API-Key"])


def test_sign_ins_are_forgotten_after_a_minute() -> None:
    """Then the caller may sign in again, and nothing is kept of it."""
    now = 0.0
    counted = sign_in_limit.SignInLimit(clock=lambda: now)
    for _ in range(sign_in_limit.SIGN_INS_MAX):
        counted.count("key:a")
    with pytest.raises(RateLimited):
        counted.count("key:a")
    now = sign_in_limit.PERIOD_S - 1
    counted.sweep()
    assert len(counted) == 1
    now = sign_in_limit.PERIOD_S
    counted.count("key:a")
    now *= 2
    counted.sweep()
    assert len(counted) == 0


# Ending


def test_signing_out_ends_the_session(browser: httpx.Client, locked: RunningServer) -> None:
    """The cookie is forgotten by the browser, and worth nothing to whoever kept it."""
    sign_in(browser)
    kept = dict(browser.cookies)
    answer = browser.delete("/session")
    assert answer.json() == {"status": "signed out"}
    assert "Max-Age=0" in answer.headers["set-cookie"]
    with locked.http(cookies=kept) as http:
        assert error_of(http.get("/topics")) == (401, "UNAUTHORIZED")
        assert error_of(http.delete("/session")) == (401, "UNAUTHORIZED")


def test_a_key_has_no_session_to_sign_out_of(locked: RunningServer) -> None:
    with locked.http(headers=locked.headers) as http:
        assert error_of(http.delete("/session")) == (401, "UNAUTHORIZED")


@pytest.fixture
def keyed(serve: Serve, tmp_path: Path) -> RunningServer:
    return serve(keys_file=write_keys(tmp_path / "keys.toml", KEYS))


def test_a_caller_sees_and_ends_its_own_sessions(keyed: RunningServer) -> None:
    """Who manages everything sees and ends those of all."""
    with keyed.http() as viewer, keyed.http() as admin:
        sign_in(viewer, VIEWER["X-API-Key"])
        sign_in(admin, ADMIN["X-API-Key"])
        [mine] = viewer.get("/sessions").json()["sessions"]
        assert mine["caller"] == "key:viewer"
        everybody = admin.get("/sessions").json()["sessions"]
        assert {one["caller"] for one in everybody} == {"key:viewer", "key:admin"}
        [theirs] = [one for one in everybody if one["caller"] == "key:admin"]
        assert error_of(viewer.delete(f"/sessions/{theirs['id']}")) == (404, "SESSION_NOT_FOUND")
        assert error_of(viewer.delete("/sessions?caller=key:admin")) == (403, "FORBIDDEN")
        assert admin.delete(f"/sessions/{mine['id']}").json() == {"status": "revoked", "count": 1}
        assert error_of(viewer.get("/topics")) == (401, "UNAUTHORIZED")
        assert admin.get("/topics").status_code == 200
        assert admin.delete("/sessions").json()["count"] == 1
        assert error_of(admin.get("/topics")) == (401, "UNAUTHORIZED")
    assert keyed.audit_trail("session_revoked") == [
        {"event": "session_revoked", "caller": "key:admin", "session": one["id"], "of": one["caller"]}
        for one in (mine, theirs)
    ]


@pytest.mark.slow
def test_the_commands_list_and_revoke(keyed: RunningServer) -> None:
    """``himalia sessions`` shows who is signed in, and signs them out."""
    env = {"HIMALIA_TOKEN": ADMIN["X-API-Key"]}
    with keyed.http(headers={"User-Agent": b"Fire\x9b31mfox"}) as http:
        sign_in(http, VIEWER["X-API-Key"])
        listed = himalia("sessions", "list", env=env).stdout
        assert "key:viewer" in listed and "\x9b" not in listed
        [one] = json.loads(himalia("sessions", "list", "--json", env=env).stdout)
        assert himalia("sessions", "revoke", one["id"], env=env).stdout == "revoked 1 session\n"
        assert error_of(http.get("/topics")) == (401, "UNAUTHORIZED")
    assert_sentence(himalia("sessions", "revoke", one["id"], env=env), 1, "no session")
    assert_sentence(himalia("sessions", "revoke", env=env), 2, "--all")
    done = himalia("sessions", "revoke", "--all", "--json", env=env)
    assert json.loads(done.stdout) == {"status": "revoked", "count": 0}
