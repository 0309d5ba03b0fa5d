"""Who is signed in: how a key becomes a session, stays out of the page, and what happens when the session ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

from himalia.settings import Settings
from tests.page.browser import goto, row_with
from tests.servers import RunningServer

pytestmark = pytest.mark.slow


@pytest.fixture
def locked(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(kernels=False)


@pytest.fixture
def restarts(tmp_path: Path) -> Iterator[Callable[[], RunningServer]]:
    """A server that is stopped and started again, each time on the same port and log."""
    running: list[RunningServer] = []

    def start() -> RunningServer:
        port = 0
        if running:
            port = running[-1].port
            running[-1].stop()
        log = f"sqlite://{tmp_path}/log.db"
        running.append(RunningServer(Settings(port=port, log=log, kernels=False, log_level="warning")))
        return running[-1]

    yield start
    running[-1].stop()


def sign_in(page: Page, key: str | None) -> None:
    page.get_by_label("Token or key").fill(key or "")
    page.get_by_role("button", name="Sign in", exact=True).click()


def publish(server: RunningServer, topic: str, *payloads: Any) -> None:
    with server.http(headers=server.headers) as http:
        body = [{"payload": one} for one in payloads]
        http.post(f"/topics/{topic}/messages", json=body).raise_for_status()


def revoke_all(server: RunningServer) -> None:
    with server.http(headers=server.headers) as http:
        assert http.delete("/sessions").raise_for_status().json()["count"] == 1


def kept_by_scripts(page: Page) -> str:
    """All that a script of the page could read of what the browser keeps."""
    return str(
        page.evaluate(
            "() => document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + location.href"
        )
    )


def test_the_printed_address_signs_in(page: Page, locked: RunningServer) -> None:
    """Opened with its token the page is there, and the token is nowhere that a script could read it."""
    goto(page, locked, f"?token={locked.token}#/system")
    expect(page.get_by_text("Healthy")).to_be_visible()
    assert page.url == f"{locked.url}/#/system"
    assert str(locked.token) not in kept_by_scripts(page)


def test_a_token_behind_the_hash_is_taken_out_of_the_address(page: Page, locked: RunningServer) -> None:
    goto(page, locked, f"#token={locked.token}")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    assert str(locked.token) not in kept_by_scripts(page)


def test_without_a_session_there_is_a_form(page: Page, locked: RunningServer) -> None:
    """A wrong key is told; the right one leads to where one wanted to go, and is in no address and no cookie."""
    seen: list[Request] = []
    page.on("request", lambda request: seen.append(request))
    goto(page, locked, "#/system")
    sign_in(page, "wrong-but-long-enough-to-be-one")
    expect(page.get_by_role("alert")).to_have_text("invalid key")
    sign_in(page, "not a key")
    expect(page.get_by_role("alert")).to_have_text(re.compile("without spaces"))
    sign_in(page, locked.token)
    expect(page.get_by_text("Healthy")).to_be_visible()
    assert str(locked.token) not in kept_by_scripts(page)
    assert not [one.url for one in seen if str(locked.token) in one.url]
    assert str(locked.token) not in str(page.context.cookies())


def test_it_says_who_is_signed_in_and_signs_out(page: Page, locked: RunningServer) -> None:
    """Signing out ends the session at the server, and nothing of what was open is left in the page."""
    locked.create("orders")
    publish(locked, "orders", "a secret")
    goto(page, locked, f"?token={locked.token}#/topics/orders")
    expect(row_with(page, "a secret")).to_be_visible()
    with locked.http(headers=locked.headers) as http:
        [session] = http.get("/sessions").json()["sessions"]
    expect(page.locator(".caller")).to_have_text(session["caller"])
    [cookie] = page.context.cookies()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_text("a secret")).to_have_count(0)
    expect(page.locator(".caller")).not_to_be_visible()
    with locked.http(cookies={cookie["name"]: cookie["value"]}) as http:
        assert http.get("/session").status_code == 401
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_nobody_is_signed_in_where_nobody_is_asked(page: Page, server: RunningServer) -> None:
    goto(page, server)
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    expect(page.locator(".account")).not_to_be_visible()


def test_a_restarted_server_knows_the_session(page: Page, restarts: Callable[[], RunningServer]) -> None:
    """The page reconnects by itself, and what is published then comes behind what was there."""
    server = restarts()
    server.create("orders")
    publish(server, "orders", "before")
    goto(page, server, f"?token={server.token}#/topics/orders")
    expect(row_with(page, "before")).to_be_visible()
    publish(restarts(), "orders", "after")
    expect(row_with(page, "after")).to_be_visible()
    expect(row_with(page, "before")).to_be_visible()
    expect(page.locator(".sign-in-again")).to_have_count(0)


def test_a_session_that_has_ended_is_told_and_one_comes_back_to_the_same_place(
    page: Page, locked: RunningServer
) -> None:
    """Plainly, and at once; after signing in the same rows are at the same height, and new ones come."""
    locked.create("orders")
    publish(locked, "orders", *range(200))
    goto(page, locked, f"?token={locked.token}#/topics/orders")
    expect(row_with(page, re.compile("^199"))).to_be_visible()
    page.locator(".vlist").hover()
    page.mouse.wheel(0, -2000)
    expect(page.get_by_text("Paused")).to_be_visible()
    row_with(page, re.compile("^120")).click()
    place = "() => document.querySelector('.vlist').scrollTop"
    before = page.evaluate(place)
    revoke_all(locked)
    dialog = page.get_by_role("dialog", name="Sign in again")
    expect(dialog).to_contain_text("You are signed out")
    expect(page.get_by_text("reconnects by itself")).not_to_be_visible()
    expect(row_with(page, re.compile("^120"))).not_to_be_visible()
    sign_in(page, locked.token)
    expect(dialog).to_have_count(0)
    expect(row_with(page, re.compile("^120"))).to_be_visible()
    expect(page.get_by_label("Selected record")).to_contain_text("Offset 120")
    assert page.evaluate(place) == before
    assert page.url == f"{locked.url}/#/topics/orders"
    publish(locked, "orders", "after")
    page.get_by_role("button", name="Go live").click()
    expect(row_with(page, "after")).to_be_visible()


def test_a_page_that_is_signed_out_does_not_go_on_asking(page: Page, locked: RunningServer) -> None:
    """Refused requests count as wrong keys of this address: none is made until somebody signs in."""
    page.clock.install()
    goto(page, locked, f"?token={locked.token}#/system")
    expect(page.get_by_text("Healthy")).to_be_visible()
    revoke_all(locked)
    expect(page.get_by_role("dialog")).to_be_visible()
    seen: list[Request] = []
    page.on("request", lambda request: seen.append(request))
    page.clock.run_for(60_000)
    assert [one.url for one in seen] == []
    sign_in(page, locked.token)
    with page.expect_response("**/stats"):
        pass


def test_another_tab_that_signs_in_unlocks_this_one(page: Page, locked: RunningServer) -> None:
    """The cookie is the same."""
    goto(page, locked, f"?token={locked.token}#/system")
    expect(page.get_by_text("Healthy")).to_be_visible()
    revoke_all(locked)
    expect(page.get_by_role("dialog")).to_be_visible()
    other = page.context.new_page()
    goto(other, locked, f"?token={locked.token}")
    expect(other.get_by_role("heading", name="Topics")).to_be_visible()
    page.evaluate("() => dispatchEvent(new Event('focus'))")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("Healthy")).to_be_visible()
